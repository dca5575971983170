"""Five members as one throttler, at limits of 1 and 3: what is sent to pods, who fails, and how long anybody waits.

The members are worker processes of one activator, or replicas. They are killed and stopped one after the other, two
revisions are under a load that is always more than their pods can take, and one process sees clients and pods
(`watched_load.py`). The parts of a run, each with what must hold in it:

  quiet    nothing fails: no request waits for longer than IDLE_S while a slot is free
  kills    members are killed and replaced: nor for longer than ORPHANED_S
  storm    they are stopped as well, for 0.1 to 30 s; then requests may wait for the one that stands still
  quiet    as in the beginning

and in all of them: no pod has more than its limit, and no request fails but those that a killed member had.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.load import limited
from tests.e2e.running import Activator, configured, eventually, is_dead
from tests.e2e.test_e2e_members import Replicas
from tests.e2e.test_e2e_workers import pids
from tests.e2e.watched_load import Clients, Figures, Pods, WatchedLoad

MEMBERS: Final = 5
PODS: Final = ((4, 1), (2, 3))  # of each revision: how many, and the limit
HOSTS: Final = ("a.test", "b.test")
CLIENTS: Final = 30  # of each revision: more than its slots, at each time
TAKES_S: Final = 0.0005  # a request, at its pod
QUIET_TAKES_S: Final = 0.01
IDLE_S: Final = 0.05
ORPHANED_S: Final = 1.0
WORKER_ORPHANED_S: Final = 0.1
NOTICED_S: Final = 2.0  # in which a client has seen the end of its connection, on a busy machine
PATIENCE_S: Final = 90.0  # more than the longest stop

MILLION: Final = int(os.environ.get("E2E_REQUESTS", "1000000"))


class Members(Protocol):
    """Of either kind."""

    addresses: list[str]  # to which clients connect

    def kill(self, place: int) -> None:
        """At once; another one takes its place."""

    def stop(self, place: int) -> None: ...

    def go_on(self, place: int) -> None: ...

    def owner(self, name: str) -> int:
        """The place of the one that grants the slots of this revision."""

    def wait_whole(self) -> None:
        """Until all are there, and all know it."""

    def may_be_cut(self, at_s: float, address: int) -> bool:
        """A connection to this address was cut then."""

    def may_be_refused(self, at_s: float, address: int) -> bool: ...


class Workers:
    """Of one activator, behind one address. Their parent kills one that stands still for `limits.worker_stall`."""

    def __init__(self, activator: Activator) -> None:
        self._activator = activator
        self._stopped: dict[int, tuple[int, float]] = {}
        self._ended: list[tuple[float, float]] = []  # between these times
        activator.may_log_errors = True
        self.addresses = [activator.address]

    def kill(self, place: int) -> None:
        pid = self._pid(place)
        if pid:
            began_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            self._ended.append((began_s, time.monotonic()))

    def stop(self, place: int) -> None:
        pid = self._pid(place)
        if pid:
            self._stopped[place] = (pid, time.monotonic())
            os.kill(pid, signal.SIGSTOP)

    def go_on(self, place: int) -> None:
        pid, since_s = self._stopped.pop(place, (0, 0.0))
        if pid and is_dead(pid):
            self._ended.append((since_s, time.monotonic()))
        elif pid:
            os.kill(pid, signal.SIGCONT)

    def owner(self, name: str) -> int:
        return next(place for place in range(MEMBERS) if self._owns(place, name))

    def _owns(self, place: int, name: str) -> bool:
        shown = json.loads(self._activator.ask(f"/debug/revisions?worker={place}")[2])["revisions"]
        return any(one["name"] == name and one["owner"] for one in shown)

    def wait_whole(self) -> None:
        pids(self._activator, PATIENCE_S)  # more than the backoff of one that was killed again and again

    def may_be_cut(self, at_s: float, address: int) -> bool:
        return any(since_s <= at_s <= until_s + NOTICED_S for since_s, until_s in self._ended)

    def may_be_refused(self, at_s: float, address: int) -> bool:
        return False  # their parent keeps the sockets open

    def _pid(self, place: int) -> int:
        """0: it has ended, and the next one is yet to come."""
        pid: int = json.loads(self._activator.ask("/debug/revisions")[2])["workers"][place]["pid"]
        return pid


class ReplicaMembers:
    """Each at an address of its own."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._away: dict[int, list[tuple[float, float]]] = {place: [] for place in range(MEMBERS)}
        self.addresses = replicas.served

    def kill(self, place: int) -> None:
        began_s = time.monotonic()
        self._replicas.kill(place)
        self._replicas.start(place)
        self._away[place].append((began_s, time.monotonic()))

    def stop(self, place: int) -> None:
        self._replicas.running[place].signal(signal.SIGSTOP)

    def go_on(self, place: int) -> None:
        self._replicas.running[place].signal(signal.SIGCONT)

    def owner(self, name: str) -> int:
        return self._replicas.owner(name)

    def wait_whole(self) -> None:
        self._replicas.wait_together()

    def may_be_cut(self, at_s: float, address: int) -> bool:
        return any(since_s <= at_s <= until_s + NOTICED_S for since_s, until_s in self._away[address])

    def may_be_refused(self, at_s: float, address: int) -> bool:
        return self.may_be_cut(at_s, address)


Start = Callable[[WatchedLoad, int], Members]


@pytest.fixture(params=["workers", pytest.param("replicas", marks=pytest.mark.deep)])
def start(request: pytest.FixtureRequest, run_activator: RunActivator, tmp_path: Path) -> Start:
    """`start(load, count)`: so many members of one kind, that send to the pods of the load."""

    def workers(load: WatchedLoad, count: int) -> Members:
        return Workers(run_activator(configured(revisions(load), workers=count)))

    def replicas(load: WatchedLoad, count: int) -> Members:
        folder = tmp_path / f"group of {count}"
        folder.mkdir()
        group = Replicas(run_activator, folder, count, revisions(load))
        group.start_all()
        return ReplicaMembers(group)

    return workers if request.param == "workers" else replicas


def revisions(load: WatchedLoad) -> list[dict[str, Any]]:
    queue = {"timeout": "120s", "depth": 1_000}
    return [
        limited(addresses, limit, name, hosts=[name], queue=queue)
        for name, addresses, (_, limit) in zip(HOSTS, load.addresses, PODS, strict=True)
    ]


def pods(takes_s: float) -> list[Pods]:
    return [Pods(count, limit, takes_s) for count, limit in PODS]


def begin(load: WatchedLoad, members: Members) -> None:
    load.begin([Clients(members.addresses, CLIENTS, host) for host in HOSTS])


class Run:
    """Parts of one run, and what must hold in each."""

    def __init__(self, load: WatchedLoad, members: Members, seed: int) -> None:
        self.load = load
        self.members = members
        self._chance = random.Random(seed)
        self._figures: list[Figures] = []
        self._problems: list[str] = []
        self.kills = self.stops = 0

    def part(self, name: str, idle_s: float, do: Callable[[], object]) -> None:
        """It lasts as long as this."""
        do()
        for host, one in zip(HOSTS, self.load.phase(), strict=True):
            self._figures.append(one)
            print(
                f"{name}, {host}: {one.good:,} requests in {one.seconds:.1f} s, most at a pod {one.most}; waits "
                f"{one.p50_wait_s * 1000:.1f} ms (p50), {one.p99_wait_s * 1000:.1f} (p99), {one.longest_wait_s:.2f} s "
                f"(longest); a slot was free for {one.idle_s * 1000:.1f} ms while one waited, and this process was "
                f"late by {one.late_s * 1000:.1f} ms; cut {len(one.cut)}, refused {len(one.refused)}",
                flush=True,
            )
            if one.idle_s > idle_s + one.late_s:
                self._problems.append(f"{name}, {host}: a request waited for {one.idle_s:.3f} s while a slot was free")

    def quiet(self, seconds: float) -> None:
        """The pods are what is slow, not this machine."""
        self.load.takes(QUIET_TAKES_S)
        time.sleep(seconds)
        self.load.takes(TAKES_S)

    def disturb(self, requests: int, stop_share: float, longest_stop_s: float = 30.0) -> None:
        """Until so many were answered, and a few faults at least: kill one after the other, or stop it for a while, one
        at a time.
        """
        chance, members = self._chance, self.members
        stopped, until_s = -1, 0.0
        kills, stops = self.kills + 3, self.stops + (stop_share > 0.0)
        while self.load.good() < requests or stopped >= 0 or self.kills < kills or self.stops < stops:
            time.sleep(min(chance.uniform(0.3, 3.0), requests / 2_000))
            place = chance.randrange(MEMBERS)
            if stopped >= 0 and time.monotonic() >= until_s:
                members.go_on(stopped)
                stopped = -1
            elif stopped < 0 and chance.random() < stop_share:
                members.stop(place)
                stopped, until_s = place, time.monotonic() + 0.1 * (10.0 * longest_stop_s) ** chance.random()
                self.stops += 1
            elif place != stopped:
                members.kill(place)
                self.kills += 1

    def judge(self) -> None:
        """Once the load has ended."""
        self._figures += self.load.end()
        for number, one in enumerate(self._figures):
            assert (one.overshoots, one.other) == (0, [])
            assert one.most <= PODS[number % len(PODS)][1]
            assert one.longest_wait_s < PATIENCE_S, "nobody was forgotten"
            assert [cut for cut in one.cut if not self.members.may_be_cut(*cut)] == []
            assert [refused for refused in one.refused if not self.members.may_be_refused(*refused)] == []
        good = sum(one.good for one in self._figures)
        cut = sum(len(one.cut) for one in self._figures)
        print(f"{good:,} requests, {self.kills} kills, {self.stops} stops, {cut} requests of killed members")
        assert cut <= (self.kills + self.stops) * CLIENTS * len(PODS)  # of workers, those that stand still are killed
        assert self._problems == []


def test_limits_hold_and_nobody_fails_while_members_die_and_stand_still(start: Start) -> None:
    """A slice of the test of a million."""
    with WatchedLoad(pods(0.002)) as load:
        members = start(load, MEMBERS)
        run = Run(load, members, 16)
        begin(load, members)
        run.part("quiet", ORPHANED_S, lambda: eventually(lambda: load.good() > 500))
        run.part("storm", PATIENCE_S, lambda: run.disturb(2_500, 0.3, longest_stop_s=1.0))
        members.wait_whole()
        run.part("quiet", PATIENCE_S, lambda: eventually(lambda: load.good() > 500))
        run.judge()


@pytest.mark.deep
def test_a_million_requests_while_members_die_and_stand_still(start: Start) -> None:
    with WatchedLoad(pods(TAKES_S)) as load:
        members = start(load, MEMBERS)
        run = Run(load, members, 1_000_000)
        begin(load, members)
        run.part("begins", PATIENCE_S, lambda: eventually(lambda: load.good() > 1_000))
        run.part("quiet", IDLE_S, lambda: run.quiet(10.0))
        run.part("kills", ORPHANED_S, lambda: run.disturb(MILLION // 10, 0.0))
        run.part("storm", PATIENCE_S, lambda: run.disturb(MILLION - MILLION // 10, 0.15))
        members.wait_whole()
        run.part("calms down", PATIENCE_S, lambda: run.quiet(2.0))
        run.part("quiet", IDLE_S, lambda: run.quiet(10.0))
        run.judge()


@pytest.mark.deep
def test_a_request_waits_as_long_as_with_one_member(start: Start) -> None:
    """The same load on one member and on five, in turns; of each the best of several, since others use the machine."""
    takes_s, rounds, seconds = 0.02, 5, 6.0
    p99_s: dict[int, list[list[float]]] = {1: [], MEMBERS: []}
    with WatchedLoad(pods(takes_s)) as of_one, WatchedLoad(pods(takes_s)) as of_all:
        ways = {1: (of_one, start(of_one, 1)), MEMBERS: (of_all, start(of_all, MEMBERS))}
        for count in [1, MEMBERS] * rounds:
            load, members = ways[count]
            begin(load, members)
            time.sleep(1.0)
            load.phase()
            time.sleep(seconds)
            p99_s[count].append([one.p99_wait_s for one in load.phase()])
            load.end()
    for number, (_, limit) in enumerate(PODS):
        one, all_s = ([waits[number] for waits in p99_s[count]] for count in (1, MEMBERS))
        ratio = min(all_s) / min(one)
        shown = [[f"{wait_s * 1000:.1f}" for wait_s in waits_s] for waits_s in (one, all_s)]
        print(f"limit {limit}: p99 of waits in ms: one member {shown[0]}, {MEMBERS} members {shown[1]}: {ratio:.3f}")
        assert ratio <= 1.1


@pytest.mark.deep
def test_an_orphaned_revision_is_granted_again_at_once(start: Start, request: pytest.FixtureRequest) -> None:
    """Its owner is killed, again and again: how long until a slot that is free is used by a request that waits?"""
    bound_s = WORKER_ORPHANED_S if "workers" in request.node.name else ORPHANED_S
    with WatchedLoad(pods(0.01)) as load:
        members = start(load, MEMBERS)
        begin(load, members)
        took_s = []
        for number in range(8):  # a worker of one place that ends again and again is replaced later
            members.wait_whole()
            load.phase()
            members.kill(members.owner(HOSTS[number % 2]))
            eventually(lambda: load.good() > 300)
            figures = load.phase()[number % 2]
            took_s.append(max(figures.idle_s - figures.late_s, 0.0))
        load.end()
    shown = [f"{one_s * 1000:.0f}" for one_s in sorted(took_s)]
    print(f"granted again after ms: {shown}")
    assert statistics.median(took_s) <= bound_s
    assert max(took_s) <= ORPHANED_S
