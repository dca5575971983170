"""Upgraded connections over real sockets: a WebSocket client and server that are not ours, and raw tunnels."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_asynchronously
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, serve

from tests.e2e.http_client import Client, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, configured, eventually

RunActivator = Callable[..., Activator]
ASKING = "Connection: Upgrade\r\nUpgrade: x-echo\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x-echo\r\n\r\n"
BIG = bytes(range(256)) * 4096  # 1 MiB: more than all buffers on the way


def echo(connection: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        for message in connection:
            connection.send(message)


@pytest.fixture
def echo_server() -> Iterator[str]:
    """A WebSocket server; its address."""
    server: Server = serve(echo, "127.0.0.1", 0, max_size=None, compression=None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host, port = server.socket.getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.shutdown()
        thread.join()


def revision(address: str, **more: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "pods": [address], **more}


def websocket(activator: Activator, **more: Any) -> ClientConnection:
    client: ClientConnection = connect(
        f"ws://{activator.address}/", max_size=None, compression=None, proxy=None, **more
    )
    return client


def in_flight(activator: Activator) -> int:
    found: int = activator.revision("a")["in_flight"]
    return found


def test_a_web_socket_carries_messages_both_ways(run_activator: RunActivator, echo_server: str) -> None:
    activator = run_activator(configured([revision(echo_server)]))
    activator.wait_ready_pods("a")
    with websocket(activator) as client:
        for message in ("hello", "", b"\x00\xff", BIG):
            client.send(message)
            assert client.recv() == message
        assert in_flight(activator) == 1
    eventually(lambda: in_flight(activator) == 0)


def test_many_at_once(run_activator: RunActivator, echo_server: str) -> None:
    activator = run_activator(configured([revision(echo_server)]))
    activator.wait_ready_pods("a")

    async def one(number: int) -> None:
        uri = f"ws://{activator.address}/"
        async with connect_asynchronously(uri, compression=None, proxy=None, open_timeout=60) as client:
            for turn in range(20):
                await client.send(f"{number}.{turn}")
                assert await client.recv() == f"{number}.{turn}"

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(100)))

    asyncio.run(all_of_them())
    eventually(lambda: in_flight(activator) == 0)


def test_a_tunnel_holds_its_slot_for_as_long_as_it_lives(run_activator: RunActivator, echo_server: str) -> None:
    activator = run_activator(configured([revision(echo_server, container_concurrency=1)]))
    activator.wait_ready_pods("a")
    with websocket(activator) as first:
        first.send("one")
        assert first.recv() == "one"
        opened: list[ClientConnection] = []
        waiting = threading.Thread(target=lambda: opened.append(websocket(activator, open_timeout=60)))
        waiting.start()
        eventually(lambda: activator.revision("a")["queued"] == 1)
        assert opened == []
    waiting.join()
    with opened[0] as second:
        second.send("two")
        assert second.recv() == "two"
    eventually(lambda: in_flight(activator) == 0)


def test_from_zero(run_activator: RunActivator, echo_server: str) -> None:
    """The pod comes after the client: a WebSocket waits like any request."""
    host = echo_server.rpartition(":")[0]
    with socket.socket() as free:
        free.bind((host, 0))
        empty = f"{host}:{free.getsockname()[1]}"
    activator = run_activator(configured([revision(empty)]))
    opened: list[ClientConnection] = []
    waiting = threading.Thread(target=lambda: opened.append(websocket(activator, open_timeout=60)))
    waiting.start()
    eventually(lambda: activator.revision("a")["queued"] == 1)
    with socket.create_server((host, int(empty.rpartition(":")[2]))) as listener, serve(echo, sock=listener) as late:
        thread = threading.Thread(target=late.serve_forever)
        thread.start()
        waiting.join()
        with opened[0] as client:
            client.send("hello")
            assert client.recv() == "hello"
        late.shutdown()
        thread.join()


def test_where_upgrades_are_switched_off(run_activator: RunActivator, echo_server: str) -> None:
    activator = run_activator(configured([revision(echo_server, upgrades=[])]))
    activator.wait_ready_pods("a")
    with pytest.raises(InvalidStatus) as refusal:
        websocket(activator)
    assert refusal.value.response.status_code == 501
    assert refusal.value.response.headers["Activator-Reason"] == "upgrade_not_supported"


def echoing(side: PodSide) -> None:
    """Takes the upgrade; then echoes until the client's end of file, says goodbye, and ends."""
    asked = side.head()
    assert asked.all("upgrade") == ["x-echo"]
    assert asked.all("connection") == ["upgrade"]
    side.send(SWITCHED + b"welcome\n")
    while data := side.socket.recv(65536):
        side.send(data)
    side.send(b"goodbye\n")
    side.end_sending()


def read_until(client: Client, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = client.socket.recv(65536)
        assert piece, data
        data += piece
    return data


def test_half_close_goes_through(run_activator: RunActivator) -> None:
    with ScriptedPod(echoing) as pod:
        activator = run_activator(configured([revision(pod.address, upgrades=["x-echo"])]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING) + b"sent ahead")
            begun = read_until(client, b"sent ahead")
            assert begun.startswith(b"HTTP/1.1 101 ")
            assert begun.endswith(b"\r\n\r\nwelcome\nsent ahead")
            client.end_sending()
            assert read_until(client, b"goodbye\n") == b"goodbye\n"
            assert client.socket.recv(1) == b""
        eventually(lambda: in_flight(activator) == 0)


def test_the_pods_end_of_file_comes_first(run_activator: RunActivator) -> None:
    received: list[bytes] = []

    def script(side: PodSide) -> None:
        side.head()
        side.send(SWITCHED + b"that is all\n")
        side.end_sending()
        while data := side.socket.recv(65536):
            received.append(data)

    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address, upgrades=["x-echo"])]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING))
            read_until(client, b"that is all\n")
            assert client.socket.recv(1) == b""
            client.send(b"thanks")
            client.end_sending()
            eventually(lambda: b"".join(received) == b"thanks")
        eventually(lambda: in_flight(activator) == 0)


@pytest.mark.parametrize("who", ["client", "pod"])
def test_a_reset_of_one_side_ends_the_other(run_activator: RunActivator, who: str) -> None:
    ended = threading.Event()

    def script(side: PodSide) -> None:
        side.head()
        side.send(SWITCHED + b"go\n")
        if who == "pod":
            side.reset()
            return
        with contextlib.suppress(ConnectionError):
            while side.socket.recv(65536):
                pass
        ended.set()

    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address, upgrades=["x-echo"])]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING))
            if who == "client":
                read_until(client, b"go\n")
                client.reset()
                assert ended.wait(20)
            else:
                with contextlib.suppress(ConnectionError):
                    while client.socket.recv(65536):
                        pass
        eventually(lambda: in_flight(activator) == 0)


def test_a_slow_reader_stops_the_fast_writer(run_activator: RunActivator) -> None:
    """Without back-pressure the pod could write for ever, and the activator would keep it all."""
    written = 0

    def script(side: PodSide) -> None:
        nonlocal written
        side.head()
        side.send(SWITCHED)
        side.socket.settimeout(2.0)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while written < 256 * 1024 * 1024:
                written += side.socket.send(b"x" * 65536)

    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address, upgrades=["x-echo"])]))
        activator.wait_ready_pods("a")
        with Client(activator.address, receive_buffer=65536) as client:
            client.send(request(headers=ASKING))
            pod.wait_open(0)  # it has given up, since nobody read
        assert written < 64 * 1024 * 1024


def test_an_idle_tunnel_is_cut_after_its_limit(run_activator: RunActivator) -> None:
    with ScriptedPod(echoing) as pod:
        slow = revision(pod.address, upgrades=["x-echo"], timeouts={"tunnel_idle": "4s", "total": "3s"})
        activator = run_activator(configured([slow]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING))
            read_until(client, b"welcome\n")
            with contextlib.suppress(ConnectionError):
                assert client.socket.recv(1) == b""
        eventually(lambda: activator.revision("a")["failed"] == {"idle_timeout": 1})
        assert in_flight(activator) == 0


def test_a_drain_leaves_tunnels_their_own_time(run_activator: RunActivator) -> None:
    with ScriptedPod(echoing) as pod:
        shutdown = {"timeout": "60s", "tunnels": "4s"}
        activator = run_activator(configured([revision(pod.address, upgrades=["x-echo"])], shutdown=shutdown))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(headers=ASKING))
            read_until(client, b"welcome\n")
            activator.signal(signal.SIGTERM)
            client.send(b"still there?")
            assert read_until(client, b"?") == b"still there?"
            with contextlib.suppress(ConnectionError):
                assert client.socket.recv(1) == b""
        assert activator.wait_end() == 1, "something was cut"
