"""The throttler of one revision: which request gets which slot, which waits, which is rejected.

Invariants (the auditor and the property tests check them)
  1. No grant is made to a pod with in_flight >= limit.
  2. The first in line never waits while a pod that may be picked has room.
  3. Every lease is released exactly once; every waiter ends exactly once.
  4. No request joins a line that is `queue_depth` long, or a process that holds as many requests as it may. A request
     that is tried again on another pod is let back in: at most as many as are in flight come on top.
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

from typing import Final

from activator.config.model.queueing import QUEUE_TIMEOUT_S
from activator.config.specs import RevisionSpec
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.refusals import REFUSALS_PER_TURN_MAX
from activator.data_plane.throttle.admission import Admission
from activator.data_plane.throttle.budget import NO_LIMIT, HeldBudget, RetryBudget
from activator.data_plane.throttle.counters import Errors, RevisionCounters
from activator.data_plane.throttle.disciplines import make_line
from activator.data_plane.throttle.forecast import Forecast
from activator.data_plane.throttle.lease import Lease, LeaseHolder
from activator.data_plane.throttle.leases import Leases, leave_pod
from activator.data_plane.throttle.overflow import least_loaded
from activator.data_plane.throttle.positions import Onlookers
from activator.data_plane.throttle.rejection import Refusals
from activator.data_plane.throttle.slot_events import SlotEvents
from activator.data_plane.throttle.slot_source import LineObserver, SlotSource
from activator.data_plane.throttle.starting import Start
from activator.data_plane.throttle.verdict import verdict_of
from activator.data_plane.throttle.waiters import Waiter, WaitingLine
from activator.runtime.clock import Defer, Now
from activator.runtime.reasons import Reason, Verdict
from lb.table import DRAINED, TrackerTable
from lb.tracker import DRAINING, FOREVER, READY, RECOVERING, PodTracker

ARRIVAL_STEP: Final = 1 << 20  # between two arrivals: a new owner of the line finds a place for those it knows late
SUSPECT_S: Final = 1.0  # how long the request path may keep a pod from the picks until the state worker decides

# A request that waits for a start that takes too long is rejected because of the start, not of the line: the start's
# own timeout begins a moment after the request arrived, and ends in a last look that takes a moment.
_STARTUP_SLACK_S: Final = 5.0


class RevisionThrottler:
    """Grants slots of `table` to waiters.

    `defer` runs a callable in the loop's next turn; `grants_per_turn_max` bounds how many hand-overs one pump makes,
    `refusals_per_turn_max` how many waiters are rejected in one turn; `process` counts the waiting
    requests of all revisions.
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
        self.spec = spec
        self.key: str = spec.key
        self.common_name: str = spec.key  # what members know it by: another one after it was dropped and came back
        self.incarnation: int = 0  # a number that no other throttler of this data plane has
        self.table = table
        self.affinity: Affinity | None = None  # what requests are known by, where the policy asks
        self.filters: object | None = None  # its FilterChain (data_plane/filters/), if it has any
        self.counters = RevisionCounters()
        self.line: WaitingLine = make_line(spec)
        self.held = HeldBudget(spec.queue_bytes or NO_LIMIT)  # bytes of this revision's waiting requests
        self.leases = Leases()  # every open lease
        self.source: SlotSource | None = None  # of its slots, where another member owns the revision
        self.lending: LineObserver | None = None  # where this one does, and there are others
        self.failure: str | None = None  # why the revision cannot start, while it cannot
        self.removed: bool = False
        self.was_ready: bool = False  # a pod has been ready since the revision was last at zero
        self.active: bool = False  # has carried something since its load was last reported
        self.start: Start | None = None  # from zero, while requests wait for it
        self.gathering: int = 0  # requests whose bodies are received before they ask for a slot
        self.delivering: int = 0  # requests that pods have answered, and whose clients have yet to take the rest
        self.retry_budget = RetryBudget()
        self._errors = Errors(spec.key, events, self.counters)
        self._struck: dict[PodTracker, int] = {}  # pods with strikes, by the generation that they had
        self._onlookers: Onlookers | None = None  # where there are any
        self._now = now
        self._defer = defer
        self._events = events
        self._process: HeldBudget = HeldBudget() if process is None else process
        self._forecast = Forecast()
        self._admission = Admission(spec, self._forecast)
        self._is_once: bool = spec.is_once  # a pod takes one request in its life
        self._refusals = Refusals(now, defer, self._process.request_left, self._errors.raised, refusals_per_turn_max)
        self._grants_per_turn_max = grants_per_turn_max
        self._pumping: bool = False
        self._pump_deferred: bool = False
        table.on_hook_error = self._errors.hook_raised
        self.arrivals: int = 0  # the number of the last one
        self._asked_s: float = 0.0

    # --- asking for a slot ---

    def try_acquire(self, waiter: Waiter, now_s: float) -> Lease | None:
        """A slot at once, or None: then `enqueue`."""
        self.arrive(waiter, now_s)
        exempt = self._admission.exempts and self._admission.is_exempt(waiter)
        if self.source is not None:
            return self._acquire_lent(self.source, waiter, now_s)
        if exempt:
            return self._acquire_exempt(waiter, now_s)
        if self.line.length != 0 or self.failure is not None:
            return None
        tracker = self.table.pick(waiter.pick_key, now_s)
        if tracker is None:
            return None
        return self._reserve(waiter, tracker, now_s)

    def arrive(self, waiter: Waiter, now_s: float) -> None:
        """Give a waiter its place in the order of arrival."""
        self.arrivals += ARRIVAL_STEP
        waiter.arrival = self.arrivals
        if now_s > self._asked_s:
            self._asked_s = now_s
        waiter.asked_s = self._asked_s
        if not self.active:
            self.activate()

    def body_expected(self) -> None:
        """A request will ask for a slot when its body is here: a revision at zero may start meanwhile."""
        self.gathering += 1
        self.activate()

    def activate(self) -> None:
        """It has a load that is to be reported."""
        if not self.active:
            self.active = True
            self._events.activated(self.key)

    def enqueue(self, waiter: Waiter) -> Reason | None:
        """Stand in line; a reason (and `refusal_detail`) says that the waiter was rejected instead."""
        refusal = self._refusal()
        if refusal is None:
            if self.line.length >= self.spec.queue_depth:
                refusal = Reason.QUEUE_FULL
            elif self._process.is_full():
                refusal = Reason.HELD_REQUESTS_FULL
            else:
                refusal = self._admission.sort(waiter)
        if refusal is None and self._admission.predicts and self.source is None:
            limit_s = self.wait_limit_s(waiter)
            refusal = self._admission.predict(waiter, self.line, self.table.capacity, limit_s, self._now())
        if refusal is not None:
            return refusal
        self.line.join(waiter)
        self.counters.queued_total += 1
        self._joined(waiter)
        return None

    def requeue(self, waiter: Waiter, failed: Lease, reason: Reason) -> Reason | None:
        """Back into line in the old place, for a request that `failed` for `reason` and is tried on another pod.

        No bound rejects it. Where no other pod has room, the same one will do.
        """
        refusal = self._refusal()
        if refusal is None and not waiter.sorted:
            refusal = self._admission.sort(waiter)
        if refusal is not None:
            return refusal
        waiter.avoided = failed
        retries = self.counters.retries
        retries[reason] = retries.get(reason, 0) + 1
        if waiter.exempt and self.source is None:
            try:
                lease = self._acquire_exempt(waiter, self._now())
            except Exception as error:  # of a policy: it ends this request, before it has joined anything
                self._errors.raised(error)
                return Reason.INTERNAL
            if lease is not None:
                self._grant(waiter, lease)
                return None
        self.line.rejoin(waiter)
        self._joined(waiter)
        self.pump()
        return None

    def cancel(self, waiter: Waiter) -> None:
        """The waiter's owner takes it out: its client has gone. Harmless for one that does not wait."""
        if waiter.in_line:
            self._leave(waiter)
            self._process.request_left()

    def overdue(self, waiter: Waiter) -> None:
        """The waiter's time in line is up: its place is free at once, and it is rejected in this turn or one of the
        next.
        """
        lane = waiter.lane
        if lane is not None and lane.line is self.line:  # else it is about to be granted or rejected already
            self._leave(waiter)
            self._refusals.reject(waiter, Reason.QUEUE_TIMEOUT, "")

    # --- giving a slot back ---

    def release(self, lease: Lease, latency_s: float, succeeded: bool, unused: bool = False) -> None:
        """The request is over at the pod, after `latency_s`; 0.0: that says nothing. Exactly once per lease."""
        assert not lease.released, "a lease was released twice"
        lease.released = True
        self.leases.close(lease)
        if lease.bars_trials:
            self._end_trial(lease)
        observed_latency_s = latency_s if succeeded else -latency_s  # as the policies' on_release has it
        outcome = self.table.release(lease.tracker, lease.generation, observed_latency_s)
        if outcome == DRAINED:
            if self.removed:
                self._events.departed(self.key, lease.identity)
            else:
                self._events.drained(self.key, lease.tracker.slot, lease.generation)
        if self._is_once and not unused:
            self._events.taken(self.key, lease.identity, True, "")
        if self._admission.predicts and succeeded and latency_s > 0.0 and not lease.exempt:
            self._forecast.served(latency_s, self._now())
        if succeeded and self._struck and lease.tracker in self._struck:
            self._served_after_strikes(lease)
        if self.source is not None:
            self.source.closed(lease, latency_s, succeeded)
        elif self.line.length != 0:
            now_s = self._now()
            self._forecast.slot_freed(now_s)
            self._pump_from(now_s)

    def give_back(self, lease: Lease) -> None:
        """Release a slot that no request has used."""
        if self._is_once:
            self.table.end_suspicion(lease.tracker, lease.generation, FOREVER)
        self.release(lease, 0.0, False, True)

    # --- what is found out of pods (verdict.py) ---

    def pod_failed(self, lease: Lease, reason: Reason) -> None:
        """A request failed at the pod: judged, and reported where that is about the pod."""
        tracker = lease.tracker
        if self._is_once and verdict_of(reason, False) != Verdict.NOTHING:
            self._events.taken(self.key, lease.identity, False, reason.value)
        if not self._is_in_service(tracker, lease):
            return
        on_trial = lease.trial and tracker.state == RECOVERING  # another trial may have passed meanwhile
        verdict = verdict_of(reason, on_trial)
        if verdict == Verdict.NOTHING or self._is_once:  # that one pod is gone all the same
            return
        if verdict == Verdict.STRUCK and on_trial:
            self._trial_ended(lease, False)
            return
        if verdict == Verdict.STRUCK and tracker.state == RECOVERING:
            return  # it is about the pod as it was before
        if verdict != Verdict.STRUCK:
            self.table.suspect(tracker, self._now() + SUSPECT_S)  # out of the picks in this very turn
            if self.source is not None:
                self.source.suspected(lease)
        lease.trial = False
        self._struck[tracker] = lease.generation
        self._events.refused(self.key, lease.identity, tracker.epoch, verdict == Verdict.DEAD, reason.value)

    def trial_answered(self, lease: Lease) -> None:
        """The head of an answer has come from a pod on trial."""
        tracker = lease.tracker
        if self._is_in_service(tracker, lease) and tracker.state == RECOVERING:
            self._trial_ended(lease, True)
            self.pump()
        else:
            lease.trial = False  # another one has passed or failed meanwhile

    def trial_takes_long(self, lease: Lease) -> None:
        """It is still a trial, but the next request is another one: it may be the request that is slow."""
        if lease.bars_trials:
            self._end_trial(lease)
            self.pump()

    # --- handing over ---

    def pump(self) -> None:
        """Grant free slots to the line, in its order, at most `grants_per_turn_max` before the loop turns."""
        if self.line.length != 0:
            self._pump_from(self._now())

    def _pump_from(self, now_s: float) -> None:
        if self._pumping or self.source is not None:
            return
        self._pumping = True
        try:
            grants = 0
            while self.table.room != 0:
                line = self.line
                waiter = line.first()
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
                    self._leave(waiter)
                    self._refusals.reject(waiter, Reason.INTERNAL, "")
                    continue
                if tracker is None:
                    return
                line.take(waiter)
                self._process.request_left()
                self._forecast.start_ended(now_s)
                if line.length == 0:
                    self._forecast.line_ended(now_s)
                self._grant(waiter, self._reserve(waiter, tracker, now_s))
                now_s = self._now()
        finally:
            self._pumping = False

    def fail(self, cause: str, retry_s: float = 0.0) -> None:
        """Reject all requests that wait with the cause, and new ones until `recover`.

        `retry_s` is the time of the next attempt to start; 0: it is not known.
        """
        self.take_over_failure(cause, retry_s)
        self.start = None
        self._refuse_all(Reason.REVISION_FAILED, cause)

    def take_over_failure(self, cause: str, retry_s: float) -> None:
        """Set why the revision cannot start; empty: it can. No request is rejected by this."""
        self.failure = cause or None
        self._forecast.not_before_s = retry_s

    def recover(self) -> None:
        """New requests may wait again. Those that waited at the failure are rejected all the same."""
        self.take_over_failure("", 0.0)
        self.pump()

    def pod_placed(self, tracker: PodTracker | None = None) -> None:
        """There is a pod, ready or not."""
        if self.lending is not None and tracker is not None:
            self.lending.pod_placed(tracker)
        start = self.start
        if start is not None and start.placed_s == 0.0:
            start.placed_s = self._now()

    def pod_ready(self) -> None:
        """There is a pod that may be picked."""
        self.was_ready = True
        start = self.start
        if start is not None:
            start.ready_s = self._now()
            self.counters.cold_starts_total += 1
            self.start = None  # the requests that waited for it keep it

    def pod_left(self, tracker: PodTracker) -> None:
        """Its slot is free."""
        if self._struck:
            self._struck.pop(tracker, None)

    def remove(self) -> None:
        """The revision is gone: the line is rejected at once, running requests end in their own time."""
        self.removed = True
        self._struck.clear()
        self._refuse_all(Reason.REVISION_REMOVED, "the revision was removed")

    def drain_queue(self) -> int:
        """Refuse all requests that wait here, since the program ends. Return how many there are."""
        count = self.line.length
        if count:
            self._refuse_all(Reason.DRAINING, "")
        return count

    def revoke(self, lease: Lease, reason: Reason, detail: str) -> None:
        """End the request that holds this slot."""
        try:
            lease.holder.revoked(reason, detail)
        except Exception as error:
            self._errors.raised(error)
        if not lease.released:  # a defect of its holder: the release is late, if it comes
            leave_pod(lease)

    def forsaken(self) -> list[Lease]:
        """Open leases whose request is neither at a pod nor on its way there: their holders have forgotten them."""
        return [lease for lease in self.leases if not lease.holder.is_served(lease)]

    def reclaim(self) -> None:
        """Take the slots of such leases back; a holder that is still there is called (`revoked`)."""
        for lease in self.forsaken():
            if not lease.released:
                lease.holder.revoked(Reason.INTERNAL, "")
            if not lease.released:
                self.release(lease, 0.0, False)

    def reconfigure(self, spec: RevisionSpec) -> None:
        """New limits, rules or discipline for a live revision; all waiters stay in line and keep their arrival."""
        old = self.spec
        self.spec = spec
        self._is_once = spec.is_once
        self.held.bytes_max = spec.queue_bytes or NO_LIMIT
        self._admission.configure(spec)
        if spec.discipline == old.discipline and spec.queue_rules == old.queue_rules:
            return
        before = self.line
        self.line = make_line(spec)
        for waiter in before.waiters():
            before.leave(waiter)
            self._admission.sort(waiter)
            self.line.join(waiter)

    def move(self, table: TrackerTable, leases: list[Lease], homes: list[PodTracker]) -> None:
        """Another table in place of one that broke: each of the leases is counted there already, in its new home."""
        for lease, tracker in zip(leases, homes):
            self.leases.move(lease, tracker)
        struck: dict[PodTracker, int] = {}
        for old, generation in self._struck.items():
            new = table.find_identity(old.identity) if old.generation == generation else None
            if new is not None and new.address == old.address:
                struck[new] = new.generation
        self._struck = struck
        self.table = table
        table.on_hook_error = self._errors.hook_raised
        if self.source is not None:
            self.source.table_replaced()
        if self.lending is not None:
            self.lending.table_replaced()

    # --- with other members (ownership/) ---

    def _acquire_lent(self, source: SlotSource, waiter: Waiter, now_s: float) -> Lease | None:
        if self.line.length != 0 or self.failure is not None:
            return None
        tracker = source.take(waiter)
        if tracker is None:
            return None
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)
        return lease

    def must_wait(self) -> None:
        """The owner has no slot for the waiter that stands in line: only now there is a line."""
        self._events.wanted(self.key)

    def grant_lent(self, source: SlotSource, waiter: Waiter, tracker: PodTracker) -> None:
        """The owner has granted the waiter, which stands in line, a slot of this pod."""
        self._take_out(waiter)
        self._process.request_left()
        now_s = self._now()
        self._forecast.start_ended(now_s)
        lease = self._reserve(waiter, tracker, now_s)
        source.opened(lease)  # first: the request may end in the next line
        self._grant(waiter, lease)

    def refuse_lent(self, waiter: Waiter, reason: Reason, detail: str) -> None:
        """The owner has refused the waiter, which stands in line."""
        self._take_out(waiter)
        self._refusals.reject(waiter, reason, detail)

    def suspect(self, lease: Lease) -> None:
        """The member that has this slot has found that its pod takes no connections, and reports it."""
        tracker = lease.tracker
        if self._is_in_service(tracker, lease):
            self.table.suspect(tracker, self._now() + SUSPECT_S)
            self._events.suspected(self.key, lease.identity)

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
        """A waiter of another member comes back into line, at the place that its `arrival` gives; as `requeue`."""
        refusal = self._refusal()
        if refusal is None:
            self.line.rejoin(waiter)
            self._joined(waiter)
            self.pump()
        return refusal

    def line_up(self, waiters: list[Waiter]) -> None:
        """The line has this order from now on, by their `line_number`; all that stand in it must be there."""
        for waiter in waiters:
            self.line.leave(waiter)
        for waiter in waiters:
            waiter.arrival = waiter.line_number
            self.line.join(waiter)
        if waiters:
            self.arrivals = max(self.arrivals, waiters[-1].arrival)

    # --- what others ask ---

    def in_flight(self) -> int:
        """This member's requests at pods."""
        lending = self.lending
        return int(self.table.in_flight) - (0 if lending is None else lending.lent())

    def waiting(self) -> int:
        """This member's requests in line."""
        lending = self.lending
        return self.line.length - (0 if lending is None else lending.waiting())

    @property
    def onlookers(self) -> Onlookers:
        """Those who are told how it gets on."""
        onlookers = self._onlookers
        if onlookers is None:
            onlookers = self._onlookers = Onlookers()
        return onlookers

    def has_requests(self) -> bool:
        """True if a lease is open, or a request has been counted that has not ended."""
        return self.leases.count != 0 or self.counters.has_requests()

    def queue_timeout_s(self) -> float:
        """How long a request without a timeout of its own may stand in line, from its arrival."""
        if self.spec.queue_timeout_s is not None:
            return self.spec.queue_timeout_s
        return QUEUE_TIMEOUT_S if self.was_ready else self.spec.startup_timeout_s + _STARTUP_SLACK_S

    def wait_limit_s(self, waiter: Waiter) -> float:
        """How long this waiter may, from its arrival."""
        return self._admission.limit_s(waiter, self.queue_timeout_s())

    def is_stuck(self) -> bool:
        """Whether a request waits that could go, and nothing is about to look: that must not be."""
        if self.line.length == 0 or self.table.room == 0 or self._pump_deferred or self._pumping:
            return False
        if self.source is not None:
            return False
        return self.line.first() is not None

    def refusal_detail(self) -> str:
        """The text that goes with the reason that `enqueue` or `requeue` gave last."""
        return self._admission.detail

    def start_progress(self, now_s: float) -> tuple[float, float]:
        """How long its start has taken so far, and how long the last one took, in seconds; 0.0: not known."""
        return self._forecast.start_progress(now_s)

    def position_of(self, waiter: Waiter) -> int:
        """Where it stands in line, by arrival; 1: it is the next."""
        return self.onlookers.positions.of(self.line, waiter, self._now())

    def expected_s(self, position: int) -> int:
        """How long the one at this place has to wait still, as far as the line's past says it."""
        return self._forecast.retry_after_s(max(position - 1, 0), self._now())

    def retry_after_s(self) -> int:
        """When to come again: after the line as it is now, or the start that it waits for."""
        return self._forecast.retry_after_s(self.line.length, self._now())

    # --- within ---

    def _trial_ended(self, lease: Lease, passed: bool) -> None:
        lease.trial = False
        if lease.bars_trials:
            self._end_trial(lease)
        self._events.trial_ended(self.key, lease.identity, lease.tracker.epoch, passed)

    def _end_trial(self, lease: Lease) -> None:
        lease.bars_trials = False
        self.table.end_trial(lease.tracker, lease.generation)
        if self.source is not None:
            self.source.trial_over(lease)

    def _is_in_service(self, tracker: PodTracker, lease: Lease) -> bool:
        """The pod is still where the lease was given, and requests are sent to it.

        Of one that leaves, has moved, or is out of service already, the lease says nothing more.
        """
        return tracker.generation == lease.generation and (tracker.state == READY or tracker.state == RECOVERING)

    def _served_after_strikes(self, lease: Lease) -> None:
        if self._struck[lease.tracker] == lease.generation:
            del self._struck[lease.tracker]
            self._events.served(self.key, lease.identity, lease.tracker.epoch)

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
        """Its one request: no other one follows, whatever becomes of this one. Of a request of another member that
        member says so, since it may give the slot back without having used it.
        """
        self.table.suspect(tracker, FOREVER)
        if not waiter.is_remote:
            self._events.taken(self.key, tracker.identity, False, "")

    def _acquire_exempt(self, waiter: Waiter, now_s: float) -> Lease | None:
        """A slot whatever the line and the limits; None only where no pod could take the request at all."""
        if self.failure is not None:
            return None
        tracker = self._pick_for(waiter, now_s) if self.line.length == 0 else None
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

    def _refusal(self) -> Reason | None:
        self._admission.detail = ""
        if self.removed:
            return Reason.REVISION_REMOVED
        if self.failure is not None:
            self._admission.detail = self.failure
            return Reason.REVISION_FAILED
        return None

    def _joined(self, waiter: Waiter) -> None:
        self._process.request_waits()
        if self.table.capacity == 0:
            self._forecast.start_wanted(self._now())
            if self.start is None and not self.was_ready:
                self._start_wanted()
        if self.line.length == 1:
            self._forecast.line_formed(self._now())
            if self.source is None and not waiter.is_remote:
                self._events.wanted(self.key)
            if self.lending is not None:
                self.lending.line_formed()
        if self.source is not None:
            self.source.joined(waiter)

    def _leave(self, waiter: Waiter) -> None:
        if self._take_out(waiter) and self.source is not None:
            self.source.left(waiter)

    def _take_out(self, waiter: Waiter) -> bool:
        """Out of the line that the waiter stands in; whether that is this throttler's, not one that is rejected."""
        lane = waiter.lane
        assert lane is not None
        line = lane.line
        line.leave(waiter)
        if line is not self.line:
            return False
        if line.length == 0:
            self._line_ended()
        return True

    def _line_ended(self) -> None:
        self._forecast.line_ended(self._now())
        if self.table.capacity == 0:
            self._forecast.start_given_up()
            self.start = None

    def _start_wanted(self) -> None:
        self.start = Start(self._now())
        if self.table.used > 0:
            self.pod_placed()  # on its way already

    def _refuse_all(self, reason: Reason, detail: str) -> None:
        line = self.line
        self.line = make_line(self.spec)
        if self.source is not None:
            self.source.line_left()
        self._line_ended()
        self._refusals.reject_all(line, reason, detail)

    def _pump_soon(self) -> None:
        if not self._pump_deferred:
            self._pump_deferred = True
            self._defer(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_deferred = False
        self.pump()
