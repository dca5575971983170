"""The contract of every filter, as tests for the authors of filters.

Only running them needs pytest:

    from activator.testing import FilterContract

    class TestMine(FilterContract):
        filter_path = "my_package:Mine"
        options = {"secret": "a"}

Rules
  1. Each test runs the activator itself, with real sockets, in front of a server in this process.
  2. The contract applies to any filter: whatever a client does, the filter raises nothing, each request ends, its
     resources are released, and the response does not depend on how the bytes are split into reads.
  3. `request_fields` and `body` describe a request that the filter accepts, if there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final, Self

PATIENCE_S: Final = 20.0
PIECE_S: Final = 0.002  # after each piece, so that it is read separately
_ERRORS: Final = re.compile(rb"^activator_errors_total (\d+)", re.MULTILINE)

# Valid but unusual heads; each is followed by the end of the fields.
_ODD_FIELDS: Final = (
    b"X-Empty:\r\n",
    b"X-Bytes: \xff\xfe\x80\r\n",
    b"Authorization: \r\nAuthorization: Bearer\r\nAuthorization: Basic =\r\n",
    b"Cookie: =; ;;a\r\n",
    b"X-Long: " + b"x" * 8000 + b"\r\n",
    b"".join([b"X-Many-%d: %d\r\n" % (number, number) for number in range(90)]),
    b"Content-Type: multipart/form-data\r\n",
)


class _Pod(BaseHTTPRequestHandler):
    """A pod that answers GET with a text, and POST with the body of the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"the pod\n")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Running:
    """The activator with the filter, in front of a pod; a context manager."""

    def __init__(self, filter_path: str, options: Mapping[str, str]) -> None:
        self._pod = ThreadingHTTPServer(("127.0.0.1", 0), _Pod)
        self._pod.daemon_threads = True
        threading.Thread(target=self._pod.serve_forever, daemon=True).start()
        self._folder = tempfile.TemporaryDirectory(prefix="filter-contract-")
        self.file = Path(self._folder.name, "a.json")
        revision = {
            "name": "app",
            "hosts": ["*"],
            "container_concurrency": 100,
            "pods": [f"127.0.0.1:{self._pod.server_port}"],
            "filters": [{"name": filter_path, "options": dict(options)}],
        }
        self.file.write_text(
            json.dumps({"listen": ["127.0.0.1:0"], "admin": "127.0.0.1:0", "revisions": [revision]}), "utf-8"
        )
        self._log = Path(self._folder.name, "log")
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "activator.cli", "run", "-c", str(self.file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
            )  # fmt: skip
        self.port = self._port(rb"serving on 127\.0\.0\.1:(\d+)")
        self.admin = self._port(rb"admin port on 127\.0\.0\.1:(\d+)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pod.shutdown()
        self._pod.server_close()
        self._folder.cleanup()

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @contextlib.contextmanager
    def connection(self, port: int = 0) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", port or self.port), PATIENCE_S) as sock:
            yield sock

    def send(self, request: bytes, piece_bytes: int = 0, port: int = 0) -> tuple[int, bytes]:
        """Send the request, in pieces if `piece_bytes` is set; return the status and the body of the response."""
        with self.connection(port) as sock:
            if piece_bytes:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            step = piece_bytes or max(len(request), 1)
            with contextlib.suppress(ConnectionError):  # it may be rejected before all of it is read
                for start in range(0, len(request), step):
                    sock.sendall(request[start : start + step])
                    if piece_bytes:
                        time.sleep(PIECE_S)
            head, _, body = _read_all(sock).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body

    def send_head_first(self, request: bytes) -> tuple[int, bytes]:
        """Send the body once the activator has begun to process the head; return the status and the body, as `send`."""
        end = request.index(b"\r\n\r\n") + 4
        before, until_s = self._revision()["requests"], time.monotonic() + PATIENCE_S
        with self.connection() as sock:
            sock.sendall(request[:end])
            while not select.select([sock], [], [], 0.01)[0] and self._revision()["requests"] == before:
                assert time.monotonic() < until_s, self.log()
            with contextlib.suppress(ConnectionError):  # it may be rejected already
                sock.sendall(request[end:])
            head, _, body = _read_all(sock).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body

    def errors(self) -> int:
        """Return how many exceptions the activator has counted."""
        match = _ERRORS.search(self.send(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n", port=self.admin)[1])
        assert match is not None
        return int(match[1])

    def until_idle(self) -> None:
        """Wait until no request is left; fail after PATIENCE_S."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            revision = self._revision()
            remaining = {key: revision[key] for key in ("in_flight", "queued") if revision.get(key)}
            if not remaining:
                return
            assert time.monotonic() < until_s, f"left of requests that are over: {remaining}"
            time.sleep(0.05)

    def _revision(self) -> dict[str, Any]:
        """Return the revision as the admin port shows it."""
        answer = self.send(b"GET /debug/revisions HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n", port=self.admin)[1]
        revision: dict[str, Any] = json.loads(answer)["revisions"][0]
        return revision

    def _port(self, line: bytes) -> int:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            match = re.search(line, self._log.read_bytes())
            if match is not None:
                return int(match[1])
            assert self._process.poll() is None and time.monotonic() < until_s, self.log()
            time.sleep(0.02)


def _read_all(sock: socket.socket) -> bytes:
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)


class FilterContract:
    """The base class of the tests; set `filter_path`."""

    filter_path: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    request_fields: ClassVar[Mapping[str, str]] = {}  # fields of an accepted request; {}: all are accepted, or none
    body: ClassVar[bytes] = b""  # the body of that request
    lets_through: ClassVar[bool] = True  # False: no request reaches a pod

    def running(self) -> Running:
        return Running(self.filter_path, self.options)

    def request(self, fields: bytes = b"", body: bytes | None = None) -> bytes:
        """Return the bytes of a request that is accepted, with more fields, or with another body."""
        sent = self.body if body is None else body
        own_fields = "".join([f"{name}: {value}\r\n" for name, value in self.request_fields.items()]).encode()
        verb = b"POST" if sent else b"GET"
        length = b"Content-Length: %d\r\n" % len(sent) if sent else b""
        return b"%b /a?b=c HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n%b%b%b\r\n%b" % (
            verb, length, own_fields, fields, sent,
        )  # fmt: skip

    def test_a_request_that_it_lets_through_reaches_the_pod(self) -> None:
        with self.running() as running:
            status, body = running.send(self.request())
            if self.lets_through:
                assert (status, body) == (200, self.body or b"the pod\n"), running.log()
            assert running.errors() == 0, running.log()

    def test_it_raises_nothing_whatever_the_head_is_like(self) -> None:
        with self.running() as running:
            bare = b"GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n"
            for fields in _ODD_FIELDS:
                for request in (self.request(fields), bare + fields + b"\r\n"):
                    assert running.send(request)[0] < 500, running.log()
            running.until_idle()
            assert running.errors() == 0, running.log()

    def test_it_raises_nothing_whatever_the_body_is_like(self) -> None:
        with self.running() as running:
            head = self.request(b"Transfer-Encoding: chunked\r\n", b"").replace(b"GET ", b"POST ", 1)
            for body in (b"0\r\n\r\n", b"1\r\n\xff\r\n0\r\n\r\n", b"1\r\n{\r\n0\r\nX-Trailer: 1\r\n\r\n"):
                running.send(head + body)
            for body in (b"\xff", b"{", b"[" * 100_000, bytes(3_000_000)):
                running.send(self.request(body=body))
            running.until_idle()
            assert running.errors() == 0, running.log()

    def test_the_response_does_not_depend_on_segmentation(self) -> None:
        with self.running() as running:
            request = self.request()
            whole = running.send(request)
            assert [running.send(request, size) for size in (1, 7)] == [whole, whole]
            assert running.send_head_first(request) == whole

    def test_clients_that_leave_at_any_byte_leave_nothing_behind(self) -> None:
        with self.running() as running:
            request = self.request()
            for end in range(0, len(request) + 1, max(len(request) // 40, 1)):
                with running.connection() as sock:
                    sock.sendall(request[:end])
            running.until_idle()
            assert running.errors() == 0, running.log()
            assert running.send(request)[0] == running.send(request)[0]

    def test_it_is_made_anew_by_a_reload_under_load(self) -> None:
        """A reload replaces the filter; requests in progress keep the old one."""
        with self.running() as running:
            request, stop = self.request(), threading.Event()
            expected = running.send(request)
            failed: list[tuple[int, bytes]] = []

            def client() -> None:
                while not stop.is_set():
                    answer = running.send(request)
                    if answer != expected:
                        failed.append(answer)

            clients = [threading.Thread(target=client) for _ in range(4)]
            for thread in clients:
                thread.start()
            content = json.loads(running.file.read_text("utf-8"))
            for number in range(5):
                content["revisions"][0]["container_concurrency"] = 101 + number
                running.file.write_text(json.dumps(content), "utf-8")
                reload = b"POST /reload HTTP/1.0\r\nHost: 127.0.0.1\r\nActivator-Admin: 1\r\nContent-Length: 0\r\n\r\n"
                assert running.send(reload, port=running.admin)[0] == 200, running.log()
            stop.set()
            for thread in clients:
                thread.join()
            assert failed == []
            assert running.errors() == 0, running.log()
