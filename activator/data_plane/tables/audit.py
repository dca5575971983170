"""The auditor, which periodically recounts and compares the state of the data plane.

Rules
  1. It checks revisions that had requests or changes of structure since the last check, and no others: idle revisions
     cost nothing.
  2. A check takes several turns of the loop, with AUDIT_STEPS_PER_TURN slots or leases in each. The table changes
     between turns, so values compared within a turn belong to one slot: its state, its membership in the room
     structure, its names, its leases. The totals in flight and of pods with room are compared without a walk. Sums that
     only effects change are compared if no effect has arrived since the check began. A check ends early if its table is
     replaced, or is about to be.
  3. It changes nothing. Findings are sent as changes to the state worker, which repairs, counts and logs them.
  4. An exception in a check makes its revision distrusted; other revisions are still checked.
  5. It runs between two callbacks of the loop, so all invariants must hold exactly.
  6. A slot whose drain has ended is reported again until it is freed. This is not a difference: the report may wait
     because changes of the revision are parked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.throttle.leases import newest_of, next_older
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.messages import (
    Change,
    LeasesOrphaned,
    ObservedTable,
    QueueStalled,
    RevisionBroken,
    SlotDrained,
    SlotForgotten,
    SlotView,
)
from activator.runtime.clock import Defer, Now, Periodic, TimingWheel
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, PodTracker

AUDIT_INTERVAL_S: Final = 3.0  # interval of the audits
AUDIT_STEPS_PER_TURN: Final = 128  # slots and leases: 0.1 ms with a request at each pod
CHECK_STEPS: Final = 4  # cost of a revision besides its slots

ORPHANED_NAMED_MAX: Final = 5  # pods named in one log line


@final
class RevisionCheck:
    """The progress and the findings of the check of one revision."""

    def __init__(self, throttler: RevisionThrottler, applied: int, sends_slots: bool) -> None:
        self.throttler = throttler
        self.table: TrackerTable = throttler.table
        self.applied = applied  # effects at the beginning of the check
        self.sends_slots = sends_slots  # the state worker compares the slots with the model
        self.slot: int = 0  # the next slot to check
        # Counted in the slots before `slot`:
        self.used: int = 0
        self.capacity: int = 0
        self.draining: int = 0
        self.orphaned: int = 0  # leases without a request
        self.orphaned_at: list[str] = []  # some of their pods
        self.slot_views: list[SlotView] = []


class Auditor(Periodic):
    """The auditor of one data plane. `send` reports findings to the state worker."""

    def __init__(
        self,
        tables: RevisionTables,
        wheel: TimingWheel,
        now: Now,
        send: Callable[[Change], None],
        defer: Defer,
    ) -> None:
        super().__init__(AUDIT_INTERVAL_S)
        self._tables = tables
        self._wheel = wheel
        self._now = now
        self._send = send
        self._defer = defer
        self._due: set[str] = set()  # revisions to check
        self._check: RevisionCheck | None = None
        self._steps_left: int = 0  # remaining steps of this turn
        self._deferred: bool = False  # the next turn continues the checks
        self.checked_total: int = 0  # revisions checked

    def arm(self) -> None:
        self._wheel.arm(self, self._now() + AUDIT_INTERVAL_S)

    def expired(self, now_s: float) -> None:
        self.arm()
        for key, cause in self._tables.stalled():
            self._send(RevisionBroken(key, cause))  # the state worker may have parked earlier reports
        if not self._due and self._check is None:
            self._due = self._tables.pop_changed()
        if not self._deferred:  # also after an exception in the previous round
            self._run_turn()

    def check(self, throttler: RevisionThrottler) -> None:
        """Check one revision completely in this turn."""
        check = self._begin(throttler)
        while check is not None:
            self._steps_left = AUDIT_STEPS_PER_TURN
            check = self._continue_check(check)

    def _run_turn(self) -> None:
        """Continue the checks for one turn."""
        self._deferred = False
        self._steps_left = AUDIT_STEPS_PER_TURN
        while self._steps_left > 0:
            if self._check is not None:
                self._check = self._continue_check(self._check)
            elif self._due:
                throttler = self._tables.throttlers.get(self._due.pop())
                if throttler is not None and self._may_check(throttler):
                    self._check = self._begin(throttler)
            else:
                return
        self._defer(self._run_turn)
        self._deferred = True

    def _may_check(self, throttler: RevisionThrottler) -> bool:
        return throttler.key not in self._tables.distrusted and not self._tables.is_rebuilding(throttler.key)

    def _begin(self, throttler: RevisionThrottler) -> RevisionCheck | None:
        """Compare the totals of a revision; return the check of its slots, or None after an error."""
        self.checked_total += 1
        self._steps_left -= CHECK_STEPS
        try:
            throttler.table.check_room()
            difference = _lease_difference(throttler)
            if difference:
                self._send(RevisionBroken(throttler.key, difference, "ledger"))
                return None
            if throttler.is_stalled():
                self._send(QueueStalled(throttler.key))
            sends_slots = self._tables.pop_restructured(throttler.key)
            return RevisionCheck(throttler, self._tables.applied.get(throttler.key, 0), sends_slots)
        except Exception as error:
            self._distrust(throttler, error)
            return None

    def _continue_check(self, check: RevisionCheck) -> RevisionCheck | None:
        """Continue a check until the turn's steps are used up; return None when it is complete."""
        throttler = check.throttler
        if throttler.table is not check.table or throttler.queue.removed or not self._may_check(throttler):
            return None  # the next audit checks its new state
        try:
            while check.slot < check.table.length:
                if self._steps_left <= 0:
                    return check
                difference = self._check_slot(check)
                if difference:
                    self._send(RevisionBroken(throttler.key, difference, "ledger"))
                    return None
                check.slot += 1
            self._report_findings(check)
        except Exception as error:
            self._distrust(throttler, error)
        return None

    def _check_slot(self, check: RevisionCheck) -> str:
        """Check and count one slot; return how its leases and its in-flight count differ, "" if they do not."""
        check.table.check_slot(check.slot)
        tracker = check.table.slots[check.slot]
        leases = 0
        lease = newest_of(tracker)
        while lease is not None:
            leases += 1
            assert lease.generation == tracker.generation, f"the lease of {lease.identity} is at another pod"
            if not lease.holder.is_served(lease):
                check.orphaned += 1
                if lease.identity not in check.orphaned_at and len(check.orphaned_at) < ORPHANED_NAMED_MAX:
                    check.orphaned_at.append(lease.identity)
            lease = next_older(lease)
        self._steps_left -= 1 + leases
        if leases != tracker.in_flight:
            return f"{tracker.identity} has {leases} leases and {tracker.in_flight} in flight"
        if tracker.state == EMPTY:
            return ""
        check.used += 1
        if tracker.state == DRAINING:
            check.draining += 1
            if leases == 0:
                self._send(SlotDrained(check.throttler.key, int(tracker.slot), int(tracker.generation)))
        else:
            check.capacity += tracker.capacity()
            self._record_pod(check, tracker)
        return ""

    def _record_pod(self, check: RevisionCheck, tracker: PodTracker) -> None:
        """Record the pod of a slot for the state worker; report a suspicion that has not ended in time."""
        if 0.0 < tracker.suspect_until_s < self._now() - SUSPECT_S:
            self._send(SlotForgotten(check.throttler.key, tracker.identity))
        if check.sends_slots:
            view = SlotView(
                tracker.identity,
                tracker.address,
                int(tracker.state),
                int(tracker.own_limit),
                int(tracker.weight),
                int(tracker.epoch),
                tracker.is_far,
            )
            check.slot_views.append(view)

    def _report_findings(self, check: RevisionCheck) -> None:
        """Report the findings of a check whose slots have all been counted."""
        key = check.throttler.key
        if check.orphaned:
            pods = ", ".join(sorted(check.orphaned_at))
            self._send(LeasesOrphaned(key, f"{check.orphaned} leases without a request at {pods}"))
        if self._tables.applied.get(key, 0) != check.applied:
            if check.sends_slots:  # confirms earlier effects; the next check shows the table
                self._send(ObservedTable(key, check.applied, ()))
            return  # effects have arrived since the check began
        check.table.check_totals(check.used, check.capacity, check.draining)
        if check.sends_slots:
            self._send(ObservedTable(key, check.applied, tuple(check.slot_views)))

    def _distrust(self, throttler: RevisionThrottler, error: Exception) -> None:
        self._tables.distrust(throttler.key, f"{type(error).__name__}: {error}", "invariant")


def _lease_difference(throttler: RevisionThrottler) -> str:
    """Return the difference between open leases and requests in flight; "" if there is none."""
    leases = throttler.leases.count
    in_flight = throttler.table.in_flight
    if leases == in_flight:
        return ""
    late = 0  # leases that their requests did not release when they were revoked
    for lease in throttler.leases:
        if lease.tracker.generation != lease.generation:
            late += 1
    if leases - late == in_flight:
        return ""
    return f"there are {leases} leases, {late} of them late, and {in_flight} in flight"
