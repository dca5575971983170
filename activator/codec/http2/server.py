"""The server's role: streams that a client opens, each with one request (RFC 9113 section 8.1).

Rules
  1. A malformed request resets its stream (8.1.1) and is charged to the budget of resets. A well-formed request that
     exceeds a limit of ours is delivered as refused, so that it can be answered.
  2. Streams above our MAX_CONCURRENT_STREAMS are refused with REFUSED_STREAM: their requests were not processed and may
     be retried.
  3. The connection ends in two steps (6.8): `announce_end` announces the end, and streams in flight are still served;
     `end` names the last stream.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http1.request import RequestLimits
from activator.codec.http2 import frames
from activator.codec.http2.budgets import FRAMES_PER_REQUEST
from activator.codec.http2.connection import CONNECTION_WINDOW_BYTES, Http2Connection
from activator.codec.http2.events import ConnectionEvents
from activator.codec.http2.field import Field
from activator.codec.http2.frames import (
    ENABLE_CONNECT_PROTOCOL,
    FIRST_WINDOW,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_ID_MAX,
)
from activator.codec.http2.heads import NOT_IN_RESPONSES, RequestReader, write_response
from activator.codec.http2.stream import Stream
from activator.codec.message import RequestHead, ResponseHead
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason

_PREFACE_BYTES: Final = len(PREFACE)
# MAX_HEADER_LIST_SIZE counts 32 bytes per field besides name and value (6.5.2); our limit counts 4, as in HTTP/1.1.
_EXTRA_PER_FIELD: Final = 28


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerEvents(ConnectionEvents):
    """The events of a connection in the server's role."""

    def request_head(self, stream: Stream, head: RequestHead) -> None:
        """Handle the head of a request. Its body and `stream_ended` follow."""
        raise NotImplementedError

    def request_refused(self, stream: Stream, error: WireError) -> None:
        """Answer a well-formed request that exceeds a limit of ours."""
        raise NotImplementedError

    def stream_refused(self) -> None:
        """Count a stream that was refused because too many are open."""
        raise NotImplementedError


class Http2Server(Http2Connection):
    """The codec of a client's connection."""

    def __init__(self, events: ServerEvents, limits: RequestLimits, streams_max: int) -> None:
        super().__init__(events, limits.header_bytes, limits.headers, NOT_IN_RESPONSES)
        self._server_events = events
        self._reader = RequestReader(limits)
        self._body_bytes_max = limits.body_bytes
        self._streams_max: i64 = streams_max
        self._preface_received: i64 = 0  # bytes received of the client's preface
        self._final_id: i64 = STREAM_ID_MAX  # streams above it are not served

    def start(self) -> None:
        """Send our own preface (3.4)."""
        settings = [
            (MAX_CONCURRENT_STREAMS, int(self._streams_max)),
            (MAX_HEADER_LIST_SIZE, int(self._header_bytes_max + self._fields_max * _EXTRA_PER_FIELD)),
            (ENABLE_CONNECT_PROTOCOL, 1),
        ]
        growth = CONNECTION_WINDOW_BYTES - FIRST_WINDOW
        self._receive_window += growth
        self._events.write(frames.settings_frame(settings) + frames.window_update(0, growth))

    def feed(self, data: bytes, now_s: float) -> None:
        received = self._preface_received
        if received < _PREFACE_BYTES:
            rest = PREFACE[received : received + len(data)]
            if not data.startswith(rest):
                self.fail(PROTOCOL_ERROR, "the connection does not begin with the preface of HTTP/2")
                return
            self._preface_received = received + len(rest)
            data = data[len(rest) :]
        super().feed(data, now_s)

    def send_response(self, stream: Stream, head: ResponseHead, last: bool) -> None:
        """Send a final or interim head; no body follows if `last`."""
        if not stream.is_closed and not stream.local_ended:
            self.send_head(stream, write_response(self.encoder, head), last)

    def announce_end(self) -> None:
        """Ask the client to open no new streams; streams that are in flight are served."""
        if self.error is None:
            self._events.write(frames.go_away(STREAM_ID_MAX, NO_ERROR, ""))

    def end(self) -> None:
        """Serve no stream that has not been opened yet."""
        if self.error is None and self._final_id == STREAM_ID_MAX:
            self._final_id = self.last_id
            self._events.write(frames.go_away(self.last_id, NO_ERROR, ""))

    def retire(self) -> None:
        super().retire()
        self._server_events = _NO_EVENTS

    # --- Http2Connection ---

    def _is_server(self) -> bool:
        return True

    def _is_idle(self, stream_id: i64) -> bool:
        return stream_id > self.last_id or stream_id & 1 == 0

    def _last_processed(self) -> i64:
        return min(self.last_id, self._final_id)

    def _section_without_stream(self, stream_id: i64, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        if stream_id & 1 == 0:
            self.fail(PROTOCOL_ERROR, "a client's stream with an even number")
            return
        if stream_id <= self.last_id:
            if stream_id < self.last_id and not self._is_reset_by_us(stream_id):
                self.fail(PROTOCOL_ERROR, "HEADERS on a stream below the last one")  # RFC 9113 5.1.1
            else:
                self._take_late_frame(stream_id, "HEADERS", 0)
            return
        self.last_id = stream_id
        if stream_id > self._final_id:
            self._remember_reset(stream_id, FIRST_WINDOW)  # in flight when GOAWAY named the last stream
            return
        if len(self.streams) >= self._streams_max:
            self._server_events.stream_refused()
            self._remember_reset(stream_id, FIRST_WINDOW)
            self._spend_reset()
            if self.error is None:
                self._events.write(frames.reset_stream(stream_id, REFUSED_STREAM))
            return
        stream = Stream(stream_id, self._first_send_window, FIRST_WINDOW)
        self.streams[stream_id] = stream
        self._head(stream, fields, is_whole, ends_stream)

    def _head(self, stream: Stream, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        self.budgets.useful(FRAMES_PER_REQUEST)
        try:
            if not is_whole:
                raise WireError(Reason.HEADERS_TOO_LARGE, "the header fields are too large")
            head = self._reader.read(fields, ends_stream)
        except WireError as error:
            stream.has_head = True
            if error.reason is Reason.BAD_REQUEST:
                self._stream_error(stream, PROTOCOL_ERROR, error.detail)
                return
            stream.remote_ended = ends_stream
            stream.head_request = is_whole and self._reader.is_head()
            self._server_events.request_refused(stream, error)
            return
        stream.has_head = True
        if not ends_stream:
            stream.expected = head.content_length
        self._server_events.request_head(stream, head)
        if ends_stream and not stream.is_closed:
            self._remote_ended(stream, [])


_NO_EVENTS: Final = ServerEvents()
