"""The auditor: every few seconds, what the data plane keeps is counted anew and compared.

Rules
  1. It looks at revisions that had a request or whose structure was changed since its last look, and at no others:
     idle revisions cost nothing. A look is cut into turns of the loop of AUDIT_SLOTS_PER_TURN slots.
  2. It changes nothing. What it finds goes to the state worker as a change, which repairs it, counts it by its kind and
     logs what was found.
  3. An exception during a check makes that revision distrusted; the others are checked all the same.
  4. It runs between two callbacks of the loop, where everything must add up: there is no "not yet".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.data_plane.apply import RevisionTables
from activator.data_plane.throttle.revision import SUSPECT_S, RevisionThrottler
from activator.messages import Change, LeasesForsaken, LineStuck, RevisionBroken, SlotForgotten, SlotView, TableSeen
from activator.runtime.clock import Deadline, Defer, Now, TimingWheel
from lb.tracker import DRAINING, EMPTY, PodTracker

AUDIT_INTERVAL_S: Final = 3.0  # how often what has changed is compared with what should be
AUDIT_SLOTS_PER_TURN: Final = 4_096  # before the loop is given a turn

FORSAKEN_NAMED_MAX: Final = 5  # pods, in one line of the log


class Auditor(Deadline):
    """`send` takes what was found to the state worker; `defer` runs a callable in the loop's next turn."""

    def __init__(
        self,
        tables: RevisionTables,
        wheel: TimingWheel,
        now: Now,
        send: Callable[[Change], None],
        defer: Defer,
    ) -> None:
        super().__init__()
        self._tables = tables
        self._wheel = wheel
        self._now = now
        self._send = send
        self._defer = defer
        self._due: list[str] = []
        self.looked_total: int = 0  # revisions

    def arm(self) -> None:
        self._wheel.arm(self, self._now() + AUDIT_INTERVAL_S)

    def expired(self, now_s: float) -> None:
        self.arm()
        for key, cause in self._tables.distrusted.items():
            self._send(RevisionBroken(key, cause))  # what was sent before may have been set aside
        if not self._due:
            self._due = self._tables.take_changed()
            self._continue()

    def _continue(self) -> None:
        slots = 0
        while self._due:
            throttler = self._tables.throttlers.get(self._due.pop())
            if throttler is None or throttler.key in self._tables.distrusted:
                continue
            self.look_at(throttler)
            slots += throttler.table.length
            if slots >= AUDIT_SLOTS_PER_TURN and self._due:
                self._defer(self._continue)
                return

    def look_at(self, throttler: RevisionThrottler) -> None:
        """One revision, whole; one that cannot even be looked at is not to be trusted."""
        self.looked_total += 1
        try:
            throttler.table.check_invariants()
            self._compare(throttler)
        except Exception as error:
            self._tables.distrust(throttler.key, f"{type(error).__name__}: {error}", "invariant")

    def _compare(self, throttler: RevisionThrottler) -> None:
        key = throttler.key
        wrong = _ledger(throttler)
        if wrong:
            self._send(RevisionBroken(key, wrong, "ledger"))
            return
        forsaken = throttler.forsaken()
        if forsaken:
            pods = ", ".join(sorted({lease.identity for lease in forsaken})[:FORSAKEN_NAMED_MAX])
            self._send(LeasesForsaken(key, f"{len(forsaken)} leases without a request at {pods}"))
        if throttler.is_stuck():
            self._send(LineStuck(key))
        now_s = self._now()
        for tracker in _pods(throttler):
            if 0.0 < tracker.suspect_until_s < now_s - SUSPECT_S:
                self._send(SlotForgotten(key, tracker.identity))
        if self._tables.restructured(key):
            self._send(TableSeen(key, self._tables.applied.get(key, 0), _view(throttler)))


def _ledger(throttler: RevisionThrottler) -> str:
    """What is wrong between the open leases and what the slots say is in flight; empty: nothing."""
    counted: dict[PodTracker, int] = {}
    for lease in throttler.leases:
        if lease.tracker.generation == lease.generation:
            counted[lease.tracker] = counted.get(lease.tracker, 0) + 1
    for tracker in throttler.table.slots[: throttler.table.length]:
        leases = counted.get(tracker, 0)
        if tracker.in_flight != leases:
            return f"{tracker.identity} has {leases} leases and {tracker.in_flight} in flight"
    return ""


def _pods(throttler: RevisionThrottler) -> list[PodTracker]:
    table = throttler.table
    return [one for one in table.slots[: table.length] if one.state != EMPTY and one.state != DRAINING]


def _view(throttler: RevisionThrottler) -> tuple[SlotView, ...]:
    return tuple(
        [
            SlotView(one.identity, one.address, int(one.state), int(one.limit), int(one.weight))
            for one in _pods(throttler)
        ]
    )
