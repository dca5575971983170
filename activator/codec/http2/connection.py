"""The state of one HTTP/2 connection, in either role, without I/O: bytes in, events and bytes out (RFC 9113).

Rules
  1. Any bytes whatever give events, or an error of a stream (RST_STREAM), or one error of the connection: GOAWAY, after
     which nothing is parsed any more and `error` says what it was.
  2. One call parses a bounded number of frames; `needs_turn` says that something is left, which `resume` goes on with.
     A frame is parsed when it is there whole, except DATA, which is handed on as it comes. So at most one frame and a
     field section (`block_bytes_max`) are kept.
  3. What was sent goes out in the order in which the encoder made it: a field section is encoded when it is written.
  4. Bodies are sent at the end of the turn (`flush`), when 16 KiB are there, or with their end; so a short answer is
     one DATA frame that carries the end of its stream.
  5. The connection's receive window is given back as bytes are handed on, a stream's only while it is not paused: a
     stream whose reader is slow stops no other one.
  6. Streams that wait for the connection's window or for the transport take turns, 16 KiB each.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2 import frames
from activator.codec.http2.budgets import FRAMES_PER_DATA, PeerBudgets
from activator.codec.http2.field import Field
from activator.codec.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADERS,
    INTERNAL_ERROR,
    NO_ERROR,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_MAX,
    WINDOW_UPDATE,
    data_start,
    header_frames,
)
from activator.codec.http2.heads import trailers_of, write_trailers
from activator.codec.http2.hpack.decoder import HpackDecoder, HpackError
from activator.codec.http2.hpack.encoder import HpackEncoder
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers
from activator.runtime.errors import Reason, WireError
from activator.runtime.units import KIB, MIB

SHARE: Final = 1536  # of a turn: a request takes 16, any other frame 1
REQUEST_SHARE: Final = 16
CONNECTION_WINDOW_BYTES: Final = 1 * MIB  # that may be on their way to us on one connection
LARGE_WINDOW_BYTES: Final = 256 * KIB  # of a stream that has brought as much; before, it is FIRST_WINDOW
GATHER_BYTES: Final = 16 * KIB  # of a stream: so much is sent before the turn ends
UNSENT_HIGH_BYTES: Final = 64 * KIB  # of a stream: above it, its user is told to wait …
UNSENT_LOW_BYTES: Final = 16 * KIB  # … until no more than this is left
SENT_PER_TURN_BYTES: Final = 1 * MIB  # of all streams that have waited
RESET_REMEMBERED: Final = 1024  # streams that we have reset: what is on its way for them is ignored
STREAMS_BEFORE_SETTINGS: Final = 100  # that a peer is thought to allow until it says how many


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionEvents:
    """What the codec asks of its connection, and tells it."""

    def write(self, data: bytes) -> None:
        """Bytes for the peer, in order."""
        raise NotImplementedError

    def wants_flush(self) -> None:
        """Call `flush` at the end of this turn."""
        raise NotImplementedError

    def stream_body(self, stream: Stream, data: bytes) -> None:
        raise NotImplementedError

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        """The peer sends no more on it."""
        raise NotImplementedError

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        """What came on it broke a bound of ours (its body is too large): it is for the user to answer, or to reset."""
        raise NotImplementedError

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        """It is over before its end: the peer has reset it (`words` is empty), or we have, for an error of the peer."""
        raise NotImplementedError

    def stream_closed(self, stream: Stream) -> None:
        """It has ended in both directions; or its user has reset it."""
        raise NotImplementedError

    def stream_full(self, stream: Stream) -> None:
        """The peer takes less than is sent on it."""
        raise NotImplementedError

    def stream_drained(self, stream: Stream) -> None:
        """It takes more again."""
        raise NotImplementedError

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        """GOAWAY: streams of ours above `last_id` were not processed, and no new one may be opened."""
        raise NotImplementedError

    def peer_settings(self) -> None:
        """SETTINGS have come, and are in force."""
        raise NotImplementedError

    def ping_answered(self, payload: bytes) -> None:
        raise NotImplementedError


_NOBODY: Final = ConnectionEvents()


class Http2Error:
    """Why a connection ended: an error code of RFC 9113 section 7, and words for people."""

    def __init__(self, code: i64, words: str) -> None:
        self.code = code
        self.words = words


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Connection:
    """What both roles share; `server.py` and `client.py` derive from it."""

    def __init__(
        self, events: ConnectionEvents, header_bytes_max: int, fields_max: int, not_sent: frozenset[bytes]
    ) -> None:
        """`not_sent`: names of fields that heads in this direction do not have."""
        self._events = events
        self._header_bytes_max: i64 = header_bytes_max
        self._fields_max: i64 = fields_max
        self._body_bytes_max: i64 = 0  # of a stream, to us; 0: no limit
        self.block_bytes_max: i64 = header_bytes_max + FRAME_BYTES_MAX  # of a field section, as it is sent
        self._decoder = HpackDecoder()
        self.encoder = HpackEncoder(not_sent)
        self.budgets = PeerBudgets()
        self.streams: dict[int, Stream] = {}
        self.error: Http2Error | None = None
        self.needs_turn: bool = False
        self.frames_total: i64 = 0  # that have come whole; of a field section, the first
        self.last_id: i64 = 0  # the highest stream that the peer has opened; as a client, that we have
        self._reset_by_us: dict[int, None] = {}  # of late
        # what is parsed
        self._kept: bytes = b""
        self._pos: i64 = 0
        self._settled: bool = False  # the peer's first frame, SETTINGS, has come
        self._data_stream: Stream | None = None  # of the DATA frame that is being received; None: it is ignored
        self._data_left: i64 = -1  # bytes of it that are still to come; -1: none is being received
        self._pad_left: i64 = 0
        self._data_ends: bool = False
        self._block: list[bytes] = []  # of a field section in several frames
        self._block_id: i64 = 0  # 0: there is none
        self._block_bytes: i64 = 0
        self._block_ends: bool = False
        # flow control
        self._receive_window: i64 = FIRST_WINDOW
        self._owed: i64 = 0
        self._send_window: i64 = FIRST_WINDOW
        self._first_send_window: i64 = FIRST_WINDOW  # of new streams, as the peer wants it
        self._held: bool = False  # the transport takes nothing for now
        self._gathered: list[Stream] = []  # to be sent at the end of the turn
        self._waiting: dict[Stream, None] = {}  # for the connection's window or the transport; each has a window
        # the peer's settings
        self.peer_streams_max: i64 = STREAMS_BEFORE_SETTINGS
        self.peer_takes_websockets: bool = False

    # --- received ---

    def feed(self, data: bytes, now_s: float) -> None:
        """Parse what was received at `now_s`."""
        if self.error is not None:
            return
        self.budgets.at(now_s)
        if self._kept:
            data = self._kept[self._pos :] + data
            self._kept = b""
            self._pos = 0
        if self.needs_turn:
            self._kept = data
        else:
            self._parse(data, 0)

    def resume(self) -> None:
        """Go on in another turn, where it `needs_turn`."""
        self.needs_turn = False
        if self.error is None:
            self._pump_waiting()
            data = self._kept
            pos = self._pos
            self._kept = b""
            self._pos = 0
            self._parse(data, pos)

    def is_within_section(self) -> bool:
        """A frame other than DATA, or a field section, has come in part."""
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
            if not self._may_come(kind, stream_id, length):
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

    def _may_come(self, kind: i64, stream_id: i64, length: i64) -> bool:
        if length > FRAME_BYTES_MAX:
            self.fail(FRAME_SIZE_ERROR, "a frame is larger than was announced")
        elif self._block_id != 0:
            if kind == CONTINUATION and stream_id == self._block_id:
                return True
            self.fail(PROTOCOL_ERROR, "another frame within a field section")
        elif not self._settled and kind != SETTINGS:
            self.fail(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        else:
            return True
        return False

    # --- DATA ---

    def _begin_data(self, stream_id: i64, length: i64, flags: i64, data: bytes, begin: i64) -> i64:
        """The header of a DATA frame has come; what follows is received as it comes. Gives where that begins."""
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
            if not self._is_over(stream_id, "DATA"):
                return begin
        elif stream.remote_ended:
            self._stream_error(stream, STREAM_CLOSED, "DATA behind the end of the stream")
            stream = None
        elif not stream.has_head:
            self._stream_error(stream, PROTOCOL_ERROR, "DATA before the head")
            stream = None
        else:
            stream = self._count_data(stream, length, body, flags & END_STREAM != 0)
        if body > 0 and stream is not None:
            self.budgets.useful(FRAMES_PER_DATA)
        elif flags & END_STREAM == 0:
            self._spend(1)
        if length > body:
            self._owe(length - body)
            if stream is not None:
                stream.owed += length - body
        self._data_stream = stream
        self._data_left = body
        self._pad_left = pad
        self._data_ends = flags & END_STREAM != 0
        return begin

    def _count_data(self, stream: Stream, length: i64, body: i64, ends: bool) -> Stream | None:
        """Hold the frame against the stream's window and the length that was announced; None: it is ignored."""
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
            if stream.expected < 0 or (ends and stream.expected > 0):
                self._stream_error(stream, PROTOCOL_ERROR, "content-length is not the length of the body")
                return None
        return stream

    def _receive_data(self, data: bytes, pos: i64, size: i64) -> i64:
        """Hand on what there is of the DATA frame; gives where the next frame begins, or the end of `data`."""
        stream = self._data_stream
        self.frames_total += 1
        count: i64 = min(size - pos, self._data_left)
        if count > 0:
            piece = data if count == size else data[pos : pos + count]
            pos += count
            self._data_left -= count
            self._owe(count)
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
            if self._data_ends:
                self._remote_ended(stream, [])
            elif not stream.paused:
                self._credit(stream)
        return pos

    def _owe(self, count: i64) -> None:
        """So much of the connection's window was used, and may be used again."""
        self._owed += count
        if self._owed >= CONNECTION_WINDOW_BYTES // 2:
            self._events.write(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    def _credit(self, stream: Stream) -> None:
        """Give back what the stream's reader has taken, half a window at a time."""
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
        if stream_id == 0:
            self.fail(PROTOCOL_ERROR, "HEADERS on stream 0")
            return
        if flags & PADDED:
            if begin == end:
                self.fail(FRAME_SIZE_ERROR, "HEADERS without the length of its padding")
                return
            end -= data[begin]
            begin += 1
        depends: i64 = 0
        if flags & HAS_PRIORITY:
            if end - begin >= 5:
                depends = _id_at(data, begin)
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
            self._block_ends = flags & END_STREAM != 0
        if depends == stream_id:
            self._depends_on_itself(stream_id)

    def _continuation(self, flags: i64, data: bytes, begin: i64, end: i64) -> None:
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
            self._section(stream_id, block, 0, len(block), self._block_ends)
        else:
            self._spend(1)

    def _section(self, stream_id: i64, data: bytes, begin: i64, end: i64, ends: bool) -> None:
        """A field section is here whole."""
        fields: list[Field] = []
        try:
            whole = self._decoder.decode(data, begin, end, fields, self._header_bytes_max, self._fields_max)
        except HpackError as error:
            self.fail(frames.COMPRESSION_ERROR, str(error))
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._section_without_stream(stream_id, fields, whole, ends)
        elif stream.remote_ended:
            self._stream_error(stream, STREAM_CLOSED, "HEADERS behind the end of the stream")
        elif stream.has_head:
            self._trailers(stream, fields, whole, ends)
        else:
            self._head(stream, fields, whole, ends)

    def _trailers(self, stream: Stream, fields: list[Field], whole: bool, ends: bool) -> None:
        if not ends:
            self._stream_error(stream, PROTOCOL_ERROR, "trailers that do not end the stream")
            return
        if stream.expected > 0:
            self._stream_error(stream, PROTOCOL_ERROR, "content-length is not the length of the body")
            return
        try:
            trailers = trailers_of(fields, whole, self._is_server())
        except WireError as error:
            self._stream_error(stream, PROTOCOL_ERROR, error.detail)
            return
        self._remote_ended(stream, trailers)

    def _section_without_stream(self, stream_id: i64, fields: list[Field], whole: bool, ends: bool) -> None:
        """HEADERS for a stream that is not in the table."""
        raise NotImplementedError

    def _head(self, stream: Stream, fields: list[Field], whole: bool, ends: bool) -> None:
        """HEADERS for a stream whose final head has not come yet."""
        raise NotImplementedError

    def _is_server(self) -> bool:
        raise NotImplementedError

    def _is_idle(self, stream_id: i64) -> bool:
        """The stream has never been opened."""
        raise NotImplementedError

    # --- other frames ---

    def _other_frame(self, kind: i64, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
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

    def _window_update(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        if end - begin != 4:
            self.fail(FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
            return
        self._spend(1)
        count = _id_at(data, begin)
        if stream_id == 0:
            if count == 0:
                self.fail(PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
                return
            self._send_window += count
            if self._send_window > WINDOW_MAX:
                self.fail(FLOW_CONTROL_ERROR, "the connection's window is too large")
                return
            self._pump_waiting()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                self.fail(PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that is idle")
            return
        if count == 0:
            self._stream_error(stream, PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            return
        stream.send_window += count
        if stream.send_window > WINDOW_MAX:
            self._stream_error(stream, FLOW_CONTROL_ERROR, "the stream's window is too large")
        elif stream.unsent_bytes > 0:
            self._pump(stream)

    def _settings(self, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        if stream_id != 0:
            self.fail(PROTOCOL_ERROR, "SETTINGS on a stream")
            return
        size = end - begin
        if flags & ACK:
            if size != 0:
                self.fail(FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            self._spend(1)
            return
        if size % 6 != 0 or size > 6 * frames.SETTINGS_PER_FRAME_MAX:
            self.fail(FRAME_SIZE_ERROR, "SETTINGS of a length that cannot be")
            return
        if self._settled:
            self._spend(2 + len(self.streams) // 4)  # each stream may get another window
        self._settled = True
        window_before = self._first_send_window
        while begin < end:
            self._setting((data[begin] << 8) | data[begin + 1], int.from_bytes(data[begin + 2 : begin + 6], "big"))
            if self.error is not None:
                return
            begin += 6
        self._events.write(frames.settings_ack())  # before anything that they allow: peers act on it (6.5.3)
        if self._first_send_window > window_before:
            for stream in list(self.streams.values()):
                if stream.unsent_bytes > 0 and not stream.is_closed:
                    self._pump(stream)
        self._events.peer_settings()

    def _setting(self, number: i64, value: i64) -> None:
        if number == frames.INITIAL_WINDOW_SIZE:
            self._change_windows(value)
        elif number == frames.HEADER_TABLE_SIZE:
            self.encoder.set_table_bytes_max(value)
        elif number == frames.MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = value
        elif number == frames.MAX_FRAME_SIZE:
            if value < FRAME_BYTES_MAX or value > FRAME_BYTES_LIMIT:
                self.fail(PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its bounds")
        elif number == frames.ENABLE_PUSH:
            if value > 1 or (value == 1 and not self._is_server()):
                self.fail(PROTOCOL_ERROR, "ENABLE_PUSH with a value that cannot be")
        elif number == frames.ENABLE_CONNECT_PROTOCOL:
            if value > 1 or (value == 0 and self.peer_takes_websockets):
                self.fail(PROTOCOL_ERROR, "ENABLE_CONNECT_PROTOCOL with a value that cannot be")
            self.peer_takes_websockets = value == 1

    def _change_windows(self, value: i64) -> None:
        """RFC 9113 6.9.2: the windows of all streams change by the difference, and may fall below 0."""
        if value > WINDOW_MAX:
            self.fail(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
            return
        difference = value - self._first_send_window
        self._first_send_window = value
        for stream in list(self.streams.values()):
            stream.send_window += difference
            if stream.send_window > WINDOW_MAX:
                self.fail(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window too large")
                return

    def _ping(self, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        if stream_id != 0:
            self.fail(PROTOCOL_ERROR, "PING on a stream")
        elif end - begin != 8:
            self.fail(FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        else:
            self._spend(1)
            if self.error is not None:
                return
            if flags & ACK:
                self._events.ping_answered(data[begin:end])
            else:
                self._events.write(frames.ping(data[begin:end], True))

    def _rst_stream(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        if end - begin != 4:
            self.fail(FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id == 0 or self._is_idle(stream_id):
                self.fail(PROTOCOL_ERROR, "RST_STREAM on a stream that is idle")
            else:
                self._spend(1)
            return
        code = int.from_bytes(data[begin:end], "big")
        self._spend_reset()
        self._forget(stream)
        self._events.stream_reset(stream, code, "")

    def _priority(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """RFC 9113 5.3.2: the signal is out of use; what is wrong with it is an error all the same."""
        if stream_id == 0:
            self.fail(PROTOCOL_ERROR, "PRIORITY on stream 0")
        elif end - begin != 5:
            stream = self.streams.get(stream_id)
            if stream is None:
                self.fail(FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
            else:
                self._stream_error(stream, FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
        else:
            self._spend(1)
            if _id_at(data, begin) == stream_id:
                self._depends_on_itself(stream_id)

    def _depends_on_itself(self, stream_id: i64) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._stream_error(stream, PROTOCOL_ERROR, "a stream that depends on itself")
        elif self.error is None:
            self.fail(PROTOCOL_ERROR, "a stream that depends on itself")

    def _goaway(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        if stream_id != 0:
            self.fail(PROTOCOL_ERROR, "GOAWAY on a stream")
        elif end - begin < 8:
            self.fail(FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        else:
            self._spend(1)
            self._events.peer_goes_away(_id_at(data, begin), int.from_bytes(data[begin + 4 : begin + 8], "big"))

    # --- sent ---

    def send_head(self, stream: Stream, block: bytes, last: bool) -> None:
        """A head, encoded just now. `last`: no body follows."""
        if stream.is_closed or stream.local_ended:
            return
        self._events.write(header_frames(stream.id_bytes, block, last))
        if last:
            self._local_ended(stream)

    def send_body(self, stream: Stream, data: bytes) -> None:
        """Gathered until the turn ends (`flush`), 16 KiB are there, or `send_end`; kept while a window is closed."""
        if stream.is_closed or stream.local_ended or len(data) == 0:
            return
        if stream.unsent_bytes == 0 and not stream.is_waiting:
            if not self._gathered:
                self._events.wants_flush()
            self._gathered.append(stream)
        stream.queue(data)
        if stream.unsent_bytes >= GATHER_BYTES:
            self._pump(stream)

    def send_end(self, stream: Stream, trailers: Headers) -> None:
        """The stream ends when what was sent on it is out."""
        if stream.is_closed or stream.local_ended or stream.end_wanted:
            return
        stream.end_wanted = True
        stream.trailers = trailers
        self._pump(stream)

    def flush(self) -> None:
        """Send what was gathered."""
        gathered = self._gathered
        if gathered:
            self._gathered = []
            for stream in gathered:
                if stream.unsent_bytes > 0 and not stream.is_waiting:
                    self._pump(stream)

    def flush_stream(self, stream: Stream) -> None:
        """Send what was gathered for this one."""
        if stream.unsent_bytes > 0:
            self._pump(stream)

    def hold(self, held: bool) -> None:
        """The transport takes no more for now; or takes more again."""
        self._held = held
        if not held:
            self._pump_waiting()

    def pause(self, stream: Stream, paused: bool) -> None:
        """Whether the peer may go on sending on this stream, beyond the window that it has."""
        stream.paused = paused
        if not paused and not stream.is_closed and self.error is None:
            self._credit(stream)

    def reset(self, stream: Stream, code: i64) -> None:
        """End it at once, in both directions."""
        if stream.is_closed:
            return
        self._reset(stream, code)
        self._events.stream_closed(stream)

    def fail(self, code: i64, words: str) -> None:
        """An error of the connection: say so, and do nothing more."""
        if self.error is None:
            self.error = Http2Error(code, words)
            self._kept = b""
            self._block = []
            self._events.write(frames.go_away(self._last_processed(), code, words))

    def retire(self) -> None:
        """The connection is gone: refer to nothing any more, so that no cycle is left for the collector."""
        if self.error is None:
            self.error = Http2Error(INTERNAL_ERROR, "the connection is closed")
        self._events = _NOBODY
        self._kept = b""
        self._block = []
        self._gathered = []
        self._waiting = {}
        for stream in self.streams.values():
            stream.is_closed = True
            stream.user = None
            stream.drop_unsent()
        self.streams = {}

    def unsent_bytes(self) -> int:
        """Of all streams, for statistics."""
        return sum(stream.unsent_bytes for stream in self.streams.values())

    # --- within ---

    def _last_processed(self) -> i64:
        return self.last_id

    def _pump(self, stream: Stream) -> None:
        """Send what the windows let out of it; the rest waits."""
        if stream.is_closed:
            return
        self._send_some(stream, WINDOW_MAX)
        if stream.unsent_bytes > UNSENT_HIGH_BYTES and not stream.is_full:
            stream.is_full = True
            self._events.stream_full(stream)

    def _send_some(self, stream: Stream, most: i64) -> i64:
        """At most so many bytes; gives how many it was."""
        sent = self._send_data(stream, most)
        if stream.unsent_bytes == 0:
            if stream.is_waiting:
                self._wait(stream, False)
            if stream.local_ended:
                self._local_ended(stream)
            elif stream.end_wanted:
                self._end(stream)
        else:
            self._wait(stream, stream.send_window > 0)
        if stream.is_full and stream.unsent_bytes <= UNSENT_LOW_BYTES:
            stream.is_full = False
            self._events.stream_drained(stream)
        return sent

    def _send_data(self, stream: Stream, most: i64) -> i64:
        """What the windows and the transport let out of it, in DATA frames; the last of all ends the stream."""
        room: i64 = stream.send_window
        if room > self._send_window:
            room = self._send_window
        if room > most:
            room = most
        if self._held or room <= 0:
            return 0
        sent: i64 = 0
        out: list[bytes] = []
        while stream.unsent_bytes > 0 and sent < room:
            count: i64 = room - sent  # (min of three arguments is not native)
            if count > stream.unsent_bytes:
                count = stream.unsent_bytes
            if count > FRAME_BYTES_MAX:
                count = FRAME_BYTES_MAX
            last = stream.end_wanted and count == stream.unsent_bytes and not stream.trailers
            out.append(data_start(count, last))
            out.append(stream.id_bytes)
            stream.move(count, out)
            sent += count
            if last:
                stream.local_ended = True
        if sent > 0:
            stream.send_window -= sent
            self._send_window -= sent
            stream.sent_bytes += sent
            self.budgets.useful(FRAMES_PER_DATA)
            self._events.write(b"%b%b%b" % (out[0], out[1], out[2]) if len(out) == 3 else b"".join(out))
        return sent

    def _wait(self, stream: Stream, waits: bool) -> None:
        """Whether it waits for the connection, behind the others that do."""
        if waits and not stream.is_waiting:
            self._waiting[stream] = None
        elif not waits and stream.is_waiting:
            self._waiting.pop(stream, None)
        stream.is_waiting = waits

    def _end(self, stream: Stream) -> None:
        """Nothing but the end is left to be sent."""
        if stream.trailers:
            self._events.write(header_frames(stream.id_bytes, write_trailers(self.encoder, stream.trailers), True))
        else:
            self._events.write(data_start(0, True) + stream.id_bytes)
        self._local_ended(stream)

    def _pump_waiting(self) -> None:
        """Streams that wait for the connection take turns."""
        left: i64 = SENT_PER_TURN_BYTES
        waiting = self._waiting
        while waiting and self._send_window > 0 and not self._held and self.error is None:
            if left <= 0:
                self.needs_turn = True
                return
            stream = next(iter(waiting))
            del waiting[stream]
            stream.is_waiting = False
            left -= max(self._send_some(stream, GATHER_BYTES), 1)

    def _local_ended(self, stream: Stream) -> None:
        stream.local_ended = True
        if stream.is_closed:
            return
        if stream.remote_ended:
            self._forget(stream)
            self.budgets.stream_ended()
            self._events.stream_closed(stream)
        elif stream.wants_no_more:
            self.reset(stream, NO_ERROR)

    def _is_over(self, stream_id: i64, what: str) -> bool:
        """Of a frame for a stream that is not in the table: True where it may be ignored; else the connection fails."""
        if self._is_idle(stream_id):
            self.fail(PROTOCOL_ERROR, f"{what} on a stream that is idle")
        elif stream_id in self._reset_by_us:
            self._spend(1)  # on its way when we have reset it
            return self.error is None
        else:
            self.fail(STREAM_CLOSED, f"{what} on a stream that is closed")
        return False

    def _stream_error(self, stream: Stream, code: i64, words: str) -> None:
        if stream.is_closed:
            return
        self._spend_reset()
        if self.error is None:
            self._reset(stream, code)
            self._events.stream_reset(stream, code, words)

    def _reset(self, stream: Stream, code: i64) -> None:
        self._forget(stream)
        self._remember_reset(stream.id)
        self._events.write(frames.reset_stream(stream.id, code))

    def _remember_reset(self, stream_id: i64) -> None:
        reset = self._reset_by_us
        reset[stream_id] = None
        if len(reset) > RESET_REMEMBERED:
            del reset[next(iter(reset))]

    def _forget(self, stream: Stream) -> None:
        """Take it out of the table."""
        stream.is_closed = True
        stream.drop_unsent()
        del self.streams[stream.id]
        if stream.is_waiting:
            stream.is_waiting = False
            self._waiting.pop(stream, None)

    def _spend(self, count: i64) -> None:
        budgets = self.budgets
        budgets.frames -= count
        if budgets.frames < 0:
            self.fail(ENHANCE_YOUR_CALM, "too many frames that bring nothing forward")

    def _spend_reset(self) -> None:
        budgets = self.budgets
        budgets.resets -= 1
        if budgets.resets < 0:
            self.fail(ENHANCE_YOUR_CALM, "too many streams that are reset")


def _id_at(data: bytes, pos: i64) -> i64:
    """31 bits; the highest is reserved."""
    return ((data[pos] & 127) << 24) | (data[pos + 1] << 16) | (data[pos + 2] << 8) | data[pos + 3]
