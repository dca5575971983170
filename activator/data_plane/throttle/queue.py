"""The queue of one revision: which requests may wait for a slot, in which order, and for how long.

Rules
  1. It grants nothing. The throttler (revision.py) removes the first waiter and reserves a slot for it.
  2. No request joins a queue of `depth` requests, or any queue of a worker that holds its maximum of requests. A
     request that is retried at another pod is always let in, so the bound may be exceeded by the requests in flight.
  3. A waiter that leaves without a slot is removed by its owner or rejected, now or in a later turn (rejection.py).
  4. Requests that wait for a revision without capacity wait for a start from zero; the queue records that start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from activator.config.model.queueing import QUEUE_TIMEOUT_S
from activator.config.specs import QueueSpec, RevisionSpec
from activator.data_plane.throttle.admission import Admission
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.controlled_delay import ControlledDelay
from activator.data_plane.throttle.counters import RevisionCounters
from activator.data_plane.throttle.disciplines import make_queue
from activator.data_plane.throttle.forecast import Forecast
from activator.data_plane.throttle.interfaces import Sharing, SlotEvents
from activator.data_plane.throttle.rejection import Rejections
from activator.data_plane.throttle.starting import Start
from activator.data_plane.throttle.waiters import Waiter, WaiterQueue
from activator.runtime.clock import Defer, Now
from activator.runtime.reasons import Reason
from lb.table import TrackerTable
from lb.tracker import PodTracker

ARRIVAL_STEP: Final = 1 << 20  # between two arrivals, so that a new owner can insert waiters that it learns of later

POSITIONS_AGE_S: Final = 0.5

# A request that waits for a start that times out must be rejected because of the start, not of the queue. The start's
# timeout begins shortly after the arrival of the request, and ends with a last check that takes a moment.
_STARTUP_SLACK_S: Final = 5.0


class Positions:
    """A cache of the positions of the waiters of one queue.

    Counting the waiters before one of them takes a walk over the queue. The arrival numbers are therefore read at most
    every POSITIONS_AGE_S, and each query is a binary search: 10,000 polling clients cost one walk per period. Positions
    are by arrival; with priorities or fair shares other requests may be served first.
    """

    def __init__(self) -> None:
        self._arrivals: list[int] = []
        self._read_s: float = 0.0

    def of(self, waiters: WaiterQueue, waiter: Waiter, now_s: float) -> int:
        """Return the position of the waiter; 1 means that it is next.

        Waiters that have left since the last read may still be counted. A waiter that has joined since is counted as
        the last.
        """
        if now_s - self._read_s >= POSITIONS_AGE_S or len(self._arrivals) == 0:
            self._arrivals = [queued.arrival for queued in waiters.by_arrival()]
            self._read_s = now_s
        arrivals = self._arrivals
        if len(arrivals) == 0 or waiter.arrival > arrivals[-1]:
            return max(waiters.length, 1)
        return min(bisect_left(arrivals, waiter.arrival) + 1, max(waiters.length, 1))


class StartObservers:
    """The state for clients that watch the progress of one revision; created on first use."""

    def __init__(self) -> None:
        self.start_request: Waiter | None = None  # waits for a start on behalf of clients (filters/start_request.py)
        self.output: tuple[str, ...] = ()  # output of the program since the start began
        self.positions = Positions()


@final
class RevisionQueue:
    """The waiting requests of one revision.

    `worker_budget` counts the waiting requests of all revisions of this worker; `refusals_per_turn_max` bounds how many
    waiters are rejected in one turn of the loop; `failed(error)` is called when a waiter raises while it is rejected.
    """

    def __init__(
        self,
        spec: RevisionSpec,
        table: TrackerTable,
        sharing: Sharing,
        counters: RevisionCounters,
        events: SlotEvents,
        now: Now,
        defer: Defer,
        worker_budget: HeldBudget,
        failed: Callable[[Exception], None],
        refusals_per_turn_max: int,
    ) -> None:
        self.waiters: WaiterQueue = make_queue(spec.queue)
        self.forecast = Forecast()
        self.admission = Admission(spec, self.forecast)
        self.failure: str | None = None  # why the revision cannot start; None if it can
        self.removed: bool = False
        self.was_ready: bool = False  # a pod has been ready since the revision was last at zero
        self.start: Start | None = None  # the start from zero that requests wait for
        self.arrivals: int = 0  # the arrival number of the last request
        self.delay = _delay_of(spec.queue)
        self._spec = spec.queue
        self._user_weights: dict[bytes, int] = {}
        self._key: str = spec.key
        self._table = table
        self._sharing = sharing
        self._counters = counters
        self._events = events
        self._now = now
        self._worker_budget = worker_budget
        self._rejections = Rejections(now, defer, worker_budget.request_left, failed, refusals_per_turn_max)
        self._start_observers: StartObservers | None = None  # created on first use
        self._asked_s: float = 0.0  # the latest arrival time

    # --- waiters ---

    def arrive(self, waiter: Waiter, now_s: float) -> None:
        """Assign an arrival number and time to a waiter."""
        self.arrivals += ARRIVAL_STEP
        waiter.arrival = self.arrivals
        if now_s > self._asked_s:
            self._asked_s = now_s
        waiter.asked_s = self._asked_s

    def enqueue(self, waiter: Waiter) -> Reason | None:
        """Add the waiter to the queue; return a reason (and set `admission.detail`) if it is rejected instead."""
        refusal = self.refusal()
        if refusal is None:
            if waiter.never_waits and self._sharing.source is None:
                refusal = Reason.NOT_AVAILABLE
            elif self.waiters.length >= self._spec.depth:
                refusal = Reason.QUEUE_FULL
            elif self._worker_budget.is_full():
                refusal = Reason.HELD_REQUESTS_FULL
            elif self._worker_budget.refuses and not waiter.is_remote and self._sharing.source is None:
                refusal = Reason.OVERLOADED  # with a source, the worker that grants the slots decides
            else:
                refusal = self.admission.classify(waiter)
        if refusal is None and self.admission.predicts and self._sharing.source is None:
            limit_s = self.wait_limit_s(waiter)
            refusal = self.admission.predict(waiter, self.waiters, self._table.capacity, limit_s, self._now())
        if refusal is not None:
            return refusal
        self.waiters.join(waiter)
        self._counters.queued_total += 1
        self._joined(waiter)
        return None

    def refusal_detail(self) -> str:
        """Return the explanation of the last reason that `enqueue`, or `requeue` of the throttler, returned."""
        return self.admission.detail

    def rejoin(self, waiter: Waiter, was_granted: bool = True) -> None:
        """Add the waiter to the queue at its former position. `was_granted`: it was granted a slot and returns."""
        if was_granted:
            self.waiters.rejoin(waiter)
        else:
            self.arrivals = max(self.arrivals, waiter.arrival)  # a former owner may have counted further
            self.waiters.insert(waiter)
        self._joined(waiter)

    def cancel(self, waiter: Waiter) -> None:
        """Remove the waiter for its owner, because its client has disconnected. No effect if it does not wait."""
        if waiter.is_queued:
            self._remove_and_notify(waiter)
            self._worker_budget.request_left()

    def overdue(self, waiter: Waiter) -> None:
        """Reject a waiter that has reached its time limit, and free its position at once."""
        sub_queue = waiter.sub_queue
        # A granted waiter has no sub-queue; one that is being rejected has that of its batch (rejection.py).
        if sub_queue is not None and sub_queue.queue is self.waiters:
            self.refuse(waiter, Reason.QUEUE_TIMEOUT)

    def refuse(self, waiter: Waiter, reason: Reason) -> None:
        """Reject a waiter of this queue, in this turn or a later one."""
        self._remove_and_notify(waiter)
        self._rejections.reject(waiter, reason, "")

    def is_late(self, waiter: Waiter, now_s: float) -> bool:
        """Return True if the first waiter has waited for too long to be served before others (controlled_delay.py)."""
        delay = self.delay
        if delay is None or waiter is self._start_request():
            return False
        return self._slot_users() > 1 and delay.is_late(waiter, now_s)

    def refusal(self) -> Reason | None:
        """Return the reason why no request may wait; None if requests may."""
        self.admission.detail = ""
        if self.removed:
            return Reason.REVISION_REMOVED
        if self.failure is not None:
            self.admission.detail = self.failure
            return Reason.REVISION_FAILED
        return None

    def remove_first(self, waiter: Waiter, now_s: float) -> None:
        """Remove the first waiter, which is granted a slot."""
        waiters = self.waiters
        waiters.take(waiter)
        self._worker_budget.request_left()
        self.forecast.start_ended(now_s)
        if waiters.length == 0:
            self.forecast.queue_emptied(now_s)

    # --- the revision ---

    def fail(self, cause: str, retry_s: float = 0.0) -> None:
        """Reject all waiting requests with the cause, and new ones until the throttler's `recover`.

        `retry_s` is the time of the next start attempt; 0: unknown.
        """
        self.set_failure(cause, retry_s)
        self.start = None
        self._refuse_all(Reason.REVISION_FAILED, cause)

    def set_failure(self, cause: str, retry_s: float) -> None:
        """Set why the revision cannot start; "" if it can. Rejects no request."""
        self.failure = cause or None
        self.forecast.not_before_s = retry_s

    def pod_placed(self, tracker: PodTracker | None = None) -> None:
        """Record that a pod exists, whether it is ready or not."""
        lending = self._sharing.lending
        if lending is not None and tracker is not None:
            lending.pod_placed(tracker)
        start = self.start
        if start is not None and start.placed_s == 0.0:
            start.placed_s = self._now()

    def pod_ready(self, is_first: bool = True) -> None:
        """Record that a pod is ready; `is_first`: no other pod was ready."""
        self.was_ready = True
        if is_first and self.delay is not None:
            self.delay.restart_interval(self._now())
        start = self.start
        if start is not None:
            start.ready_s = self._now()
            self._counters.cold_starts_total += 1
            self.start = None  # the requests that waited for it keep a reference

    def remove(self) -> None:
        """Reject all waiting requests, because the revision was removed."""
        self.removed = True
        self._refuse_all(Reason.REVISION_REMOVED, "the revision was removed")

    def drain(self) -> int:
        """Reject all waiting requests, because the program ends; return their number."""
        count = self.waiters.length
        if count:
            self._refuse_all(Reason.DRAINING, "")
        return count

    def reconfigure(self, spec: RevisionSpec) -> None:
        """Apply new limits, rules or another discipline; all waiters stay in the queue and keep their arrival."""
        old = self._spec
        self._spec = spec.queue
        self.admission.configure(spec)
        if (spec.queue.target_wait_s, spec.queue.target_interval_s) != (old.target_wait_s, old.target_interval_s):
            self.delay = _delay_of(spec.queue)
            if self.delay is not None:
                self.delay.restart_interval(self._now())
        if spec.queue.discipline == old.discipline and spec.queue.rules == old.rules:
            return
        former = self.waiters
        self.waiters = make_queue(spec.queue, self._user_weights)
        for waiter in former.by_arrival():
            former.leave(waiter)
            self.admission.classify(waiter)
            self.waiters.join(waiter)

    def weigh_users(self, weights: dict[bytes, int]) -> None:
        """Apply the weights of users, by name, to waiting requests and later ones."""
        if weights != self._user_weights:
            self._user_weights = weights
            self.waiters.weigh_users(weights)

    def replace_table(self, table: TrackerTable) -> None:
        """Wait for the slots of another table, which replaces a corrupt one."""
        self._table = table

    # --- with other members (ownership/) ---

    def report_queue_formed(self) -> None:
        """Report that a queue has formed: the owner has no slot for a waiter."""
        self._events.queue_formed(self._key)

    def remove_granted(self, waiter: Waiter, now_s: float) -> None:
        """Remove a waiter, at any position, that the owner has granted a slot."""
        self._remove_from_its_queue(waiter)
        self._worker_budget.request_left()
        self.forecast.start_ended(now_s)

    def refuse_impatient(self) -> None:
        """Reject the requests of this member that do not wait; called when it begins to grant slots."""
        for waiter in [queued for queued in self.waiters.by_arrival() if queued.never_waits]:
            self.refuse_for_owner(waiter, Reason.NOT_AVAILABLE, "")

    def refuse_for_owner(self, waiter: Waiter, reason: Reason, detail: str) -> None:
        """Reject a waiter, as the owner has decided."""
        self._remove_from_its_queue(waiter)
        self._rejections.reject(waiter, reason, detail)

    def reorder(self, waiters: list[Waiter]) -> None:
        """Reorder the queue by `arrival_at_owner`. `waiters` must be all waiters, sorted by it."""
        for waiter in waiters:
            self.waiters.leave(waiter)
        for waiter in waiters:
            waiter.arrival = waiter.arrival_at_owner
            self.waiters.join(waiter)
        if waiters:
            self.arrivals = max(self.arrivals, waiters[-1].arrival)

    # --- queries ---

    def waiting(self) -> int:
        """Return how many requests of this member wait."""
        lending = self._sharing.lending
        return self.waiters.length - (0 if lending is None else lending.waiting())

    @property
    def start_observers(self) -> StartObservers:
        """The state for clients that watch the progress of the revision."""
        start_observers = self._start_observers
        if start_observers is None:
            start_observers = self._start_observers = StartObservers()
        return start_observers

    def queue_timeout_s(self) -> float:
        """Return how long a request without its own timeout may wait, in seconds from its arrival."""
        if self._spec.timeout_s is not None:
            return self._spec.timeout_s
        return QUEUE_TIMEOUT_S if self.was_ready else self._spec.startup_timeout_s + _STARTUP_SLACK_S

    def wait_limit_s(self, waiter: Waiter) -> float:
        """Return how long this waiter may wait, in seconds from its arrival."""
        return self.admission.limit_s(waiter, self.queue_timeout_s())

    def start_progress(self, now_s: float) -> tuple[float, float]:
        """Return the duration of the current start so far, and that of the last one, in seconds; 0.0: unknown."""
        return self.forecast.start_progress(now_s)

    def position_of(self, waiter: Waiter) -> int:
        """Return the position of the waiter by arrival; 1 means that it is next."""
        return self.start_observers.positions.of(self.waiters, waiter, self._now())

    def expected_s(self, position: int) -> int:
        """Return how long the waiter at `position` is expected to wait, in seconds."""
        return self.forecast.retry_after_s(max(position - 1, 0), self._now())

    def retry_after_s(self) -> int:
        """Return after how many seconds to retry: when the current queue is served, or the start has ended."""
        return self.forecast.retry_after_s(self.waiters.length, self._now())

    # --- within ---

    def _start_request(self) -> Waiter | None:
        return None if self._start_observers is None else self._start_observers.start_request

    def _slot_users(self) -> int:
        """Return how many waiters use the slot that they get: all but the one that only waits for a start."""
        start_request = self._start_request()
        return self.waiters.length - (start_request is not None and start_request.is_queued)

    def _joined(self, waiter: Waiter) -> None:
        """Count a waiter that has joined the queue; report a queue that forms, and a start that is needed."""
        self._worker_budget.request_waits()
        if self._table.capacity == 0:
            self.forecast.start_requested(self._now())
            if self.start is None and not self.was_ready:
                self._begin_start_record()
        sharing = self._sharing
        if self.waiters.length == 1:
            now_s = self._now()
            self.forecast.queue_formed(now_s)
            if self.delay is not None:
                self.delay.restart_interval(now_s)
            if sharing.source is None and not waiter.is_remote:
                self._events.queue_formed(self._key)
            if sharing.lending is not None:
                sharing.lending.recall()
        if sharing.source is not None:
            sharing.source.joined(waiter)

    def _remove_and_notify(self, waiter: Waiter) -> None:
        """Remove a waiter without a slot, and report that to the owner of the revision."""
        if self._remove_from_its_queue(waiter) and self._sharing.source is not None:
            self._sharing.source.cancelled(waiter)

    def _remove_from_its_queue(self, waiter: Waiter) -> bool:
        """Remove the waiter without a slot; return False if it was in an earlier queue, which is being rejected."""
        sub_queue = waiter.sub_queue
        assert sub_queue is not None
        waiters = sub_queue.queue
        waiters.leave(waiter)
        if waiters is not self.waiters:
            return False
        if waiters.length == 0:
            self._queue_emptied()
        return True

    def _queue_emptied(self) -> None:
        self.forecast.queue_emptied(self._now())
        if self._table.capacity == 0:
            self.forecast.start_abandoned()
            self.start = None

    def _begin_start_record(self) -> None:
        """Record the times of a start from now on; the start itself is requested by events."""
        self.start = Start(self._now())
        if self._table.used > 0:
            self.pod_placed()  # a pod is being started already

    def _refuse_all(self, reason: Reason, detail: str) -> None:
        """Reject all waiters, with an empty queue in place of theirs."""
        waiters = self.waiters
        self.waiters = make_queue(self._spec, self._user_weights)
        if self._sharing.source is not None:
            self._sharing.source.queue_cleared()
        self._queue_emptied()
        self._rejections.reject_all(waiters, reason, detail)


def _delay_of(spec: QueueSpec) -> ControlledDelay | None:
    return ControlledDelay(spec.target_wait_s, spec.target_interval_s) if spec.target_wait_s > 0.0 else None
