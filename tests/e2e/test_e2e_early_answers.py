"""Pods that answer and close before they have read a request: the answer reaches the client, whatever fails first."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, CutShortError, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import PATIENCE_S, configured, eventually

UPLOAD = bytes(5 * 2**20)
CLIENTS = 20
ANSWER = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo much"
ASKING = "Connection: Upgrade\r\nUpgrade: x-echo\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x-echo\r\n\r\n"


class RefusingPod:
    """Reads the beginning of each upload, answers 413, and closes."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_S)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(65_536):
            writer.write(ANSWER)
            await writer.drain()
        if self._context is None:
            writer.close()
        else:
            # With close_notify a client of TLS may still answer; servers that are in a hurry cut the connection.
            writer.transport.abort()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture(params=["http", "tls"])
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The keys of a revision of such pods."""
    context, keys = None, {}
    if request.param == "tls":
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("pod.test").configure_cert(context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        keys = {"tls": {"ca": str(tmp_path / "ca.pem"), "server_name": "pod.test"}, "protocol": "h1"}
    pod = RefusingPod(context)
    yield {"pods": [pod.address], **keys}
    pod.close()


def test_the_answer_of_a_pod_that_closes_during_an_upload(
    run_activator: RunActivator, refusing: dict[str, Any]
) -> None:
    """Without the read after the failed write, 9 to 16 of 20 clients got 502, and each was a strike against the pod."""
    one = {"name": "app", "hosts": ["*"], "health": {"strikes": 1}, **refusing}
    activator = run_activator(configured([one]))
    activator.wait_ready_pods("app")
    outcomes: list[int | str] = []
    for _ in range(CLIENTS):
        with Client(activator.address) as client:
            head = request("/", "POST", headers=f"Content-Length: {len(UPLOAD)}\r\n")
            try:
                client.send(head + UPLOAD)
            except ConnectionError:
                pass  # the answer says why
            try:
                outcomes.append(client.answer().status)
            except (ConnectionError, CutShortError) as error:
                outcomes.append(repr(error))
        activator.wait_ready_pods("app")
    assert outcomes == [413] * CLIENTS


def test_what_a_pod_sends_last_in_a_tunnel(run_activator: RunActivator) -> None:
    """The client writes on while the pod sends its last words and closes."""

    def script(side: PodSide) -> None:
        side.head()
        side.send(SWITCHED)
        side.read(1_000)
        side.send(b"x" * 10_000 + b"goodbye")

    with ScriptedPod(script) as pod:
        activator = run_activator(
            configured([{"name": "app", "hosts": ["*"], "pods": [pod.address], "upgrades": ["x-echo"]}])
        )
        activator.wait_ready_pods("app")
        for _ in range(CLIENTS):
            with Client(activator.address) as client:
                client.send(request(headers=ASKING))
                switch(client)
                data = b""
                for _ in range(200):
                    try:
                        client.send(b"y" * 20_000)
                    except ConnectionError:
                        break
                while piece := received(client):
                    data += piece
                assert data.endswith(b"goodbye"), len(data)


def switch(client: Client) -> None:
    """Read the 101, and nothing behind it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.socket.recv(1)
    assert head.startswith(b"HTTP/1.1 101 ")


def received(client: Client) -> bytes:
    try:
        return client.socket.recv(65_536)
    except ConnectionError:
        return b""


def test_an_end_of_file_before_the_101_reaches_the_pod(run_activator: RunActivator) -> None:
    """It was forgotten, and the tunnel stayed open until `tunnel_idle`."""
    came: list[bytes] = []
    ended = threading.Event()

    def script(side: PodSide) -> None:
        side.head()
        side.wait()
        side.send(SWITCHED)
        while data := side.socket.recv(65_536):
            came.append(data)
        ended.set()
        side.send(b"seen")

    with ScriptedPod(script) as pod:
        one = {"name": "app", "hosts": ["*"], "pods": [pod.address], "upgrades": ["x-echo"]}
        activator = run_activator(configured([{**one, "container_concurrency": 1}]))
        activator.wait_ready_pods("app")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING) + b"sent ahead")
            eventually(lambda: pod.requests)
            client.end_sending()
            eventually(lambda: activator.revision("app")["in_flight"] == 1)
            pod.go_on()
            switch(client)
            assert ended.wait(PATIENCE_S)
            assert b"".join(came) == b"sent ahead"
            assert client.socket.recv(100) == b"seen"
        eventually(lambda: activator.revision("app")["in_flight"] == 0)
