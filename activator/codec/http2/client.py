"""The client's role: streams that we open to a pod, each with one request (RFC 9113 section 8.1).

Rules
  1. At most as many streams are open as the pod allows; before its SETTINGS, at most STREAMS_BEFORE_SETTINGS.
  2. A malformed response resets its stream; other streams of the connection continue.
  3. REFUSED_STREAM, and GOAWAY for a stream above the last one that it names, mean that the request was not processed
     (8.7) and may be retried.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http1.response import INTERIM_RESPONSES_MAX, RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX
from activator.codec.http2 import frames
from activator.codec.http2.budgets import FRAMES_PER_REQUEST
from activator.codec.http2.connection import CONNECTION_WINDOW_BYTES, Http2Connection
from activator.codec.http2.events import ConnectionEvents
from activator.codec.http2.field import Field
from activator.codec.http2.frames import (
    ENABLE_PUSH,
    FIRST_WINDOW,
    MAX_HEADER_LIST_SIZE,
    PREFACE,
    PROTOCOL_ERROR,
    STREAM_ID_MAX,
)
from activator.codec.http2.heads import NOT_IN_REQUESTS, ResponseReader, write_request
from activator.codec.http2.stream import Stream
from activator.codec.message import RequestHead, ResponseHead
from activator.runtime.errors import WireError


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientEvents(ConnectionEvents):
    """The events of a connection in the client's role."""

    def response_interim(self, stream: Stream, head: ResponseHead) -> None:
        """Handle a 1xx response; the final one is still to come."""
        raise NotImplementedError

    def response_head(self, stream: Stream, head: ResponseHead) -> None:
        """Handle the head of the final response. Its body and `stream_ended` follow."""
        raise NotImplementedError


class Http2Client(Http2Connection):
    """The codec of a connection to a pod."""

    def __init__(self, events: ClientEvents) -> None:
        super().__init__(events, RESPONSE_HEAD_BYTES_MAX, RESPONSE_HEADERS_MAX, NOT_IN_REQUESTS)
        self._client_events = events
        self._reader = ResponseReader()
        self.going_away: bool = False  # the pod accepts no new streams

    def start(self) -> None:
        """Send the preface (3.4)."""
        settings = [(ENABLE_PUSH, 0), (MAX_HEADER_LIST_SIZE, RESPONSE_HEAD_BYTES_MAX)]
        growth = CONNECTION_WINDOW_BYTES - FIRST_WINDOW
        self._receive_window += growth
        self.unacknowledged = 1
        self._events.write(b"%b%b%b" % (PREFACE, frames.settings_frame(settings), frames.window_update(0, growth)))

    def ask_for_order(self) -> None:
        """Send empty SETTINGS. A pod that acknowledges them has processed all earlier frames (6.5.3).

        A PING would have the same effect, but gRPC servers close connections that send pings.
        """
        self.unacknowledged += 1
        self._events.write(frames.settings_frame([]))

    def is_settled(self) -> bool:
        """Return True if the pod has sent its SETTINGS, and therefore supports HTTP/2."""
        return self._greeted

    def room(self) -> int:
        """Return the number of streams that may be opened now."""
        if self.going_away or self.error is not None:
            return 0
        ids_left = (STREAM_ID_MAX - self.last_id) // 2
        return max(min(self.peer_streams_max - len(self.streams), ids_left), 0)

    def open(self, user: object) -> Stream:
        """Open a stream, which requires `room`. The next request that is sent must be the one for this stream."""
        stream_id = self.last_id + 2 if self.last_id else 1
        self.last_id = stream_id
        stream = Stream(stream_id, self._first_send_window, FIRST_WINDOW)
        stream.user = user
        self.streams[stream_id] = stream
        return stream

    def drop(self, stream: Stream) -> None:
        """Remove a stream that the pod will not process, without an event or a RST_STREAM."""
        self._forget(stream)
        self._remember_reset(stream.id, stream.receive_window)

    def send_request(self, stream: Stream, head: RequestHead, authority: bytes, secure: bool) -> None:
        """Send a head, with `authority` if it has none. Our direction stays open only for a body or an upgrade."""
        stream.head_request = head.method == b"HEAD"
        last = not head.has_body and not head.upgrade
        self.send_head(stream, write_request(self.encoder, head, authority, secure), last)

    def retire(self) -> None:
        super().retire()
        self._client_events = _NO_EVENTS

    # --- Http2Connection ---

    def _is_server(self) -> bool:
        return False

    def _is_idle(self, stream_id: i64) -> bool:
        return stream_id > self.last_id or stream_id & 1 == 0

    def _last_processed(self) -> i64:
        return 0  # no stream of the pod: it must not open any

    def _section_without_stream(self, stream_id: i64, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        self._take_late_frame(stream_id, "HEADERS", 0)

    def _head(self, stream: Stream, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        if not is_whole:
            self._stream_error(stream, PROTOCOL_ERROR, "the response's head is too large")
            return
        try:
            head = self._reader.read(fields, ends_stream, stream.head_request)
        except WireError as error:
            self._stream_error(stream, PROTOCOL_ERROR, error.detail)
            return
        if head.status < 200:
            stream.interims += 1
            if stream.interims > INTERIM_RESPONSES_MAX:
                self._stream_error(stream, PROTOCOL_ERROR, "too many 1xx responses")
            else:
                self._client_events.response_interim(stream, head)
            return
        self.budgets.useful(FRAMES_PER_REQUEST)
        stream.has_head = True
        if not ends_stream:
            stream.has_body = head.has_body
            if head.has_body or head.content_length == 0:
                stream.expected = head.content_length
        self._client_events.response_head(stream, head)
        if ends_stream and not stream.is_closed:
            self._remote_ended(stream, [])


_NO_EVENTS: Final = ClientEvents()
