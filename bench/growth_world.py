"""A state worker and a data plane connected by calls, without sockets, for the cases of bench/growth_cases.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from activator.config.specs import BalancingSpec, HealthSpec, RevisionSpec
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.tables.audit import Auditor
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.messages import Change, Effect, ObservedPod, PodStatus, RevisionBroken, RevisionSet, SlotDrained
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason
from bench.growth import Loop
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.slots import Trim
from lb.tracker import PodTracker

KEY = "ns/rev"


class Holder(Waiter):
    """A request at a pod that releases its slot on command."""

    def __init__(self, throttler: RevisionThrottler) -> None:
        super().__init__()
        self._throttler = throttler
        self.lease: Lease | None = None

    def granted(self, lease: Lease) -> None:
        self.lease = lease

    def refused(self, reason: Reason, detail: str) -> None:
        pass

    def revoked(self, reason: Reason, detail: str) -> None:
        lease = self.lease
        assert lease is not None
        self.lease = None
        self._throttler.release(lease, 0.0, False)


class Events(SlotEvents):
    """Slot events that are passed to the worker, as in plane.py."""

    def __init__(self, world: World) -> None:
        self._world = world

    def activated(self, key: str) -> None:
        self._world.tables.activated(key)

    def queue_formed(self, key: str) -> None:
        pass

    def drained(self, key: str, slot: int, generation: int) -> None:
        self._world.worker.submit(SlotDrained(key, slot, generation))


class Hooks(TableHooks):
    """Table hooks that are passed to the worker only."""

    def __init__(self, world: World) -> None:
        self._world = world

    def make_policy(self, name: str) -> Policy:
        return create(name, Rng(1))

    def revision_set(self, throttler: RevisionThrottler) -> None:
        pass

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        tracker.attachment = self

    def pod_withdrawn(self, attachment: object) -> None:
        pass

    def pod_drained(self, key: str, identity: str) -> None:
        self._world.drained += 1

    def drain_expired(self, key: str, slot: int, generation: int) -> None:
        self._world.worker.submit(SlotDrained(key, slot, generation, forced=True))

    def trimmed(self, key: str, trim: Trim) -> None:
        pass

    def failed(self, effect: object, error: Exception) -> None:
        raise error

    def broken(self, key: str, cause: str, kind: str) -> None:
        self._world.worker.submit(RevisionBroken(key, cause, kind))


class World:
    """The worker and the data plane; `settle` runs all pending work, and `errors` must remain empty."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.errors: list[Exception] = []
        self.drained = 0
        self.found: list[Change] = []  # by the auditor
        self.wheel = TimingWheel(self.loop.now, self.loop.call_later, self.errors.append)
        self.tables = RevisionTables(
            self.loop.now, self.wheel, self.loop.defer, Events(self), Hooks(self), HeldBudget()
        )
        self.auditor = Auditor(self.tables, self.wheel, self.loop.now, self.found.append, self.loop.defer)
        # It runs on a real clock, which ends a batch.
        self.worker = StateWorker(
            lambda: self.loop.now() + time.thread_time(), self._apply, lambda orders: None, lambda *dirty: None
        )
        self.applied: Callable[[Effect], None] | None = None  # a source that receives effects

    def _apply(self, effects: list[Effect]) -> None:
        self.tables.apply(effects)
        if self.applied is not None:
            for effect in effects:
                self.applied(effect)

    def do(self, changes: Iterable[Change]) -> None:
        """Apply each change on its own, like changes that are far apart in time."""
        worker = self.worker
        for change in changes:
            worker.submit(change)
            worker.turn()

    def settle(self) -> None:
        while self.worker.turn():
            pass
        self.loop.settle()
        assert not self.errors, self.errors
        assert not self.worker.supervision.panics_total

    def throttler(self, key: str = KEY) -> RevisionThrottler:
        return self.tables.throttlers[key]

    def take_every_slot(self, key: str = KEY) -> None:
        """Send one request for each free slot."""
        throttler = self.throttler(key)
        while throttler.table.room:
            holder = Holder(throttler)
            lease = throttler.try_acquire(holder, self.loop.now())
            assert lease is not None
            holder.granted(lease)

    def turn_worker(self) -> None:
        """Run the worker, with one turn of the loop per batch, as long as there is work."""
        if self.worker.turn():
            self.loop.defer(self.turn_worker)


def seen(number: int, status: PodStatus = PodStatus.READY, key: str = KEY) -> ObservedPod:
    return ObservedPod(
        key, "list", f"pod-{number}", f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}:80", status
    )


def with_pods(size: int, status: PodStatus = PodStatus.READY, health: HealthSpec | None = None) -> World:
    """Return a world with one revision of `size` pods of concurrency 1."""
    world = World()
    balancing = BalancingSpec(policy="round-robin", max_scale=size)
    spec = RevisionSpec(key=KEY, container_concurrency=1, balancing=balancing, health=health or HealthSpec())
    world.worker.submit(RevisionSet(spec))
    for number in range(size):
        world.worker.submit(seen(number, status))
    world.settle()
    assert world.throttler().table.used == size
    return world
