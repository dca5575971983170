"""An HTTP/2 client by the `h2` package over a socket: many streams, windows obeyed, every wait bounded."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Self

import h2.config
import h2.connection
import h2.events

TIMEOUT_S = 20.0
Pairs = list[tuple[str, str]]


class Reply:
    """What has come on one stream; header names are lowered."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Pairs = []
        self.interim: list[tuple[int, Pairs]] = []
        self.trailers: Pairs = []
        self.pieces: list[bytes] = []
        self.size = 0
        self.ended = False
        self.code: int | None = None  # of RST_STREAM

    def __repr__(self) -> str:
        return f"Reply({self.status}, {self.headers}, {self.body[:200]!r}, {self.trailers}, {self.code})"

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def over(self) -> bool:
        return self.ended or self.code is not None

    def header(self, name: str) -> str:
        return ", ".join(value for known, value in self.headers if known == name)

    def trailer(self, name: str) -> str:
        return ", ".join(value for known, value in self.trailers if known == name)

    @property
    def reason(self) -> str:
        return self.header("activator-reason")


class GoneError(Exception):
    """The connection has ended."""


class Http2Client:
    """One connection, one thread. `goaway`: (code, last stream, words) once the server has said so."""

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str = "localhost",
        authority: str = "a.test",
        timeout_s: float = TIMEOUT_S,
        keeps: bool = True,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.timeout_s = timeout_s
        self.authority = authority
        self.scheme = "https" if tls is not None else "http"
        self.replies: dict[int, Reply] = {}
        self.goaway: tuple[int, int, bytes] | None = None
        self.gone = False
        self.keeps = keeps  # the bodies
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            secured = tls.wrap_socket(self.socket, server_hostname=server_name)
            assert secured.selected_alpn_protocol() == "h2"
            self.socket = secured
        configuration = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")
        self.h2 = h2.connection.H2Connection(configuration)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(2**24)
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # --- asking ---

    def begin(self, path: str = "/", method: str = "GET", headers: Iterable[tuple[str, str]] = (), *, end: bool) -> int:
        """The head of a request; its stream."""
        number = self.h2.get_next_available_stream_id()
        plain = [(":method", method), (":scheme", self.scheme), (":path", path), (":authority", self.authority)]
        self.h2.send_headers(number, [*plain, *headers], end_stream=end)
        self.replies[number] = Reply()
        self._flush()
        return number

    def send(self, number: int, data: bytes, *, end: bool = False) -> bool:
        """Whether all of it went out: not where the server has ended the stream."""
        view = memoryview(data)
        reply = self.replies[number]
        while view:
            self._until(lambda: reply.over or self.h2.local_flow_control_window(number) > 0)
            if reply.over:
                return False
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(view))
            last = end and room == len(view)
            self.h2.send_data(number, bytes(view[:room]), end_stream=last)
            view = view[room:]
            self._flush()
            if len(view):
                self.read(0)
        if end and not data:
            self.end(number)
        return True

    def end(self, number: int, trailers: Pairs | None = None) -> None:
        if trailers:
            self.h2.send_headers(number, trailers, end_stream=True)
        else:
            self.h2.end_stream(number)
        self._flush()

    def reset(self, number: int, code: int = 8) -> None:
        self.h2.reset_stream(number, code)
        self._flush()

    def start(
        self,
        path: str = "/",
        method: str = "",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        trailers: Pairs | None = None,
    ) -> int:
        """A whole request; its stream."""
        method = method or ("GET" if body is None else "POST")
        number = self.begin(path, method, headers, end=body is None and not trailers)
        if body is not None or trailers:
            sent = self.send(number, body or b"", end=not trailers)
            if sent and trailers:
                self.end(number, trailers)
        return number

    def ask(
        self,
        path: str = "/",
        method: str = "",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        trailers: Pairs | None = None,
    ) -> Reply:
        """A whole request and its answer."""
        return self.answer(self.start(path, method, headers, body, trailers))

    # --- reading ---

    def answer(self, number: int) -> Reply:
        """Once it is over, by its end or a reset."""
        reply = self.replies[number]
        self._until(lambda: reply.over)
        return reply

    def head(self, number: int) -> Reply:
        reply = self.replies[number]
        self._until(lambda: reply.status > 0 or reply.over)
        return reply

    def wait_size(self, number: int, size: int) -> Reply:
        """Until so much of the body is there."""
        reply = self.replies[number]
        self._until(lambda: reply.size >= size or reply.over)
        return reply

    def wait_goaway(self) -> tuple[int, int, bytes]:
        self._until(lambda: self.goaway is not None)
        assert self.goaway is not None
        return self.goaway

    def wait_closed(self) -> bool:
        try:
            self._until(lambda: False)
        except GoneError:
            return True
        except TimeoutError:
            return False
        return False

    def wait_connect_protocol(self) -> None:
        """Until the server's SETTINGS have come, and say that it takes extended CONNECT."""
        self._until(lambda: self.h2.remote_settings.enable_connect_protocol == 1)

    def read(self, patience_s: float | None = None) -> bool:
        """Take what comes next; False: nothing came in time."""
        if self.gone:
            raise GoneError
        self.socket.settimeout(self.timeout_s if patience_s is None else patience_s)
        try:
            data = self.socket.recv(262_144)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            data = b""
        finally:
            self.socket.settimeout(self.timeout_s)
        if not data:
            self.gone = True
            raise GoneError
        for event in self.h2.receive_data(data):
            self._take(event)
        self._flush()
        return True

    # --- within ---

    def _until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + self.timeout_s
        while not condition():
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or not self.read(left_s):
                raise TimeoutError(f"still waiting after {self.timeout_s} s: {self.replies}"[:2_000])

    def _flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.socket.settimeout(self.timeout_s)
            try:
                self.socket.sendall(data)
            except TimeoutError:
                raise
            except OSError:
                pass  # what it had said before is still to be read

    def _take(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", None)
        reply = self.replies.get(number) if number is not None else None
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = (int(event.error_code or 0), event.last_stream_id or 0, event.additional_data or b"")
        if reply is None:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            pairs = [(_text(name), _text(value)) for name, value in event.headers or []]
            status = int(dict(pairs)[":status"])
            rest = [pair for pair in pairs if pair[0] != ":status"]
            if isinstance(event, h2.events.ResponseReceived):
                reply.status, reply.headers = status, rest
            else:
                reply.interim.append((status, rest))
        elif isinstance(event, h2.events.DataReceived):
            assert number is not None
            reply.size += len(event.data)
            if self.keeps:
                reply.pieces.append(event.data)
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
        elif isinstance(event, h2.events.TrailersReceived):
            reply.trailers = [(_text(name), _text(value)) for name, value in event.headers or []]
        elif isinstance(event, h2.events.StreamEnded):
            reply.ended = True
        elif isinstance(event, h2.events.StreamReset):
            reply.code = int(event.error_code or 0)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
