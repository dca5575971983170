"""One HTTP/2 connection to a pod: the streams of many clients, as many at a time as the pod allows.

Rules
  1. A stream is one exchange. It ends in `response_end`, `pod_failed` or `pod_refused`, or by the exchange's own
     `abort`, which resets the stream and nothing else.
  2. What the pod has provably not processed may be sent to another one whatever its method (`pod_refused`): a stream
     with REFUSED_STREAM, or above the last one that GOAWAY names (RFC 9113 8.7). A stream that ends with the
     connection, before a byte of an answer, is `untouched` as on a kept HTTP/1.1 connection.
  3. A connection that is going away serves its streams to their ends, and gets no new one.
  4. A pod that answers the preface with anything but SETTINGS does not speak HTTP/2: that is what the client is told.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.client import ClientEvents, Http2Client
from activator.codec.http2.frames import CANCEL, HTTP_1_1_REQUIRED, NO_ERROR, REFUSED_STREAM, code_name
from activator.codec.http2.stream import Stream
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.exchange import PodStream, PodUser
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.data_plane.upstream.websockets import accept_of
from activator.runtime.buffered_writer import GatheringWriter, WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.errors import WireError
from activator.runtime.last_reads import last_reads
from activator.runtime.reading import UNPARSED, Reading
from activator.runtime.reasons import Reason
from activator.runtime.transport import WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES, Transport, watch

NOT_HTTP2: Final = "the pod does not speak HTTP/2 on this port: its first bytes are not SETTINGS"

UNCONFIRMED_MAX: Final = 1_000  # cancelled requests of one connection that wait for the next acknowledgement


class Http2PodStream(PodStream):
    """One exchange's stream."""

    def __init__(self, connection: Http2PodConnection, exchange: PodUser, reused: bool) -> None:
        self.connection = connection
        self.exchange: PodUser | None = exchange  # None once it is over
        self.reused = reused
        self.may_refuse = True
        self.stream: Stream | None = None
        self.has_place: bool = True  # its request has not been sent
        self.end_wanted: bool = False  # before its request could be sent
        self.touched: bool = False  # by the read that is being handled
        self.answered: bool = False  # a byte of an answer has come
        self.tunnel: bool = False
        self.upgrade: bytes = b""  # `websocket`, if that is asked for

    def protocol(self) -> str:
        return "HTTP/2"

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        connection = self.connection
        codec = connection.codec
        if head.upgrade and head.upgrade != b"websocket":  # HTTP/2 has no other upgrade
            offered = head.upgrade.split(b", ")
            head = head.copy()
            head.upgrade = b"websocket" if b"websocket" in offered else b""
        self.upgrade = head.upgrade
        if head.upgrade and not codec.is_settled() and not connection.is_closed:
            connection.when_settled(self, head, body)  # RFC 8441 3: whether it takes WebSockets is not known before
            return
        self.has_place = False
        connection.promised -= 1
        if connection.is_closed or codec.room() == 0:  # it went away between the hand-over and now
            connection.refuse_soon(self)
            return
        if head.upgrade and not codec.peer_takes_websockets:
            connection.turn.defer(_NoWebSockets(self).say)
            return
        stream = self.stream = codec.open(self)
        codec.send_request(stream, head, connection.authority, connection.secure)
        for data in body:
            codec.send_body(stream, data)
        if self.end_wanted:
            codec.send_end(stream, [])

    def send_body(self, data: bytes) -> None:
        stream = self.stream
        if stream is not None:
            self.connection.codec.send_body(stream, data)

    def send_end(self, trailers: Headers) -> None:
        stream = self.stream
        if stream is None:
            self.end_wanted = True
        else:
            self.connection.codec.send_end(stream, trailers)

    def abort(self) -> None:
        self.exchange = None
        stream = self.stream
        if self.has_place:
            self.has_place = False
            self.connection.place_given_back()
        elif stream is not None and not stream.is_closed:
            self.connection.reset(stream)

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        stream = self.stream
        if self.has_place or stream is None or stream.is_closed:
            self.abort()
            return False
        if (waits or self.tunnel) and (stream.local_ended or stream.end_wanted):
            self.exchange = successor
            self.connection.codec.pause(stream, False)
            return True
        self.exchange = None
        # With `waits` the pod may compute on with the part that it has: the slot is kept until the time is over.
        self.connection.reset(stream, None if waits else successor)
        return True

    def half_closes(self) -> bool:
        return True

    def finish(self) -> None:
        """A tunnel has ended both ways; what was sent is on its way, and the end of the stream behind it."""
        self.exchange = None
        if self.stream is not None:
            self.connection.codec.send_end(self.stream, [])

    def pause_response(self) -> None:
        stream = self.stream
        if stream is not None:
            self.connection.codec.pause(stream, True)

    def resume_response(self) -> None:
        stream = self.stream
        if stream is not None:
            self.connection.codec.pause(stream, False)


class Http2PodConnection(PooledConnection):
    """An asyncio protocol by its methods (a native class cannot derive from asyncio.Protocol)."""

    def __init__(self, owner: ConnectionOwner, now: Now, turn: WriteBatcher, authority: bytes, secure: bool) -> None:
        self._owner = owner
        self._now = now
        self.turn = turn
        self.authority = authority  # of the pod: for requests that name none
        self.secure = secure
        self.codec = Http2Client(_Events(self))
        self.bare: Transport | None = None
        self._transport: Transport | None = None
        self._writer: GatheringWriter | None = None
        self._reading = Reading(turn.shares.add, self._turn_came)
        self.fresh: bool = True
        self.last_read_s: float = 0.0
        self.is_closed: bool = False
        self.promised: int = 0  # exchanges that have been given a place, and have not sent their request
        self._served: bool = False  # it has been given to an exchange before
        self.streams_before_settings: int = 1  # that it carries until the pod has said how many it takes
        self.retiring: bool = False  # it takes no new ones
        self.is_ready: bool = False  # the pool has it among those with room
        self.idle_since_s: float = 0.0
        self._refused: list[Http2PodStream] = []
        self._unsettled: list[tuple[Http2PodStream, RequestHead, list[bytes]]] = []
        self._touched: list[Http2PodStream] = []  # their exchanges are flushed when all of the read has been parsed
        self._received_s: float = 0.0  # the time of the read that is being handled
        # Cancelled requests whose RST_STREAM the pod has yet to confirm: those that the next acknowledgement confirms,
        # and those that were reset after it was asked for.
        self._confirmed_next: list[PodUser] = []
        self._confirmed_later: list[PodUser] = []

    # --- the pool's side ---

    def serve(self, exchange: PodUser) -> PodStream:
        assert not self.is_closed
        self.promised += 1
        stream = Http2PodStream(self, exchange, self._served)
        self._served = True
        return stream

    def room(self) -> int:
        """How many exchanges it can take now."""
        transport = self._transport
        if self.is_closed or self.retiring or transport is None or transport.is_closing():
            return 0
        room = self.codec.room()
        if not self.codec.is_settled():
            room = min(room, self.streams_before_settings - len(self.codec.streams))
        return max(room - self.promised, 0)

    def is_idle(self) -> bool:
        """It carries nothing."""
        return not self.codec.streams and self.promised == 0

    def watch(self) -> None:
        if self._transport is not None:
            watch(self._transport)

    def close(self) -> None:
        if not self.is_closed:
            self._gone()
            writer = self._writer
            transport = self._transport
            if writer is not None and transport is not None:
                self.codec.fail(NO_ERROR, "")  # a GOAWAY, as 5.4.1 wants it
                self._write_last(writer, transport)

    def cut(self) -> None:
        self._fail_all(Reason.POD_REMOVED, "", False, False)

    # --- its streams ---

    def place_given_back(self) -> None:
        """An exchange that had a place has not used it."""
        self.promised -= 1
        self.room_changed()

    def when_settled(self, stream: Http2PodStream, head: RequestHead, body: list[bytes]) -> None:
        """Send this request when the pod has said what it takes."""
        self._unsettled.append((stream, head, body))

    def reset(self, stream: Stream, cancelled: PodUser | None = None) -> None:
        """Reset a stream at once, and report its end to `cancelled` when the pod has processed that.

        Until then a request of another worker could reach the pod before the reset has ended this one. If the pod
        confirms nothing, the deadline of `cancelled` ends it.
        """
        self.codec.reset(stream, CANCEL)
        if cancelled is not None and not self.is_closed:
            if self.codec.unacknowledged == 0:
                self._confirmed_next.append(cancelled)
                self.codec.ask_for_order()
            elif len(self._confirmed_later) < UNCONFIRMED_MAX:
                self._confirmed_later.append(cancelled)
        if self._writer is not None:
            self._writer.flush()

    def resets_confirmed(self) -> None:
        """The pod has processed all that was written before the last SETTINGS."""
        if self.codec.unacknowledged > 0:
            return
        confirmed = self._confirmed_next
        self._confirmed_next, self._confirmed_later = self._confirmed_later, []
        if self._confirmed_next:
            self.codec.ask_for_order()
        self._end_cancelled(confirmed)

    def _end_cancelled(self, cancelled: list[PodUser]) -> None:
        for one in cancelled:
            one.pod_failed(Reason.POD_CLOSED, "", False)

    def refuse_soon(self, stream: Http2PodStream) -> None:
        """The connection cannot take it any more: another one is to, but not within the hand-over."""
        self._refused.append(stream)
        if len(self._refused) == 1:
            self.turn.defer(self._refuse)

    def _refuse(self) -> None:
        refused, self._refused = self._refused, []
        for stream in refused:
            exchange = stream.exchange
            stream.exchange = None
            if exchange is not None:
                exchange.pod_refused(Reason.POD_CLOSED, "")
        self.room_changed()  # their places were not used

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._transport = transport
        self._writer = GatheringWriter(self.turn, transport, self.codec.flush)
        self._reading.start(transport if self.bare is None else self.bare)
        self.bare = None
        self.last_read_s = self._now()
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self.codec.start()
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        if self.fresh:
            self.fresh = False
            self._owner.answered(self)
        now_s = self._now()
        self.last_read_s = self._received_s = now_s
        self._reading.took(len(data))
        self.codec.feed(data, now_s)
        self._after()

    def _turn_came(self) -> None:
        self._reading.resume(UNPARSED)
        if not self.is_closed and self.codec.needs_turn:
            self._received_s = self._now()
            self.codec.resume()
            self._after()

    def _after(self) -> None:
        """Something was parsed: see whether the connection goes on."""
        self._received_s = 0.0
        touched = self._touched
        if touched:
            self._touched = []
            for user in touched:
                user.touched = False
                exchange = user.exchange
                if exchange is not None:
                    exchange.response_flush()
        codec = self.codec
        error = codec.error
        if error is not None:
            words = error.words if codec.is_settled() else NOT_HTTP2
            if not codec.is_settled():
                self._owner.wrong_protocol(self, NOT_HTTP2)
            self._fail_all(Reason.BAD_RESPONSE, words, False, True)
        elif codec.needs_turn:
            self._reading.pause(UNPARSED)
            self._reading.wait_for_turn()

    def _parse_all(self) -> None:
        """Nothing more comes: parse what is left of the last read, in as many shares as it takes."""
        while self.codec.needs_turn and not self.is_closed:
            self._turn_came()

    def eof_received(self) -> bool | None:
        self._parse_all()
        if not self.is_closed:
            self._ended()
        return None  # the transport closes, and `connection_lost` follows

    def connection_lost(self, error: Exception | None) -> None:
        self._parse_all()
        if error is not None and not self.is_closed:
            for data in last_reads(self._transport):
                self.data_received(data)
                self._parse_all()
            for stream in self.codec.streams.values():
                if isinstance(stream.user, Http2PodStream):
                    stream.user.was_reset = True
        if not self.is_closed:
            self._ended()
        self._forget()

    def pause_writing(self) -> None:
        self.codec.hold(True)

    def resume_writing(self) -> None:
        self.codec.hold(False)
        if self.codec.needs_turn:
            self._reading.wait_for_turn()

    # --- within ---

    def write(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None:
            writer.write(data)

    def touch(self) -> None:
        if self._writer is not None:
            self._writer.touch()

    def touched(self, user: Http2PodStream, exchange: PodUser) -> None:
        """Something has come for it in this read."""
        if not user.touched:
            user.touched = True
            exchange.read_s = self._received_s
            self._touched.append(user)

    def settled(self) -> None:
        """The pod has said what it takes."""
        unsettled, self._unsettled = self._unsettled, []
        for stream, head, body in unsettled:
            if stream.exchange is not None:
                stream.send_request(head, body)
        self.room_changed()

    def _ended(self) -> None:
        """The pod sends no more: what it has not answered ends here."""
        if self.codec.streams:
            self._owner.cut(self)
        if not self.codec.is_settled() and self.codec.streams:
            self._owner.wrong_protocol(self, NOT_HTTP2)
            self._fail_all(
                Reason.POD_CLOSED, "the pod closed the connection before it answered in HTTP/2", False, False
            )
        else:
            self._fail_all(Reason.POD_CLOSED, "", True, False)

    def _fail_all(self, reason: Reason, words: str, may_be_untouched: bool, in_order: bool) -> None:
        """The connection is over; its exchanges are told. `in_order`: what was written to it still goes out."""
        if self.is_closed:
            return
        cancelled = [*self._confirmed_next, *self._confirmed_later]
        self._confirmed_next, self._confirmed_later = [], []
        users: list[object] = [stream.user for stream in self.codec.streams.values()]
        for unsettled, _, _ in self._unsettled:
            if unsettled.has_place:
                unsettled.has_place = False
                self.promised -= 1
                users.append(unsettled)
        self._unsettled = []
        self._gone()
        writer = self._writer
        transport = self._transport
        if writer is not None and transport is not None:
            if in_order:
                self._write_last(writer, transport)
            else:
                writer.cut()
        self.codec.retire()
        for user in users:
            if isinstance(user, Http2PodStream):
                exchange = user.exchange
                user.exchange = None
                if exchange is not None:
                    exchange.pod_failed(reason, words, may_be_untouched and user.reused and not user.answered)
        self._end_cancelled(cancelled)

    def _write_last(self, writer: GatheringWriter, transport: Transport) -> None:
        writer.close()
        if transport.get_write_buffer_size() > 0:
            self._owner.leaving(transport)

    def _gone(self) -> None:
        self.is_closed = True
        self._owner.closed(self)

    def _forget(self) -> None:
        self._reading.stop()
        self.codec.retire()
        if self._writer is not None:
            self._writer.stop()
        self._transport = None
        self._writer = None

    def room_changed(self) -> None:
        if not self.is_closed:
            self._owner.room_changed(self)

    def _stream_over(self) -> None:
        """One has ended: there is room for another, or the connection may close."""
        if not self.is_closed:
            self._owner.finished(self, not self.codec.going_away)


class _NoWebSockets:
    """Tells one exchange so, in the next turn."""

    def __init__(self, stream: Http2PodStream) -> None:
        self._stream = stream

    def say(self) -> None:
        exchange = self._stream.exchange
        self._stream.exchange = None
        if exchange is not None:
            exchange.pod_failed(Reason.BAD_RESPONSE, "the pod takes no WebSockets over HTTP/2 (RFC 8441)", False)
        self._stream.connection.room_changed()  # its place was not used


class _Events(ClientEvents):
    """What the codec finds, for the connection and the exchanges of its streams."""

    def __init__(self, connection: Http2PodConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.write(data)

    def wants_flush(self) -> None:
        self._connection.touch()

    def response_interim(self, stream: Stream, head: ResponseHead) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream) and user.exchange is not None:
            user.answered = True
            user.exchange.response_interim(head)

    def response_head(self, stream: Stream, head: ResponseHead) -> None:
        user = stream.user
        if not isinstance(user, Http2PodStream):
            return
        exchange = user.exchange
        if exchange is None:
            return
        user.answered = True
        self._connection.touched(user, exchange)
        if user.upgrade and 200 <= head.status < 300:
            user.tunnel = True
            head = _switched(exchange.head, head)
        exchange.response_head(head)

    def stream_body(self, stream: Stream, data: bytes) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream) and user.exchange is not None:
            self._connection.touched(user, user.exchange)
            user.exchange.response_body(data)

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream):
            exchange = user.exchange
            if exchange is not None:
                if not user.tunnel:
                    user.exchange = None
                exchange.response_end(trailers)
            if not user.tunnel and not stream.local_ended and not stream.is_closed:
                self._connection.codec.reset(stream, NO_ERROR)  # the answer is complete: what is left has no reader

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        pass  # bodies of answers have no bound

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        user = stream.user
        stream.user = None
        if isinstance(user, Http2PodStream):
            exchange = user.exchange
            user.exchange = None
            if exchange is not None:
                if words:
                    exchange.pod_failed(Reason.BAD_RESPONSE, words, False)
                elif code == REFUSED_STREAM and not user.answered:
                    exchange.pod_refused(Reason.POD_CLOSED, "the pod refused the stream (REFUSED_STREAM)")
                elif code == HTTP_1_1_REQUIRED:
                    exchange.pod_failed(Reason.BAD_RESPONSE, "the pod wants HTTP/1.1 for this request", False)
                else:
                    exchange.pod_failed(Reason.POD_CLOSED, f"the pod reset the stream ({code_name(code)})", False)
        self._connection._stream_over()

    def stream_closed(self, stream: Stream) -> None:
        stream.user = None  # no cycle is left for the collector
        self._connection._stream_over()

    def stream_full(self, stream: Stream) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream) and user.exchange is not None:
            user.exchange.pod_blocked()

    def stream_drained(self, stream: Stream) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream) and user.exchange is not None:
            user.exchange.pod_drained()

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        connection = self._connection
        codec = connection.codec
        codec.going_away = True
        for stream in list(codec.streams.values()):
            if stream.id > last_id and not stream.is_closed:
                codec.drop(stream)
                user = stream.user
                stream.user = None
                if isinstance(user, Http2PodStream):
                    exchange = user.exchange
                    user.exchange = None
                    if exchange is not None:
                        exchange.pod_refused(Reason.POD_CLOSED, f"the pod goes away ({code_name(code)})")
        connection._owner.finished(connection, False)

    def peer_settings(self) -> None:
        self._connection.settled()

    def settings_acknowledged(self) -> None:
        self._connection.resets_confirmed()

    def ping_answered(self, payload: bytes) -> None:
        pass  # we send none


def _switched(request: RequestHead, head: ResponseHead) -> ResponseHead:
    """The 101 that HTTP/1.1 would have in the place of this answer to an extended CONNECT."""
    lines = head.headers.block
    key = request.headers.get(b"sec-websocket-key")
    if key:
        lines += b"\r\nSec-WebSocket-Accept: " + accept_of(key)
    switched = ResponseHead(101, b"Switching Protocols", Fields(lines), UNKNOWN_LENGTH, False)
    switched.upgrade = b"websocket"
    return switched
