"""Bounds on what a peer may send that costs us something and advances no request.

Rules
  1. What an honest peer sends is free, however often. A WINDOW_UPDATE is free while bytes that were sent to the peer
     have not been returned, and what arrives for a stream that we have reset is free up to the window that the stream
     had left: it was under way.
  2. What one stream can bring without advancing (empty DATA, windows that were not used) is charged to that stream, and
     ends that stream: the connection may carry the requests of other users.
  3. Frames of the connection without a purpose of their own (PING, SETTINGS, PRIORITY, unknown types, pieces of a field
     section) are charged to one budget of the connection. It is refilled by DATA in either direction, by requests, and
     by time.
  4. As a server: streams that the client resets, or that end by its error, are charged to another budget
     (CVE-2023-44487, CVE-2025-8671), which is refilled by streams that end in order, and by time. A pod that resets our
     streams is charged nothing: each reset costs it one request that we chose to send.
  5. A budget of the connection that is used up ends the connection with ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

FRAMES_BURST: Final = 4_000  # frames without a purpose that a connection may send in a row
FRAMES_PER_S: Final = 50.0
FRAMES_PER_DATA: Final = 3  # earned by a DATA frame with something in it, of the connection and of its stream
FRAMES_PER_REQUEST: Final = 8
RESETS_BURST: Final = 1_000  # streams in a row that are reset
RESETS_PER_S: Final = 50.0
STREAM_FRAMES_BURST: Final = 500  # frames that do not advance their stream
LATE_FRAMES: Final = 4  # other than DATA, for a stream that we have reset: interim and final head, trailers, a reset


class PeerBudgets:
    """The budgets of one connection. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.frames: i64 = FRAMES_BURST
        self.resets: i64 = RESETS_BURST
        self._earned_s: float = 0.0  # by then, what time brings has been added
        # bytes of DATA that were sent and whose window the peer has not returned: of the connection, of its streams
        self._unreturned: i64 = 0
        self._unreturned_of_streams: i64 = 0
        # what may still arrive for streams that we have reset
        self._late_bytes: i64 = 0
        self._late_frames: i64 = 0

    def at(self, now_s: float) -> None:
        """Add what the time since the last call has brought; whole seconds, so that it costs nothing in between."""
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
        """Allow so many frames more, because the connection has carried something useful."""
        self.frames = min(self.frames + frames, FRAMES_BURST)

    def sent(self, count: i64, frames: i64) -> None:
        """Note that `count` bytes of bodies were sent in so many DATA frames."""
        self._unreturned += count
        self._unreturned_of_streams += count
        self.useful(frames * FRAMES_PER_DATA)

    def returned(self, count: i64) -> bool:
        """Note an update of the connection's window. True if it is free, because it returns bytes that were sent."""
        if count > self._unreturned:
            return False
        self._unreturned -= count
        return True

    def returned_of_stream(self, count: i64) -> bool:
        """Do the same for an update of a stream's window, also of one that has ended."""
        if count > self._unreturned_of_streams:
            return False
        self._unreturned_of_streams -= count
        return True

    def stream_reset(self, window_bytes: i64) -> None:
        """Note that we have reset a stream whose peer may still have so many bytes under way."""
        if window_bytes > 0:
            self._late_bytes += window_bytes
        self._late_frames += LATE_FRAMES

    def late(self, count: i64) -> bool:
        """Note a frame for a stream that we have reset, with `count` bytes of DATA. True if it is free."""
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
        """Note that a stream has ended in order."""
        if self.resets < RESETS_BURST:
            self.resets += 1
