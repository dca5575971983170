"""What a peer may do that costs us something and brings nobody forward: bounds against floods of cheap frames.

Rules
  1. Frames without a purpose of their own (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, unknown types, pieces
     of a field section, frames for streams that have ended) are paid for from one budget. It earns by useful frames:
     DATA with something in it, in either direction, and requests; and by time.
  2. Streams that end by a reset, or by an error of the peer, are paid for from another one (CVE-2023-44487,
     CVE-2025-8671). It earns by streams that end in order; and by time.
  3. A budget that is used up ends the connection with ENHANCE_YOUR_CALM. No honest peer comes near either: a
     client of gRPC that measures its bandwidth sends one PING for several DATA frames; one whose every second request
     is cancelled breaks even.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

FRAMES_BURST: Final = 4_000  # frames without a purpose that a connection may send in a row
FRAMES_PER_S: Final = 50.0
FRAMES_PER_DATA: Final = 3  # earned by a DATA frame with something in it: two windows are updated, a PING
FRAMES_PER_REQUEST: Final = 8
RESETS_BURST: Final = 1_000  # streams in a row that are reset
RESETS_PER_S: Final = 50.0


class PeerBudgets:
    """Of one connection. Times in monotonic seconds."""

    def __init__(self) -> None:
        self.frames: i64 = FRAMES_BURST
        self.resets: i64 = RESETS_BURST
        self._earned_s: float = 0.0  # by then, what time brings has been added

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
        """The connection has done something useful, which allows so many frames without a purpose."""
        self.frames = min(self.frames + frames, FRAMES_BURST)

    def stream_ended(self) -> None:
        """In order."""
        if self.resets < RESETS_BURST:
            self.resets += 1
