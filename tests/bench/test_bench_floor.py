"""The forwarders that parse nothing: they change no byte, and a client that resets costs nobody else."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.floor import CLOSE, FORWARDERS, with_close
from bench.processes import LOOPBACK, Child, free_port, running

pytestmark = pytest.mark.e2e

TIMEOUT_S = 10.0


def request_of(word: bytes) -> bytes:
    return b"GET /" + word + b" HTTP/1.1\r\nHost: a\r\n" + CLOSE + b"\r\n"


def answer_to(word: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(word) + word


class Pod:
    """A pod that serves each connection in a thread, by `serve`."""

    def __init__(self, serve: Callable[[Pod, socket.socket], None]) -> None:
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections = 0
        self.requests: list[bytes] = []
        self.asked = threading.Event()
        self.ended = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end of the test
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._run, args=[connection], daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(self, connection)
        self.ended.set()


def echo(pod: Pod, connection: socket.socket) -> None:
    while data := connection.recv(65536):
        connection.sendall(data)


def answer(pod: Pod, connection: socket.socket) -> None:
    while data := connection.recv(65536):
        pod.requests.append(data)
        pod.asked.set()
        pod.may_answer.wait(TIMEOUT_S)
        connection.sendall(answer_to(data.partition(b" HTTP")[0].removeprefix(b"GET /")))


Start = Callable[[Callable[[Pod, socket.socket], None]], tuple[Pod, int, Child]]


def answer_once(pod: Pod, connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(answer_to(b"one"))


@pytest.fixture(params=list(FORWARDERS))
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(serve: Callable[[Pod, socket.socket], None]) -> tuple[Pod, int, Child]:
            pod, port = Pod(serve), free_port()
            stack.callback(pod.listener.close)
            command = [sys.executable, "-m", "bench.floor", request.param, str(port), f"{LOOPBACK}:{pod.port}", "1"]
            child = stack.enter_context(running(command, tmp_path / "floor.log"))
            child.wait_until(lambda: listens(port))
            return pod, port, child

        yield started


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), connected(port):
        return True
    return False


def connected(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), TIMEOUT_S)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def exchanged(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return received(client, len(data))


def received(client: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := client.recv(65536)):
        found += data
    return bytes(found)


def answered(port: int, word: bytes) -> bytes:
    """Send a request with `Connection: close`; return all bytes until the end of the connection."""
    with connected(port) as client:
        client.sendall(request_of(word))
        return received(client, sys.maxsize)


def test_bytes_are_unchanged_also_where_the_other_side_is_slow(start: Start) -> None:
    _, port, child = start(echo)
    data = random.Random(1).randbytes(64 << 20)  # more than all buffers of the kernel hold
    with connected(port) as client:
        sender = threading.Thread(target=client.sendall, args=[data], daemon=True)
        sender.start()
        sender.join(0.5)  # nothing is read, so the forwarder cannot write
        assert sender.is_alive()
        assert received(client, len(data)) == data
        assert exchanged(client, b"more") == b"more"
    assert child.tail() == ""


def test_a_client_that_resets_costs_nobody_else(start: Start) -> None:
    pod, port, child = start(echo)
    with connected(port) as other:
        assert exchanged(other, b"one") == b"one"
        for _ in range(20):
            client = connected(port)
            client.sendall(b"x" * 100_000)
            reset(client)
        assert exchanged(other, b"two") == b"two"
    with connected(port) as later:
        assert exchanged(later, b"three") == b"three"
    assert pod.connections >= 2
    child.check_alive()
    log = child.log.read_text("utf-8")
    assert "reset by peer" in log and "Exception" not in log


def test_a_pod_that_refuses_is_reported_and_the_forwarder_stays(start: Start) -> None:
    pod, port, child = start(echo)
    pod.listener.shutdown(socket.SHUT_RDWR)
    pod.listener.close()
    for _ in range(2):
        with connected(port) as client:
            client.sendall(b"one")
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(10) == b""
    assert "refused" in child.tail()
    child.check_alive()


def test_clients_that_close_share_one_connection_to_the_pod(start: Start) -> None:
    pod, port, child = start(answer)
    words = [b"one", b"two", b"six"]
    assert [answered(port, word) for word in words] == [with_close(answer_to(word)) for word in words]
    assert pod.requests == [request_of(word).replace(CLOSE, b"") for word in words]
    assert pod.connections == 1
    assert child.tail() == ""


def test_a_kept_connection_that_the_pod_closed_is_not_used(start: Start) -> None:
    pod, port, child = start(answer_once)
    for _ in range(3):
        pod.ended.clear()
        assert answered(port, b"one") == with_close(answer_to(b"one"))
        assert pod.ended.wait(TIMEOUT_S)
    assert pod.connections == 3
    assert child.tail() == ""


def test_the_answer_to_a_client_that_left_reaches_no_other_client(start: Start) -> None:
    pod, port, _ = start(answer)
    assert answered(port, b"one") == with_close(answer_to(b"one"))
    pod.may_answer.clear()
    pod.asked.clear()
    client = connected(port)
    client.sendall(request_of(b"two"))
    assert pod.asked.wait(TIMEOUT_S)
    reset(client)
    later: list[bytes] = []
    thread = threading.Thread(target=lambda: later.append(answered(port, b"six")), daemon=True)
    thread.start()
    thread.join(0.1)
    pod.may_answer.set()
    thread.join(TIMEOUT_S)
    assert later == [with_close(answer_to(b"six"))]


def test_a_longer_answer_is_reported_and_closes_the_connection(start: Start) -> None:
    pod, port, child = start(answer)
    assert answered(port, b"one") == with_close(answer_to(b"one"))
    assert answered(port, b"three") == b""
    assert "an answer is 2 bytes longer than the first" in child.tail()
    assert answered(port, b"two") == with_close(answer_to(b"two")), "by another connection to the pod"
    assert pod.connections == 2
