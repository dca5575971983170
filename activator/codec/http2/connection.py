"""The receiving half of an HTTP/2 connection, in either role, without I/O (RFC 9113).

Rules
  1. Any input leads to events, to errors of streams (RST_STREAM), or to one error of the connection: GOAWAY, after
     which nothing is parsed and `error` holds the cause.
  2. One call parses a bounded number of frames. If data are left, it sets `needs_turn` and keeps them for `resume`.
     A frame is parsed when it is complete, except DATA, which is delivered as it comes. So at most one frame and one
     field section (`block_bytes_max`) are buffered.
  3. The window of the connection is returned as bytes are delivered, that of a stream only while it is not paused:
     a stream whose reader is slow does not block the others.
  4. `sending.py` is the sending half; `control.py` processes the frames that govern it, and charges for frames.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2 import frames
from activator.codec.http2.budgets import FRAMES_PER_DATA
from activator.codec.http2.control import Http2Control, id_at
from activator.codec.http2.events import ConnectionEvents
from activator.codec.http2.field import Field
from activator.codec.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
)
from activator.codec.http2.heads import trailers_of
from activator.codec.http2.hpack.decoder import HpackDecoder, HpackError
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB, MIB

SHARE: Final = 1536  # units of work per turn: HEADERS takes REQUEST_SHARE, any other frame 1
REQUEST_SHARE: Final = 16
CONNECTION_WINDOW_BYTES: Final = 1 * MIB  # our receive window of one connection
LARGE_WINDOW_BYTES: Final = 256 * KIB  # the window of a stream that has received as much; before, it is FIRST_WINDOW


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Connection(Http2Control):
    """The codec of a connection, as far as both roles share it; `server.py` and `client.py` derive from it."""

    def __init__(
        self, events: ConnectionEvents, header_bytes_max: int, fields_max: int, not_sent: frozenset[bytes]
    ) -> None:
        """Make a codec; heads are sent without the fields named in `not_sent`."""
        super().__init__(events, not_sent)
        self._header_bytes_max: i64 = header_bytes_max
        self._fields_max: i64 = fields_max
        self._body_bytes_max: i64 = 0  # the limit of a received body; 0: none
        self.block_bytes_max: i64 = header_bytes_max + FRAME_BYTES_MAX  # the limit of an encoded field section
        self._decoder = HpackDecoder()
        self.frames_total: i64 = 0  # complete frames and pieces of DATA; a field section counts once
        # The state of the parser.
        self._kept: bytes = b""
        self._pos: i64 = 0
        self._data_stream: Stream | None = None  # the stream of the current DATA frame; None: the frame is ignored
        self._data_left: i64 = -1  # bytes of the current DATA frame still to come; -1: there is no such frame
        self._pad_left: i64 = 0
        self._data_ends_stream: bool = False
        self._block: list[bytes] = []  # the pieces of a field section in several frames
        self._block_id: i64 = 0  # the stream of that section; 0: there is none
        self._block_bytes: i64 = 0
        self._block_ends_stream: bool = False
        # Flow control.
        self._receive_window: i64 = FIRST_WINDOW
        self._owed: i64 = 0  # received bytes that have not been returned to the connection's window

    # --- received ---

    def feed(self, data: bytes, now_s: float) -> None:
        """Parse `data`, received at `now_s` (monotonic seconds)."""
        if self.error is not None:
            return
        self.budgets.refill(now_s)
        if self._kept:
            data = self._kept[self._pos :] + data
            self._kept = b""
            self._pos = 0
        if self.needs_turn:
            self._kept = data
        else:
            self._parse(data, 0)

    def resume(self) -> None:
        """Parse and send what the last call left; call it in the next turn if `needs_turn` is set."""
        self.needs_turn = False
        if self.error is None:
            self._pump_waiting()
            data = self._kept
            pos = self._pos
            self._kept = b""
            self._pos = 0
            self._parse(data, pos)

    def is_within_section(self) -> bool:
        """Return True if a part of a field section, or of a frame other than DATA, has been received."""
        return self._data_left < 0 and (len(self._kept) > 0 or self._block_id != 0)

    def _parse(self, data: bytes, pos: i64) -> None:
        size: i64 = len(data)
        share: i64 = SHARE
        while self.error is None:
            if self._data_left >= 0:
                pos = self._receive_data(data, pos, size)
                if self._data_left >= 0:
                    break
                continue
            if size - pos < HEADER_BYTES:
                break
            if share <= 0:
                self.needs_turn = True
                break
            length: i64 = (data[pos] << 16) | (data[pos + 1] << 8) | data[pos + 2]
            kind: i64 = data[pos + 3]
            flags: i64 = data[pos + 4]
            stream_id: i64 = (
                ((data[pos + 5] & 127) << 24) | (data[pos + 6] << 16) | (data[pos + 7] << 8) | data[pos + 8]
            )
            if not self._check_order(kind, stream_id, length):
                break
            begin: i64 = pos + HEADER_BYTES
            if kind == DATA:
                if flags & PADDED and length > 0 and size == begin:
                    break  # the length of the padding is still to come
                share -= 1
                pos = self._begin_data(stream_id, length, flags, data, begin)
                continue
            if size - begin < length:
                break
            pos = begin + length
            self.frames_total += 1
            if kind == HEADERS:
                share -= REQUEST_SHARE
                self._headers(flags, stream_id, data, begin, pos)
            else:
                share -= 1
                self._other_frame(kind, flags, stream_id, data, begin, pos)
        if self.error is None and pos < size:
            if self.needs_turn:
                self._kept = data
                self._pos = pos
            else:
                self._kept = data if pos == 0 else data[pos:]

    def _check_order(self, kind: i64, stream_id: i64, length: i64) -> bool:
        """Return True if this frame may come now and is not too long; otherwise fail the connection."""
        if length > FRAME_BYTES_MAX:
            self.fail(FRAME_SIZE_ERROR, "a frame is larger than our MAX_FRAME_SIZE")
        elif self._block_id != 0:
            if kind == CONTINUATION and stream_id == self._block_id:
                return True
            self.fail(PROTOCOL_ERROR, "another frame within a field section")
        elif not self._greeted and kind != SETTINGS:
            self.fail(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        else:
            return True
        return False

    # --- DATA ---

    def _begin_data(self, stream_id: i64, length: i64, flags: i64, data: bytes, begin: i64) -> i64:
        """Process the header of a DATA frame, whose payload is received as it comes. Return where the body begins."""
        if stream_id == 0:
            self.fail(PROTOCOL_ERROR, "DATA on stream 0")
            return begin
        pad: i64 = 0
        body: i64 = length
        if flags & PADDED:
            if length == 0:
                self.fail(FRAME_SIZE_ERROR, "DATA without the length of its padding")
                return begin
            pad = data[begin]
            begin += 1
            body = length - 1 - pad
            if body < 0:
                self.fail(PROTOCOL_ERROR, "more padding than DATA")
                return begin
        self._receive_window -= length
        if self._receive_window < 0:
            self.fail(FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
            return begin
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self._take_late_frame(stream_id, "DATA", length):
                return begin
        else:
            stream = self._count_data(stream, length, body, flags & END_STREAM != 0)
        if stream is not None and body > 0:
            self.budgets.useful(FRAMES_PER_DATA)
            stream.advanced()
        elif stream is not None and flags & END_STREAM == 0:
            self._spend_of_stream(stream)
        if length > body:
            self._return_to_connection(length - body)
            if stream is not None:
                stream.owed += length - body
        self._data_stream = stream
        self._data_left = body
        self._pad_left = pad
        self._data_ends_stream = flags & END_STREAM != 0
        return begin

    def _count_data(self, stream: Stream, length: i64, body: i64, ends_stream: bool) -> Stream | None:
        """Check the frame against the stream's state, window and declared length. Return None if it is ignored."""
        if stream.remote_ended:
            self._stream_error(stream, STREAM_CLOSED, "DATA behind the end of the stream")
            return None
        if not stream.has_head:
            self._stream_error(stream, PROTOCOL_ERROR, "DATA before the head")
            return None
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._stream_error(stream, FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
            return None
        if not stream.has_body and body > 0:
            self._stream_error(stream, PROTOCOL_ERROR, "a body where there is none")
            return None
        if 0 < self._body_bytes_max < stream.received_bytes + body:
            if not stream.is_refused:
                stream.is_refused = True
                self._events.stream_failed(stream, WireError(Reason.BODY_TOO_LARGE, "the body is too large"))
            return None
        if stream.expected >= 0:
            stream.expected -= body
            if stream.expected < 0 or (ends_stream and stream.expected > 0):
                self._stream_error(stream, PROTOCOL_ERROR, "content-length is not the length of the body")
                return None
        return stream

    def _receive_data(self, data: bytes, pos: i64, size: i64) -> i64:
        """Deliver the available part of the DATA frame. Return where the next frame begins, or the end of `data`."""
        stream = self._data_stream
        self.frames_total += 1
        count: i64 = min(size - pos, self._data_left)
        if count > 0:
            piece = data if count == size else data[pos : pos + count]
            pos += count
            self._data_left -= count
            self._return_to_connection(count)
            if stream is not None and not stream.is_closed:
                stream.received_bytes += count
                stream.owed += count
                self._events.stream_body(stream, piece)
        if self._data_left > 0:
            return pos
        count = min(size - pos, self._pad_left)
        pos += count
        self._pad_left -= count
        if self._pad_left > 0:
            return pos
        self._data_left = -1
        self._data_stream = None
        if stream is not None and not stream.is_closed and self.error is None:
            if self._data_ends_stream:
                self._remote_ended(stream, [])
            elif not stream.paused:
                self._return_to_stream(stream)
        return pos

    def _return_to_connection(self, count: i64) -> None:
        """Return `count` bytes to the connection's window, half a window at a time."""
        self._owed += count
        if self._owed >= CONNECTION_WINDOW_BYTES // 2:
            self._events.write(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    def _return_to_stream(self, stream: Stream) -> None:
        """Return the bytes that the stream's reader has taken to its window, half a window at a time."""
        owed = stream.owed
        if owed < FIRST_WINDOW // 2 or stream.remote_ended:
            return
        if stream.received_bytes >= LARGE_WINDOW_BYTES:
            room = stream.receive_window + owed
            if room >= LARGE_WINDOW_BYTES and owed < LARGE_WINDOW_BYTES // 2:
                return
            owed = max(owed, LARGE_WINDOW_BYTES - stream.receive_window)
        stream.owed = 0
        stream.receive_window += owed
        self._events.write(frames.window_update(stream.id, owed))

    def _remote_ended(self, stream: Stream, trailers: Headers) -> None:
        """End the peer's direction of the stream."""
        stream.remote_ended = True
        ended = stream.local_ended
        if ended:
            self._forget(stream)
            self.budgets.stream_ended()
        self._events.stream_ended(stream, trailers)
        if ended:
            self._events.stream_closed(stream)

    # --- field sections ---

    def _headers(self, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """Process a HEADERS frame, whose payload is data[begin:end]."""
        if stream_id == 0:
            self.fail(PROTOCOL_ERROR, "HEADERS on stream 0")
            return
        if flags & PADDED:
            if begin == end:
                self.fail(FRAME_SIZE_ERROR, "HEADERS without the length of its padding")
                return
            end -= data[begin]
            begin += 1
        depends_on: i64 = 0
        if flags & HAS_PRIORITY:
            if end - begin >= 5:
                depends_on = id_at(data, begin)
            begin += 5
        if begin > end:
            self.fail(PROTOCOL_ERROR, "more padding than HEADERS")
            return
        if flags & END_HEADERS:
            self._section(stream_id, data, begin, end, flags & END_STREAM != 0)
        else:
            self._block = [data[begin:end]]
            self._block_id = stream_id
            self._block_bytes = end - begin
            self._block_ends_stream = flags & END_STREAM != 0
        if depends_on == stream_id:
            self._refuse_own_dependency(stream_id)

    def _continuation(self, flags: i64, data: bytes, begin: i64, end: i64) -> None:
        """Process a CONTINUATION frame, whose payload is data[begin:end]."""
        if self._block_id == 0:
            self.fail(PROTOCOL_ERROR, "CONTINUATION without HEADERS")
            return
        self.frames_total -= 1
        self._block_bytes += end - begin
        if self._block_bytes > self.block_bytes_max:
            self.fail(ENHANCE_YOUR_CALM, "a field section is too long")
            return
        if end > begin:
            self._block.append(data[begin:end])
        if flags & END_HEADERS:
            stream_id = self._block_id
            block = b"".join(self._block)
            self._block = []
            self._block_id = 0
            self._section(stream_id, block, 0, len(block), self._block_ends_stream)
        else:
            self._spend(1)

    def _section(self, stream_id: i64, data: bytes, begin: i64, end: i64, ends_stream: bool) -> None:
        """Process a complete field section."""
        decoder = self._decoder
        try:
            fields = decoder.section(data, begin, end, self._header_bytes_max, self._fields_max)
        except HpackError as error:
            self.fail(frames.COMPRESSION_ERROR, str(error))
            return
        is_whole = decoder.is_whole
        stream = self.streams.get(stream_id)
        if stream is None:
            self._section_without_stream(stream_id, fields, is_whole, ends_stream)
        elif stream.remote_ended:
            self._stream_error(stream, STREAM_CLOSED, "HEADERS behind the end of the stream")
        elif stream.has_head:
            self._trailers(stream, fields, is_whole, ends_stream)
        else:
            self._head(stream, fields, is_whole, ends_stream)

    def _trailers(self, stream: Stream, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        if not ends_stream:
            self._stream_error(stream, PROTOCOL_ERROR, "trailers that do not end the stream")
            return
        if stream.expected > 0:
            self._stream_error(stream, PROTOCOL_ERROR, "content-length is not the length of the body")
            return
        try:
            trailers = trailers_of(fields, is_whole, self._is_server())
        except WireError as error:
            self._stream_error(stream, PROTOCOL_ERROR, error.detail)
            return
        self._remote_ended(stream, trailers)

    def _section_without_stream(self, stream_id: i64, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        """Process HEADERS for a stream that is not in the table. Unless `is_whole`, fields over a limit are missing."""
        raise NotImplementedError

    def _head(self, stream: Stream, fields: list[Field], is_whole: bool, ends_stream: bool) -> None:
        """Process HEADERS for a stream without a final head. Unless `is_whole`, fields over a limit are missing."""
        raise NotImplementedError

    # --- other frames ---

    def _other_frame(self, kind: i64, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """Process a frame other than DATA and HEADERS, whose payload is data[begin:end]."""
        if kind == WINDOW_UPDATE:
            self._window_update(stream_id, data, begin, end)
        elif kind == SETTINGS:
            self._settings(flags, stream_id, data, begin, end)
        elif kind == PING:
            self._ping(flags, stream_id, data, begin, end)
        elif kind == RST_STREAM:
            self._rst_stream(stream_id, data, begin, end)
        elif kind == CONTINUATION:
            self._continuation(flags, data, begin, end)
        elif kind == PRIORITY:
            self._priority(stream_id, data, begin, end)
        elif kind == GOAWAY:
            self._goaway(stream_id, data, begin, end)
        elif kind == PUSH_PROMISE:
            self.fail(PROTOCOL_ERROR, "PUSH_PROMISE")
        else:
            self._spend(1)  # RFC 9113 5.5: unknown types are ignored

    # --- called by the connection ---

    def fail(self, code: i64, words: str) -> None:
        if self.error is None:
            self._kept = b""
            self._block = []
        super().fail(code, words)

    def retire(self) -> None:
        super().retire()
        self._kept = b""
        self._block = []

    def pause(self, stream: Stream, paused: bool) -> None:
        """Stop or resume returning the stream's window; while paused, the peer can use only the rest of the window."""
        stream.paused = paused
        if not paused and not stream.is_closed and self.error is None:
            self._return_to_stream(stream)

    # --- internals ---

    def _take_late_frame(self, stream_id: i64, frame_name: str, count: i64) -> bool:
        """Process a frame, with `count` bytes of DATA or 0, for a stream that is not in the table.

        Return True if it is ignored, because it was in flight when we reset the stream; otherwise the connection fails.
        """
        if self._is_idle(stream_id):
            self.fail(PROTOCOL_ERROR, f"{frame_name} on a stream that is idle")
        elif self._is_reset_by_us(stream_id):
            if not self.budgets.late(count):
                self._spend(1)
        else:
            self.fail(STREAM_CLOSED, f"{frame_name} on a stream that is closed")
        return self.error is None

    def _is_reset_by_us(self, stream_id: i64) -> bool:
        """Return True if we have reset the stream, or may have, so long ago that its number is forgotten."""
        return stream_id in self._reset_by_us or stream_id <= self._reset_before
