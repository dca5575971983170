"""The release of the slots of tables without pods.

A revision at zero keeps the slots of its table for GIVE_BACK_AFTER_S: if it flaps between zero and one pod, it does not
create them each time (0.3 ms and 440 KB for the 2,000 slots of max_scale 1,000). Memory of tables at zero is therefore
only used by revisions that had a pod within this time.
"""

from __future__ import annotations

from typing import Final, final

from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, Now, TimingWheel

GIVE_BACK_AFTER_S: Final = 60.0


@final
class EmptyTable(Deadline):
    """The deadline of one revision's empty table."""

    def __init__(self, tables: EmptyTables, throttler: RevisionThrottler) -> None:
        super().__init__()
        self._tables = tables
        self._throttler = throttler

    def expired(self, now_s: float) -> None:
        self._tables.drop_slots_of(self._throttler)


class EmptyTables:
    """The empty tables of one data plane."""

    def __init__(self, wheel: TimingWheel, now: Now) -> None:
        self._wheel = wheel
        self._now = now
        self._armed: dict[int, EmptyTable] = {}  # by incarnation

    def slot_freed(self, throttler: RevisionThrottler) -> None:
        """Start the timer if the freed slot was the last one in use."""
        if throttler.table.used != 0 or throttler.queue.removed:
            return
        entry = self._armed.get(throttler.incarnation)
        if entry is None:
            entry = self._armed[throttler.incarnation] = EmptyTable(self, throttler)
        self._wheel.arm(entry, self._now() + GIVE_BACK_AFTER_S)

    def drop_slots_of(self, throttler: RevisionThrottler) -> None:
        """Drop the slots of a table that has been empty for GIVE_BACK_AFTER_S."""
        del self._armed[throttler.incarnation]
        if not throttler.queue.removed:  # a removed revision drops its table
            throttler.table.drop_slots()
