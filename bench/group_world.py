"""A simulation of a machine with programs in a group, with the real policies and `BudgetGroup` and simulated time.

Rules
  1. There is one heap of events, and no clock is read. All randomness comes from the seed.
  2. The throttler is simulated: a queue per revision, slots of its programs, no new request for a draining program, and
     loads that are reported at once or every `report_s`.
  3. After each event the invariants are checked: the budget, and that no program with a request is stopped.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.rule import GroupRule
from activator.messages import Load

STARTING, READY, DRAINING, STOPPING, FALLING, ASLEEP, WAKING = range(7)
WANTED = frozenset({STARTING, READY, WAKING})
CRASHES_MAX = 5
BACKOFF_MAX_S = 30.0


class WorldError(AssertionError):
    """An invariant of the simulation was violated."""


class Machine(NamedTuple):
    """The behaviour of one revision's programs; times are in seconds."""

    needs: dict[str, int]
    start_s: float = 2.0
    stop_s: float = 0.0
    concurrency: int = 1
    max_scale: int = 1
    min_scale: int = 0
    idle_s: float = 60.0
    asleep: dict[str, int] | None = None
    sleep_s: float = 0.0
    wake_s: float = 0.1
    start_fails: float = 0.0  # the probability that a start fails
    crashes: float = 0.0  # the probability that a request ends its program
    sleep_fails: float = 0.0
    wake_fails: float = 0.0


class Request:
    __slots__ = ("arrival_s", "duration_s", "ended", "key", "program", "served_s")

    def __init__(self, key: str, arrival_s: float, duration_s: float) -> None:
        self.key = key
        self.arrival_s = arrival_s
        self.duration_s = duration_s
        self.served_s = -1.0
        self.ended = ""
        self.program: Program | None = None


class Program:
    __slots__ = ("asleep", "born_s", "home", "in_flight", "key", "needs", "ready_s", "state", "to_sleep")

    def __init__(self, key: str, home: str, born_s: float, machine: Machine) -> None:
        self.key = key
        self.needs = machine.needs  # in the group in which it is counted
        self.asleep = machine.asleep or {}
        self.home = home
        self.born_s = born_s
        self.state = STARTING
        self.ready_s = born_s
        self.to_sleep = False
        self.in_flight: list[Request] = []


class Revision:
    def __init__(self, machine: Machine, home: str) -> None:
        self.machine = machine
        self.home = home
        self.granted = 0
        self.programs: list[Program] = []
        self.line: deque[Request] = deque()
        self.not_before_s = 0.0
        self.failed = False
        self.crashes = 0
        self.busy_s = 0.0
        self.gone = False

    def in_flight(self) -> int:
        return sum(len(one.in_flight) for one in self.programs)


class World:
    """The simulated machine: programs, which are reported to `BudgetGroup`, and requests."""

    is_frozen = False

    def __init__(self, rng: Random, report_s: float = 0.0) -> None:
        self.now_s = 1.0
        self.rng = rng
        self.report_s = report_s
        self.revisions: dict[str, Revision] = {}
        self.groups = Groups(self, self._move, lambda: self.now_s)
        self.rules: dict[str, GroupRule] = {}
        self.most: dict[str, tuple[int, ...]] = {}  # by group: its budget, or its use when that was lowered
        self.starts = 0
        self.wakes = 0
        self.requests: list[Request] = []
        self.judge: Callable[[Request], None] = lambda request: None  # called with each request that a program gets
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._reporting: set[str] = set()
        self._tick_from_s = self._tick_every_s = self._tick_until_s = 0.0
        self._is_scheduled = False  # True if a tick is among the events

    # --- events ---

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(at_s, self.now_s), self._number, event))

    def run(self, until_s: float) -> None:
        """Process events until none are left, or until `until_s`."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            self.check()
            self._schedule_tick()

    def configure(self, machines: dict[str, tuple[Machine, str]], rules: list[GroupRule]) -> None:
        """Set the revisions by key, with their groups."""
        for key, revision in list(self.revisions.items()):
            if key not in machines and not revision.gone:
                revision.gone = True
                self._reject(revision, "removed")
        for key, (machine, home) in machines.items():
            known = self.revisions.get(key)
            if known is None:
                self.revisions[key] = Revision(machine, home)
            else:
                known.machine, known.gone = machine, False
        self.rules = {rule.name: rule for rule in rules}
        self.most = {}
        for key, (machine, home) in machines.items():
            for one in self.revisions[key].programs:
                if one.home == home:
                    one.needs, one.asleep = machine.needs, machine.asleep or {}
        self.groups.configure(rules)
        for key, revision in self.revisions.items():
            if revision.gone:
                self.groups.drop_revision(key)
                self.grant(key, 0, False)
                self.stop_asleep(key, len(revision.programs))
            else:
                self._report(key)
        for name, rule in self.rules.items():  # revisions that join with programs may exceed the budget
            self.most[name] = tuple(map(max, self.used(rule), (1,) if rule.exclusive else rule.budget))
        self.check()

    def arrive(self, key: str, duration_s: float) -> Request:
        revision = self.revisions[key]
        request = Request(key, self.now_s, duration_s)
        self.requests.append(request)
        if revision.gone or revision.failed:
            request.ended = "failed" if revision.failed else "removed"
            return request
        revision.line.append(request)
        self._pump(revision)
        self._changed(key)
        return request

    def cancel(self, request: Request) -> None:
        """Cancel a request whose client has disconnected."""
        if request.ended:
            return
        request.ended = "cancelled"
        revision = self.revisions[request.key]
        if request.program is None:
            revision.line.remove(request)
        else:
            self._end(request, request.program)
        self._changed(request.key)

    def kill(self, key: str) -> None:
        """End a program of the revision unexpectedly."""
        revision = self.revisions.get(key)
        if revision is None:
            return
        alive = [one for one in revision.programs if one.state != STOPPING]
        if alive:
            self._exit(revision, self.rng.choice(alive), crashed=True)

    # --- called by `BudgetGroup` (Programs) ---

    def counts(self, key: str, group: str) -> ProgramCounts:
        revision = self.revisions.get(key)
        if revision is None:
            return ProgramCounts()
        machine = revision.machine
        started = ready = leaving = falling = sleeping = stopping_asleep = 0
        for one in revision.programs:
            if one.home != group:
                continue
            state = one.state
            if state in WANTED:
                started += 1
                ready += state == READY
            elif state == ASLEEP:
                sleeping += 1
            elif one.to_sleep and state == STOPPING:
                stopping_asleep += 1
            else:
                leaving += 1
                falling += one.to_sleep
        may_start = self.now_s >= revision.not_before_s
        return ProgramCounts(
            started, ready, leaving, falling, sleeping, stopping_asleep, may_start, machine.start_s, machine.wake_s
        )

    def grant(self, key: str, count: int, may_sleep: bool) -> None:
        revision = self.revisions[key]
        revision.granted = count
        self._reconcile(key, revision, may_sleep)

    def stop_asleep(self, key: str, count: int) -> None:
        revision = self.revisions[key]
        for one in [one for one in revision.programs if one.state == ASLEEP][:count]:
            self._begin_stop(revision, one)

    def _move(self, key: str, group: str, anew: bool) -> None:
        revision = self.revisions[key]
        revision.home = group
        if anew:
            for one in list(revision.programs):
                if one.state in WANTED or one.state == ASLEEP:
                    self._drain(revision, one, False)
            revision.granted = 0
        else:
            for one in revision.programs:
                one.home, one.needs, one.asleep = group, revision.machine.needs, revision.machine.asleep or {}

    # --- programs ---

    def _reconcile(self, key: str, revision: Revision, may_sleep: bool) -> None:
        while True:
            running = [one for one in revision.programs if one.state in WANTED]
            missing = revision.granted - len(running)
            if missing > 0:
                asleep = [one for one in revision.programs if one.state == ASLEEP and one.home == revision.home]
                if asleep:
                    self._wake(revision, asleep[0])
                elif self.now_s >= revision.not_before_s:
                    self._start(revision)
                else:
                    return
            elif missing < 0:
                running.sort(key=lambda one: (one.state == READY, -one.born_s))
                can_sleep = may_sleep and revision.machine.asleep is not None
                self._drain(revision, running[0], can_sleep and running[0].state == READY)
            else:
                return

    def _start(self, revision: Revision) -> None:
        machine = revision.machine
        key = next(key for key, one in self.revisions.items() if one is revision)
        program = Program(key, revision.home, self.now_s, machine)
        revision.programs.append(program)
        self.starts += 1
        if self.rng.random() < machine.start_fails:
            self.at(self.now_s + machine.start_s / 2, lambda: self._if(program, STARTING, self._crash))
        else:
            self.at(self.now_s + machine.start_s, lambda: self._if(program, STARTING, self._ready))

    def _wake(self, revision: Revision, program: Program) -> None:
        program.state = WAKING
        self.wakes += 1
        fails = self.rng.random() < revision.machine.wake_fails
        then = self._crash if fails else self._ready
        self.at(self.now_s + revision.machine.wake_s, lambda: self._if(program, WAKING, then))

    def _if(self, program: Program, state: int, then: Callable[[Program], None]) -> None:
        if program.state == state:
            then(program)

    def _ready(self, program: Program) -> None:
        revision = self.revisions[program.key]
        program.state = READY
        program.ready_s = self.now_s
        revision.crashes = 0
        self._pump(revision)
        self._changed(program.key)
        self.groups.programs_changed(program.key, program.home)

    def _crash(self, program: Program) -> None:
        self._exit(self.revisions[program.key], program, crashed=True)

    def _drain(self, revision: Revision, program: Program, to_sleep: bool) -> None:
        program.to_sleep = to_sleep
        program.state = DRAINING
        if not program.in_flight:
            self._drained(revision, program)
        self.groups.programs_changed(program.key, program.home)

    def _drained(self, revision: Revision, program: Program) -> None:
        if program.to_sleep:
            program.state = FALLING
            fails = self.rng.random() < revision.machine.sleep_fails
            then = self._sleep_failed if fails else self._asleep
            self.at(self.now_s + revision.machine.sleep_s, lambda: self._if(program, FALLING, then))
        else:
            self._begin_stop(revision, program)

    def _asleep(self, program: Program) -> None:
        program.state = ASLEEP
        revision = self.revisions[program.key]
        if program.home != revision.home or revision.gone:  # belongs to another group, or was removed
            self._begin_stop(revision, program)
        self._reconcile(program.key, revision, True)  # it may be wanted again
        self.groups.programs_changed(program.key, program.home)

    def _sleep_failed(self, program: Program) -> None:
        program.to_sleep = False
        self._begin_stop(self.revisions[program.key], program)
        self.groups.programs_changed(program.key, program.home)

    def _begin_stop(self, revision: Revision, program: Program) -> None:
        if program.in_flight:
            raise WorldError(f"{program.key}: a program with {len(program.in_flight)} requests is stopped")
        program.to_sleep = program.state == ASLEEP
        program.state = STOPPING
        self.at(self.now_s + revision.machine.stop_s, lambda: self._if(program, STOPPING, self._stopped))

    def _stopped(self, program: Program) -> None:
        self._exit(self.revisions[program.key], program, crashed=False)

    def _exit(self, revision: Revision, program: Program, crashed: bool) -> None:
        key = program.key
        was_asked = program.state in {DRAINING, STOPPING, FALLING, ASLEEP}
        program.state = STOPPING
        revision.programs.remove(program)
        for request in program.in_flight:
            request.ended = "crashed"
        program.in_flight = []
        if crashed and not was_asked:
            revision.crashes += 1
            revision.not_before_s = self.now_s + min(0.1 * 2.0 ** (revision.crashes - 1), BACKOFF_MAX_S)
            if revision.crashes >= CRASHES_MAX:
                revision.failed = True
                self._reject(revision, "failed")
            self.at(revision.not_before_s, lambda: self._may_start(key))
        self._reconcile(key, revision, True)
        self._changed(key)
        self.groups.programs_changed(key, program.home)

    def _may_start(self, key: str) -> None:
        revision = self.revisions[key]
        if self.now_s < revision.not_before_s:
            return
        revision.failed = False
        self._reconcile(key, revision, True)
        self.groups.programs_changed(key, revision.home)

    # --- requests ---

    def _pump(self, revision: Revision) -> None:
        while revision.line:
            free = next(
                (one for one in revision.programs if one.state == READY and self._has_room(revision, one)), None
            )
            if free is None:
                return
            request = revision.line.popleft()
            request.program = free
            request.served_s = self.now_s
            self.judge(request)
            free.in_flight.append(request)
            program = free
            crashes = self.rng.random() < revision.machine.crashes

            def over(request: Request = request, program: Program = program, crashes: bool = crashes) -> None:
                if request.ended:
                    return
                if crashes:
                    self._crash(program)
                    return
                request.ended = "served"
                self._end(request, program)
                self._changed(request.key)

            self.at(self.now_s + request.duration_s, over)

    def _has_room(self, revision: Revision, program: Program) -> bool:
        return not revision.machine.concurrency or len(program.in_flight) < revision.machine.concurrency

    def _end(self, request: Request, program: Program) -> None:
        revision = self.revisions[request.key]
        program.in_flight.remove(request)
        if program.state == DRAINING and not program.in_flight:
            self._drained(revision, program)
        self._pump(revision)

    def _reject(self, revision: Revision, why: str) -> None:
        for request in revision.line:
            request.ended = why
        revision.line.clear()

    # --- loads, and the number of wanted programs ---

    def _changed(self, key: str) -> None:
        revision = self.revisions[key]
        carried = bool(revision.line) or any(one.in_flight for one in revision.programs)
        if carried:
            revision.busy_s = self.now_s
        if self.report_s == 0.0 or key not in self._reporting:
            self._report(key)
        if self.report_s and key not in self._reporting:
            self._reporting.add(key)
            self.at(self.now_s + self.report_s, lambda: self._report_again(key))

    def _report_again(self, key: str) -> None:
        revision = self.revisions[key]
        self._report(key)
        if revision.line or revision.in_flight():
            self.at(self.now_s + self.report_s, lambda: self._report_again(key))
        else:
            self._reporting.discard(key)

    def _report(self, key: str) -> None:
        revision = self.revisions[key]
        if revision.gone:
            return
        queued, in_flight = len(revision.line), revision.in_flight()
        carried = queued + in_flight
        self.groups.load(Load(key, in_flight, queued, 0, oldest_s=revision.line[0].arrival_s if queued else 0.0))
        machine = revision.machine
        idle = self.now_s >= revision.busy_s + machine.idle_s
        if carried:
            wanted = max(1, min(-(-carried // (machine.concurrency or 100)), machine.max_scale))
        elif idle or not revision.programs:
            wanted = 0
        else:
            wanted = 1
            self.at(revision.busy_s + machine.idle_s, lambda: self._report(key))
        self.groups.set_desired(key, max(wanted, machine.min_scale))

    def tick_every(self, every_s: float, until_s: float) -> None:
        """Schedule periodic ticks from now on, so that time alone can end turns, as in the real loop."""
        self._tick_from_s, self._tick_every_s, self._tick_until_s = self.now_s, every_s, until_s
        self._tick()

    def _tick(self) -> None:
        self._is_scheduled = False
        self.groups.tick()
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        """Schedule the next tick if it may do something; without claims it does nothing."""
        if self._is_scheduled or self.now_s >= self._tick_until_s:
            return
        if not any(group.has_claims() for group in self.groups.groups.values()):
            return
        passed = int((self.now_s - self._tick_from_s) / self._tick_every_s) + 1
        at_s = self._tick_from_s + passed * self._tick_every_s
        if at_s <= self.now_s:  # because the quotient was rounded down
            at_s += self._tick_every_s
        if at_s <= self._tick_until_s:
            self._is_scheduled = True
            self.at(at_s, self._tick)

    # --- invariants ---

    def used(self, rule: GroupRule) -> tuple[int, ...]:
        """Return the actual use of a group's programs."""
        if rule.exclusive:
            everywhere = [one for revision in self.revisions.values() for one in revision.programs]
            return (len({one.key for one in everywhere if one.home == rule.name and one.state != ASLEEP}),)
        total = dict.fromkeys(rule.resources, 0)
        for revision in self.revisions.values():
            for one in revision.programs:
                if one.home == rule.name:
                    asleep = one.state == ASLEEP or (one.to_sleep and one.state == STOPPING)
                    for name, amount in (one.asleep if asleep else one.needs).items():
                        if name in total:
                            total[name] += amount
        return tuple(total.values())

    def check(self) -> None:
        for name, rule in self.rules.items():
            used = self.used(rule)
            budget = (1,) if rule.exclusive else rule.budget
            if any(one > most for one, most in zip(used, self.most.get(name, budget))):
                raise WorldError(f"{self.now_s}: {name} uses {used} of {budget}")
            self.most[name] = tuple(map(max, budget, used))  # use above a lowered budget may only fall
