"""What goes out on one HTTP/2 connection: field sections, bodies as far as the windows let them out, and ends.

Rules
  1. What was sent goes out in the order in which the encoder made it: a field section is encoded when it is written.
  2. Bodies are sent at the end of the turn (`flush`), when 16 KiB are there, or with their end; so a short answer is
     one DATA frame that carries the end of its stream.
  3. Streams that wait for the connection's window or for the transport take turns, 16 KiB each.
  4. A stream leaves the table here, whichever side has ended or reset it; streams that we have reset are remembered
     for a while, since more may be on its way for them.
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

GATHER_BYTES: Final = 16 * KIB  # of a stream: so much is sent before the turn ends
UNSENT_HIGH_BYTES: Final = 64 * KIB  # of a stream: above it, its user is told to wait …
UNSENT_LOW_BYTES: Final = 16 * KIB  # … until no more than this is left
SENT_PER_TURN_BYTES: Final = 1 * MIB  # of all streams that have waited
RESET_REMEMBERED: Final = 1024  # streams that we have reset, by number; of older ones only the highest number is known


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Sender:
    """The sending half; `connection.py` adds the receiving one."""

    def __init__(self, events: ConnectionEvents, not_sent: frozenset[bytes]) -> None:
        """`not_sent`: names of fields that heads in this direction do not have."""
        self._events = events
        self.encoder = HpackEncoder(not_sent)
        self.budgets = PeerBudgets()
        self.streams: dict[int, Stream] = {}
        self.error: Http2Error | None = None
        self.needs_turn: bool = False
        self.last_id: i64 = 0  # the highest stream that the peer has opened; as a client, that we have
        self._reset_by_us: dict[int, None] = {}  # of late
        self._reset_before: i64 = 0  # streams up to this one may have been among them
        self._send_window: i64 = FIRST_WINDOW
        self._first_send_window: i64 = FIRST_WINDOW  # of new streams, as the peer wants it
        self._held: bool = False  # the transport takes nothing for now
        self._gathered: list[Stream] = []  # to be sent at the end of the turn
        self._waiting: dict[Stream, None] = {}  # for the connection's window or the transport; each has a window

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
            self._events.write(frames.go_away(self._last_processed(), code, words))

    def retire(self) -> None:
        """The connection is gone: refer to nothing any more, so that no cycle is left for the collector."""
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
        before = stream.sent_bytes
        room: i64 = stream.send_window
        if room > self._send_window:
            room = self._send_window
        if room > most:
            room = most
        if self._held or room <= 0:
            return 0
        if self._send_single(stream, room):
            return stream.sent_bytes - before
        sent: i64 = 0
        frames_sent: i64 = 0
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
        """A body in one piece that fits into one frame, as most are: without the lists that others need."""
        size = stream.unsent_bytes
        if size == 0 or size > room or size > FRAME_BYTES_MAX or not stream.is_single():
            return False
        last = stream.end_wanted and not stream.trailers
        self._events.write(b"%b%b%b" % (data_start(size, last), stream.id_bytes, stream.take_single()))
        if last:
            stream.local_ended = True
        stream.send_window -= size
        self._send_window -= size
        stream.sent_bytes += size
        self.budgets.sent(size, 1)
        return True

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

    def _reset(self, stream: Stream, code: i64) -> None:
        self._forget(stream)
        self._remember_reset(stream.id, 0 if stream.remote_ended else stream.receive_window)
        self._events.write(frames.reset_stream(stream.id, code))

    def _remember_reset(self, stream_id: i64, window_bytes: i64) -> None:
        """Ignore what arrives for it from now on; the peer may have `window_bytes` under way."""
        self.budgets.stream_reset(window_bytes)
        reset = self._reset_by_us
        reset[stream_id] = None
        if len(reset) > RESET_REMEMBERED:
            oldest = next(iter(reset))
            del reset[oldest]
            if oldest > self._reset_before:
                self._reset_before = oldest

    def _forget(self, stream: Stream) -> None:
        """Take it out of the table."""
        stream.is_closed = True
        stream.drop_unsent()
        del self.streams[stream.id]
        if stream.is_waiting:
            stream.is_waiting = False
            self._waiting.pop(stream, None)
