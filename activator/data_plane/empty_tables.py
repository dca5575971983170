"""Tables without pods: their slots are given back after a while.

A revision at zero keeps the slots of its table for GIVE_BACK_AFTER_S: one that flaps between zero and one pod does not
make them anew each time (0.3 ms and 440 KB for the 2,000 slots of max_scale 1,000). So the memory of tables at zero is
that of the revisions that had a pod in this time.
"""

from __future__ import annotations

from typing import Final, final

from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, Now, TimingWheel

GIVE_BACK_AFTER_S: Final = 60.0


@final
class EmptyTable(Deadline):
    """Of one revision."""

    def __init__(self, tables: EmptyTables, throttler: RevisionThrottler) -> None:
        super().__init__()
        self._tables = tables
        self._throttler = throttler

    def expired(self, now_s: float) -> None:
        self._tables.time_is_up(self._throttler)


class EmptyTables:
    """Of one data plane."""

    def __init__(self, wheel: TimingWheel, now: Now) -> None:
        self._wheel = wheel
        self._now = now
        self._armed: dict[int, EmptyTable] = {}  # by incarnation

    def slot_freed(self, throttler: RevisionThrottler) -> None:
        """To be called when a slot was freed: it may have been the last."""
        if throttler.table.used != 0 or throttler.queue.removed:
            return
        entry = self._armed.get(throttler.incarnation)
        if entry is None:
            entry = self._armed[throttler.incarnation] = EmptyTable(self, throttler)
        self._wheel.arm(entry, self._now() + GIVE_BACK_AFTER_S)

    def time_is_up(self, throttler: RevisionThrottler) -> None:
        del self._armed[throttler.incarnation]
        if not throttler.queue.removed:  # else the table goes with it
            throttler.table.drop_slots()
