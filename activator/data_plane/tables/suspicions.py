"""The ends of suspicions: a suspected pod gets requests again if no decision about it arrives within SUSPECT_S.

The state worker decides within milliseconds, unless changes of the revision are parked.
"""

from __future__ import annotations

from typing import final

from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, TimingWheel
from lb.tracker import PodTracker


@final
class Suspicion(Deadline):
    """The deadline of the suspicion of one pod; a later pod in the slot has another generation."""

    def __init__(self, suspicions: Suspicions, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        super().__init__()
        self.throttler = throttler
        self.tracker = tracker
        self.generation: int = tracker.generation
        self._suspicions = suspicions

    def expired(self, now_s: float) -> None:
        self._suspicions.end(self, now_s)


class Suspicions:
    """The suspicions of one data plane.

    A suspicion does not end while its revision is in `distrusted`: the new table takes it over.
    """

    def __init__(self, wheel: TimingWheel, distrusted: dict[str, str]) -> None:
        self._wheel = wheel
        self._distrusted = distrusted

    def begin(self, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        """Set the timer for the end of the suspicion that the slot of the pod records."""
        self._wheel.arm(Suspicion(self, throttler, tracker), tracker.suspect_until_s)

    def end(self, suspicion: Suspicion, now_s: float) -> None:
        """Lift a suspicion whose time has expired."""
        throttler = suspicion.throttler
        if throttler.queue.removed or throttler.key in self._distrusted:
            return
        if throttler.table.end_suspicion(suspicion.tracker, suspicion.generation, now_s):
            throttler.pump()
