"""Bounds on what a peer may send that costs us something and advances no request.

Rules
  1. Frames that a well-behaved peer sends are free, in any number. A WINDOW_UPDATE is free while the peer has not
     returned the window of all bytes sent to it. Frames for a stream that we have reset are free up to the window that
     was left, because they were in flight.
  2. Frames of one stream that do not advance it (empty DATA, updates of a window that was not used) are charged to that
     stream and reset only that stream, because the connection may carry the requests of other users.
  3. Frames that advance no request (PING, SETTINGS, PRIORITY, unknown types, CONTINUATION) are charged to one budget of
     the connection. It is refilled by DATA in either direction, by requests, and by time.
  4. In the server's role, streams that the client resets or that end by its error are charged to a second budget
     (CVE-2023-44487, CVE-2025-8671), which is refilled by streams that end normally, and by time. A pod that resets our
     streams is charged nothing: each reset costs it one request that we chose to send.
  5. When a budget of the connection is exhausted, the connection ends with ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

FRAMES_BURST: Final = 4_000  # frames in a row that advance no request
FRAMES_PER_S: Final = 50.0
FRAMES_PER_DATA: Final = 3  # refill for each DATA frame that is not empty, for the connection and for its stream
FRAMES_PER_REQUEST: Final = 8
RESETS_BURST: Final = 1_000  # resets in a row
RESETS_PER_S: Final = 50.0
STREAM_FRAMES_BURST: Final = 500  # frames in a row that do not advance their stream
LATE_FRAMES: Final = 4  # per stream that we have reset, besides DATA: interim head, final head, trailers, RST_STREAM


class PeerBudgets:
    """The budgets of one connection. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.frames: i64 = FRAMES_BURST
        self.resets: i64 = RESETS_BURST
        self._earned_s: float = 0.0  # the last refill by time
        # Bytes of DATA that were sent and whose window the peer has not returned: of the connection, of its streams.
        self._unreturned: i64 = 0
        self._unreturned_of_streams: i64 = 0
        # Data and frames that may still arrive for streams that we have reset.
        self._late_bytes: i64 = 0
        self._late_frames: i64 = 0

    def refill(self, now_s: float) -> None:
        """Refill the budgets by the time since the last refill, at most once per second to keep the call cheap."""
        passed_s = now_s - self._earned_s
        if passed_s < 1.0:
            return
        if self._earned_s == 0.0:
            passed_s = 0.0
        self._earned_s = now_s
        passed_s = min(passed_s, 3600.0)
        self.frames = min(self.frames + int(passed_s * FRAMES_PER_S), FRAMES_BURST)
        self.resets = min(self.resets + int(passed_s * RESETS_PER_S), RESETS_BURST)

    def useful(self, frames: i64) -> None:
        """Refill the budget of frames, because the connection has made progress."""
        self.frames = min(self.frames + frames, FRAMES_BURST)

    def sent(self, count: i64, frames: i64) -> None:
        """Record that `count` bytes of bodies were sent in `frames` DATA frames."""
        self._unreturned += count
        self._unreturned_of_streams += count
        self.useful(frames * FRAMES_PER_DATA)

    def returned(self, count: i64) -> bool:
        """Record an update of the connection's window. Return True if it is free: it returns bytes that were sent."""
        if count > self._unreturned:
            return False
        self._unreturned -= count
        return True

    def returned_of_stream(self, count: i64) -> bool:
        """Record an update of a stream's window, even of a closed stream. Return True if it is free."""
        if count > self._unreturned_of_streams:
            return False
        self._unreturned_of_streams -= count
        return True

    def stream_reset(self, window_bytes: i64) -> None:
        """Record that we have reset a stream for which the peer may still have `window_bytes` in flight."""
        if window_bytes > 0:
            self._late_bytes += window_bytes
        self._late_frames += LATE_FRAMES

    def late(self, count: i64) -> bool:
        """Record a frame with `count` bytes of DATA for a stream that we have reset. Return True if it is free."""
        if count > 0:
            if self._late_bytes < count:
                return False
            self._late_bytes -= count
            return True
        if self._late_frames == 0:
            return False
        self._late_frames -= 1
        return True

    def stream_ended(self) -> None:
        """Record that a stream has ended normally."""
        if self.resets < RESETS_BURST:
            self.resets += 1
