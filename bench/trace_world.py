"""One revision's throttler, its table and its waiters, on a simulated clock, with a check after every step.

Rules
  1. The checks cover the guarantees of the throttler (data_plane/throttle/revision.py), not its implementation: each
     grant is compared with the simplest form of the discipline (bench/queue_models.py), each slot with the open leases.
  2. Waiters misbehave: some release at once, some raise, some make another one leave while they are granted.
  3. A violated guarantee raises ViolationError, also within a callback, where the throttler's guard would hide it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead
from activator.config.specs import DisciplineSpec, QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason
from bench.queue_models import FairModel, FifoModel, PriorityFairModel, PriorityModel, QueueModel
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, NOT_READY, QUARANTINED, READY, RECOVERING, PodTracker

NORMAL, HASTY, RAISING, PUSHING = range(4)  # how a guest reacts to a grant
AGEING_S = 4.0
WEIGHTS = {"a": 3}
PROCESS_MAX = 24
RULES = (RuleSpec("/healthz", ("GET",), exempt=True), RuleSpec("/heavy", charge=5))
DISCIPLINES = (
    DisciplineSpec(),
    DisciplineSpec("priority", "X-Priority", AGEING_S),
    DisciplineSpec("fair", key_header="X-Tenant", weights=WEIGHTS),
    DisciplineSpec("priority-fair", "X-Priority", AGEING_S, weights=WEIGHTS, key_header="X-Tenant"),
)


class ViolationError(Exception):
    """A violated guarantee."""


class TraceTimer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class TraceClock:
    """A clock that advances only with the trace, and the timers and deferred calls of an event loop on it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._timers: list[TraceTimer] = []
        self._deferred: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TraceTimer:
        timer = TraceTimer(self.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def defer(self, callback: Callable[[], None]) -> None:
        self._deferred.append(callback)

    def turn(self) -> bool:
        """Run the calls that were deferred before; return True if there were any."""
        deferred, self._deferred = self._deferred, []
        for callback in deferred:
            callback()
        return bool(deferred)

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            timer = min(self._timers, key=lambda one: one.due_s, default=None)
            if timer is None or timer.due_s > end_s:
                break
            self.now_s = max(self.now_s, timer.due_s)
            callback = timer.callback
            timer.callback = None
            assert callback is not None
            callback()
        self.now_s = end_s


class TraceEvents(SlotEvents):
    """Records drained slots and errors."""

    def __init__(self) -> None:
        self.drained_slots: list[tuple[int, int]] = []
        self.errors: list[Exception] = []

    def activated(self, key: str) -> None:
        pass

    def queue_formed(self, key: str) -> None:
        pass

    def drained(self, key: str, slot: int, generation: int) -> None:
        self.drained_slots.append((slot, generation))

    def departed(self, key: str, identity: str) -> None:
        pass

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        pass

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        pass

    def served(self, key: str, identity: str, epoch: int) -> None:
        pass

    def failed(self, key: str, error: Exception) -> None:
        self.errors.append(error)


class DeliberateError(Exception):
    """The exception of a raising guest."""


class Guest(Waiter):
    """One request."""

    def __init__(self, world: TraceWorld, head: RequestHead, manner: int) -> None:
        super().__init__()
        self.world = world
        self.head = head
        self.manner = manner
        self.lease: Lease | None = None
        self.ends = 0

    def request(self) -> RequestHead | None:
        return self.head

    def granted(self, lease: Lease) -> None:
        self.world.granted(self, lease)

    def refused(self, reason: Reason, detail: str) -> None:
        self.world.refused(self, reason)

    def revoked(self, reason: Reason, detail: str) -> None:
        self.world.end(self)

    def expired(self, now_s: float) -> None:
        self.world.expired(self)


def make_head(path: str, level: int, tenant: str, timeout: str) -> RequestHead:
    pairs: Headers = [(b"X-Priority", b"%d" % level), (b"X-Tenant", tenant.encode())]
    if timeout:
        pairs.append((b"Activator-Queue-Timeout", timeout.encode()))
    return RequestHead(b"GET", path.encode(), b"a.test", Fields.from_pairs(pairs), UNKNOWN_LENGTH, False)


class TraceWorld:
    """The throttler with its guests; `counts` has the number of events and of checks."""

    def __init__(self, discipline: int = 0, per_turn_max: int = 3) -> None:
        self.clock = TraceClock()
        self.events = TraceEvents()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.wheel = TimingWheel(self.clock.now, self.clock.call_later, self._wheel_failed)
        self.table = TrackerTable(create("round-robin", Rng(1)), 4, 0.5)
        self.process = HeldBudget(requests_max=PROCESS_MAX)
        self.spec = RevisionSpec(
            key="ns/trace",
            queue=QueueSpec(
                depth=20,
                timeout_s=5.0,
                request_timeout=True,
                request_timeout_max_s=9.0,
                discipline=DISCIPLINES[discipline],
                rules=RULES,
            ),
        )
        self.throttler = RevisionThrottler(
            self.spec,
            self.table,
            self.clock.now,
            self.clock.defer,
            self.events,
            per_turn_max,
            self.process,
            refusals_per_turn_max=per_turn_max,
        )
        self.model = self._make_model()
        self.live: dict[Guest, None] = {}
        self.leased: dict[Guest, None] = {}
        self.refused_later: dict[Guest, Reason] = {}  # no longer in line, to be notified within a few turns
        self._asking: Guest | None = None
        self._raised: list[Guest] = []  # in their grant: their requests must have ended when the throttler returns

    # --- requests ---

    def arrive(self, path: str, level: int, tenant: str, manner: int = NORMAL, timeout: str = "") -> Guest:
        guest = Guest(self, make_head(path, level, tenant, timeout), manner)
        self.live[guest] = None
        self.counts["arrivals"] += 1
        throttler = self.throttler
        self._asking = guest
        lease = throttler.try_acquire(guest, self.clock.now())
        if lease is not None:
            self.granted(guest, lease, direct=True)
            self._asking = None
            return guest
        before = throttler.queue.waiters.length
        reason = throttler.queue.enqueue(guest)
        self._asking = None
        if reason is not None:
            self._judge_refusal(reason, before)
            self._over(guest, reason.value)
            return guest
        self._must(before < throttler.spec.queue.depth, "a full queue accepted another request")
        self._must(
            self.process.held_requests <= PROCESS_MAX + sum(throttler.counters.retries.values()),
            "the process holds too many requests",
        )
        self._must((guest.level, guest.share, guest.charge) == self._place_of(guest), "sorted into a wrong position")
        self.model.join(guest)
        self.wheel.arm(guest, guest.asked_s + throttler.queue.wait_limit_s(guest))
        return guest

    def end(self, guest: Guest, succeeded: bool = True) -> None:
        """End the request at its pod."""
        lease = guest.lease
        assert lease is not None
        guest.lease = None
        del self.leased[guest]
        self._over(guest, "released")
        self.throttler.release(lease, 0.1, succeeded)

    def leave(self, guest: Guest) -> None:
        """Disconnect the client, wherever its request is."""
        if guest.lease is not None:
            self.end(guest, False)
            return
        if guest.is_queued:
            if guest in self.refused_later:
                del self.refused_later[guest]
            else:
                self.model.leave(guest)
        self._over(guest, "left")
        self.wheel.cancel(guest)
        self.throttler.queue.cancel(guest)
        self._must(not guest.is_queued, "a request that has left is still queued")

    def try_again(self, guest: Guest) -> None:
        """Ask for another pod with the former position, as the pod did not accept the connection."""
        lease = guest.lease
        assert lease is not None
        guest.lease = None
        del self.leased[guest]
        self.throttler.pod_failed(lease, Reason.CONNECT_FAILED)
        self.counts["retries"] += 1
        self._asking = guest
        refusal = self._requeue(guest, lease)
        self._asking = None
        self.throttler.release(lease, 0.0, False)
        if refusal is not None:
            self._must(refusal is Reason.REVISION_FAILED, f"a retry was refused: {refusal}")
            self._over(guest, refusal.value)
        elif guest.is_queued:
            self.wheel.arm(guest, guest.asked_s + self.throttler.queue.wait_limit_s(guest))

    def _requeue(self, guest: Guest, failed: Lease) -> Reason | None:
        # The throttler may grant before it returns: until then the model must have the guest again.
        if self.throttler.queue.failure is None and not self._passes(guest):
            if not guest.is_classified:
                guest.level, guest.share, guest.charge = self._place_of(guest)
            self.model.rejoin(guest)
        return self.throttler.requeue(guest, failed, Reason.CONNECT_FAILED)

    def _place_of(self, guest: Guest) -> tuple[int, bytes, int]:
        """Return level, share and charge by the current discipline."""
        fields = {name.decode(): value for name, value in guest.head.headers.pairs()}
        discipline = self.spec.queue.discipline.name
        level = min(int(fields["X-Priority"]), 7) if discipline in {"priority", "priority-fair"} else 0
        share = fields["X-Tenant"] if discipline in {"fair", "priority-fair"} else b""
        heavy = guest.head.target.startswith(b"/heavy")
        return level, share, 5 if heavy else 1

    def _passes(self, guest: Guest) -> bool:
        """Return True if some pod will accept an exempted request at once."""
        ready = [pod for pod in self.pods() if pod.state == READY and pod.suspect_until_s == 0.0 and pod.limit]
        return guest.exempt and (bool(ready) or (self.table.room > 0 and self.throttler.queue.waiters.length == 0))

    # --- calls of the throttler ---

    def granted(self, guest: Guest, lease: Lease, direct: bool = False) -> None:
        self._must(guest.ends == 0 and guest.lease is None, "a grant to a request that has ended, or has a slot")
        pod = lease.tracker
        self._must(pod.state in {READY, RECOVERING}, f"a grant to {pod!r}")
        if lease.exempt:
            self.counts["exempted"] += 1
        else:
            self.counts["grants"] += 1
            self._must(pod.in_flight <= pod.limit and pod.suspect_until_s == 0.0, f"beyond its limit: {pod!r}")
            if direct:
                self._must(not self.model.waiting, "a new request overtook waiting ones")
            else:
                self.counts["hand-overs"] += 1
                expected = self.model.first()
                self._must(guest is expected, "a slot went to a request that was not first in the queue")
                if guest in self.model.waiting:
                    self.model.take(guest)
        guest.lease = lease
        self.leased[guest] = None
        self.wheel.cancel(guest)
        if direct or guest is self._asking:
            return
        self._react(guest)

    def _react(self, guest: Guest) -> None:
        if guest.manner == HASTY:
            self.counts["gone as granted"] += 1
            self.end(guest, False)
        elif guest.manner == RAISING:
            self.counts["raised"] += 1
            self._raised.append(guest)
            raise DeliberateError
        elif guest.manner == PUSHING and self.model.waiting:
            other = self.model.waiting[-1]
            assert isinstance(other, Guest)
            self.leave(other)

    def refused(self, guest: Guest, reason: Reason) -> None:
        if reason is Reason.INTERNAL:
            self._must(guest.manner == RAISING, "an internal error of a request that did not raise")
            if guest.lease is not None:
                self.end(guest, False)
            return
        expected = self.refused_later.pop(guest, None)
        self._must(reason is expected, f"refused with {reason}, expected {expected}")
        self._over(guest, reason.value)
        if guest.manner == RAISING:
            raise DeliberateError

    def expired(self, guest: Guest) -> None:
        if guest not in self.refused_later:  # otherwise it gets the earlier reason
            self.model.leave(guest)
            self.refused_later[guest] = Reason.QUEUE_TIMEOUT
        self.throttler.queue.overdue(guest)

    def _judge_refusal(self, reason: Reason, length: int) -> None:
        throttler = self.throttler
        if reason is Reason.QUEUE_FULL:
            self._must(length >= throttler.spec.queue.depth, "refused although the line had a place")
        elif reason is Reason.HELD_REQUESTS_FULL:
            self._must(self.process.held_requests >= PROCESS_MAX, "refused although the process may hold more")
        else:
            self._must(
                reason is Reason.REVISION_FAILED and throttler.queue.failure is not None, f"refused with {reason}"
            )
        self._must(1 <= throttler.queue.retry_after_s() <= 120, "a useless Retry-After")

    # --- pods and configuration ---

    def pods(self) -> list[PodTracker]:
        return [pod for pod in self.table.slots[: self.table.length] if pod.state != EMPTY]

    def pod_comes(self, number: int, limit: int) -> None:
        pod = self.table.find_identity(f"p{number}")
        if pod is None or pod.state == DRAINING:
            self.table.add(f"p{number}", f"10.0.0.{number}:80", limit, READY)
            self.counts["pods"] += 1
            self.throttler.pump()

    def pod_drains(self, number: int) -> None:
        pod = self.table.find_identity(f"p{number}")
        if pod is not None and pod.state != DRAINING:
            self.table.drain(pod)
            self.counts["drains"] += 1

    def free_drained(self) -> None:
        drained, self.events.drained_slots = self.events.drained_slots, []
        for slot, generation in drained:
            pod = self.table.slots[slot] if slot < len(self.table.slots) else None
            if pod is not None and pod.generation == generation and pod.state == DRAINING:
                self.table.free(pod)

    def flap(self, number: int, state: int) -> None:
        """Set a pod to READY, NOT_READY, QUARANTINED or RECOVERING (one request at a time)."""
        pod = self.table.find_identity(f"p{number}")
        if pod is not None and pod.state != DRAINING:
            if state == RECOVERING:
                self.table.set_limit(pod, 1)
            self.table.set_state(pod, state)
            self.counts["flaps"] += 1
            self.throttler.pump()

    def limit(self, number: int, limit: int) -> None:
        pod = self.table.find_identity(f"p{number}")
        if pod is not None and pod.state != DRAINING:
            self.table.set_limit(pod, limit)
            self.counts["limits"] += 1
            self.throttler.pump()

    def fail(self) -> None:
        for waiter in self.model.waiting:
            assert isinstance(waiter, Guest)
            self.refused_later[waiter] = Reason.REVISION_FAILED
        self.model = self._make_model()
        self.counts["failures"] += 1
        self.throttler.queue.fail("it broke")

    def recover(self) -> None:
        self.throttler.recover()

    def reload(self, discipline: int, depth: int) -> None:
        """Change the discipline or the depth: waiters move to the new line in their order of arrival."""
        waiting = sorted(self.model.waiting, key=lambda waiter: waiter.arrival)
        spec = self.spec
        changed = spec.queue.discipline != DISCIPLINES[discipline]
        self.spec = replace(spec, queue=replace(spec.queue, depth=depth, discipline=DISCIPLINES[discipline]))
        self.throttler.reconfigure(self.spec)
        self.counts["reloads"] += 1
        if changed:
            self.model = self._make_model()
            for waiter in waiting:
                self.model.join(waiter)

    def pass_time(self, seconds: float) -> None:
        self.clock.pass_time(seconds)

    def turn(self) -> None:
        self.clock.turn()

    # --- judging ---

    def check(self) -> None:
        """Check everything that must be true between two events."""
        throttler, table = self.throttler, self.table
        self.counts["checks"] += 1
        waiters = throttler.queue.waiters
        if self._raised:
            self._must(all(guest.ends for guest in self._raised), "a request that raised in its grant keeps its slot")
            self._raised = []
        self._must(waiters.length == len(self.model.waiting), "the queue and the waiting requests differ")
        self._must(waiters.first() is self.model.first(), "another request is first in the queue")
        if waiters.length and table.room:
            self._must(throttler._pump_deferred, "a request waits while a pod has room")
        self._must(table.in_flight == len(throttler.leases) - self._late(), "slots and leases differ")
        self._must(len(throttler.leases) == len(self.leased), "leases and their holders differ")
        waiting = waiters.length + len(self.refused_later)
        self._must(self.process.held_requests == waiting, "held requests are miscounted")
        self._must(len(self.live) == waiting + len(self.leased), "a request is neither waiting nor served nor ended")
        if self.broken:
            raise ViolationError(self.broken[0])

    def check_deeply(self) -> None:
        """Check what needs a pass over everything."""
        self.check()
        self.table.check_invariants()
        self._must(
            self.throttler.queue.waiters.by_arrival() == sorted(self.model.waiting, key=lambda one: one.arrival),
            "order",
        )
        held: Counter[tuple[str, int]] = Counter()
        for lease in self.throttler.leases:
            waiter = lease.holder
            self._must(isinstance(waiter, Guest) and waiter.lease is lease, "a lease of another request")
            held[lease.identity, lease.generation] += 1
        for pod in self.pods():
            self._must(pod.in_flight == held[pod.identity, pod.generation], f"miscounted: {pod!r}")
        unexpected = [error for error in self.events.errors if not isinstance(error, DeliberateError)]
        self._must(not unexpected, f"errors: {unexpected}")
        self.events.errors.clear()
        if self.broken:
            raise ViolationError(self.broken[0])

    def finish(self) -> None:
        """Let everything end; nothing may remain."""
        for guest in list(self.live):
            if guest in self.live:
                self.leave(guest)
        while self.clock.turn():
            pass
        self.free_drained()
        self.check_deeply()
        self._must(not self.live and not self.throttler.leases, "somebody is left")
        self._must(self.table.in_flight == 0 and self.process.held_requests == 0, "something is left")
        self._must(self.wheel.armed == 0, "a deadline remains")
        if self.broken:
            raise ViolationError(self.broken[0])

    # --- within ---

    def _make_model(self) -> QueueModel:
        discipline = self.spec.queue.discipline
        if discipline.name == "priority":
            return PriorityModel(discipline.ageing_s)
        weights = {key.encode(): weight for key, weight in discipline.weights.items()}
        if discipline.name == "fair":
            return FairModel(weights, 5, 1024)
        if discipline.name == "priority-fair":
            return PriorityFairModel(discipline.ageing_s, weights, 5, 1024)
        return FifoModel()

    def _late(self) -> int:
        """Return the leases whose slot was freed before their release, which will therefore count as late."""
        return sum(lease.generation != lease.tracker.generation for lease in self.throttler.leases)

    def _over(self, guest: Guest, how: str) -> None:
        guest.ends += 1
        self._must(guest.ends == 1, "a waiter ended twice")
        self.live.pop(guest, None)
        self.wheel.cancel(guest)
        self.counts[f"ended: {how}"] += 1

    def _must(self, holds: bool, what: str) -> None:
        # Not raised here: within a callback the throttler would count it as a failure of the waiter.
        if not holds:
            self.broken.append(what)

    def _wheel_failed(self, error: Exception) -> None:
        self.broken.append(f"the timer wheel raised {error!r}")


FLAPS = (READY, NOT_READY, QUARANTINED, RECOVERING)
