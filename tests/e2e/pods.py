"""Pods that do exactly what a test tells them, byte by byte, over real sockets.

Rules
  1. A pod is a listening socket and a script; the script is called for each connection that brings a byte (a probe
     brings none and is not counted) with the connection's number, from 0.
  2. What a pod received is kept, and so is what went wrong in a script: `close` raises it.
  3. Everything ends with `close`: threads, connections, the listener.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Self

from tests.e2e.raw_connection import RawConnection
from tests.e2e.running import PATIENCE_S, eventually


class GoneError(Exception):
    """The other side has closed, or the pod is being closed: the script need not go on."""


class Request:
    """A request as the pod received it."""

    def __init__(self, connection: int, line: str, headers: list[tuple[str, str]]) -> None:
        self.connection = connection
        self.line = line
        self.headers = headers
        self.body = b""
        self.trailers: list[tuple[str, str]] = []
        self.complete = False

    def __repr__(self) -> str:
        return f"Request({self.connection}, {self.line!r}, {self.headers}, {self.body[:100]!r})"

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name]


class PodSide(RawConnection):
    """One connection, as the pod's script sees it."""

    def __init__(self, pod: ScriptedPod, sock: socket.socket, number: int) -> None:
        super().__init__(sock)
        self.pod = pod
        self.number = number

    def head(self) -> Request:
        """Read a request's head; the body is still to be read."""
        line = self._line()
        if not line:
            raise GoneError
        headers = []
        while field := self._line():
            name, _, value = field.partition(":")
            headers.append((name, value.strip(" \t")))
        request = Request(self.number, line, headers)
        self.pod.requests.append(request)
        return request

    def body(self, request: Request) -> None:
        """Read the body of `request`, as its framing says."""
        if "chunked" in request.all("transfer-encoding"):
            while size := int(self._line(), 16):
                request.body += self.read(size)
                assert self._line() == ""
            while field := self._line():
                name, _, value = field.partition(":")
                request.trailers.append((name, value.strip(" \t")))
        elif lengths := request.all("content-length"):
            request.body = self.read(int(lengths[0]))
        request.complete = True

    def request(self) -> Request:
        """A whole request."""
        request = self.head()
        self.body(request)
        return request

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise GoneError
        return data

    def answer(self, body: bytes = b"fine", headers: str = "", status: str = "200 OK") -> None:
        self.send(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def wait(self) -> None:
        """Do nothing until the test says `pod.go_on()`."""
        if not self.pod.going.wait(PATIENCE_S):
            raise AssertionError("nobody said go_on")

    def stall(self) -> None:
        """Do nothing, and read nothing, until the other side has closed or the pod is closed."""
        while not self.pod.closing.wait(0.01):
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if info[0] != 1:  # no longer ESTABLISHED
                return

    def drain(self) -> None:
        """Read and forget until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while self._file.read(65536):
                pass

    def _line(self) -> str:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise GoneError
        return line[:-2].decode("latin-1")


Script = Callable[[PodSide], None]


class ScriptedPod:
    """Listens from the start on a free port, or on `port`; or on the Unix socket `path`."""

    def __init__(self, script: Script, port: int = 0, path: str = "") -> None:
        self.script = script
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self.connections = 0
        self.open = 0
        self.going = threading.Event()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sides: set[PodSide] = set()
        self._listener = socket.socket(socket.AF_UNIX) if path else socket.socket()
        if path:
            self._listener.bind(path)
        else:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", port))
        self._listener.listen(1024)
        self.port: int = 0 if path else self._listener.getsockname()[1]
        self.address = f"unix:{path}" if path else f"127.0.0.1:{self.port}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def go_on(self) -> None:
        """Let `wait` return, now and later."""
        self.going.set()

    def wait_open(self, count: int) -> None:
        """Until so many connections are open, as the pod sees it."""
        eventually(lambda: self.open == count, f"{count} open connections of the pod")

    def stop_listening(self) -> None:
        """From now on dials are refused; connections that are there stay."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def close(self) -> None:
        self.closing.set()
        self.going.set()
        self.stop_listening()
        with self._lock:
            for side in self._sides:
                with contextlib.suppress(OSError):
                    side.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a pod's script does not end"
        assert not self.errors, self.errors

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(60.0)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer sent in pieces comes at once
            self._start(lambda sock=sock: self._serve(sock))  # type: ignore[misc]

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                if sock.recv(1, socket.MSG_PEEK) == b"":
                    return  # a probe
            except OSError:
                return
            with self._lock:
                side = PodSide(self, sock, self.connections)
                self._sides.add(side)
                self.connections += 1
                self.open += 1
            try:
                self.script(side)
            except (GoneError, ConnectionError):
                pass
            except Exception as error:
                if not self.closing.is_set():
                    self.errors.append(error)
            finally:
                with self._lock:
                    self.open -= 1
                    self._sides.discard(side)
                with contextlib.suppress(OSError):
                    side.close()


def serve(side: PodSide) -> None:
    """An ordinary pod: answers every request with 200, and names itself."""
    while True:
        side.request()
        side.answer(side.pod.address.encode())


def replies(*answers: bytes) -> Script:
    """Reads a request and sends these bytes, and again for the next; then closes."""

    def script(side: PodSide) -> None:
        for answer in answers:
            side.request()
            side.send(answer)

    return script


def close_all(pods: Iterable[ScriptedPod]) -> None:
    for pod in pods:
        pod.close()


def serve_or_hold(side: PodSide) -> None:
    """Answer with its own address, a request for /held when the test says so."""
    while True:
        if side.request().target == "/held":
            side.wait()
        side.answer(side.pod.address.encode())
