"""Data planes that share their loads over links which deliver when a test says so, and a control plane that is late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from activator.config.specs import RevisionSpec
from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.loads.shared_loads import SHARED_LOADS_INTERVAL_S, SharedLoads
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import TICK_S, TimingWheel
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, READY, UNLIMITED
from tests.data_plane.throttle.throttle_fakes import Heard, Request
from tests.manual_clock import ManualClock

NEXT_REPORT_S = SHARED_LOADS_INTERVAL_S + 2 * TICK_S
Effect = Callable[["Plane"], None]


class PlaneEvents(Heard):
    """As the data plane has them."""

    def __init__(self, plane: Plane) -> None:
        super().__init__()
        self.plane = plane

    def activated(self, key: str) -> None:
        self.plane.loads.activated(self.plane.throttlers[key])

    def drained(self, key: str, slot: int, generation: int) -> None:
        throttler = self.plane.throttlers.get(key)
        if throttler is not None and throttler.table.slots[slot].generation == generation:
            throttler.table.free(throttler.table.slots[slot])


class Plane:
    """One data plane. `effects` have been sent to it and not been applied."""

    def __init__(self, world: LoadsWorld, number: int) -> None:
        self.number = number
        self.world = world
        self.throttlers: dict[str, RevisionThrottler] = {}
        self.requests: list[Request] = []
        self.effects: deque[Effect] = deque()
        clock = world.clock
        self.errors: list[Exception] = []
        self.wheel = TimingWheel(clock.now, clock.call_later, self.errors.append)
        self.loads = SharedLoads(self.wheel, clock.now, self._send)

    def _send(self, peer: int, message: PodLoads) -> None:
        self.world.said += 1
        wire = self.world.wires.get((self.number, peer))
        if wire is not None:
            wire.append(msgspec.msgpack.encode(message))

    def ask(self, key: str) -> None:
        """A request comes."""
        throttler = self.throttlers.get(key)
        if throttler is not None:
            one = Request(throttler)
            one.ask(self.world.clock.now())
            if one.lease is not None:
                self.requests.append(one)
            else:
                throttler.queue.cancel(one)

    def end(self, index: int) -> None:
        """A request ends."""
        one = self.requests.pop(index % len(self.requests))
        assert one.lease is not None
        one.throttler.release(one.lease, 0.01, True)

    def report_to_control(self) -> None:
        """What `RevisionTables.loads` does."""
        for throttler in self.throttlers.values():
            if throttler.in_flight() == 0 and throttler.queue.waiters.length == 0:
                throttler.active = False

    # --- effects ---

    def set_revision(self, key: str, life: int, limit: int) -> None:
        throttler = self.throttlers.get(key)
        if throttler is None:
            spec = RevisionSpec(key=key, container_concurrency=limit)
            table = TrackerTable(create("least-connections", Rng(self.number)), 4)
            clock = self.world.clock
            throttler = RevisionThrottler(spec, table, clock.now, clock.defer, PlaneEvents(self), 256)
            throttler.common_name = f"{key}#{life}"
            self.throttlers[key] = throttler
        else:
            throttler.reconfigure(replace(throttler.spec, container_concurrency=limit))
        self.loads.revision_set(throttler)

    def drop_revision(self, key: str) -> None:
        throttler = self.throttlers.pop(key, None)
        if throttler is not None:
            self.loads.revision_dropped(throttler)
            throttler.remove()

    def place(self, key: str, identity: str) -> None:
        throttler = self.throttlers[key]
        tracker = throttler.table.add(identity, f"{identity}:80", UNLIMITED, READY)
        assert tracker is not None
        self.loads.pod_placed(throttler, tracker)

    def withdraw(self, key: str, identity: str) -> None:
        throttler = self.throttlers[key]
        tracker = throttler.table.find_identity(identity)
        if tracker is not None:
            throttler.table.drain(tracker)

    # --- what is checked ---

    def in_flight(self, name: str, identity: str) -> int:
        for throttler in self.throttlers.values():
            tracker = throttler.table.find_identity(identity)
            if throttler.common_name == name and tracker is not None and tracker.state != DRAINING:
                return int(tracker.in_flight)
        return 0


class LoadsWorld:
    """All of them."""

    def __init__(self, planes: int) -> None:
        self.clock = ManualClock()
        self.planes: dict[int, Plane] = {}
        self.wires: dict[tuple[int, int], deque[bytes]] = {}
        self.history: list[Effect] = []
        self.said = 0
        self._numbers = 0
        for _ in range(planes):
            self.start()

    def start(self) -> Plane:
        """One more, which is told all that there is."""
        self._numbers += 1
        plane = self.planes[self._numbers] = Plane(self, self._numbers)
        for effect in self.history:
            effect(plane)
        for other in list(self.planes):
            if other != plane.number:
                self.link(plane.number, other)
        return plane

    def kill(self, number: int) -> None:
        plane = self.planes.pop(number)
        plane.wheel.close()
        for other in self.planes:
            self.unlink(number, other)

    def link(self, one: int, other: int) -> None:
        for own, peer in ((one, other), (other, one)):
            self.wires[own, peer] = deque()
        for own, peer in ((one, other), (other, one)):
            self.planes[own].loads.linked(peer)

    def unlink(self, one: int, other: int) -> None:
        """With all that is under way."""
        for own, peer in ((one, other), (other, one)):
            if self.wires.pop((own, peer), None) is not None and own in self.planes:
                self.planes[own].loads.unlinked(peer)

    def apply(self, effect: Effect) -> None:
        """To all, each in its own time."""
        self.history.append(effect)
        for plane in self.planes.values():
            plane.effects.append(effect)

    def deliver(self, one: int, other: int) -> bool:
        """The next message of a link; False: there is none."""
        wire = self.wires.get((one, other))
        if not wire:
            return False
        self.planes[other].loads.receive(one, msgspec.msgpack.decode(wire.popleft(), type=PodLoads))
        return True

    def settle(self) -> None:
        """Everything that was sent arrives, and two reports follow."""
        for plane in self.planes.values():
            while plane.effects:
                plane.effects.popleft()(plane)
        for _ in range(3):
            for wire in list(self.wires):
                while self.deliver(*wire):
                    pass
            self.clock.pass_time(NEXT_REPORT_S)

    def check(self) -> None:
        """What each knows of the others is what they have."""
        for plane in self.planes.values():
            assert plane.errors == []
            for throttler in plane.throttlers.values():
                throttler.table.check_invariants()
                shared = throttler.spec.container_concurrency == 0
                for tracker in throttler.table.slots:
                    if tracker.state in {EMPTY, DRAINING}:
                        continue
                    others = [other for other in self.planes.values() if other is not plane]
                    truth = sum(other.in_flight(throttler.common_name, tracker.identity) for other in others)
                    assert tracker.elsewhere == (truth if shared else 0), f"{plane.number}: {tracker!r}, {truth}"
