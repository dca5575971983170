"""One request's stream on an HTTP/2 client connection.

Rules
  1. A head without a body also ends the stream; a short response is one HEADERS and one DATA frame.
  2. If a response is complete before its request has ended, the rest of the request is reset with NO_ERROR (RFC 9113
     8.1).
  3. A response that was cut short resets the stream; other streams of the connection continue.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.frames import CANCEL, INTERNAL_ERROR
from activator.codec.http2.server import Http2Server
from activator.codec.http2.stream import Stream
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.exchange import Exchange
from activator.data_plane.server.client_connection import ClientConnection
from activator.data_plane.streams import ClientStream

_CONTINUE: Final = ResponseHead(100, b"Continue", Fields(b""), UNKNOWN_LENGTH, False)


class Http2ClientStream(ClientStream):
    """A client's stream; the connection sets `exchange` at once."""

    exchange: Exchange

    def __init__(self, connection: ClientConnection, codec: Http2Server, stream: Stream, opened_s: float) -> None:
        self._connection = connection
        self._codec = codec
        self.stream = stream
        self.opened_s = opened_s
        self.answered: bool = False  # the head of the final response is sent
        self.tunnel: bool = False
        self._continued: bool = False  # a 100 (Continue) is sent
        self.waited: bool = False  # reading the body was paused since the last check
        # Values at the last check of the connection:
        self.checked_received: i64 = 0
        self.checked_sent: i64 = 0
        self.checked_s: float = opened_s

    def send_interim(self, head: ResponseHead) -> None:
        if head.status == 100:
            if self._continued:
                return  # already sent before the request had a pod
            self._continued = self.waited = True
        self._codec.send_response(self.stream, head, False)

    def ask_for_body(self) -> None:
        if self.awaits_continue():
            self.send_interim(_CONTINUE)

    def awaits_continue(self) -> bool:
        """Return True if the client waits for a 100 (Continue) before its body, and has got none (RFC 9110 10.1.1)."""
        return not self._continued and self.exchange.head.headers.get(b"expect") is not None

    def send_head(self, head: ResponseHead) -> None:
        self.answered = True
        if head.upgrade:
            self.tunnel = True
            self._codec.send_response(self.stream, head, False)
            if self.stream.remote_ended:
                self.exchange.request_end([])  # the client closed its side before the tunnel was established
            return
        if self.exchange.head.upgrade and 200 <= head.status < 300:
            head.status = 502  # RFC 8441 5: a 2xx would mean an open WebSocket, but the pod has not switched
        if not head.has_body:
            self.stream.wants_no_more = True
        self._codec.send_response(self.stream, head, not head.has_body)

    def send_body(self, data: bytes) -> None:
        self._codec.send_body(self.stream, data)

    def send_end(self, trailers: Headers) -> None:
        if not self.tunnel or self.exchange.over:
            self.stream.wants_no_more = True
        self._codec.send_end(self.stream, trailers)

    def flush(self) -> None:
        self._codec.flush_stream(self.stream)

    def abort(self) -> None:
        if self.exchange.is_shed and len(self._codec.streams) == 1:
            self._connection.abort(True)  # otherwise the written data stays in memory until it times out
            return
        self.flush()
        self._codec.reset(self.stream, CANCEL if self.tunnel else INTERNAL_ERROR)

    def pause_request(self) -> None:
        self.waited = True
        self._codec.pause(self.stream, True)

    def resume_request(self) -> None:
        self._codec.pause(self.stream, False)

    def taken_bytes(self) -> int:
        return self.stream.sent_bytes

    def unsent_bytes(self) -> int:
        # A share of the connection's own bytes, so that all its streams together count them once.
        return self.stream.unsent_bytes + self._connection.unsent_bytes() // max(len(self._codec.streams), 1)

    def half_closes(self) -> bool:
        return True

    def client_ip(self) -> str:
        return self._connection.client_ip_of(self.exchange.head)

    def is_local(self) -> bool:
        return self._connection.is_local()

    def endpoints(self) -> Endpoints | None:
        return self._connection.client_endpoints(self.exchange.head)

    def protocol(self) -> str:
        return "HTTP/2"

    def secure(self) -> bool:
        return self._connection.secure()
