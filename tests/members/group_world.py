"""Replicas that agree on views, in one process and one time, from one seed.

The network delays, loses links, and partitions, one way as well; replicas are killed, stopped for a while, started
again, and leave. What is checked: a view that takes effect names all who live and act in it or in an earlier one; one
epoch has one view; views take effect in the order of their epochs; and when all is calm, all who live act in one view
that has all of them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from activator.data_plane.ownership.names import MemberName
from activator.members.contacts import GroupRules
from activator.members.group import Group
from activator.members.messages import GroupMessage, GroupView, Replica, decode, encode
from activator.members.numbers import seat_of, unmet, worker_number, worker_place

TICK_S = 0.05
DELAY_MAX_S = 0.02


class Process:
    """One life of a replica."""

    def __init__(self, world: GroupWorld, seat: int, number: int) -> None:
        self.world = world
        self.seat = seat
        self.number = number
        self.is_dead = False
        self.stopped_until_s = 0.0
        self.first_epoch = 0  # of the first view in effect that it was in: from then on it may have slots
        self.may_grant = True
        self.view = GroupView()
        self.epochs: list[int] = []
        self.inbox: list[Callable[[], None]] = []  # while it is stopped
        self.group = Group(
            number,
            world.rules,
            self.send,
            self.adopt,
            self.grant,
            lambda lives: None,
            self.inquire,
            self.died,
            world.now,
        )

    def begin(self) -> None:
        self.group.set_roster(set(range(self.world.seats)))
        name = MemberName(worker_number(self.number, 1), worker_place(self.seat, 0))
        self.group.set_process(f"machine {self.seat}", self.number, 1, "")
        self.group.set_data_planes((name,))
        self.tick()

    def send(self, seat: int, message: GroupMessage) -> None:
        if not isinstance(message, self.world.lost):
            self.world.send(self, seat, encode(message))

    def adopt(self, view: GroupView) -> None:
        self.world.adopted(self, view)

    def grant(self, allowed: bool) -> None:
        self.may_grant = allowed

    def now(self) -> float:
        """Return its own clock, which may drift."""
        rate, offset_s = self.world.clocks.get(self.seat, (1.0, 0.0))
        return self.world.now() * rate + offset_s

    def inquire(self, replica: Replica) -> None:
        """Ask the kernel: the machine of a replica is that of its seat."""
        if seat_of(replica.number) == self.seat:
            dead = [one for one in self.world.all if one.number == replica.number and one.is_dead]
            if dead and self.world.gives_proof:
                self.world.later(0.3, lambda: self.do(lambda: self.group.ended(replica.number)))

    def died(self) -> None:
        assert self.world.may_die, f"seat {self.seat} lives, and others take it for ended"

    def do(self, act: Callable[[], None]) -> None:
        """Now, or when it goes on."""
        if self.is_dead:
            return
        if self.world.now() < self.stopped_until_s:
            self.inbox.append(act)
        else:
            act()

    def tick(self) -> None:
        if self.is_dead:
            return
        if self.world.now() < self.stopped_until_s:
            self.world.later(self.stopped_until_s - self.world.now() + 1e-6, self.go_on)
            return
        self.group.tick()
        self.world.later(TICK_S, self.tick)

    def go_on(self) -> None:
        inbox, self.inbox = self.inbox, []
        for act in inbox:
            self.do(act)
        self.tick()


class Link:
    """Between two lives; each way in order."""

    def __init__(self, one: Process, other: Process) -> None:
        self.ends = (one, other)
        self.is_open = True
        self.due_s = [0.0, 0.0]


class GroupWorld:
    """`seats`: how many."""

    def __init__(self, seed: int, seats: int, rules: GroupRules) -> None:
        self.random = random.Random(seed)
        self.seats = seats
        self.rules = rules
        self.time_s = 1000.0
        self.events = 0
        self.processes: dict[int, Process] = {}  # the last life of each seat
        self.all: list[Process] = []
        self.views: dict[int, GroupView] = {}
        self.cut: set[tuple[int, int]] = set()  # ways that nothing gets through: from, to
        self._links: dict[frozenset[int], Link] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lives = itertools.count(1)
        self.gives_proof = True
        self.may_die = False  # somebody who is trusted is wrong
        self.lost: tuple[type, ...] = ()  # kinds of messages that do not arrive
        self.clocks: dict[int, tuple[float, float]] = {}  # by seat: the rate of its clock, and what it is ahead

    def now(self) -> float:
        return self.time_s

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.time_s + delay_s, next(self._order), act))

    def run(self, seconds: float) -> None:
        until_s = self.time_s + seconds
        while self._queue and self._queue[0][0] <= until_s:
            self.time_s, _, act = heapq.heappop(self._queue)
            self.events += 1
            act()
            self.happened()
        self.time_s = until_s

    def happened(self) -> None:
        """After each event: for those who look at more than views."""

    # --- what happens to replicas ---

    def start(self, seat: int) -> Process:
        former = self.processes.get(seat)
        assert former is None or former.is_dead
        process = Process(self, seat, unmet(seat) + next(self._lives))
        self.processes[seat] = process
        self.all.append(process)
        process.begin()
        for other in range(self.seats):
            if other != seat:
                self.later(self.random.uniform(0.0, 0.05), lambda other=other: self.dial(process, other))  # type: ignore[misc]
        return process

    def kill(self, seat: int) -> None:
        process = self.processes[seat]
        self._die(process)
        if self.gives_proof:
            self.prove(process)

    def _die(self, process: Process) -> None:
        process.is_dead = True
        for pair, link in list(self._links.items()):
            if process in link.ends:
                self.later(DELAY_MAX_S * 2.0, lambda pair=pair, link=link: self._end_same(pair, link))  # type: ignore[misc]

    def _end_same(self, pair: frozenset[int], link: Link) -> None:
        """What was sent before the end is delivered before it."""
        if self._links.get(pair) is link:
            self.end_link(pair)

    def prove(self, dead: Process) -> None:
        for process in self.processes.values():
            if not process.is_dead and self.random.random() < 0.5:
                delay_s = self.random.uniform(0.0, 0.3)
                self.later(delay_s, lambda process=process: process.do(lambda: process.group.ended(dead.number)))  # type: ignore[misc]

    def stop(self, seat: int, seconds: float) -> None:
        process = self.processes[seat]
        if not process.is_dead:
            process.stopped_until_s = max(process.stopped_until_s, self.time_s + seconds)

    def leave(self, seat: int) -> None:
        process = self.processes[seat]
        if process.is_dead:
            return

        def end() -> None:
            process.group.leave()
            self._die(process)

        process.do(end)

    # --- links ---

    def dial(self, process: Process, seat: int) -> None:
        if process.is_dead:
            return
        self.later(self.random.uniform(0.05, 0.2), lambda: self.dial(process, seat))
        other = self.processes.get(seat)
        pair = frozenset({process.seat, seat})
        if (process.seat, seat) in self.cut or (seat, process.seat) in self.cut or pair in self._links:
            return
        if self.time_s < process.stopped_until_s:
            return
        if other is None or other.is_dead:
            process.group.refused(seat)
            return
        if self.time_s < other.stopped_until_s:
            return  # who is stopped does not greet
        link = self._links[pair] = Link(process, other)
        for end, far in ((process, other), (other, process)):
            end.do(lambda end=end, far=far: end.group.linked(far.seat, far.number) if link.is_open else None)  # type: ignore[misc]

    def end_link(self, pair: frozenset[int]) -> None:
        link = self._links.pop(pair, None)
        if link is None:
            return
        link.is_open = False
        for end, far in (link.ends, link.ends[::-1]):
            end.do(lambda end=end, far=far: end.group.unlinked(far.seat))  # type: ignore[misc]

    def send(self, process: Process, seat: int, data: bytes) -> None:
        link = self._links.get(frozenset({process.seat, seat}))
        if link is None or process not in link.ends:
            return
        to = link.ends[1] if link.ends[0] is process else link.ends[0]
        direction = link.ends.index(to)
        if (process.seat, seat) in self.cut:
            return  # and all that comes after it: a cut lasts until the link has ended
        due_s = max(self.time_s + self.random.uniform(0.0, DELAY_MAX_S), link.due_s[direction])
        link.due_s[direction] = due_s

        def deliver() -> None:
            if link.is_open:
                to.do(lambda: to.group.receive(process.seat, decode(data)) if link.is_open else None)

        self.later(due_s - self.time_s, deliver)

    def partition(self, ways: set[tuple[int, int]]) -> None:
        self.cut |= ways

    def heal(self) -> None:
        """Links over which something was lost end."""
        for one, other in self.cut:
            self.end_link(frozenset({one, other}))
        self.cut.clear()

    # --- the rules ---

    def adopted(self, process: Process, view: GroupView) -> None:
        known = self.views.setdefault(view.epoch, view)
        assert known == view, f"two views of one epoch: {known} and {view}"
        assert view.epoch > process.view.epoch, "views went back"
        numbers = {replica.number for replica in view.replicas}
        assert process.number in numbers, "in a view without itself"
        process.view = view
        process.first_epoch = process.first_epoch or view.epoch
        for other in self.all:
            # Whoever acts in later views only waits for this process, which these views name.
            has_acted = 0 < other.first_epoch <= view.epoch
            if has_acted and not other.is_dead and not self.rules.releases_silent:
                named = other.number in numbers or other.seat in {seat_of(number) for number in view.unproven}
                assert named, f"seat {other.seat} lives, and view {view.epoch} of seat {process.seat} does not name it"

    def check_calm(self) -> None:
        """To be called when nothing has happened for long."""
        living = [process for process in self.processes.values() if not process.is_dead]
        views = {process.view.epoch for process in living}
        assert len(views) == 1, f"views {sorted(views)}"
        view = living[0].view
        assert {seat_of(replica.number) for replica in view.replicas} == {process.seat for process in living}
        assert {replica.number for replica in view.replicas} == {process.number for process in living}
        assert not view.unproven, view
        assert all(process.may_grant for process in living)


def storm(
    seed: int,
    rules: GroupRules | None = None,
    seats: int = 0,
    acts: int = 60,
    make: Callable[[int, int, GroupRules], GroupWorld] = GroupWorld,
) -> GroupWorld:
    """Whatever can happen, and then calm."""
    chosen = random.Random(seed)
    count = seats or chosen.randint(1, 6)
    world = make(seed, count, rules or GroupRules())
    for seat in range(count):
        if chosen.random() < 0.8:
            world.later(chosen.uniform(0.0, 2.0), lambda seat=seat: start_if_none(world, seat))  # type: ignore[misc]
    for _ in range(acts):
        world.run(chosen.expovariate(2.0))
        _act(world, chosen)
    world.heal()
    for seat in range(count):
        start_if_none(world, seat)
    world.run(35.0)  # whoever was stopped goes on
    for seat in range(count):
        start_if_none(world, seat)  # or has left then
    world.run(30.0)
    world.check_calm()
    return world


def start_if_none(world: GroupWorld, seat: int) -> None:
    process = world.processes.get(seat)
    if process is None or process.is_dead:
        world.start(seat)


def _act(world: GroupWorld, chosen: random.Random) -> None:
    seat = chosen.randrange(world.seats)
    other = chosen.randrange(world.seats)
    kind = chosen.randrange(8)
    is_there = seat in world.processes and not world.processes[seat].is_dead
    if kind <= 1:
        start_if_none(world, seat)
    elif kind == 2 and is_there:
        world.kill(seat)
    elif kind == 3 and is_there:
        world.stop(seat, chosen.choice([0.1, 0.5, 1.5, 5.0, 30.0]))
    elif kind == 4 and is_there:
        world.leave(seat)
    elif kind == 5 and seat != other:
        world.partition({(seat, other)} if chosen.random() < 0.3 else {(seat, other), (other, seat)})
    elif kind == 6:
        side = {one for one in range(world.seats) if chosen.random() < 0.5}
        rest = set(range(world.seats)) - side
        world.partition({(one, far) for one in side for far in rest} | {(far, one) for one in side for far in rest})
    elif chosen.random() < 0.5:
        world.heal()
    elif seat != other:
        world.end_link(frozenset({seat, other}))
