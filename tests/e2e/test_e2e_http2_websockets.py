"""WebSockets over HTTP/2 (RFC 8441) to pods of either protocol, and over HTTP/1.1 to pods that speak HTTP/2.

The pod with HTTP/1.1 is the package `websockets`; what comes and goes over HTTP/2 is written here, frame by frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence

import h2.settings
import pytest
from websockets import Subprotocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import Server, ServerConnection, serve

from activator.data_plane.upstream.websockets import accept_of
from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client, Reply
from tests.e2e.http2_pods import Http2Pod, PodStream, unmasked, ws_frame
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, configured, eventually

TEXT, BINARY, CLOSE = 1, 2, 8
MASK = b"\x01\x02\x03\x04"
CONNECT_PROTOCOL = h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL
BIG = bytes(range(256)) * 4_096  # 1 MiB: more than all windows on the way


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def chat_or_none(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return offered[0] if offered else None


@pytest.fixture
def web_socket_server() -> Iterator[tuple[str, list[ServerConnection]]]:
    """Its address, and the connections that it has had."""
    seen: list[ServerConnection] = []

    def handler(connection: ServerConnection) -> None:
        seen.append(connection)
        with contextlib.suppress(Exception):
            echo(connection)

    server: Server = serve(handler, "127.0.0.1", 0, max_size=None, compression=None, select_subprotocol=chat_or_none)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host, port = server.socket.getsockname()[:2]
    try:
        yield f"{host}:{port}", seen
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture
def http2_pod() -> Iterator[Http2Pod]:
    with Http2Pod(settings={CONNECT_PROTOCOL: 1}) as pod:
        yield pod


def started(run_activator: RunActivator, address: str, protocol: str, **more: object) -> Activator:
    one = {"name": "a", "hosts": ["*"], "pods": [address], "protocol": protocol, **more}
    activator = run_activator(configured([one]))
    activator.wait_ready_pods("a")
    return activator


def opened(client: Http2Client, path: str = "/chat", **headers: str) -> int:
    """Asks for a WebSocket; its stream."""
    client.wait_connect_protocol()
    more = [(name.replace("_", "-"), value) for name, value in headers.items()]
    number = client.h2.get_next_available_stream_id()
    fields = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", path)]
    client.h2.send_headers(number, [*fields, (":authority", "a.test"), ("sec-websocket-version", "13"), *more])
    client.replies[number] = Reply()
    client._flush()
    client.head(number)
    return number


def message(client: Http2Client, number: int) -> tuple[int, bytes]:
    """The next frame from the server."""
    reply = client.replies[number]
    while (found := unmasked(reply.body)) is None:
        assert not reply.over, reply
        client.wait_size(number, reply.size + 1)
    opcode, payload, rest = found
    reply.pieces, reply.size = [rest], len(rest)
    return opcode, payload


def talk(client: Http2Client, number: int) -> None:
    reply = client.replies[number]
    assert reply.status == 200, reply
    assert not reply.header("sec-websocket-accept") and not reply.header("upgrade") and not reply.header("connection")
    for opcode, payload in ((TEXT, b"hello"), (TEXT, b""), (BINARY, b"\x00\xff"), (BINARY, BIG), (TEXT, b"bye")):
        client.send(number, ws_frame(opcode, payload, MASK))
        assert message(client, number) == (opcode, payload)


def test_over_http2_to_a_pod_with_http1(
    run_activator: RunActivator, web_socket_server: tuple[str, list[ServerConnection]]
) -> None:
    address, seen = web_socket_server
    activator = started(run_activator, address, "h1")
    with Http2Client(activator.address) as client:
        number = opened(client, "/chat?x=1", sec_websocket_protocol="chat", origin="http://a.test", cookie="a=b")
        talk(client, number)
        reply = client.replies[number]
        assert reply.header("sec-websocket-protocol") == "chat"
        asked = seen[0].request
        assert asked is not None and asked.path == "/chat?x=1"
        assert (asked.headers["Host"], asked.headers["Origin"], asked.headers["Cookie"]) == (
            "a.test",
            "http://a.test",
            "a=b",
        )
        assert activator.revision("a")["in_flight"] == 1
        client.send(number, ws_frame(CLOSE, b"\x03\xe8", MASK))
        assert message(client, number) == (CLOSE, b"\x03\xe8")
        assert client.answer(number).over
        assert opened(client)
    activator.wait_idle()


def test_over_http2_to_a_pod_with_http2(run_activator: RunActivator, http2_pod: Http2Pod) -> None:
    activator = started(run_activator, http2_pod.address, "h2c")
    with Http2Client(activator.address) as client:
        number = opened(client, cookie="a=b")
        talk(client, number)
        (stream,) = http2_pod.requests
        assert (stream.header(":protocol"), stream.header("cookie")) == ("websocket", "a=b")
        assert stream.header("sec-websocket-key") is None and stream.header("upgrade") is None
        client.send(number, ws_frame(CLOSE, b"\x03\xe8", MASK), end=True)
        assert message(client, number) == (CLOSE, b"\x03\xe8")
        assert client.answer(number).ended
    activator.wait_idle()


def test_over_http1_to_a_pod_with_http2(run_activator: RunActivator, http2_pod: Http2Pod) -> None:
    activator = started(run_activator, http2_pod.address, "h2c")
    uri = f"ws://{activator.address}/chat"
    with connect(uri, max_size=None, compression=None, proxy=None) as one:
        for text in ("hello", "", BIG, "bye"):
            one.send(text)
            assert one.recv() == text
        assert activator.revision("a")["in_flight"] == 1
    activator.wait_idle()
    (stream,) = http2_pod.requests
    assert (stream.method, stream.header(":protocol")) == ("CONNECT", "websocket")
    assert stream.header("sec-websocket-version") == "13"
    assert stream.header("sec-websocket-key") is None


def test_many_web_sockets_on_one_connection(
    run_activator: RunActivator, web_socket_server: tuple[str, list[ServerConnection]]
) -> None:
    activator = started(run_activator, web_socket_server[0], "h1")
    with Http2Client(activator.address) as client:
        numbers = [opened(client) for _ in range(30)]
        for turn in range(3):
            for number in numbers:
                client.send(number, ws_frame(TEXT, b"%d.%d" % (number, turn), MASK))
            for number in numbers:
                assert message(client, number) == (TEXT, b"%d.%d" % (number, turn))
        assert activator.revision("a")["in_flight"] == 30
        for number in numbers[:15]:
            client.reset(number)
        eventually(lambda: activator.revision("a")["in_flight"] == 15)
    activator.wait_idle()


def test_the_pod_ends_the_connection(run_activator: RunActivator, http2_pod: Http2Pod) -> None:
    activator = started(run_activator, http2_pod.address, "h2c")
    with Http2Client(activator.address) as client, connect(f"ws://{activator.address}/", proxy=None) as one:
        number = opened(client)
        http2_pod.close_connections()
        assert client.answer(number).code is not None
        with pytest.raises(ConnectionClosed):
            one.recv(10)
    activator.wait_idle()


def test_a_pod_that_declines(
    run_activator: RunActivator, web_socket_server: tuple[str, list[ServerConnection]]
) -> None:
    """The status of the pod, but never one that says that the WebSocket is open."""

    async def declines(stream: PodStream) -> None:
        stream.head(403 if stream.path == "/403" else 401, end=True)

    with Http2Pod(declines, settings={CONNECT_PROTOCOL: 1}) as pod:
        activator = started(run_activator, pod.address, "h2c")
        with Http2Client(activator.address) as client:
            assert client.replies[opened(client, "/403")].status == 403
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{activator.address}/401", proxy=None)
        assert refused.value.response.status_code == 401


def test_a_pod_that_takes_no_web_sockets(run_activator: RunActivator) -> None:
    """It does not say ENABLE_CONNECT_PROTOCOL."""
    with Http2Pod() as pod:
        activator = started(run_activator, pod.address, "h2c")
        with Http2Client(activator.address) as client:
            number = opened(client)
            reply = client.answer(number)
            assert (reply.status, reply.reason) == (502, "bad_response") and b"RFC 8441" in reply.body
            assert client.ask("/").status == 200
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{activator.address}/", proxy=None)
        assert refused.value.response.status_code == 502
        assert len(pod.requests) == 1


def test_where_web_sockets_are_switched_off(run_activator: RunActivator, http2_pod: Http2Pod) -> None:
    activator = started(run_activator, http2_pod.address, "h2c", upgrades=[])
    with Http2Client(activator.address) as client:
        number = opened(client)
        reply = client.answer(number)
        assert (reply.status, reply.reason) == (501, "upgrade_not_supported")


def test_a_web_socket_holds_its_slot(run_activator: RunActivator, http2_pod: Http2Pod) -> None:
    activator = started(run_activator, http2_pod.address, "h2c", container_concurrency=1)
    with Http2Client(activator.address) as client, Http2Client(activator.address) as other:
        number = opened(client)
        waiting = other.start("/")
        eventually(lambda: activator.revision("a")["queued"] == 1)
        assert http2_pod.most == 1
        client.reset(number)
        assert other.answer(waiting).status == 200
    activator.wait_idle()


def test_a_reader_that_is_slow_stops_the_writer(run_activator: RunActivator) -> None:
    written = 0

    async def writes(stream: PodStream) -> None:
        nonlocal written
        stream.head(200)
        with contextlib.suppress(TimeoutError):
            while written < 256 * 2**20:
                await asyncio.wait_for(stream.send(b"x" * 16_384), 1.0)
                written += 16_384
        stream.reset()

    with Http2Pod(writes, settings={CONNECT_PROTOCOL: 1}) as pod:
        activator = started(run_activator, pod.address, "h2c")
        with Http2Client(activator.address) as client:
            client.wait_connect_protocol()
            opened(client)
            eventually(lambda: pod.working == 0)
        assert written < 32 * 2**20
    activator.wait_idle()


def ask_for_one(client: Http2Client, sent_ahead: bytes = b"") -> int:
    """Ask for a WebSocket and wait for nothing; its stream."""
    client.wait_connect_protocol()
    number = client.h2.get_next_available_stream_id()
    fields = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/")]
    client.h2.send_headers(number, [*fields, (":authority", "a.test"), ("sec-websocket-version", "13")])
    if sent_ahead:
        client.h2.send_data(number, sent_ahead)
    client.replies[number] = Reply()
    client._flush()
    return number


@pytest.mark.parametrize("when", ["at once", "while the pod thinks"])
def test_what_comes_before_the_200_is_held_and_delivered(run_activator: RunActivator, when: str) -> None:
    """It was dropped without a word, and what came later was delivered."""

    def script(side: PodSide) -> None:
        asked = side.head()
        side.wait()
        accept = accept_of(asked.all("sec-websocket-key")[0].encode()).decode()
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        side.send(f"HTTP/1.1 101 Switching Protocols\r\n{upgrade}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        assert side.read(11) == b"early, late"
        side.send(b"seen")

    with ScriptedPod(script) as pod:
        activator = started(run_activator, pod.address, "h1")
        with Http2Client(activator.address) as client:
            number = ask_for_one(client, b"early" if when == "at once" else b"")
            eventually(lambda: pod.requests)
            if when != "at once":
                client.send(number, b"early")
            client.send(number, b", late")
            pod.go_on()
            client.wait_size(number, 4)
            assert client.replies[number].status == 200 and client.replies[number].body == b"seen"


def test_a_pod_that_has_not_read_the_key(run_activator: RunActivator) -> None:
    """RFC 6455 4.1: the client of HTTP/2 cannot check the answer, since it knows no key."""

    def script(side: PodSide) -> None:
        side.head()
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        side.send(f"HTTP/1.1 101 Switching Protocols\r\n{upgrade}Sec-WebSocket-Accept: wrong\r\n\r\n".encode())
        side.stall()

    with ScriptedPod(script) as pod:
        activator = started(run_activator, pod.address, "h1")
        with Http2Client(activator.address) as client:
            reply = client.answer(ask_for_one(client))
            assert (reply.status, reply.reason) == (502, "bad_response") and b"Sec-WebSocket-Accept" in reply.body
