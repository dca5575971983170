"""The throttler of one revision, which grants slots of pods to requests.

The queue (queue.py) decides which requests wait and which is next; the verdicts (verdict.py) judge pods by the outcome
of their requests. This module reserves slots, hands them over and releases them.

Invariants (checked by the auditor and by property tests)
  1. No grant is made to a pod with in_flight >= limit.
  2. The first waiter never waits while a pod that may be picked has a free slot, except at an adaptive limit.
  3. Every lease is released exactly once; every waiter ends exactly once.
  4. No request joins a queue beyond its bounds (queue.py).
Requests that a rule exempts are not subject to 1 and 2, and are counted separately.

Rules
  - Everything here is plain `def` on one event loop: nothing else can run between the pick and the reservation.
  - New requests never overtake: while any request waits, `try_acquire` grants nothing. The discipline of the queue
    selects the next waiter.
  - Handovers loop instead of recursing: if a grant fails at once and is released, the running loop uses the slot.
  - One turn of the loop grants and rejects a bounded number of waiters. A waiter that raises when it is granted or
    rejected loses its own slot only. The same holds for a policy that raises while it picks the pod of a waiter.
  - This module does not change the structure of tables. It reports what requests show about pods to the state worker.
"""

from __future__ import annotations

from activator.codec.json_edit import ObjectEdit
from activator.config.specs import AdaptiveSpec, RevisionSpec
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.refusals import REFUSALS_PER_TURN_MAX
from activator.data_plane.throttle.adaptive_limit import AdaptiveLimit
from activator.data_plane.throttle.budget import NO_LIMIT, HeldBudget, RetryBudget
from activator.data_plane.throttle.counters import Errors, RevisionCounters
from activator.data_plane.throttle.interfaces import Sharing, SlotEvents, SlotSource
from activator.data_plane.throttle.leases import Lease, LeaseHolder, Leases, leave_pod
from activator.data_plane.throttle.queue import RevisionQueue
from activator.data_plane.throttle.verdict import PodVerdicts
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import Defer, Now
from activator.runtime.reasons import Reason
from lb.serving_table import DRAINED
from lb.table import TrackerTable
from lb.tracker import DRAINING, FOREVER, READY, RECOVERING, PodTracker


class RevisionThrottler:
    """The grants, the queue and the open leases of one revision.

    `defer` runs a callable in the loop's next turn; `grants_per_turn_max` bounds the handovers of one pump,
    `refusals_per_turn_max` the rejections of one turn; `worker_budget` counts the waiting requests of all revisions.
    """

    def __init__(
        self,
        spec: RevisionSpec,
        table: TrackerTable,
        now: Now,
        defer: Defer,
        events: SlotEvents,
        grants_per_turn_max: int,
        worker_budget: HeldBudget | None = None,
        refusals_per_turn_max: int = REFUSALS_PER_TURN_MAX,
    ) -> None:
        sharing = Sharing()
        counters = RevisionCounters()
        counters.keep_requests(spec.recorded_requests())
        errors = Errors(spec.key, events, counters)
        self.spec = spec
        # The request path reads these, with one look-up less than in `spec`.
        self.routing = spec.routing
        self.timeouts = spec.timeouts
        self.buffers = spec.buffers
        self.key: str = spec.key
        self.common_name: str = spec.key  # its name among the members; changes if it is added again
        self.incarnation: int = 0  # unique among the throttlers of this data plane
        self.table = table
        self.affinity: Affinity | None = None  # the key of requests, if the policy uses one
        self.object_edit: ObjectEdit | None = None  # the changes of JSON bodies
        self.filters: object | None = None  # a FilterChain (data_plane/filters/), if it has any
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
            HeldBudget() if worker_budget is None else worker_budget,
            errors.raised,
            refusals_per_turn_max,
        )
        self.verdicts = PodVerdicts(spec.key, table, sharing, events, now, spec.is_once)
        self.held = HeldBudget(spec.queue.bytes or NO_LIMIT)  # bytes of this revision's waiting requests
        self.leases = Leases()  # all open leases
        self.retry_budget = RetryBudget()
        self.active: bool = False  # had activity since its load was last reported
        self.gathering: int = 0  # requests whose bodies are received before they ask for a slot
        self.delivering: int = 0  # requests whose pods have finished and whose clients still receive the response
        self._errors = errors
        self._now = now
        self._defer = defer
        self._events = events
        self.adaptive: AdaptiveLimit | None = None  # a limit that follows the latency of the pods
        self._exempted: int = 0  # requests in flight that a rule exempts from the limits
        self._is_once: bool = spec.is_once  # each pod takes one request in its life
        self._grants_per_turn_max = grants_per_turn_max
        self._pumping: bool = False  # `_pump_from` is running
        self._pump_deferred: bool = False  # the next turn pumps
        table.on_hook_error = errors.hook_raised
        self._configure_adaptive(spec.queue.adaptive)

    # --- asking for a slot ---

    def try_acquire(self, waiter: Waiter, now_s: float) -> Lease | None:
        """Return a lease of a slot that is free now; None if the request must wait (`queue.enqueue`)."""
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
        if queue.waiters.length != 0 or queue.failure is not None:
            return None
        if self._is_at_adaptive_limit():
            return None
        tracker = self.table.pick(waiter.pick_key, now_s)
        if tracker is None:
            return None
        return self._reserve(waiter, tracker, now_s)

    def enqueue_without_trying(self, waiter: Waiter, now_s: float) -> Reason | None:
        """Enqueue a waiter without trying to acquire a slot; return a reason if it is rejected instead."""
        self.queue.arrive(waiter, now_s)
        self.activate()
        return self.queue.enqueue(waiter)

    def body_expected(self) -> None:
        """Count a request whose body is gathered before it asks for a slot; the revision may start during that."""
        self.gathering += 1
        self.activate()

    def activate(self) -> None:
        """Report activity of the revision, once after each idle period."""
        if not self.active:
            self.active = True
            self._events.activated(self.key)

    def requeue(self, waiter: Waiter, failed: Lease, reason: Reason) -> Reason | None:
        """Enqueue a request at its former position, to retry it at another pod: the lease `failed`, for `reason`.

        No bound rejects it. If no other pod has a free slot, the same pod is used again.
        """
        queue = self.queue
        refusal = queue.refusal()
        if refusal is None and not waiter.is_classified:
            refusal = queue.admission.classify(waiter)
        if refusal is not None:
            return refusal
        waiter.avoided = failed
        waiter.is_retry = True
        retries = self.counters.retries
        retries[reason] = retries.get(reason, 0) + 1
        if waiter.exempt and self.sharing.source is None:
            try:
                lease = self._acquire_exempt(waiter, self._now())
            except Exception as error:  # a policy raised: the request ends before it has joined the queue
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
        """Release a lease, once: the request has ended at the pod after `latency_s`; 0.0: not measured.

        `unused`: no request has used the slot.
        """
        assert not lease.released, "a lease was released twice"
        lease.released = True
        self.leases.close(lease)
        if lease.bars_trials:
            self.verdicts.allow_trials(lease)
        observed_latency_s = latency_s if succeeded else -latency_s  # the convention of the policies' `on_release`
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
        adaptive = self.adaptive
        if lease.exempt:
            self._exempted -= 1
        elif adaptive is not None:
            adaptive.ended(latency_s, succeeded, self.table.in_flight - self._exempted, self._now())
        source = self.sharing.source
        if source is not None:
            source.closed(lease, latency_s, succeeded)
        elif queue.waiters.length != 0:
            now_s = self._now()
            queue.forecast.slot_freed(now_s)
            self._pump_from(now_s)

    def release_unused(self, lease: Lease) -> None:
        """Release a slot that no request has used."""
        if self._is_once:
            self.table.end_suspicion(lease.tracker, lease.generation, FOREVER)
        self.release(lease, 0.0, False, True)

    # --- what requests show about pods (verdict.py) ---

    def pod_failed(self, lease: Lease, reason: Reason) -> None:
        """Update the health of the pod by a request that failed there."""
        self.verdicts.pod_failed(lease, reason)

    def trial_answered(self, lease: Lease) -> None:
        """Update a pod on trial by the response head that has arrived."""
        if self.verdicts.trial_answered(lease):
            self.pump()

    def allow_other_trials(self, lease: Lease) -> None:
        """Allow another trial of the pod, because this request may itself be slow."""
        if self.verdicts.allow_trials_if_barred(lease):
            self.pump()

    # --- handovers ---

    def pump(self) -> None:
        """Grant free slots to waiters in the order of the queue, at most `grants_per_turn_max` per turn of the loop."""
        if self.queue.waiters.length != 0:
            self._pump_from(self._now())

    def _pump_from(self, now_s: float) -> None:
        """Grant free slots to waiters; see `pump`."""
        if self._pumping or self.sharing.source is not None:
            return
        queue = self.queue
        self._pumping = True
        try:
            grants = 0
            while self.table.room != 0:
                waiter = queue.waiters.first()
                if waiter is None or self._is_at_adaptive_limit():
                    return
                if grants >= self._grants_per_turn_max:  # before the pick, which may advance the state of a policy
                    self._pump_soon()
                    return
                grants += 1
                if queue.is_late(waiter, now_s):
                    queue.refuse(waiter, Reason.QUEUE_OVERLOADED)
                    continue
                try:
                    tracker = self._pick_for(waiter, now_s)
                except Exception as error:  # a policy raised: only this request ends
                    self._errors.raised(error)
                    queue.refuse(waiter, Reason.INTERNAL)
                    continue
                if tracker is None:
                    return
                queue.remove_first(waiter, now_s)
                self._grant(waiter, self._reserve(waiter, tracker, now_s))
                now_s = self._now()
        finally:
            self._pumping = False

    def recover(self) -> None:
        """Queue new requests again; those that waited at the time of the failure are still rejected."""
        self.queue.set_failure("", 0.0)
        self.pump()

    def remove(self) -> None:
        """Reject all waiting requests, because the revision was removed. Running requests may end normally."""
        self.verdicts.clear()
        self.queue.remove()

    def revoke(self, lease: Lease, reason: Reason, detail: str) -> None:
        """Revoke a lease, which ends its request."""
        try:
            lease.holder.revoked(reason, detail)
        except Exception as error:
            self._errors.raised(error)
        if not lease.released:  # a defect of the holder: the release will be late, or missing
            leave_pod(lease)

    def unserved_leases(self) -> list[Lease]:
        """Return the open leases whose holders no longer use them: no request is at the pod or on its way there."""
        return [lease for lease in self.leases if not lease.holder.is_served(lease)]

    def reclaim(self) -> None:
        """Release all leases that their holders no longer use; a holder that still exists gets `revoked`."""
        for lease in self.unserved_leases():
            if not lease.released:
                lease.holder.revoked(Reason.INTERNAL, "")
            if not lease.released:
                self.release(lease, 0.0, False)

    def reconfigure(self, spec: RevisionSpec) -> None:
        """Apply new limits, rules or another discipline to the revision."""
        self.spec = spec
        self.counters.keep_requests(spec.recorded_requests())
        self.routing = spec.routing
        self.timeouts = spec.timeouts
        self.buffers = spec.buffers
        self._is_once = self.verdicts.is_once = spec.is_once
        self.held.bytes_max = spec.queue.bytes or NO_LIMIT
        self.queue.reconfigure(spec)
        self._configure_adaptive(spec.queue.adaptive)
        if spec.balancing.zone and self.sharing.lending is not None:
            self.sharing.lending.recall()

    def replace_table(self, table: TrackerTable, leases: list[Lease], new_trackers: list[PodTracker]) -> None:
        """Replace a corrupt table by `table`, which already counts each lease in its new tracker in `new_trackers`."""
        for lease, tracker in zip(leases, new_trackers):
            self.leases.move(lease, tracker)
        self.verdicts.replace_table(table)
        self.queue.replace_table(table)
        self.table = table
        table.on_hook_error = self._errors.hook_raised
        sharing = self.sharing
        if sharing.source is not None:
            sharing.source.table_replaced()
        if sharing.lending is not None:
            sharing.lending.table_replaced()

    # --- with other members (ownership/) ---

    def _acquire_lent(self, source: SlotSource, waiter: Waiter, now_s: float) -> Lease | None:
        """Return a lease of a lent slot that is idle; None if the waiter must wait."""
        queue = self.queue
        if queue.waiters.length != 0 or queue.failure is not None:
            return None
        tracker = source.take(waiter)
        if tracker is None:
            return None
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)
        return lease

    def grant_lent(self, source: SlotSource, waiter: Waiter, tracker: PodTracker) -> None:
        """Grant the waiter, which is in the queue, a slot of this pod that the owner has granted."""
        now_s = self._now()
        self.queue.remove_granted(waiter, now_s)
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)  # first, because `_grant` may end the request
        self._grant(waiter, lease)

    def adopt_slot(self, holder: LeaseHolder, tracker: PodTracker) -> Lease:
        """Count a slot that a member has from a former owner, regardless of the limit."""
        lease = Lease(tracker, self._now())
        self.table.reserve(tracker)
        if self._is_once and tracker.state != DRAINING:
            self.table.suspect(tracker, FOREVER)
        if tracker.state == DRAINING:
            self.table.drain(tracker)  # adjusts the limit of the newer pod at this address
        self.leases.open(lease, holder)
        return lease

    def rejoin(self, waiter: Waiter, was_granted: bool = True) -> Reason | None:
        """Enqueue a waiter of another member at the position given by its `arrival`; see `rejoin` of the queue."""
        refusal = self.queue.refusal()
        if refusal is None:
            self.queue.rejoin(waiter, was_granted)
            self.pump()
        return refusal

    # --- queries ---

    def in_flight(self) -> int:
        """Return how many requests of this member are at pods."""
        lending = self.sharing.lending
        return int(self.table.in_flight) - (0 if lending is None else lending.lent())

    def has_requests(self) -> bool:
        """Return True if a lease is open, or a counted request has not ended."""
        return self.leases.count != 0 or self.counters.has_requests()

    def is_stalled(self) -> bool:
        """Return True if a request waits although a slot is free and no pump is pending: a violated invariant."""
        waiters = self.queue.waiters
        if waiters.length == 0 or self.table.room == 0 or self._pump_deferred or self._pumping:
            return False
        if self.sharing.source is not None or self._is_at_adaptive_limit():
            return False
        return waiters.first() is not None

    # --- within ---

    def _configure_adaptive(self, spec: AdaptiveSpec | None) -> None:
        """Create, change or remove the adaptive limit."""
        if spec is None:
            self.adaptive = None
        elif self.adaptive is None:
            self.adaptive = AdaptiveLimit(spec.least, spec.most)
        else:
            self.adaptive.configure(spec.least, spec.most)

    def _is_at_adaptive_limit(self) -> bool:
        adaptive = self.adaptive
        return adaptive is not None and not adaptive.has_room(self.table.in_flight - self._exempted)

    def _pick_for(self, waiter: Waiter, now_s: float) -> PodTracker | None:
        """Pick a pod with a free slot, if possible another one than the pod that has failed the request."""
        avoided = waiter.avoided
        if avoided is None or avoided.tracker.generation != avoided.generation:
            return self.table.pick(waiter.pick_key, now_s)
        return self.table.pick_other(avoided.tracker, waiter.pick_key, now_s)

    def _reserve(self, waiter: Waiter, tracker: PodTracker, now_s: float) -> Lease:
        """Reserve a slot of the pod; return its lease, which is a trial if the pod recovers."""
        lease = Lease(tracker, now_s)
        self.table.reserve(tracker)
        if tracker.state == RECOVERING:
            lease.trial = lease.bars_trials = True
            self.table.begin_trial(tracker)
        self.leases.open(lease, waiter)
        self.counters.granted_total += 1
        if self._is_once:
            self._mark_used(tracker, waiter)
        return lease

    def _mark_used(self, tracker: PodTracker, waiter: Waiter) -> None:
        """Exclude a single-use pod from further picks, regardless of the outcome of this request.

        For a slot of another member, that member reports the use: it may return the slot unused.
        """
        self.table.suspect(tracker, FOREVER)
        if not waiter.is_remote:
            self._events.taken(self.key, tracker.identity, False, "")

    def _acquire_exempt(self, waiter: Waiter, now_s: float) -> Lease | None:
        """Return a lease regardless of the queue and of limits; None only if no pod could take the request at all."""
        queue = self.queue
        if queue.failure is not None:
            return None
        tracker = self._pick_for(waiter, now_s) if queue.waiters.length == 0 else None
        if tracker is None:
            tracker = least_loaded(self.table)
        if tracker is None:
            return None
        lease = self._reserve(waiter, tracker, now_s)
        lease.exempt = True
        self._exempted += 1
        self.counters.exempted_total += 1
        return lease

    def _grant(self, waiter: Waiter, lease: Lease) -> None:
        """Give the waiter its lease; if it raises, end its request and release the lease."""
        try:
            waiter.granted(lease)
        except Exception as error:
            self._errors.raised(error)
            try:
                waiter.refused(Reason.INTERNAL, "")
            except Exception as second:
                self._errors.raised(second)
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
    """Return the ready pod with the lowest load relative to its limit; None if no pod is ready.

    Walks the table, at some nanoseconds per slot, but only for exempted requests that find every pod full. Pods that
    are on trial, suspected or not usable by this member (limit 0) are skipped.
    """
    best: PodTracker | None = None
    for tracker in table.slots[: table.length]:
        if tracker.state != READY or tracker.own_limit == 0 or tracker.suspect_until_s != 0.0:
            continue
        if best is None or tracker.in_flight * best.own_limit < best.in_flight * tracker.own_limit:
            best = tracker
    return best
