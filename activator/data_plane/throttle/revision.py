"""The throttler of one revision: which request gets which slot.

The queue (queue.py) decides which requests wait and which is next, the verdicts (verdict.py) judge pods by how their
requests end. This module reserves slots, hands them over and takes them back.

Invariants (the auditor and the property tests check them)
  1. No grant is made to a pod with in_flight >= limit.
  2. The first in line never waits while a pod that may be picked has room.
  3. Every lease is released exactly once; every waiter ends exactly once.
  4. No request joins a queue beyond its bounds (queue.py).
Requests that a rule exempts are outside of 1 and 2, and are counted apart.

Rules
  - Everything here is plain `def` on one event loop: between the pick and the reservation nothing else can run.
  - New requests never overtake: while any request waits, `try_acquire` gives nothing. The line's discipline says which
    is next.
  - Hand-over loops, it does not recurse: a grant that fails at once and releases is seen by the loop already running.
  - A turn of the loop grants and refuses a bounded number. A waiter that raises when it is granted or rejected loses
    its own slot; no other is affected. The same holds for a policy that raises when it is asked for a waiter's pod.
  - Structure is not changed here. What the request path learns about pods goes to the state worker as a message.
"""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.refusals import REFUSALS_PER_TURN_MAX
from activator.data_plane.throttle.budget import NO_LIMIT, HeldBudget, RetryBudget
from activator.data_plane.throttle.counters import Errors, RevisionCounters
from activator.data_plane.throttle.interfaces import Sharing, SlotEvents, SlotSource
from activator.data_plane.throttle.leases import Lease, LeaseHolder, Leases, leave_pod
from activator.data_plane.throttle.queue import RevisionQueue
from activator.data_plane.throttle.verdict import PodVerdicts
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import Defer, Now
from activator.runtime.reasons import Reason
from lb.table import DRAINED, TrackerTable
from lb.tracker import DRAINING, FOREVER, READY, RECOVERING, PodTracker


class RevisionThrottler:
    """Grants slots of `table` to waiters.

    `defer` runs a callable in the loop's next turn; `grants_per_turn_max` bounds how many hand-overs one pump makes,
    `refusals_per_turn_max` how many waiters are rejected in one turn; `process` counts the waiting requests of all
    revisions.
    """

    def __init__(
        self,
        spec: RevisionSpec,
        table: TrackerTable,
        now: Now,
        defer: Defer,
        events: SlotEvents,
        grants_per_turn_max: int,
        process: HeldBudget | None = None,
        refusals_per_turn_max: int = REFUSALS_PER_TURN_MAX,
    ) -> None:
        sharing = Sharing()
        counters = RevisionCounters()
        errors = Errors(spec.key, events, counters)
        self.spec = spec
        self.key: str = spec.key
        self.common_name: str = spec.key  # what members know it by: another one after it was dropped and came back
        self.incarnation: int = 0  # a number that no other throttler of this data plane has
        self.table = table
        self.affinity: Affinity | None = None  # what requests are known by, where the policy asks
        self.filters: object | None = None  # its FilterChain (data_plane/filters/), if it has any
        self.counters = counters
        self.sharing = sharing
        self.queue = RevisionQueue(
            spec,
            table,
            sharing,
            counters,
            events,
            now,
            defer,
            HeldBudget() if process is None else process,
            errors.raised,
            refusals_per_turn_max,
        )
        self.verdicts = PodVerdicts(spec.key, table, sharing, events, now, spec.is_once)
        self.held = HeldBudget(spec.queue_bytes or NO_LIMIT)  # bytes of this revision's waiting requests
        self.leases = Leases()  # every open lease
        self.retry_budget = RetryBudget()
        self.active: bool = False  # has carried something since its load was last reported
        self.gathering: int = 0  # requests whose bodies are received before they ask for a slot
        self.delivering: int = 0  # requests that pods have answered, and whose clients have yet to take the rest
        self._errors = errors
        self._now = now
        self._defer = defer
        self._events = events
        self._is_once: bool = spec.is_once  # a pod takes one request in its life
        self._grants_per_turn_max = grants_per_turn_max
        self._pumping: bool = False
        self._pump_deferred: bool = False
        table.on_hook_error = errors.hook_raised

    # --- asking for a slot ---

    def try_acquire(self, waiter: Waiter, now_s: float) -> Lease | None:
        """Return a lease of a slot that is free now; None: the request must wait (`queue.enqueue`)."""
        queue = self.queue
        queue.arrive(waiter, now_s)
        if not self.active:
            self.activate()
        exempt = queue.admission.exempts and queue.admission.is_exempt(waiter)
        source = self.sharing.source
        if source is not None:
            return self._acquire_lent(source, waiter, now_s)
        if exempt:
            return self._acquire_exempt(waiter, now_s)
        if queue.line.length != 0 or queue.failure is not None:
            return None
        tracker = self.table.pick(waiter.pick_key, now_s)
        if tracker is None:
            return None
        return self._reserve(waiter, tracker, now_s)

    def join(self, waiter: Waiter, now_s: float) -> Reason | None:
        """Add a waiter to the line that asks for no slot now; return a reason if it is rejected instead."""
        self.queue.arrive(waiter, now_s)
        self.activate()
        return self.queue.enqueue(waiter)

    def body_expected(self) -> None:
        """Count a request that asks for a slot when its body is here: a revision at zero may start meanwhile."""
        self.gathering += 1
        self.activate()

    def activate(self) -> None:
        """Report that the revision carries something, once after each silence."""
        if not self.active:
            self.active = True
            self._events.activated(self.key)

    def requeue(self, waiter: Waiter, failed: Lease, reason: Reason) -> Reason | None:
        """Add a request to the line again, in its old place: it `failed` for `reason` and is tried on another pod.

        No bound rejects it. Where no other pod has room, the same one will do.
        """
        queue = self.queue
        refusal = queue.refusal()
        if refusal is None and not waiter.sorted:
            refusal = queue.admission.sort(waiter)
        if refusal is not None:
            return refusal
        waiter.avoided = failed
        retries = self.counters.retries
        retries[reason] = retries.get(reason, 0) + 1
        if waiter.exempt and self.sharing.source is None:
            try:
                lease = self._acquire_exempt(waiter, self._now())
            except Exception as error:  # of a policy: it ends this request, before it has joined anything
                self._errors.raised(error)
                return Reason.INTERNAL
            if lease is not None:
                self._grant(waiter, lease)
                return None
        queue.rejoin(waiter)
        self.pump()
        return None

    # --- giving a slot back ---

    def release(self, lease: Lease, latency_s: float, succeeded: bool, unused: bool = False) -> None:
        """Free the slot: the request is over at the pod, after `latency_s`; 0.0: not measured. Once per lease."""
        assert not lease.released, "a lease was released twice"
        lease.released = True
        self.leases.close(lease)
        if lease.bars_trials:
            self.verdicts.end_trial(lease)
        observed_latency_s = latency_s if succeeded else -latency_s  # as the policies' on_release has it
        outcome = self.table.release(lease.tracker, lease.generation, observed_latency_s)
        if outcome == DRAINED:
            if self.queue.removed:
                self._events.departed(self.key, lease.identity)
            else:
                self._events.drained(self.key, lease.tracker.slot, lease.generation)
        if self._is_once and not unused:
            self._events.taken(self.key, lease.identity, True, "")
        queue = self.queue
        if queue.admission.predicts and succeeded and latency_s > 0.0 and not lease.exempt:
            queue.forecast.served(latency_s, self._now())
        if succeeded:
            verdicts = self.verdicts
            if verdicts.struck and lease.tracker in verdicts.struck:
                verdicts.served(lease)
        source = self.sharing.source
        if source is not None:
            source.closed(lease, latency_s, succeeded)
        elif queue.line.length != 0:
            now_s = self._now()
            queue.forecast.slot_freed(now_s)
            self._pump_from(now_s)

    def give_back(self, lease: Lease) -> None:
        """Release a slot that no request has used."""
        if self._is_once:
            self.table.end_suspicion(lease.tracker, lease.generation, FOREVER)
        self.release(lease, 0.0, False, True)

    # --- what requests show about pods (verdict.py) ---

    def pod_failed(self, lease: Lease, reason: Reason) -> None:
        """Judge a request that failed at the pod."""
        self.verdicts.pod_failed(lease, reason)

    def trial_answered(self, lease: Lease) -> None:
        """Judge a pod on trial: the head of an answer has come."""
        if self.verdicts.trial_answered(lease):
            self.pump()

    def trial_takes_long(self, lease: Lease) -> None:
        """Let the next request be another trial of the pod: it may be this one that is slow."""
        if self.verdicts.trial_takes_long(lease):
            self.pump()

    # --- handing over ---

    def pump(self) -> None:
        """Grant free slots to the line, in its order, at most `grants_per_turn_max` before the loop turns."""
        if self.queue.line.length != 0:
            self._pump_from(self._now())

    def _pump_from(self, now_s: float) -> None:
        if self._pumping or self.sharing.source is not None:
            return
        queue = self.queue
        self._pumping = True
        try:
            grants = 0
            while self.table.room != 0:
                waiter = queue.line.first()
                if waiter is None:
                    return
                if grants >= self._grants_per_turn_max:  # before the pick: a policy remembers whose turn it was
                    self._pump_soon()
                    return
                grants += 1
                try:
                    tracker = self._pick_for(waiter, now_s)
                except Exception as error:  # of a policy: it ends only the request that it was asked for
                    self._errors.raised(error)
                    queue.refuse(waiter, Reason.INTERNAL)
                    continue
                if tracker is None:
                    return
                queue.take(waiter, now_s)
                self._grant(waiter, self._reserve(waiter, tracker, now_s))
                now_s = self._now()
        finally:
            self._pumping = False

    def recover(self) -> None:
        """Let new requests wait again; those that waited at the failure are rejected all the same."""
        self.queue.take_over_failure("", 0.0)
        self.pump()

    def remove(self) -> None:
        """Reject all requests that wait: the revision is gone. Running requests end in their own time."""
        self.verdicts.clear()
        self.queue.remove()

    def revoke(self, lease: Lease, reason: Reason, detail: str) -> None:
        """End the request that holds this slot."""
        try:
            lease.holder.revoked(reason, detail)
        except Exception as error:
            self._errors.raised(error)
        if not lease.released:  # a defect of its holder: the release is late, if it comes
            leave_pod(lease)

    def forsaken(self) -> list[Lease]:
        """Return the open leases whose holders have forgotten them: no request is at the pod or on its way there."""
        return [lease for lease in self.leases if not lease.holder.is_served(lease)]

    def reclaim(self) -> None:
        """Take the slots of such leases back; a holder that is still there is called (`revoked`)."""
        for lease in self.forsaken():
            if not lease.released:
                lease.holder.revoked(Reason.INTERNAL, "")
            if not lease.released:
                self.release(lease, 0.0, False)

    def reconfigure(self, spec: RevisionSpec) -> None:
        """Apply new limits, rules or another discipline to a live revision."""
        self.spec = spec
        self._is_once = self.verdicts.is_once = spec.is_once
        self.held.bytes_max = spec.queue_bytes or NO_LIMIT
        self.queue.reconfigure(spec)

    def move(self, table: TrackerTable, leases: list[Lease], homes: list[PodTracker]) -> None:
        """Use another table in place of one that broke; it counts each of the leases already, in its new home."""
        for lease, tracker in zip(leases, homes):
            self.leases.move(lease, tracker)
        self.verdicts.move(table)
        self.queue.move(table)
        self.table = table
        table.on_hook_error = self._errors.hook_raised
        sharing = self.sharing
        if sharing.source is not None:
            sharing.source.table_replaced()
        if sharing.lending is not None:
            sharing.lending.table_replaced()

    # --- with other members (ownership/) ---

    def _acquire_lent(self, source: SlotSource, waiter: Waiter, now_s: float) -> Lease | None:
        queue = self.queue
        if queue.line.length != 0 or queue.failure is not None:
            return None
        tracker = source.take(waiter)
        if tracker is None:
            return None
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)
        return lease

    def grant_lent(self, source: SlotSource, waiter: Waiter, tracker: PodTracker) -> None:
        """Hand the waiter, which stands in line, a slot of this pod that the owner has granted."""
        now_s = self._now()
        self.queue.take_lent(waiter, now_s)
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)  # first: the request may end in the next line
        self._grant(waiter, lease)

    def adopt(self, holder: LeaseHolder, tracker: PodTracker) -> Lease:
        """Count a slot that a member has had from a former owner, whatever the limit."""
        lease = Lease(tracker, self._now())
        self.table.reserve(tracker)
        if self._is_once and tracker.state != DRAINING:
            self.table.suspect(tracker, FOREVER)
        if tracker.state == DRAINING:
            self.table.drain(tracker)  # for the limit of the newer pod at its address
        self.leases.open(lease, holder)
        return lease

    def rejoin(self, waiter: Waiter) -> Reason | None:
        """Add a waiter of another member to the line again, at the place that its `arrival` gives; as `requeue`."""
        refusal = self.queue.refusal()
        if refusal is None:
            self.queue.rejoin(waiter)
            self.pump()
        return refusal

    # --- what others ask ---

    def in_flight(self) -> int:
        """Return how many requests of this member are at pods."""
        lending = self.sharing.lending
        return int(self.table.in_flight) - (0 if lending is None else lending.lent())

    def has_requests(self) -> bool:
        """True if a lease is open, or a request has been counted that has not ended."""
        return self.leases.count != 0 or self.counters.has_requests()

    def is_stuck(self) -> bool:
        """True if a request waits that could go, and nothing is about to look: that must not be."""
        line = self.queue.line
        if line.length == 0 or self.table.room == 0 or self._pump_deferred or self._pumping:
            return False
        if self.sharing.source is not None:
            return False
        return line.first() is not None

    # --- within ---

    def _pick_for(self, waiter: Waiter, now_s: float) -> PodTracker | None:
        avoided = waiter.avoided
        if avoided is None or avoided.tracker.generation != avoided.generation:
            return self.table.pick(waiter.pick_key, now_s)
        return self.table.pick_other(avoided.tracker, waiter.pick_key, now_s)

    def _reserve(self, waiter: Waiter, tracker: PodTracker, now_s: float) -> Lease:
        lease = Lease(tracker, now_s)
        self.table.reserve(tracker)
        if tracker.state == RECOVERING:
            lease.trial = lease.bars_trials = True
            self.table.begin_trial(tracker)
        self.leases.open(lease, waiter)
        self.counters.granted_total += 1
        if self._is_once:
            self._take(tracker, waiter)
        return lease

    def _take(self, tracker: PodTracker, waiter: Waiter) -> None:
        """Keep all further requests from a pod that takes one in its life, whatever becomes of this one.

        Where another member has the slot, that member reports it: it may give the slot back without having used it.
        """
        self.table.suspect(tracker, FOREVER)
        if not waiter.is_remote:
            self._events.taken(self.key, tracker.identity, False, "")

    def _acquire_exempt(self, waiter: Waiter, now_s: float) -> Lease | None:
        """Return a lease whatever the line and the limits; None only if no pod could take the request at all."""
        queue = self.queue
        if queue.failure is not None:
            return None
        tracker = self._pick_for(waiter, now_s) if queue.line.length == 0 else None
        if tracker is None:
            tracker = least_loaded(self.table)
        if tracker is None:
            return None
        lease = self._reserve(waiter, tracker, now_s)
        lease.exempt = True
        self.counters.exempted_total += 1
        return lease

    def _grant(self, waiter: Waiter, lease: Lease) -> None:
        try:
            waiter.granted(lease)
        except Exception as error:
            self._errors.raised(error)
            try:
                waiter.refused(Reason.INTERNAL, "")
            except Exception as again:
                self._errors.raised(again)
            if not lease.released:
                self.release(lease, 0.0, False)

    def _pump_soon(self) -> None:
        if not self._pump_deferred:
            self._pump_deferred = True
            self._defer(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_deferred = False
        self.pump()


def least_loaded(table: TrackerTable) -> PodTracker | None:
    """The ready pod with the least load for its limit; None where no pod is ready.

    Walks the table: some nanoseconds a slot, and only for exempted requests that find every pod full. A pod that is
    being tried, suspected or not ours to use (limit 0) is left out.
    """
    best: PodTracker | None = None
    for tracker in table.slots[: table.length]:
        if tracker.state != READY or tracker.own_limit == 0 or tracker.suspect_until_s != 0.0:
            continue
        if best is None or tracker.in_flight * best.own_limit < best.in_flight * tracker.own_limit:
            best = tracker
    return best
