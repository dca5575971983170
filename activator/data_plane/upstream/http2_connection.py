"""One HTTP/2 connection to a pod, which carries streams of many clients, up to the limit of the pod.

Rules
  1. A stream is one exchange. It ends in `response_end`, `pod_failed` or `pod_refused`, or by `abort` of the exchange,
     which resets this stream only.
  2. Requests that the pod has provably not processed may be sent to another pod, whatever the method (`pod_refused`):
     streams with REFUSED_STREAM, and those above the last stream of a GOAWAY (RFC 9113 8.7). A stream that ends with
     the connection before a byte of a response is `untouched`, as on a kept HTTP/1.1 connection.
  3. A connection after GOAWAY serves its streams to their ends, and gets no new ones.
  4. A pod that answers the preface with anything but SETTINGS does not speak HTTP/2; this is the detail of the refusal.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.client import ClientEvents, Http2Client
from activator.codec.http2.frames import CANCEL, HTTP_1_1_REQUIRED, NO_ERROR, REFUSED_STREAM, code_name
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.cancelled_streams import CancelledStreams, end_all
from activator.data_plane.upstream.http2_stream import Http2PodStream, Http2StreamOwner
from activator.data_plane.upstream.pooled_connection import ConnectionOwner
from activator.data_plane.upstream.websockets import switched
from activator.runtime.buffered_writer import BufferedWriter, GatheringWriter, WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.errors import WireError
from activator.runtime.reading import UNPARSED
from activator.runtime.reasons import Reason
from activator.runtime.transport import Transport

NOT_HTTP2: Final = "the pod does not speak HTTP/2 on this port: its first bytes are not SETTINGS"


class Http2PodConnection(Http2StreamOwner):
    """A connection to a pod that speaks HTTP/2."""

    def __init__(self, owner: ConnectionOwner, now: Now, batcher: WriteBatcher, authority: bytes, secure: bool) -> None:
        super().__init__(owner, now, batcher, authority)
        self.secure = secure
        self.codec = Http2Client(_Events(self))
        self.reserved_streams = 0
        self._served: bool = False  # the connection has served an exchange
        self.streams_before_settings: int = 1  # the limit before the pod's SETTINGS
        self.is_ready: bool = False  # it is in the pool's list of connections with room
        self.idle_since_s: float = 0.0
        self._refused: list[Http2PodStream] = []  # to be reported in the next turn
        self._before_settings: list[tuple[Http2PodStream, RequestHead, list[bytes]]] = []  # they wait for SETTINGS
        self._received: list[Http2PodStream] = []  # streams of this read; flushed after all of it is parsed
        self._received_s: float = 0.0  # the time of the read that is being handled
        self._cancelled = CancelledStreams(self.codec)

    # --- the pool's side ---

    def serve(self, exchange: PodUser) -> PodStream:
        assert not self.is_closed
        self.reserved_streams += 1
        stream = Http2PodStream(self, exchange, self._served)
        self._served = True
        return stream

    def room(self) -> int:
        """Return how many further exchanges the connection can take now."""
        transport = self._transport
        if self.is_closed or self.retiring or transport is None or transport.is_closing():
            return 0
        room = self.codec.room()
        if not self.codec.is_settled():
            room = min(room, self.streams_before_settings - len(self.codec.streams))
        return max(room - self.reserved_streams, 0)

    def is_idle(self) -> bool:
        """Return True if the connection carries no exchange."""
        return not self.codec.streams and self.reserved_streams == 0

    def close(self) -> None:
        if not self.is_closed:
            self._mark_and_report_closed()
            if self._transport is not None:
                self.codec.fail(NO_ERROR, "")  # sends a GOAWAY (RFC 9113 5.4.1)
            self._close_in_time()

    def cut(self) -> None:
        self._fail_all(Reason.POD_REMOVED, "", False, False)

    # --- its streams ---

    def when_settled(self, stream: Http2PodStream, head: RequestHead, body: list[bytes]) -> None:
        self._before_settings.append((stream, head, body))

    def reset(self, stream: Stream, cancelled: PodUser | None = None) -> None:
        self.codec.reset(stream, CANCEL)
        if cancelled is not None and not self.is_closed:
            self._cancelled.add(cancelled)
        if self._writer is not None:
            self._writer.flush()

    def refuse_soon(self, stream: Http2PodStream) -> None:
        self._refused.append(stream)
        if len(self._refused) == 1:
            self.batcher.defer(self._report_refused)

    def _report_refused(self) -> None:
        refused, self._refused = self._refused, []
        for stream in refused:
            exchange = stream.exchange
            stream.exchange = None
            if exchange is not None:
                exchange.pod_refused(Reason.POD_CLOSED, "")
        self.room_changed()  # their reserved streams were not used

    # --- asyncio protocol ---

    def _start(self, transport: Transport) -> None:
        super()._start(transport)
        self.codec.start()

    def _new_writer(self, transport: Transport) -> BufferedWriter:
        return GatheringWriter(self.batcher, transport, self.codec.flush)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        now_s = self._received_s = self._note_read(len(data))
        self.codec.feed(data, now_s)
        self._after_parsing()

    def _turn_came(self) -> None:
        self._reading.resume(UNPARSED)
        self._parse_on()

    def _parse_on(self) -> bool:
        if self.is_closed or not self.codec.needs_turn:
            return False
        self._reading.resume(UNPARSED)
        self._received_s = self._now()
        self.codec.resume()
        self._after_parsing()
        return True

    def _after_parsing(self) -> None:
        """Flush parsed data to the clients, and end the connection if the codec has found an error."""
        self._received_s = 0.0
        received = self._received
        if received:
            self._received = []
            for user in received:
                user.received = False
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
            self._parse_later()

    def eof_received(self) -> bool | None:
        self._parse_all()
        if not self.is_closed:
            self._fail_after_close()
        return None  # the transport closes, and `connection_lost` follows

    def _read_last(self) -> None:
        self._parse_all()
        if self.is_closed:
            return
        self._parse_last_reads()
        for stream in self.codec.streams.values():
            if isinstance(stream.user, Http2PodStream):
                stream.user.was_reset = True

    def _lost(self, error: Exception | None) -> None:
        self._parse_all()
        if not self.is_closed:
            self._fail_after_close()

    def _release(self) -> None:
        super()._release()
        self.codec.retire()

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

    def note_received(self, user: Http2PodStream, exchange: PodUser) -> None:
        """Record that the exchange has received something in this read."""
        if not user.received:
            user.received = True
            exchange.read_s = self._received_s
            self._received.append(user)

    def settled(self) -> None:
        """Send the requests that have waited for the pod's SETTINGS."""
        waiting, self._before_settings = self._before_settings, []
        for stream, head, body in waiting:
            if stream.exchange is not None:
                stream.send_request(head, body)
        self.room_changed()

    def _fail_after_close(self) -> None:
        """Fail all exchanges without a complete response: the pod has closed the connection."""
        if self.codec.streams:
            self._owner.pod_closed(self)
        if not self.codec.is_settled() and self.codec.streams:
            self._owner.wrong_protocol(self, NOT_HTTP2)
            self._fail_all(
                Reason.POD_CLOSED, "the pod closed the connection before it sent SETTINGS (HTTP/2)", False, False
            )
        else:
            self._fail_all(Reason.POD_CLOSED, "", True, False)

    def _fail_all(self, reason: Reason, words: str, may_be_untouched: bool, in_order: bool) -> None:
        """Close the connection and fail its exchanges.

        `may_be_untouched`: exchanges without a byte of a response are untouched; `in_order`: written bytes are sent.
        """
        if self.is_closed:
            return
        cancelled = self._cancelled.remove_all()
        users: list[object] = [stream.user for stream in self.codec.streams.values()]
        for waiting, _, _ in self._before_settings:
            if waiting.has_place:
                waiting.has_place = False
                self.reserved_streams -= 1
                users.append(waiting)
        self._before_settings = []
        self._mark_and_report_closed()
        if in_order:
            self._close_in_time()
        elif self._writer is not None:
            self._writer.cut()
        self.codec.retire()
        for user in users:
            if isinstance(user, Http2PodStream):
                exchange = user.exchange
                user.exchange = None
                if exchange is not None:
                    exchange.pod_failed(reason, words, may_be_untouched and user.reused and not user.answered)
        end_all(cancelled)

    def room_changed(self) -> None:
        if not self.is_closed:
            self._owner.room_changed(self)

    def _stream_over(self) -> None:
        """Report the end of a stream to the pool: there is room for another one, or the connection may close."""
        if not self.is_closed:
            self._owner.finished(self, not self.codec.going_away)


class _Events(ClientEvents):
    """The codec's events, forwarded to the connection and to the exchanges of its streams."""

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
        self._connection.note_received(user, exchange)
        if user.upgrade and 200 <= head.status < 300:
            user.tunnel = True
            head = switched(exchange.head, head)
        exchange.response_head(head)

    def stream_body(self, stream: Stream, data: bytes) -> None:
        user = stream.user
        if isinstance(user, Http2PodStream) and user.exchange is not None:
            self._connection.note_received(user, user.exchange)
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
                self._connection.codec.reset(stream, NO_ERROR)  # nothing reads the rest of the request

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        pass  # response bodies are not bounded

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
                    exchange.pod_failed(Reason.BAD_RESPONSE, "the pod requires HTTP/1.1 for this request", False)
                else:
                    exchange.pod_failed(Reason.POD_CLOSED, f"the pod reset the stream ({code_name(code)})", False)
        self._connection._stream_over()

    def stream_closed(self, stream: Stream) -> None:
        stream.user = None  # avoid a reference cycle
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
                        exchange.pod_refused(
                            Reason.POD_CLOSED, f"the pod closes the connection (GOAWAY, {code_name(code)})"
                        )
        connection._owner.finished(connection, False)

    def peer_settings(self) -> None:
        self._connection.settled()

    def settings_acknowledged(self) -> None:
        self._connection._cancelled.acknowledged()

    def ping_answered(self, payload: bytes) -> None:
        pass  # no PING is sent
