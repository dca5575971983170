"""The throttler of one revision: who gets which slot, who waits, who is turned away.

Invariants (the auditor and the property tests check them)
  1. No grant is made to a pod with in_flight >= limit.
  2. The first in line never waits while a pod that may be picked has room.
  3. Every lease is released exactly once; every waiter ends exactly once.
  4. The line is never longer than `queue_depth`.

Rules
  - Everything here is plain `def` on one event loop: between the pick and the reservation nothing else can run.
  - Newcomers never overtake: while anyone waits, `try_acquire` gives nothing.
  - Hand-over loops, it does not recurse: a grant that fails at once and releases is seen by the loop already running.
  - Structure is not changed here. What the request path learns about pods goes to the state worker as a message.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from mypy_extensions import mypyc_attr

from activator.clock import Now
from activator.config import QUEUE_TIMEOUT_S, RevisionSpec
from activator.errors import Reason
from activator.throttle.budget import RetryBudget
from activator.throttle.lease import Lease
from activator.throttle.waiters import Waiter, WaiterLine
from lb.table import DRAINED, TrackerTable
from lb.tracker import RECOVERING, PodTracker

_RATE_HALF_LIFE_S: Final = 10.0
# Whoever waits for a start that takes too long shall hear of the start, not of the line: the start's own timeout begins
# a moment after the request arrived, and ends in a last look that takes a moment.
_STARTUP_SLACK_S: Final = 5.0
RETRY_AFTER_MIN_S: Final = 1
RETRY_AFTER_MAX_S: Final = 120


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotEvents:
    """What the throttler tells the control part; `data.py` hands in one that posts messages."""

    def activated(self, key: str) -> None:
        """The first request after a silence."""
        raise NotImplementedError

    def wanted(self, key: str) -> None:
        """A line has formed: requests wait and no slot is free."""
        raise NotImplementedError

    def drained(self, key: str, slot: int, generation: int) -> None:
        """The last request of a draining slot has ended."""
        raise NotImplementedError

    def departed(self, key: str, identity: str) -> None:
        """The last request at a pod of a removed revision has ended; of its slot nobody hears any more."""
        raise NotImplementedError

    def trial_ended(self, key: str, identity: str, generation: int, succeeded: bool) -> None:
        """The one request that a recovering pod was tried with has ended."""
        raise NotImplementedError

    def refused(self, key: str, identity: str, generation: int, dead: bool) -> None:
        """A pod did not take a connection: refused (dead), or no answer in time."""
        raise NotImplementedError


class RevisionThrottler:
    """Grants slots of `table` to waiters.

    `defer` runs a callable in the loop's next turn; `grants_per_turn_max` bounds how many hand-overs one turn makes.
    """

    def __init__(
        self,
        spec: RevisionSpec,
        table: TrackerTable,
        now: Now,
        defer: Callable[[Callable[[], None]], object],
        events: SlotEvents,
        grants_per_turn_max: int,
    ) -> None:
        self.spec = spec
        self.key: str = spec.key
        self.table = table
        self.line = WaiterLine()
        self.leases: dict[Lease, Waiter] = {}  # every open lease and who holds it
        self.failure: str | None = None  # why the revision cannot start, while it cannot
        self.removed: bool = False
        self.was_ready: bool = False  # a pod has been ready since the revision was last at zero
        self.active: bool = False  # has carried something since its load was last reported
        # counters, read at scrape time
        self.granted_total: int = 0
        self.queued_total: int = 0
        self.requests_total: int = 0
        self.failed_totals: dict[Reason, int] = {}  # requests that did not end with their pod's answer
        self.codes: dict[int, int] = {}
        self.client_gone_total: int = 0
        self.retries: dict[Reason, int] = {}  # requests tried again, by what was the matter the first time
        self.retry_budget = RetryBudget()
        self._now = now
        self._defer = defer
        self._events = events
        self._queue_depth: int = spec.queue_depth
        self._grants_per_turn_max = grants_per_turn_max
        self._pumping: bool = False
        self._pump_deferred: bool = False
        self._releases: float = 0.0  # releases, decayed by half each half-life
        self._releases_at_s: float = now()

    # --- asking for a slot ---

    def try_acquire(self, waiter: Waiter, now_s: float) -> Lease | None:
        """A slot at once, or None: then `enqueue`."""
        self.line.number(waiter)
        if not self.active:
            self.active = True
            self._events.activated(self.key)
        if self.line.length != 0 or self.failure is not None:
            return None
        tracker = self.table.pick(0, now_s)
        if tracker is None:
            return None
        return self._reserve(waiter, tracker, now_s)

    def enqueue(self, waiter: Waiter) -> Reason | None:
        """Stand in line; a reason says that the waiter was turned away instead."""
        refusal = self._refusal()
        if refusal is None and self.line.length >= self._queue_depth:
            refusal = Reason.QUEUE_FULL
        if refusal is not None:
            return refusal
        self.line.join(waiter)
        self.queued_total += 1
        if self.line.length == 1:
            self._events.wanted(self.key)
        return None

    def requeue(self, waiter: Waiter, failed: Lease, reason: Reason) -> Reason | None:
        """Back into line in the old place, for a request that `failed` for `reason` and is tried on another pod.

        Depth does not turn it away. Where no other pod has room, the same one will do.
        """
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        waiter.avoided = failed
        self.line.rejoin(waiter)
        self.retries[reason] = self.retries.get(reason, 0) + 1
        if self.line.length == 1:
            self._events.wanted(self.key)
        self.pump()
        return None

    def cancel(self, waiter: Waiter) -> None:
        """The waiter's owner takes it out of line: its client has gone, or its time is up."""
        self.line.leave(waiter)

    # --- giving a slot back ---

    def release(self, lease: Lease, latency_s: float, succeeded: bool) -> None:
        """The request is over at the pod. Exactly once per lease."""
        assert not lease.released, "a lease was released twice"
        lease.released = True
        del self.leases[lease]
        outcome = self.table.release(lease.tracker, lease.generation, latency_s)
        if outcome == DRAINED:
            if self.removed:
                self._events.departed(self.key, lease.identity)
            else:
                self._events.drained(self.key, lease.tracker.slot, lease.generation)
        elif lease.trial:
            self._events.trial_ended(self.key, lease.identity, lease.generation, succeeded)
        if self.line.length != 0:
            self._count_release()
            self.pump()

    def pod_refused(self, lease: Lease, dead: bool) -> None:
        """No connection to the pod: out of the picks in this very turn; the state worker decides what it is."""
        tracker = lease.tracker
        if tracker.generation == lease.generation:
            self.table.suspect(tracker, self._now() + 1.0)
        self._events.refused(self.key, lease.identity, lease.generation, dead)

    # --- handing over ---

    def pump(self) -> None:
        """Grant free slots to the line, in order, at most `grants_per_turn_max` before the loop turns."""
        if self._pumping:
            return
        self._pumping = True
        try:
            grants = 0
            while True:
                waiter = self.line.first
                if waiter is None:
                    return
                now_s = self._now()
                tracker = self._pick_for(waiter, now_s)
                if tracker is None:
                    return
                if grants >= self._grants_per_turn_max:
                    self._pump_soon()
                    return
                grants += 1
                self.line.leave(waiter)
                waiter.granted(self._reserve(waiter, tracker, now_s))
        finally:
            self._pumping = False

    def fail(self, cause: str) -> None:
        """The revision cannot start: everyone in line hears the cause, and newcomers too until `recover`."""
        self.failure = cause
        self._refuse_all(Reason.REVISION_FAILED, cause)

    def recover(self) -> None:
        self.failure = None
        self.pump()

    def remove(self) -> None:
        """The revision is gone: the line is told at once, running requests end in their own time."""
        self.removed = True
        self._refuse_all(Reason.REVISION_REMOVED, "the revision was removed")

    def revoke(self, identity: str, reason: Reason, detail: str) -> None:
        """End every request that is at this pod: its drain has taken too long."""
        held = [(lease, waiter) for lease, waiter in self.leases.items() if lease.identity == identity]
        for lease, waiter in held:
            if not lease.released:
                waiter.revoked(reason, detail)

    def reconfigure(self, spec: RevisionSpec) -> None:
        """New limits for a live revision; nobody in line is lost."""
        self.spec = spec
        self._queue_depth = spec.queue_depth

    # --- what others ask ---

    def queue_timeout_s(self) -> float:
        """How long a request may stand in line, from now on."""
        if self.spec.queue_timeout_s is not None:
            return self.spec.queue_timeout_s
        return QUEUE_TIMEOUT_S if self.was_ready else self.spec.startup_timeout_s + _STARTUP_SLACK_S

    def retry_after_s(self) -> int:
        """How long the line as it is now will take, by the rate at which slots came free of late."""
        elapsed_s = self._now() - self._releases_at_s
        releases: float = self._releases * 2.0 ** (-elapsed_s / _RATE_HALF_LIFE_S)
        per_s = (
            releases * 0.6931 / _RATE_HALF_LIFE_S
        )  # ln 2: the decayed sum of a steady rate r is r * half-life / ln 2
        if per_s <= 0.0:
            return RETRY_AFTER_MIN_S
        return min(max(ceil(self.line.length / per_s), RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)

    # --- within ---

    def _pick_for(self, waiter: Waiter, now_s: float) -> PodTracker | None:
        avoided = waiter.avoided
        if avoided is None or avoided.tracker.generation != avoided.generation:
            return self.table.pick(0, now_s)
        return self.table.pick_other(avoided.tracker, 0, now_s)

    def _reserve(self, waiter: Waiter, tracker: PodTracker, now_s: float) -> Lease:
        lease = Lease(tracker, now_s)
        lease.trial = tracker.state == RECOVERING
        self.table.reserve(tracker)
        self.leases[lease] = waiter
        self.granted_total += 1
        return lease

    def _refusal(self) -> Reason | None:
        if self.removed:
            return Reason.REVISION_REMOVED
        if self.failure is not None:
            return Reason.REVISION_FAILED
        return None

    def _refuse_all(self, reason: Reason, detail: str) -> None:
        # A refused client may send its next request at once: only those now in line are told.
        remaining = self.line.length
        while remaining > 0:
            waiter = self.line.first
            if waiter is None:
                return
            remaining -= 1
            self.line.leave(waiter)
            waiter.refused(reason, detail)

    def _count_release(self) -> None:
        now_s = self._now()
        decay: float = 2.0 ** (-(now_s - self._releases_at_s) / _RATE_HALF_LIFE_S)
        self._releases = self._releases * decay + 1.0
        self._releases_at_s = now_s

    def _pump_soon(self) -> None:
        if not self._pump_deferred:
            self._pump_deferred = True
            self._defer(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_deferred = False
        self.pump()
