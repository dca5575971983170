"""One request's stream on an HTTP/2 connection to a pod.

Rules
  1. From checkout to `send_request` a stream has a *place*: the connection reserves room for it.
  2. A WebSocket request waits until the pod has sent its SETTINGS (RFC 8441 3).
  3. A cancelled stream is reset at once, unless the pod has the whole request and may finish it.
"""

from __future__ import annotations

from activator.codec.http2.client import Http2Client
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers, RequestHead
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.pooled_connection import PooledConnection
from activator.runtime.reasons import Reason


class Http2StreamOwner(PooledConnection):
    """The interface of a connection for its streams."""

    codec: Http2Client
    secure: bool
    reserved_streams: int  # exchanges with a reserved place that have not sent their request

    def when_settled(self, stream: Http2PodStream, head: RequestHead, body: list[bytes]) -> None:
        """Send this request after the pod has sent its SETTINGS."""
        raise NotImplementedError

    def refuse_soon(self, stream: Http2PodStream) -> None:
        """Report to its exchange, in the next turn and not within the checkout, that it needs another connection."""
        raise NotImplementedError

    def room_changed(self) -> None:
        """Report that a reserved place was not used, so that the connection may take another exchange."""
        raise NotImplementedError

    def reset(self, stream: Stream, cancelled: PodUser | None = None) -> None:
        """Reset a stream at once, and report its end to `cancelled` after the pod has processed the reset.

        Before that, a request of another worker could reach the pod while it still works on this one. If the pod
        confirms nothing, the deadline of `cancelled` ends it.
        """
        raise NotImplementedError


class Http2PodStream(PodStream):
    """The stream of one exchange."""

    def __init__(self, connection: Http2StreamOwner, exchange: PodUser, reused: bool) -> None:
        self._connection = connection
        self._codec = connection.codec
        self.exchange: PodUser | None = exchange  # None after its end
        self.reused = reused
        self.may_refuse = True
        self.stream: Stream | None = None
        self.has_place: bool = True  # its request has not been sent
        self.end_pending: bool = False  # `send_end` was called before the request could be sent
        self.received: bool = False  # data in the read that is being handled
        self.answered: bool = False  # a byte of a response has arrived
        self.tunnel: bool = False
        self.upgrade: bytes = b""  # `websocket`, if requested

    def protocol(self) -> str:
        return "HTTP/2"

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        connection = self._connection
        codec = self._codec
        if head.upgrade and head.upgrade != b"websocket":  # HTTP/2 has no other upgrade
            offered = head.upgrade.split(b", ")
            head = head.copy()
            head.upgrade = b"websocket" if b"websocket" in offered else b""
        self.upgrade = head.upgrade
        if head.upgrade and not codec.is_settled() and not connection.is_closed:
            connection.when_settled(self, head, body)  # RFC 8441 3: the pod announces support in them
            return
        self.has_place = False
        connection.reserved_streams -= 1
        if connection.is_closed or codec.room() == 0:  # the connection received GOAWAY after the checkout
            connection.refuse_soon(self)
            return
        if head.upgrade and not codec.peer_takes_websockets:
            connection.batcher.defer(self._report_no_websockets)
            return
        stream = self.stream = codec.open(self)
        codec.send_request(stream, head, connection.authority, connection.secure)
        for data in body:
            codec.send_body(stream, data)
        if self.end_pending:
            codec.send_end(stream, [])

    def _report_no_websockets(self) -> None:
        """Fail the exchange, because the pod does not support extended CONNECT."""
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.pod_failed(
                Reason.BAD_RESPONSE, "the pod does not support WebSockets over HTTP/2 (RFC 8441)", False
            )
        self._connection.room_changed()  # its place was not used

    def send_body(self, data: bytes) -> None:
        stream = self.stream
        if stream is not None:
            self._codec.send_body(stream, data)

    def send_end(self, trailers: Headers) -> None:
        stream = self.stream
        if stream is None:
            self.end_pending = True
        else:
            self._codec.send_end(stream, trailers)

    def abort(self) -> None:
        self.exchange = None
        stream = self.stream
        if self.has_place:
            self.has_place = False
            self._connection.reserved_streams -= 1
            self._connection.room_changed()
        elif stream is not None and not stream.is_closed:
            self._connection.reset(stream)

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        stream = self.stream
        if self.has_place or stream is None or stream.is_closed:
            self.abort()
            return False
        if (waits or self.tunnel) and (stream.local_ended or stream.end_pending):
            self.exchange = successor
            self._codec.pause(stream, False)
            return True
        self.exchange = None
        # With `waits` the pod may continue with the part that it has: the slot is kept until the time limit.
        self._connection.reset(stream, None if waits else successor)
        return True

    def half_closes(self) -> bool:
        return True

    def finish(self) -> None:
        """End a tunnel whose both directions have ended, after the data that is still being sent."""
        self.exchange = None
        if self.stream is not None:
            self._codec.send_end(self.stream, [])

    def pause_response(self) -> None:
        stream = self.stream
        if stream is not None:
            self._codec.pause(stream, True)

    def resume_response(self) -> None:
        stream = self.stream
        if stream is not None:
            self._codec.pause(stream, False)
