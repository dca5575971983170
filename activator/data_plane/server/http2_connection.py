"""One HTTP/2 connection of a client: each stream is a request, and responses are sent in any order.

Rules
  1. Requests of one read begin, in their order, after the whole read has been parsed; short bodies are complete then.
  2. If the codec leaves data for another turn, nothing is read before it is parsed. `limits.streams` bounds the
     streams, and the window of a stream its data. Heads and replies to PING and SETTINGS have no window: a client that
     leaves UNTAKEN_BYTES_MAX of them untaken is not read.
  3. The end of the connection, in any way, disconnects the clients of all its streams.
  4. While there are streams, a check runs every CHECK_INTERVAL_S for slow request bodies, for responses that the client
     does not take, and for a frame that does not end.
  5. A drain announces the end, names the last stream after everything in flight has arrived (which the reply to a PING
     shows), and closes after the last stream has ended (RFC 9113 6.8).
  6. A client that closes its side of the TCP connection has disconnected, because it can open no windows any more.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2 import frames
from activator.codec.http2.frames import CANCEL, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, code_name
from activator.codec.http2.server import Http2Server, ServerEvents
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers, RequestHead
from activator.data_plane.refusals import refusal_head, refusal_text
from activator.data_plane.server.client_connection import ClientConnection
from activator.data_plane.server.closing import LINGERING, OPEN
from activator.data_plane.server.http2_stream import Http2ClientStream
from activator.data_plane.server.registry import ConnectionRegistry
from activator.runtime.buffered_writer import BufferedWriter, GatheringWriter
from activator.runtime.clock import NEVER
from activator.runtime.errors import WireError
from activator.runtime.reading import SLOW_READER, UNPARSED
from activator.runtime.reasons import Reason
from activator.runtime.transport import FLUSH_S, Transport
from activator.runtime.units import KIB

CHECK_INTERVAL_S: Final = 5.0  # interval of the checks, and the time over which the rate of a body is averaged
FRAME_TIMEOUT_S: Final = 60.0  # for a partial frame; DATA counts for the rate of its body instead
UNTAKEN_BYTES_MAX: Final = 256 * KIB  # heads and control frames; a client with more of them unread is not read
DRAIN_PING_S: Final = 1.0  # the last stream is named after this time without a reply to PING

_DRAIN_PING: Final = b"draining"


class Http2ClientConnection(ClientConnection):
    """A client's connection, from its first byte, or after `Http1Connection` has read the preface."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(registry)
        self._codec = Http2Server(_Events(self), registry.limits, registry.streams_max)
        self._begun: list[Http2ClientStream] = []  # streams whose requests were received in this read
        self._frames_seen: i64 = 0  # the codec's `frames_total` at the last check
        self._frame_since_s: float = 0.0  # the check that first found a partial frame; 0.0: none
        self._announced_s: float = 0.0  # when the end was announced
        self._is_last_named: bool = False  # the end of the connection names its last stream
        self._ended: bool = False  # `client_gone` has been called for all streams

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._start(transport)
        registry = self._registry
        if not registry.admit(self):
            registry.proxy.count_refused(Reason.OVERLOADED)
            self._codec.fail(ENHANCE_YOUR_CALM, "the proxy is overloaded")
            self._after_parsing(0.0)

    def take_over(self, transport: Transport, data: bytes) -> None:
        """Continue an accepted connection whose first bytes, `data`, are those of HTTP/2."""
        self._start(transport)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        self._reading.took(len(data))
        now_s = self._registry.now()
        if self._phase != OPEN:
            if self._phase == LINGERING:
                self._quiet_since_s = now_s
            return
        self._codec.feed(data, now_s)
        self._after_parsing(now_s)

    def pause_writing(self) -> None:
        self._codec.hold(True)

    def resume_writing(self) -> None:
        self._reading.resume(SLOW_READER)
        self._registry.note_paused(self, False)
        self._codec.hold(False)
        if self._codec.needs_turn:
            self._reading.wait_for_turn()

    # --- called by the registry and the listener ---

    def drain(self) -> None:
        if self._phase != OPEN:
            self._drain_closing()
            return
        now_s = self._registry.now()
        codec = self._codec
        if self._announced_s == 0.0:
            self._announced_s = now_s
            codec.announce_end()
            self.write(frames.ping(_DRAIN_PING, False))
        elif not self._is_last_named and now_s - self._announced_s >= DRAIN_PING_S:
            self._name_last_stream()
        if self._is_last_named and not codec.streams:
            self._close_in_order(False, False, True)

    def is_tunnel(self) -> bool:
        return any(
            isinstance(stream.user, Http2ClientStream) and stream.user.tunnel for stream in self._codec.streams.values()
        )

    def cut(self) -> None:
        for stream in list(self._codec.streams.values()):
            user = stream.user
            if isinstance(user, Http2ClientStream) and user.tunnel and not user.exchange.over:
                user.exchange.request_failed(Reason.DRAINING, "")

    def refuse_unsent(self) -> int:
        count = 0
        for stream in list(self._codec.streams.values()):
            user = stream.user
            if isinstance(user, Http2ClientStream):
                count += user.exchange.refuse_unsent()
        return count

    # --- within ---

    def _http_version(self) -> bytes:
        return b"2.0"

    def _start(self, transport: Transport) -> None:
        super()._start(transport)
        registry = self._registry
        if self._entry:
            registry.entered[self] = self._entry
        registry.http2_total += 1
        registry.http2_connections += 1
        self._codec.start()
        self._start_checks(self._quiet_since_s)

    def _new_writer(self, transport: Transport) -> BufferedWriter:
        return GatheringWriter(self.batcher, transport, self._codec.flush)

    def _after_parsing(self, now_s: float) -> None:
        """Begin the parsed requests, and end the connection if the codec has found an error."""
        begun = self._begun
        if begun:
            self._begun = []
            for stream in begun:
                if not stream.exchange.over:
                    stream.exchange.begin()
            self._start_checks(now_s)
        codec = self._codec
        error = codec.error
        if error is not None:
            if self._phase == OPEN:
                self._registry.count_http2_error(error.code)
                self._client_gone()
                self._close_in_order(True, True, True)  # over TLS at once, because only its own end signals it
        else:
            if codec.needs_turn:
                self._parse_later()
            transport = self._transport
            if transport is not None and transport.get_write_buffer_size() > UNTAKEN_BYTES_MAX:
                self._reading.pause(SLOW_READER)  # until `resume_writing`
                self._registry.note_paused(self, True)

    def _turn_came(self) -> None:
        self._reading.resume(UNPARSED)
        if self._phase == OPEN and self._codec.needs_turn:
            self._codec.resume()
            self._after_parsing(self._registry.now())

    def _update_reading(self) -> None:
        if self._phase == LINGERING:
            self._reading.resume(SLOW_READER | UNPARSED)
            self._registry.note_paused(self, False)

    def _client_gone(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._begun = []
        for stream in list(self._codec.streams.values()):
            user = stream.user
            if isinstance(user, Http2ClientStream):
                user.exchange.client_gone()

    def _release(self) -> None:
        self._registry.http2_connections -= 1
        # A stream whose malformed head exhausted a budget has no user, and was never counted.
        self._registry.streams -= sum(stream.user is not None for stream in self._codec.streams.values())
        super()._release()
        self._codec.retire()

    def _name_last_stream(self) -> None:
        """Announce the last stream that is processed (GOAWAY); the client opens no new ones."""
        if not self._is_last_named:
            self._is_last_named = True
            self._codec.end()

    def _stream_closed(self) -> None:
        self._registry.streams -= 1
        if not self._codec.streams:
            self._quiet_since_s = self._registry.now()

    # --- deadlines ---

    def _is_busy(self) -> bool:
        return len(self._codec.streams) > 0

    def _start_checks(self, now_s: float) -> None:
        """Start the periodic check of the streams if it is not running."""
        if self._deadlines.body_s == NEVER:
            self._schedule_check(now_s)
            self._arm(now_s)

    def _schedule_check(self, now_s: float) -> None:
        self._deadlines.body_s = now_s + min(CHECK_INTERVAL_S, self._registry.idle_s)

    def _body_due(self, now_s: float) -> None:
        """Check all streams, and a frame that does not end; the bodies share one deadline."""
        self._deadlines.body_s = NEVER
        codec = self._codec
        if self._is_stalled(now_s):
            codec.fail(PROTOCOL_ERROR, "a frame did not end in time")
            self._after_parsing(now_s)
        elif codec.streams or self._frame_since_s > 0.0:
            for stream in list(codec.streams.values()):
                user = stream.user
                if isinstance(user, Http2ClientStream):
                    if now_s - user.checked_s >= CHECK_INTERVAL_S:
                        self._check_stream(user, now_s)
                elif isinstance(user, _Refused) and now_s - user.refused_s >= FLUSH_S:
                    codec.reset(stream, CANCEL)
            self._schedule_check(now_s)

    def _end_idle(self) -> None:
        self._name_last_stream()
        super()._end_idle()

    def loop_paused(self, pause_s: float) -> None:
        super().loop_paused(pause_s)
        self._frame_since_s += pause_s if self._frame_since_s > 0.0 else 0.0
        for stream in self._codec.streams.values():
            user = stream.user
            if isinstance(user, Http2ClientStream):
                user.checked_s += pause_s

    def _is_stalled(self, now_s: float) -> bool:
        """Return True if a frame or field section has been incomplete for FRAME_TIMEOUT_S; note when one began."""
        codec = self._codec
        if not codec.is_within_section() or codec.frames_total != self._frames_seen:
            self._frames_seen = codec.frames_total
            self._frame_since_s = now_s if codec.is_within_section() else 0.0
            return False
        return now_s - self._frame_since_s >= FRAME_TIMEOUT_S

    def _check_stream(self, user: Http2ClientStream, now_s: float) -> None:
        """Fail the request or reset the stream if its client sends too slowly or takes nothing of the response."""
        stream = user.stream
        if user.exchange.over:
            # The rest is being sent to the client, and only this stream holds it.
            if stream.sent_bytes > user.checked_sent:
                user.checked_sent = stream.sent_bytes
                user.checked_s = now_s
            elif now_s - user.checked_s >= FLUSH_S:
                self._codec.reset(stream, CANCEL)
            return
        rate = self._registry.body_rate
        received = float(stream.received_bytes - user.checked_received)
        is_late = (
            rate > 0
            and received < rate * (now_s - user.checked_s)
            and not (stream.remote_ended or user.waited or user.answered or user.awaits_continue())
        )
        user.waited = stream.paused
        user.checked_received = stream.received_bytes
        user.checked_sent = stream.sent_bytes
        user.checked_s = now_s
        if is_late:
            user.exchange.request_failed(Reason.REQUEST_TIMEOUT, "")


class _Refused:
    """The user of a stream whose request was refused at once with a response."""

    def __init__(self, refused_s: float) -> None:
        self.refused_s = refused_s


class _Events(ServerEvents):
    """The codec's events, forwarded to the connection and to the exchanges of its streams."""

    def __init__(self, connection: Http2ClientConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.write(data)

    def wants_flush(self) -> None:
        writer = self._connection._writer
        if writer is not None:
            writer.touch()

    def request_head(self, stream: Stream, head: RequestHead) -> None:
        connection = self._connection
        registry = connection._registry
        registry.streams += 1
        registry.http2_requests_total += 1
        connection._origin_of_client().stamp(head)
        head.entry = connection._entry
        user = Http2ClientStream(connection, connection._codec, stream, registry.now())
        user.exchange = connection.open_request(head, user)
        stream.user = user
        connection._begun.append(user)

    def request_refused(self, stream: Stream, error: WireError) -> None:
        connection = self._connection
        registry = connection._registry
        registry.streams += 1
        stream.user = _Refused(registry.now())
        registry.proxy.count_refused(error.reason)
        body = refusal_text(error.reason, error.detail)
        codec = connection._codec
        stream.wants_no_more = True
        codec.send_response(stream, refusal_head(error.reason, body, 0), stream.head_request)
        codec.send_body(stream, body)
        codec.send_end(stream, [])
        connection._start_checks(registry.now())

    def stream_body(self, stream: Stream, data: bytes) -> None:
        user = stream.user
        if isinstance(user, Http2ClientStream):
            user.exchange.request_body(data)

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        user = stream.user
        if isinstance(user, Http2ClientStream):
            user.exchange.request_end(trailers)

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        user = stream.user
        if isinstance(user, Http2ClientStream):
            user.exchange.request_failed(error.reason, error.detail)

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        connection = self._connection
        user = stream.user
        connection._registry.count_stream_reset(words == "")
        if user is None:  # its head was malformed, and it was never counted
            connection._registry.proxy.count_refused(Reason.BAD_REQUEST)
            return
        connection._stream_closed()
        stream.user = None  # avoid a reference cycle
        if not isinstance(user, Http2ClientStream):
            return
        if words:
            user.exchange.request_failed(Reason.BAD_REQUEST, f"{words} ({code_name(code)})")
        else:
            user.exchange.client_gone()

    def stream_refused(self) -> None:
        self._connection._registry.streams_refused_total += 1

    def stream_closed(self, stream: Stream) -> None:
        self._connection._stream_closed()
        stream.user = None  # avoid a reference cycle

    def stream_full(self, stream: Stream) -> None:
        user = stream.user
        if isinstance(user, Http2ClientStream):
            user.exchange.client_blocked()

    def stream_drained(self, stream: Stream) -> None:
        user = stream.user
        if isinstance(user, Http2ClientStream):
            user.exchange.client_drained()

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        pass  # it opens no new streams; existing ones continue

    def peer_settings(self) -> None:
        pass  # the codec applies them

    def ping_answered(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._connection._announced_s > 0.0:
            self._connection._name_last_stream()
