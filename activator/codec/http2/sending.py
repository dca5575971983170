"""The sending half of an HTTP/2 connection: field sections, bodies within the windows, ends and resets.

Rules
  1. A field section is encoded immediately before it is written, so that sections are sent in the encoder's order.
  2. Bodies are sent at the end of the turn (`flush`), when 16 KiB are buffered, or with their end; so a short response
     is one DATA frame that also ends its stream.
  3. Streams that wait for the connection's window or for the transport take turns, 16 KiB each.
  4. This class removes a stream from the table, whichever side has ended or reset it. Streams that we have reset are
     remembered for a while, because frames for them may be in flight.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2 import frames
from activator.codec.http2.budgets import PeerBudgets
from activator.codec.http2.events import NOBODY, ConnectionEvents, Http2Error
from activator.codec.http2.frames import (
    FIRST_WINDOW,
    FRAME_BYTES_MAX,
    INTERNAL_ERROR,
    NO_ERROR,
    WINDOW_MAX,
    data_start,
    header_frames,
)
from activator.codec.http2.heads import write_trailers
from activator.codec.http2.hpack.encoder import HpackEncoder
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers
from activator.runtime.units import KIB, MIB

GATHER_BYTES: Final = 16 * KIB  # a stream with this much buffered sends before the turn ends
UNSENT_HIGH_BYTES: Final = 64 * KIB  # above this high-water mark, a stream's user must stop writing
UNSENT_LOW_BYTES: Final = 16 * KIB  # at or below this low-water mark, it may resume
SENT_PER_TURN_BYTES: Final = 1 * MIB  # for all waiting streams together
RESET_REMEMBERED: Final = 1024  # how many reset streams are remembered; of older ones, only the highest number


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Sender:
    """The sending half of a connection; `control.py` and `connection.py` add the receiving half."""

    def __init__(self, events: ConnectionEvents, not_sent: frozenset[bytes]) -> None:
        """Make a sender; heads are sent without the fields named in `not_sent`."""
        self._events = events
        self.encoder = HpackEncoder(not_sent)
        self.budgets = PeerBudgets()
        self.streams: dict[int, Stream] = {}
        self.error: Http2Error | None = None
        self.needs_turn: bool = False
        self.last_id: i64 = 0  # the highest stream that the client has opened
        self._reset_by_us: dict[int, None] = {}  # streams that we have reset recently, oldest first
        self._reset_before: i64 = 0  # streams up to this one may have been reset and forgotten
        self._send_window: i64 = FIRST_WINDOW
        self._first_send_window: i64 = FIRST_WINDOW  # the peer's initial window for new streams
        self._held: bool = False  # the transport's buffer is full
        self._gathered: list[Stream] = []  # streams with data to be sent at the end of the turn
        self._waiting: dict[Stream, None] = {}  # streams with an open window of their own, blocked by the connection

    def send_head(self, stream: Stream, block: bytes, last: bool) -> None:
        """Send a head that has just been encoded; no body follows if `last`."""
        if stream.is_closed or stream.local_ended:
            return
        self._events.write(header_frames(stream.id_bytes, block, last))
        if last:
            self._local_ended(stream)

    def send_body(self, stream: Stream, data: bytes) -> None:
        """Buffer body data until `flush`, 16 KiB are buffered, or `send_end`; then send them within the windows."""
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
        """End the stream after the data buffered for it."""
        if stream.is_closed or stream.local_ended or stream.end_pending:
            return
        stream.end_pending = True
        stream.trailers = trailers
        self._pump(stream)

    def flush(self) -> None:
        """Send the data buffered in this turn."""
        gathered = self._gathered
        if gathered:
            self._gathered = []
            for stream in gathered:
                if stream.unsent_bytes > 0 and not stream.is_waiting:
                    self._pump(stream)

    def flush_stream(self, stream: Stream) -> None:
        """Send the data buffered for this stream."""
        if stream.unsent_bytes > 0:
            self._pump(stream)

    def hold(self, held: bool) -> None:
        """Stop or resume sending, because the transport's buffer is full or has drained."""
        self._held = held
        if not held:
            self._pump_waiting()

    def reset(self, stream: Stream, code: i64) -> None:
        """End the stream at once, in both directions."""
        if stream.is_closed:
            return
        self._reset(stream, code)
        self._events.stream_closed(stream)

    def fail(self, code: i64, words: str) -> None:
        """End the connection with an error: send GOAWAY, and set `error`."""
        if self.error is None:
            self.error = Http2Error(code, words)
            self._events.write(frames.go_away(self._last_processed(), code, words))

    def retire(self) -> None:
        """Release all references of a closed connection, so that no reference cycle is left to collect."""
        if self.error is None:
            self.error = Http2Error(INTERNAL_ERROR, "the connection is closed")
        self._events = NOBODY
        self._gathered = []
        self._waiting = {}
        for stream in self.streams.values():
            stream.is_closed = True
            stream.user = None
            stream.drop_unsent()
        self.streams = {}

    # --- internals ---

    def _last_processed(self) -> i64:
        return self.last_id

    def _pump(self, stream: Stream) -> None:
        """Send as much as the windows allow; the rest waits."""
        if stream.is_closed:
            return
        self._send_some(stream, WINDOW_MAX)
        if stream.unsent_bytes > UNSENT_HIGH_BYTES and not stream.is_full:
            stream.is_full = True
            self._events.stream_full(stream)

    def _send_some(self, stream: Stream, bytes_max: i64) -> i64:
        """Send at most `bytes_max` bytes of the stream. Return how many were sent."""
        sent = self._send_data(stream, bytes_max)
        if stream.unsent_bytes == 0:
            if stream.is_waiting:
                self._wait(stream, False)
            if stream.local_ended:
                self._local_ended(stream)
            elif stream.end_pending:
                self._end(stream)
        else:
            self._wait(stream, stream.send_window > 0)
        if stream.is_full and stream.unsent_bytes <= UNSENT_LOW_BYTES:
            stream.is_full = False
            self._events.stream_drained(stream)
        return sent

    def _send_data(self, stream: Stream, bytes_max: i64) -> i64:
        """Send DATA frames within `bytes_max`, the windows and the transport; the last frame may end the stream."""
        before = stream.sent_bytes
        room: i64 = stream.send_window
        if room > self._send_window:
            room = self._send_window
        if room > bytes_max:
            room = bytes_max
        if self._held or room <= 0:
            return 0
        if self._send_single(stream, room):
            return stream.sent_bytes - before
        sent: i64 = 0
        frames_sent: i64 = 0
        out: list[bytes] = []
        while stream.unsent_bytes > 0 and sent < room:
            count: i64 = room - sent  # mypyc does not compile min() of three arguments to native code
            if count > stream.unsent_bytes:
                count = stream.unsent_bytes
            if count > FRAME_BYTES_MAX:
                count = FRAME_BYTES_MAX
            last = stream.end_pending and count == stream.unsent_bytes and not stream.trailers
            out.append(data_start(count, last))
            out.append(stream.id_bytes)
            stream.move(count, out)
            sent += count
            frames_sent += 1
            if last:
                stream.local_ended = True
        if sent > 0:
            stream.send_window -= sent
            self._send_window -= sent
            stream.sent_bytes += sent
            self.budgets.sent(sent, frames_sent)
            self._events.write(b"%b%b%b" % (out[0], out[1], out[2]) if len(out) == 3 else b"".join(out))
        return sent

    def _send_single(self, stream: Stream, room: i64) -> bool:
        """Send a body of one piece that fits into one frame, the most common case, without building lists."""
        size = stream.unsent_bytes
        if size == 0 or size > room or size > FRAME_BYTES_MAX or not stream.is_single():
            return False
        last = stream.end_pending and not stream.trailers
        self._events.write(b"%b%b%b" % (data_start(size, last), stream.id_bytes, stream.take_single()))
        if last:
            stream.local_ended = True
        stream.send_window -= size
        self._send_window -= size
        stream.sent_bytes += size
        self.budgets.sent(size, 1)
        return True

    def _wait(self, stream: Stream, waits: bool) -> None:
        """Add the stream to those that wait for the connection, or remove it."""
        if waits and not stream.is_waiting:
            self._waiting[stream] = None
        elif not waits and stream.is_waiting:
            self._waiting.pop(stream, None)
        stream.is_waiting = waits

    def _end(self, stream: Stream) -> None:
        """Send the end of the stream, with its trailers."""
        if stream.trailers:
            self._events.write(header_frames(stream.id_bytes, write_trailers(self.encoder, stream.trailers), True))
        else:
            self._events.write(data_start(0, True) + stream.id_bytes)
        self._local_ended(stream)

    def _pump_waiting(self) -> None:
        """Send for the streams that wait for the connection, in turns."""
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
        """End our direction of the stream."""
        stream.local_ended = True
        if stream.is_closed:
            return
        if stream.remote_ended:
            self._forget(stream)
            self.budgets.stream_ended()
            self._events.stream_closed(stream)
        elif stream.wants_no_more:
            self.reset(stream, NO_ERROR)

    def _reset(self, stream: Stream, code: i64) -> None:
        """Remove the stream and send RST_STREAM, without an event."""
        self._forget(stream)
        self._remember_reset(stream.id, 0 if stream.remote_ended else stream.receive_window)
        self._events.write(frames.reset_stream(stream.id, code))

    def _remember_reset(self, stream_id: i64, window_bytes: i64) -> None:
        """Ignore frames for this stream from now on; the peer may have `window_bytes` in flight."""
        self.budgets.stream_reset(window_bytes)
        reset = self._reset_by_us
        reset[stream_id] = None
        if len(reset) > RESET_REMEMBERED:
            oldest = next(iter(reset))
            del reset[oldest]
            if oldest > self._reset_before:
                self._reset_before = oldest

    def _forget(self, stream: Stream) -> None:
        """Remove the stream from the table."""
        stream.is_closed = True
        stream.drop_unsent()
        del self.streams[stream.id]
        if stream.is_waiting:
            stream.is_waiting = False
            self._waiting.pop(stream, None)
