"""The cost of data planes that learn each other's loads late, simulated with the real tables and policies.

Rules
  1. Requests of one revision without a limit reach data planes at random, as the kernel distributes connections. Each
     data plane has its own table with all pods; each pod serves one request at a time, so that a request waits there
     for all earlier ones of any data plane. One pod in SLOW_EVERY takes SLOW_FACTOR times as long.
  2. Arrivals are Poisson, service times exponential, at LOAD of the pods' capacity. Every `interval` each data plane
     reports how many of its requests are at each pod (`TrackerTable.set_elsewhere` at the others), each at another
     phase. 0: at once, which equals one data plane with full knowledge except for the order of ties; never: no reports.
  3. Every row has the same requests, in the same order and with the same service times.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import Final, NamedTuple

from bench import header, results
from bench.results import Document, Result, figure
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY, UNLIMITED, PodTracker

PODS: Final = 20
LOAD: Final = 0.8
SLOW_EVERY: Final = 10
SLOW_FACTOR: Final = 4.0
WARM_UP_SHARE: Final = 0.1  # share of requests at the start that are not measured
POLICIES: Final = ("least-connections", "choice-of-2")
PLANES: Final = (2, 4)
SERVICE_S: Final = (0.01, 0.1, 1.0)  # mean service times
NEVER: Final = float("inf")
INTERVALS_S: Final = (0.0, 0.05, 0.1, NEVER)


class Outcome(NamedTuple):
    """The result of one row: how long requests waited at their pods, in mean service times."""

    mean: float
    p99: float


class Work(NamedTuple):
    """One request: seconds after the one before, its amount of work, and the place where it arrives (0 … 1)."""

    after_s: float
    work_s: float
    place: float


def make_work(requests: int, service_s: float, seed: int) -> list[Work]:
    rng = random.Random(seed)
    slow = PODS // SLOW_EVERY
    rate = LOAD * (PODS - slow + slow / SLOW_FACTOR) / service_s
    return [Work(rng.expovariate(rate), rng.expovariate(1.0 / service_s), rng.random()) for _ in range(requests)]


class Pod:
    def __init__(self, number: int) -> None:
        self.factor = SLOW_FACTOR if number % SLOW_EVERY == 0 else 1.0
        self.free_s = 0.0


class Simulation:
    """The simulation of one row."""

    def __init__(self, policy: str, planes: int, interval_s: float) -> None:
        self.tables = [_table(policy, plane) for plane in range(planes)]
        self.waits: list[float] = []
        self._interval_s = interval_s
        self._reported = [[0] * PODS for _ in range(planes)]
        self._pods = [Pod(number) for number in range(PODS)]
        self._events: list[tuple[float, int, int, PodTracker | None]] = []  # time, order, plane, pod of an end
        self._order = 0
        if 0.0 < interval_s < NEVER and planes > 1:
            for plane in range(planes):
                self._plan(interval_s * plane / planes, plane, None)

    def run(self, work: list[Work]) -> None:
        now_s = 0.0
        for one in work:
            now_s += one.after_s
            while self._events and self._events[0][0] <= now_s:
                self._happens(*heappop(self._events))
            self._arrives(now_s, int(one.place * len(self.tables)), one.work_s)

    def _arrives(self, now_s: float, plane: int, work_s: float) -> None:
        tracker = self.tables[plane].pick(0, now_s)
        assert tracker is not None, "pods without a limit have room"
        self.tables[plane].reserve(tracker)
        self._changed(plane, tracker.slot)
        pod = self._pods[tracker.slot]
        begins_s = max(pod.free_s, now_s)
        pod.free_s = begins_s + work_s * pod.factor
        self.waits.append(begins_s - now_s)
        self._plan(pod.free_s, plane, tracker)

    def _happens(self, now_s: float, order: int, plane: int, ended: PodTracker | None) -> None:
        if ended is not None:
            self.tables[plane].release(ended, ended.generation, 0.0)
            self._changed(plane, ended.slot)
            return
        for slot in range(PODS):
            self._say(plane, slot)
        self._plan(now_s + self._interval_s, plane, None)

    def _plan(self, at_s: float, plane: int, ends: PodTracker | None) -> None:
        self._order += 1
        heappush(self._events, (at_s, self._order, plane, ends))

    def _changed(self, plane: int, slot: int) -> None:
        if self._interval_s == 0.0:
            self._say(plane, slot)

    def _say(self, plane: int, slot: int) -> None:
        count = int(self.tables[plane].slots[slot].in_flight)
        change = count - self._reported[plane][slot]
        if change == 0:
            return
        self._reported[plane][slot] = count
        for other, table in enumerate(self.tables):
            if other != plane:
                tracker = table.slots[slot]
                table.set_elsewhere(tracker, int(tracker.elsewhere) + change)


def _table(policy: str, plane: int) -> TrackerTable:
    table = TrackerTable(create(policy, Rng(plane + 1)), PODS)
    for number in range(PODS):
        table.add(f"pod-{number}", f"10.0.0.{number}:8012", UNLIMITED, READY)
    return table


def simulate(policy: str, planes: int, interval_s: float, work: list[Work], service_s: float) -> Outcome:
    """Simulate one row."""
    simulation = Simulation(policy, planes, interval_s)
    simulation.run(work)
    waits = sorted(simulation.waits[int(len(work) * WARM_UP_SHARE) :])
    return Outcome(sum(waits) / len(waits) / service_s, waits[int(len(waits) * 0.99)] / service_s)


def run(requests: int, json_path: str | None) -> int:
    """Run `python -m bench stale-loads`."""
    head = header.collect([])
    print(header.one_line(head))
    found: list[Result] = []
    rows: list[list[str]] = []
    for policy in POLICIES:
        for service_s in SERVICE_S:
            work = make_work(requests, service_s, 1)
            alone = simulate(policy, 1, NEVER, work, service_s)
            for planes in PLANES:
                row = [policy, f"{service_s * 1e3:g} ms", str(planes), _shown(alone)]
                for interval_s in INTERVALS_S:
                    outcome = simulate(policy, planes, interval_s, work, service_s)
                    row.append(_shown(outcome))
                    found += _results(outcome, policy, service_s, planes, interval_s)
                rows.append(row)
            found += _results(alone, policy, service_s, 1, NEVER)
    print("\nwaits at the pods in mean service times: mean, p99\n")
    columns = [_every(interval_s) for interval_s in INTERVALS_S]
    print(results.table(["policy", "service", "data planes", "one data plane", *columns], rows))
    if json_path is not None:
        results.write(json_path, Document(head, found))
    return 0


def _every(interval_s: float) -> str:
    return "no reports" if interval_s == NEVER else "at once" if interval_s == 0.0 else f"{interval_s * 1e3:g} ms"


def _shown(outcome: Outcome) -> str:
    return f"{figure(outcome.mean, 2)}, {figure(outcome.p99, 1)}"


def _results(outcome: Outcome, policy: str, service_s: float, planes: int, interval_s: float) -> list[Result]:
    named: dict[str, results.Value] = {
        "policy": policy,
        "service_ms": service_s * 1e3,
        "data_planes": planes,
        "reports": _every(interval_s),
    }
    return [
        Result("stale_loads.wait.mean", outcome.mean, "service times", True, named),
        Result("stale_loads.wait.p99", outcome.p99, "service times", True, named),
    ]
