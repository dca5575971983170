"""The control frames of an HTTP/2 connection, in either role: those without data or header fields (RFC 9113 section 6).

Rules
  1. SETTINGS and WINDOW_UPDATE change what the sending half may send; PING, RST_STREAM, PRIORITY and GOAWAY are
     answered, delivered as events, or validated and ignored.
  2. A frame that makes no progress is charged here, to the connection or to its stream (budgets.py).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2 import frames
from activator.codec.http2.events import ConnectionEvents
from activator.codec.http2.frames import (
    ACK,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    WINDOW_MAX,
)
from activator.codec.http2.sending import Http2Sender
from activator.codec.http2.stream import Stream

STREAMS_BEFORE_SETTINGS: Final = 100  # the assumed limit of the peer until its SETTINGS arrive


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Control(Http2Sender):
    """The sending half, with the control frames that govern it; `connection.py` adds the parser, DATA and HEADERS."""

    def __init__(self, events: ConnectionEvents, not_sent: frozenset[bytes]) -> None:
        """Make a sender; heads are sent without the fields named in `not_sent`."""
        super().__init__(events, not_sent)
        self._greeted: bool = False  # the peer's first frame, SETTINGS, has been received
        self.unacknowledged: i64 = 0  # our SETTINGS frames that the peer has not acknowledged
        # The peer's settings.
        self.peer_streams_max: i64 = STREAMS_BEFORE_SETTINGS
        self.peer_takes_websockets: bool = False

    # --- the role, defined by the subclasses ---

    def _is_server(self) -> bool:
        raise NotImplementedError

    def _is_idle(self, stream_id: i64) -> bool:
        """Return True if the stream has never been opened."""
        raise NotImplementedError

    # --- frames ---

    def _window_update(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """Enlarge the connection's window or a stream's, and send the data that then fit."""
        if end - begin != 4:
            self.fail(FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
            return
        count = id_at(data, begin)
        if stream_id == 0:
            if count == 0:
                self.fail(PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
                return
            if not self.budgets.returned(count):
                self._spend(1)
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
            elif not self.budgets.returned_of_stream(count) and not self.budgets.late(0):
                self._spend(1)
            return
        if count == 0:
            self._stream_error(stream, PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            return
        if not self.budgets.returned_of_stream(count):
            self._spend_of_stream(stream)
            if stream.is_closed:
                return
        stream.send_window += count
        if stream.send_window > WINDOW_MAX:
            self._stream_error(stream, FLOW_CONTROL_ERROR, "the stream's window is too large")
        elif stream.unsent_bytes > 0:
            self._pump(stream)

    def _settings(self, flags: i64, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """Apply the peer's settings and acknowledge them, or count the acknowledgement of ours."""
        if stream_id != 0:
            self.fail(PROTOCOL_ERROR, "SETTINGS on a stream")
            return
        size = end - begin
        if flags & ACK:
            if size != 0:
                self.fail(FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            elif self.unacknowledged > 0:
                self.unacknowledged -= 1
                self._events.settings_acknowledged()
            else:
                self._spend(1)
            return
        if size % 6 != 0 or size > 6 * frames.SETTINGS_PER_FRAME_MAX:
            self.fail(FRAME_SIZE_ERROR, "SETTINGS with an invalid length")
            return
        if self._greeted:
            self._spend(2 + len(self.streams) // 4)  # the window of each stream may change
        self._greeted = True
        window_before = self._first_send_window
        while begin < end:
            self._setting((data[begin] << 8) | data[begin + 1], int.from_bytes(data[begin + 2 : begin + 6], "big"))
            if self.error is not None:
                return
            begin += 6
        self._events.write(frames.settings_ack())  # before any frame that relies on the new settings (6.5.3)
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
                self.fail(PROTOCOL_ERROR, "ENABLE_PUSH with an invalid value")
        elif number == frames.ENABLE_CONNECT_PROTOCOL:
            if value > 1 or (value == 0 and self.peer_takes_websockets):
                self.fail(PROTOCOL_ERROR, "ENABLE_CONNECT_PROTOCOL with an invalid value")
            self.peer_takes_websockets = value == 1

    def _change_windows(self, value: i64) -> None:
        """Change the windows of all streams by the difference to `value`; they may become negative (RFC 9113 6.9.2)."""
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
            elif not self.budgets.late(0):
                self._spend(1)
            return
        code = int.from_bytes(data[begin:end], "big")
        self._spend_reset()
        self._forget(stream)
        self._events.stream_reset(stream, code, "")

    def _priority(self, stream_id: i64, data: bytes, begin: i64, end: i64) -> None:
        """Validate and ignore PRIORITY, which is deprecated (RFC 9113 5.3.2)."""
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
            if id_at(data, begin) == stream_id:
                self._refuse_own_dependency(stream_id)

    def _refuse_own_dependency(self, stream_id: i64) -> None:
        """Reset a stream whose priority names itself (RFC 7540 5.3.1); fail the connection if it is not open."""
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
            self._events.peer_goes_away(id_at(data, begin), int.from_bytes(data[begin + 4 : begin + 8], "big"))

    # --- errors and charges ---

    def _stream_error(self, stream: Stream, code: i64, words: str) -> None:
        """Charge the peer for its error, and reset the stream."""
        if stream.is_closed:
            return
        self._spend_reset()
        if self.error is None:
            self._reset(stream, code)
            self._events.stream_reset(stream, code, words)

    def _spend(self, count: i64) -> None:
        """Charge `count` frames that make no progress to the connection, which fails if its budget is exhausted."""
        budgets = self.budgets
        budgets.frames -= count
        if budgets.frames < 0:
            self.fail(ENHANCE_YOUR_CALM, "too many frames that make no progress")

    def _spend_of_stream(self, stream: Stream) -> None:
        """Charge a frame that does not advance its stream to the stream, which is reset if its budget is exhausted."""
        stream.spare_frames -= 1
        if stream.spare_frames < 0:
            self._stream_error(stream, ENHANCE_YOUR_CALM, "too many frames that make no progress")

    def _spend_reset(self) -> None:
        """Charge a client for a stream that it has reset or that ended by its error. A pod is not charged."""
        if not self._is_server():
            return
        budgets = self.budgets
        budgets.resets -= 1
        if budgets.resets < 0:
            self.fail(ENHANCE_YOUR_CALM, "too many streams that are reset")


def id_at(data: bytes, pos: i64) -> i64:
    """Return the 31-bit number at `pos`; the highest bit is reserved."""
    return ((data[pos] & 127) << 24) | (data[pos + 1] << 16) | (data[pos + 2] << 8) | data[pos + 3]
