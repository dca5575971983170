"""HTTP/2 through the activator: every client protocol before every pod protocol, message by message.

The tables of misbehaviour are in test_e2e_http2_tables.py, WebSockets in test_e2e_http2_websockets.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h2.errors
import h2.settings
import pytest

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http2_client import Http2Client
from tests.e2e.http2_pods import HINT, LARGE, SMALL, Http2Pod, PodStream, mirror
from tests.e2e.http2_world import HOSTS, World, world
from tests.e2e.http_client import Client, chunked, request
from tests.e2e.origin import pattern
from tests.e2e.pods import PodSide, Request, ScriptedPod
from tests.e2e.pods import serve as serve1
from tests.e2e.running import Activator, configured, eventually
from tests.http2.raw_client import MAX_WINDOW, Code, Frame, Type, data_frame, frame, ping_frame, priority_frame

CLIENTS = ["h1", "h2", "h2 over TLS"]
PODS = ["h1", "h2c", "h2"]
SIZES = [0, 1, 70_000, 5_000_000]
CANCEL, REFUSED_STREAM = h2.errors.ErrorCodes.CANCEL, h2.errors.ErrorCodes.REFUSED_STREAM


@pytest.fixture(scope="module")
def here(run_shared_activator: RunActivator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), run_shared_activator) as made:
        yield made
        made.activator.wait_idle()


@dataclass
class Got:
    """An answer, in the same terms for both protocols."""

    status: int
    body: bytes
    headers: dict[str, str]
    interim: list[int] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)


def ask(
    here: World,
    client: str,
    pod: str,
    path: str,
    method: str = "",
    body: bytes | None = None,
    headers: list[tuple[str, str]] | None = None,
    trailers: list[tuple[str, str]] | None = None,
    *,
    with_length: bool = True,
) -> Got:
    """One request on a connection of its own."""
    method = method or ("GET" if body is None else "POST")
    fields = list(headers or [])
    if client == "h1":
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        with here.http1() as connection:
            if body is not None and not with_length:
                ends = "".join(f"{name}: {value}\r\n" for name, value in trailers or [])
                pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
                head = request(path, method, HOSTS[pod], lines + "Transfer-Encoding: chunked\r\n")
                data = head + chunked(*pieces, trailers=ends)
            else:
                data = request(path, method, HOSTS[pod], lines, body)
            sender = threading.Thread(target=connection.send, args=[data])  # large ones both ways at once
            sender.start()
            found = connection.answer(method)
            sender.join()
            return Got(found.status, found.body, dict(found.headers), found.interim, dict(found.trailers))
    if body is not None and with_length:
        fields.append(("content-length", str(len(body))))
    with here.http2(tls=client == "h2 over TLS") as two:
        two.authority = HOSTS[pod]
        reply = two.ask(path, method, fields, body, trailers)
        assert reply.code in (None, 0), reply
        return Got(
            reply.status, reply.body, dict(reply.headers), [one for one, _ in reply.interim], dict(reply.trailers)
        )


# --- bodies, in all combinations ---


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("size", SIZES)
def test_bodies_both_ways(here: World, client: str, pod: str, size: int) -> None:
    body = pattern(size)
    for with_length in (True, False):
        found = ask(here, client, pod, "/", body=body, with_length=with_length)
        assert (found.status, len(found.body)) == (200, size)
        assert found.body == body
        assert found.headers.get("content-length", "0") == str(size)  # HTTP/2 has no need of a length of 0
    down = ask(here, client, pod, f"/bytes/{size or 2}")
    assert down.body == pattern(size or 2)
    up = ask(here, client, pod, "/drop", body=body, with_length=False)
    assert up.body == b"%d" % size


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_head(here: World, client: str, pod: str) -> None:
    found = ask(here, client, pod, "/", "HEAD")
    assert (found.status, found.body, found.headers["content-length"]) == (200, b"", str(len(SMALL)))
    assert ask(here, client, pod, "/").body == SMALL


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_trailers_both_ways(here: World, client: str, pod: str) -> None:
    sent = [("x-one", "1"), ("x-two", "2")]
    headers = [("te", "trailers")] + ([("connection", "te")] if client == "h1" else [])
    for body in (b"", b"some", pattern(70_000)):
        found = ask(here, client, pod, "/trailers", "POST", body, headers, sent, with_length=False)
        assert found.body == body
        assert found.trailers == {"x-sum": str(len(body)), **dict(sent)}


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_interim_answers(here: World, client: str, pod: str) -> None:
    found = ask(here, client, pod, "/hints")
    assert (found.interim, found.status, found.body) == ([103], 200, SMALL)


def test_the_fields_of_an_interim_answer(here: World) -> None:
    for pod in PODS:
        with here.http2() as client:
            client.authority = HOSTS[pod]
            ((status, headers),) = client.ask("/hints").interim
            assert status == 103 and HINT in headers


@pytest.mark.parametrize("pod", PODS)
def test_expect_100_continue_over_http2(here: World, pod: str) -> None:
    with here.http2() as client:
        client.authority = HOSTS[pod]
        number = client.begin("/", "POST", [("expect", "100-continue"), ("content-length", "4")], end=False)
        client._until(lambda: bool(client.replies[number].interim))
        client.send(number, b"body", end=True)
        reply = client.answer(number)
        assert ([one for one, _ in reply.interim], reply.status, reply.body) == ([100], 200, b"body")


@pytest.mark.parametrize("pod", PODS)
def test_full_duplex(here: World, pod: str) -> None:
    """Each piece is back before the next one is sent."""
    with here.http2() as client:
        client.authority = HOSTS[pod]
        number = client.begin("/duplex", "POST", [("accept", "text/event-stream")], end=False)
        size = 0
        for piece in (b"a", b"b" * 1_000, b"c" * 40_000, b"d"):
            client.send(number, piece)
            size += len(piece)
            assert client.wait_size(number, size).size == size
        client.end(number, [("x-end", "1")])
        reply = client.answer(number)
        assert reply.ended and reply.trailers == [("x-end", "1")]


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_early_answer_while_the_client_uploads(here: World, client: str, pod: str) -> None:
    """It comes whole; what is still to be sent has no reader."""
    if client == "h1":
        with here.http1() as connection:
            connection.send(request("/early", "POST", HOSTS[pod], "Content-Length: 50000000\r\n"))
            connection.send(b"x" * 10_000)
            assert connection.answer("POST").body == b"early"
    else:
        with here.http2(tls=client == "h2 over TLS") as two:
            two.authority = HOSTS[pod]
            number = two.begin("/early", "POST", [("content-length", "50000000")], end=False)
            two.send(number, b"x" * 10_000)
            reply = two.answer(number)
            assert (reply.status, reply.body, reply.ended) == (200, b"early", True)
            two._until(lambda: reply.code == 0)  # NO_ERROR: do not send the rest (RFC 9113 8.1)
            assert two.ask("/").body == SMALL, "the connection goes on"
    here.activator.wait_idle()


@pytest.mark.parametrize("pod", PODS)
def test_many_streams_at_once(here: World, pod: str) -> None:
    with here.http2() as client:
        client.authority = HOSTS[pod]
        for _ in range(3):
            numbers = {client.start(f"/bytes/{size}"): size for size in range(1, 101)}
            assert {number: client.answer(number).size for number in numbers} == numbers


@pytest.mark.parametrize("pod", PODS)
def test_an_answer_whose_client_is_slow_leaves_the_pods_connection_as_it_was(here: World, pod: str) -> None:
    """The next answer on it is read, whoever asks for it."""
    with here.http2() as slow, here.http2() as other:
        slow.authority = other.authority = f"one.{pod}.test"
        for size in (200_000, 400_000, 1_000_000):
            number = slow.start(f"/bytes/{size}")
            here.activator.wait_idle(f"one-{pod}")  # the pod has finished, and the client has read nothing
            assert other.ask("/").body == SMALL
            assert slow.answer(number).body == pattern(size)
            assert other.ask("/bytes/300000").body == pattern(300_000)


@pytest.mark.parametrize("pod", PODS)
def test_a_slow_stream_stops_no_other_one(here: World, pod: str) -> None:
    with here.http2() as client:
        client.authority = HOSTS[pod]
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client._flush()
        slow = client.start("/bytes/3000000")
        assert client.head(slow).status == 200
        for _ in range(20):
            number = client.start("/bytes/5000")
            assert client.head(number).status == 200
            client.h2.increment_flow_control_window(5_000, number)
            client._flush()
            assert client.answer(number).size == 5_000
        client.reset(slow)
    here.activator.wait_idle()


def told(here: World, pod: str) -> dict[str, str]:
    """The fields of the one request that the pod has had."""
    (found,) = here.pod(pod).requests
    return {name.lower(): value for name, value in found.headers}


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_priority_is_passed_on(here: World, client: str, pod: str) -> None:
    """RFC 9218 5: a hop may ignore it, and takes nothing from it."""
    here.pod(pod).requests.clear()
    assert ask(here, client, pod, "/", headers=[("priority", "u=1, i")]).status == 200
    assert told(here, pod)["priority"] == "u=1, i"


PRIORITY_UPDATE = 0x10
PRIORITIES = [
    priority_frame(1, b"\x00\x00\x00\x00\x0f"),
    priority_frame(9, b"\x80\x00\x00\x01\xff"),  # of an idle stream
    frame(PRIORITY_UPDATE, payload=b"\x00\x00\x00\x01u=1, i"),
    frame(PRIORITY_UPDATE, payload=b"\x00\x00\x00\x09no, dictionary?"),
]


@pytest.mark.parametrize("pod", PODS)
def test_frames_of_priority_have_no_effect(here: World, pod: str) -> None:
    """RFC 9113 5.3.2, RFC 9218 7.1: before, amid and behind a request; the connection goes on."""
    noise = b"".join(PRIORITIES)
    with here.http2() as client:
        client.authority = HOSTS[pod]
        client.socket.sendall(noise)
        number = client.begin("/", "POST", end=False)
        client.socket.sendall(noise)
        client.send(number, b"body", end=True)
        assert client.answer(number).body == b"body"
        client.socket.sendall(noise)
        assert client.ask("/").body == SMALL and client.goaway is None


GRPC_WEB = b"\x00\x00\x00\x00\x03\xff\x00a" + b"\x80\x00\x00\x00\x10grpc-status: 0\r\n"


@pytest.mark.parametrize("kind", ["application/grpc-web+proto", "application/grpc-web-text"])
@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("client", CLIENTS)
def test_grpc_web_passes_through(here: World, client: str, pod: str, kind: str) -> None:
    """Its trailers are a part of the body (0x80), and nothing of it is translated into gRPC."""
    here.pod(pod).requests.clear()
    body = base64.b64encode(GRPC_WEB) if kind.endswith("text") else GRPC_WEB
    fields = [
        ("content-type", kind),
        ("accept", kind),
        ("x-grpc-web", "1"),
        ("x-user-agent", "grpc-web-javascript/0.1"),
    ]
    found = ask(here, client, pod, "/typed", body=body, headers=fields)
    assert (found.status, found.body, found.headers["content-type"], found.trailers) == (200, body, kind, {})
    assert "grpc-status" not in found.headers
    sent = told(here, pod)
    assert {name: sent[name] for name, _ in fields} == dict(fields)


# --- ends ---


@pytest.mark.parametrize("how", ["stream", "connection", "goaway and close"])
@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("path", ["/silent", "/hold", "/bytes/30000000"])
def test_a_client_that_leaves_frees_the_slot(here: World, how: str, pod: str, path: str) -> None:
    """With a limit of one, the next request is served at once."""
    name = f"one-{pod}"
    before = here.activator.revision(name)["client_gone"]
    client = here.http2()
    client.authority = f"one.{pod}.test"
    number = client.start(path)
    eventually(lambda: here.activator.revision(name)["in_flight"] == 1)
    if path != "/silent":
        assert client.head(number).status == 200
    if how == "stream":
        client.reset(number)
        assert client.ask("/").body == SMALL
    elif how == "goaway and close":
        client.h2.close_connection()
        client._flush()
    client.close()
    with here.http2() as other:
        other.authority = f"one.{pod}.test"
        assert other.ask("/").body == SMALL
    here.activator.wait_idle()
    assert here.activator.revision(name)["client_gone"] == before + 1


@pytest.mark.parametrize("client", ["h1", "h2"])
def test_a_reset_goes_on_to_the_pod(here: World, client: str) -> None:
    """The pod hears of a client that leaves, and its connection stays."""
    here.pod2.requests.clear()
    connections = len(here.pod2.connections)
    if client == "h1":
        one = here.http1()
        one.send(request("/silent", host="localhost"))
        eventually(lambda: here.pod2.requests)
        one.close()
    else:
        with here.http2() as two:
            two.authority = "localhost"
            number = two.start("/silent")
            eventually(lambda: here.pod2.requests)
            two.reset(number)
    eventually(lambda: here.pod2.requests[0].code is not None)
    assert here.pod2.requests[0].code == CANCEL
    assert len(here.pod2.connections) == max(connections, 1)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("pod", PODS)
def test_an_answer_that_is_cut_short_does_not_look_whole(here: World, client: str, pod: str) -> None:
    if client == "h1":
        with here.http1() as one:
            one.send(request("/cut", host=HOSTS[pod]))
            answer = one.head()
            assert answer.status == 200 and answer.header("content-length") == "1000"
            with contextlib.suppress(ConnectionError):
                assert len(one._file.read()) < 1000
    else:
        with here.http2(tls=client == "h2 over TLS") as two:
            two.authority = HOSTS[pod]
            reply = two.ask("/cut")
            assert reply.code == h2.errors.ErrorCodes.INTERNAL_ERROR and not reply.ended
            assert two.ask("/").body == SMALL, "the connection goes on"
    here.activator.wait_idle()


@pytest.mark.parametrize("pod", PODS)
def test_a_drain_serves_what_is_open_and_takes_nothing_new(
    run_activator: RunActivator, tmp_path: Path, pod: str
) -> None:
    """GOAWAY comes at once, and names the last stream after the answer to PING; streams go on to their ends."""
    with world(tmp_path, run_activator) as here, contextlib.ExitStack() as stack:
        client = stack.enter_context(here.target(pod).connect("/hold", patience_s=20.0))
        idle = stack.enter_context(here.target(pod).connect(patience_s=20.0))
        for one in (client, idle):
            one.handshake()
            one.request(1)
        idle.until_end_of(1)
        while client.status(1) is None:
            client.next()
        client.path = "/"
        client.request(3, "POST", end=False)
        eventually(lambda: here.activator.revision(pod)["in_flight"] == 2)
        here.activator.signal(signal.SIGTERM)
        lasts: list[int] = []
        while len(lasts) < 2:
            event = client.next()
            assert isinstance(event, Frame), (event, client.log)
            if event.type == Type.GOAWAY:
                assert event.code == Code.NO_ERROR
                lasts.append(int.from_bytes(event.payload[:4], "big"))
            elif event.type == Type.PING:
                client.request(5)  # on its way when the server said so
                client.send(ping_frame(event.payload, ack=True))
        assert lasts == [MAX_WINDOW, 5]
        assert idle.until_closed() and idle.goaway is not None and idle.goaway.code == Code.NO_ERROR
        while client.bodies.get(5, 0) < len(SMALL):
            assert isinstance(client.next(), Frame)
        client.request(7)  # too late
        for recorder in (here.pod1, here.pod2, here.pod_tls):
            recorder.go_on() if isinstance(recorder, ScriptedPod) else recorder.release()
        client.send(data_frame(3, b"late", end=True))
        assert client.until_closed()
        assert {number: client.status(number) for number in (1, 3, 5, 7)} == {1: 200, 3: 200, 5: 200, 7: None}
        assert client.bodies == {1: len(SMALL), 3: 4, 5: len(SMALL)}
        assert here.activator.wait_end() == 0


# --- pods ---


def revision(address: str, protocol: str = "h2c", **more: object) -> dict[str, object]:
    return {"name": "a", "hosts": ["*"], "pods": [address], "protocol": protocol, **more}


def started(run_activator: RunActivator, *args: object, **more: object) -> Activator:
    activator = run_activator(configured([revision(*args, **more)]))  # type: ignore[arg-type]
    activator.wait_ready_pods("a")
    return activator


def test_few_connections_carry_many_requests(run_activator: RunActivator) -> None:
    with Http2Pod() as pod:
        activator = started(run_activator, pod.address)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(activator.address)) for _ in range(80)]
            for client in clients:
                client.send(request("/hold"))
            eventually(lambda: pod.working == 80)
            # Another one only where the first has been silent for long, as may be on a busy machine.
            assert len(pod.connections) <= 4
            pod.release()
            assert {client.answer().status for client in clients} == {200}


def test_another_connection_where_the_pods_limit_of_streams_is_reached(run_activator: RunActivator) -> None:
    """From the first requests on, though the pod says its limit only when a connection stands."""
    with Http2Pod(settings={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 3}) as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            numbers = [client.start("/hold") for _ in range(10)]
            eventually(lambda: pod.working == 10)
            assert len(pod.connections) == 4
            assert max(len(one.streams) for one in pod.connections) == 3
            pod.release()
            assert {client.answer(number).status for number in numbers} == {200}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refused_stream_is_sent_again(run_activator: RunActivator, method: str) -> None:
    """REFUSED_STREAM says that nothing was done, so that even a POST may go again."""
    refused = 0

    async def handler(stream: PodStream) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            stream.reset(REFUSED_STREAM)
        else:
            await mirror(stream)

    with Http2Pod(handler) as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            body = b"again" if method == "POST" else None
            assert client.ask("/", method, body=body).body == (body or SMALL)
        assert refused == 2


def test_a_pod_that_goes_away_serves_its_streams_and_gets_another_connection(run_activator: RunActivator) -> None:
    with Http2Pod() as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            number = client.start("/hold")
            assert client.head(number).status == 200

            def go_away() -> None:
                (connection,) = pod.connections
                # (h2's own close_connection forbids to go on)
                assert connection.transport is not None
                connection.transport.write(bytes.fromhex("0000080700000000007fffffff00000000"))

            pod.call(go_away)
            assert client.ask("/").status == 200
            eventually(lambda: len(pod.connections) == 2)
            pod.release()
            assert client.answer(number).body == SMALL
            eventually(lambda: len(pod.connections) == 1, "the one that goes away is closed with its last stream")


def test_a_pod_that_dies_fails_its_streams_and_no_others(run_activator: RunActivator) -> None:
    with Http2Pod() as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            begun, silent = client.start("/hold"), client.start("/silent", "POST", body=b"once")
            assert client.head(begun).status == 200
            eventually(lambda: len(pod.requests) == 2)
            pod.close_connections()
            assert client.answer(begun).code == h2.errors.ErrorCodes.INTERNAL_ERROR
            answer = client.answer(silent)
            assert (answer.status, answer.reason) == (502, "pod_closed")
            assert client.ask("/").status == 200
        activator.wait_idle()


def test_a_pod_that_speaks_http_1_on_a_port_for_http_2(run_activator: RunActivator) -> None:
    def script(side: PodSide) -> None:
        """As servers do that take the preface for a request."""
        side._file.read(1)
        side.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with ScriptedPod(script) as pod:
        activator = started(run_activator, pod.address)
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert (answer.status, answer.reason) == (502, "bad_response")
            assert b"does not speak HTTP/2" in answer.body
        assert activator.wait_log("WARNING.* the pod at .* does not speak HTTP/2")


def test_a_pod_that_speaks_http_2_on_a_port_for_http_1(run_activator: RunActivator) -> None:
    """Its first bytes are SETTINGS, no answer in HTTP/1.1; they may come before the request has been written."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    with one:
                        one.sendall(bytes.fromhex("000000 04 00 00000000"))
                        while one.recv(65_536):
                            pass

        threading.Thread(target=accept, daemon=True).start()
        host, port = listener.getsockname()
        activator = started(run_activator, f"{host}:{port}", "h1")
        with Client(activator.address) as client:
            assert client.ask(request()).status == 502


def test_a_pod_with_tls_that_does_not_agree_on_h2(run_activator: RunActivator, tmp_path: Path) -> None:
    from tests.e2e.test_e2e_tls import Files

    files = Files(tmp_path, "pod.test")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    def serve_plain(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    threading.Thread(target=serve_plain, args=[one], daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        activator = started(run_activator, address, "h2", tls=tls)
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert (answer.status, answer.reason) == (502, "tls_failed")
        assert activator.wait_log("did not negotiate h2")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# --- what is told about it ---


def test_the_access_log_names_the_protocol_of_the_client(run_activator: RunActivator, tmp_path: Path) -> None:
    with Http2Pod() as pod:
        # Its standard output is not kept by the tests: a shell writes it to a file.
        log = tmp_path / "access.log"
        configuration = configured([revision(pod.address)], access_log="json")
        path = tmp_path / "logged.yaml"
        path.write_text(json.dumps(configuration))
        into_file = ["sh", "-c", 'exec "$@" > "$0"', str(log)]
        activator = run_activator(arguments=["-c", str(path)], prefix=into_file)
        activator.wait_ready_pods("a")
        with Http2Client(activator.address) as client:
            assert client.ask("/two?x=1", "POST", [("user-agent", "me")], b"body").status == 200
            number = client.start("/silent")
            eventually(lambda: activator.revision("a")["in_flight"] == 1)
            client.reset(number)
        with Client(activator.address) as one:
            assert one.ask(request("/one")).status == 200

        def lines() -> list[dict[str, object]]:
            found = [json.loads(line) for line in log.read_text().splitlines()]
            return found if len(found) == 3 else []

        first, second, third = eventually(lines)
        shown = ("method", "host", "target", "protocol", "status", "request_bytes", "response_bytes", "user_agent")
        assert [first.get(name) for name in shown] == ["POST", "a.test", "/two?x=1", "HTTP/2", 200, 4, 4, "me"]
        assert (second["protocol"], second["status"], second["reason"]) == ("HTTP/2", 499, "client_gone")
        assert (third["protocol"], third["target"]) == ("HTTP/1.1", "/one")


@one_worker
def test_knatives_log_and_metrics_name_the_protocol_as_go_does(run_activator: RunActivator, tmp_path: Path) -> None:
    with Http2Pod() as pod:
        log, path = tmp_path / "access.log", tmp_path / "logged.yaml"
        metrics = {"knative": {"protocol": "prometheus", "endpoint": "127.0.0.1:0"}}
        path.write_text(json.dumps(configured([revision(pod.address)], access_log="knative", metrics=metrics)))
        activator = run_activator(arguments=["-c", str(path)], prefix=["sh", "-c", 'exec "$@" > "$0"', str(log)])
        activator.wait_ready_pods("a")
        with Http2Client(activator.address) as client:
            assert client.ask("/").status == 200
        (line,) = eventually(lambda: log.read_text().splitlines())
        assert json.loads(line)["httpRequest"]["protocol"] == "HTTP/2.0"
        where = activator.wait_log(r"Knative's metrics on (\S+)")
        with Client(where) as reader:
            text = reader.ask(request("/metrics", headers="Connection: close\r\n")).body.decode()
        assert 'network_protocol_version="2.0"' in text


def test_what_the_pod_is_told_of_the_client(here: World) -> None:
    for pod in PODS:
        recorder = here.pod(pod)
        recorder.requests.clear()
        for tls in (False, True):
            with here.http2(tls=tls) as client:
                client.authority = HOSTS[pod]
                claims = [("x-forwarded-for", "1.2.3.4"), ("x-real-ip", "1.2.3.4"), ("forwarded", "for=1.2.3.4")]
                assert client.ask("/", headers=claims).status == 200
        for request_, scheme in zip([*recorder.requests], ("http", "https"), strict=True):
            pairs = [(name.lower(), value) for name, value in request_.headers]
            told = dict(pairs)
            assert told["x-forwarded-for"] == "127.0.0.1" and told["x-forwarded-proto"] == scheme
            assert told["x-forwarded-host"] == HOSTS[pod] and len(told["x-request-id"]) == 32
            assert not {"forwarded", "x-real-ip"} & set(told)
            if not isinstance(request_, Request):
                assert told[":scheme"] == ("https" if pod == "h2" else "http")


def test_refusals_over_http2(run_activator: RunActivator) -> None:
    with ScriptedPod(serve1) as pod:
        limits = {"header_bytes": 16_384, "body_bytes": 1_000}
        one = {"name": "a", "hosts": ["known.test"], "pods": [pod.address]}
        activator = run_activator(configured([one], limits=limits))
        activator.wait_ready_pods("a")
        with Http2Client(activator.address, authority="known.test") as client:
            assert client.ask("/").status == 200
            long = [(f"x-{number}", "v" * 1_000) for number in range(20)]
            assert client.ask("/", headers=long).status == 431
            reply = client.ask("/", body=b"x" * 2_000)
            assert (reply.status, reply.reason) == (413, "body_too_large")
            client.authority = "other.test"
            reply = client.ask("/")
            assert (reply.status, reply.reason, reply.header("content-type")) == (
                404,
                "no_route",
                "text/plain; charset=utf-8",
            )
            client.authority = "known.test"
            assert client.ask("/").status == 200


def test_a_listener_that_offers_no_http2(run_activator: RunActivator, tmp_path: Path) -> None:
    from tests.e2e.test_e2e_tls import Files, trusting

    files = Files(tmp_path)
    with ScriptedPod(serve1) as pod:
        listener = {**files.listener(), "alpn": ["http/1.1"]}
        one = {"name": "a", "hosts": ["*"], "pods": [pod.address]}
        activator = run_activator(configured([one], listen=listener))
        context = trusting()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection((activator.host, activator.port), timeout=20) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            assert secured.selected_alpn_protocol() == "http/1.1"


def test_sizes_of_the_pods() -> None:
    """What the clients of tests/http2 count on."""
    assert LARGE > 2**20 and len(SMALL) > 5
