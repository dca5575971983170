"""`python -m bench adaptive`: the adaptive limit beside those of Envoy and Netflix, in a simulation.

A pod shares PROCESSORS between its requests, each of which needs SERVICE_S of one. Requests come at a multiple of its
capacity, and some wait in front of the limit. The models follow the documentation and the published sources of Envoy
(`adaptive_concurrency`, gradient controller, with its defaults) and of Netflix (`concurrency-limits`, `Gradient2Limit`
in windows of 1 s, with its defaults but the bounds).

Figures of the second half of each run: the share of the pod's capacity, the mean latency at the pod as a multiple of
an idle pod's, and the range of the limit. With several controllers: the range of their shares.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, median
from typing import Final, Protocol

from activator.data_plane.throttle.adaptive_limit import AdaptiveLimit
from bench import header, results
from bench.results import Document, Result

PROCESSORS: Final = 20
SERVICE_S: Final = 0.1
CAPACITY_PER_S: Final = PROCESSORS / SERVICE_S
WAITING_MAX: Final = 50
CHANGE_S: Final = 60.0  # when the pod becomes slower
SECONDS: Final = 240.0


class Controller(Protocol):
    """A limit on the requests at a pod."""

    limit: float

    def has_room(self, in_flight: int) -> bool: ...

    def ended(self, latency_s: float, succeeded: bool, in_flight: int, now_s: float) -> None: ...


class NetflixGradient2:
    """The limit is compared with an average over some 600 windows; a lower latency lowers that soon."""

    def __init__(self, least: float, most: float) -> None:
        self.limit = 20.0
        self._bounds = least, most
        self._long_s = 0.0
        self._samples: list[float] = []
        self._peak = 0
        self._since_s = 0.0

    def has_room(self, in_flight: int) -> bool:
        return in_flight < int(self.limit)

    def ended(self, latency_s: float, succeeded: bool, in_flight: int, now_s: float) -> None:
        self._samples.append(latency_s)
        self._peak = max(self._peak, in_flight + 1)
        if now_s - self._since_s < 1.0 or len(self._samples) < 10:
            return
        short_s, peak = mean(self._samples), self._peak
        self._samples, self._peak, self._since_s = [], 0, now_s
        self._long_s = short_s if self._long_s == 0.0 else self._long_s + (short_s - self._long_s) * 2.0 / 601.0
        if self._long_s / short_s > 2.0:
            self._long_s *= 0.95
        if peak < self.limit / 2.0:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / short_s))
        self.limit = 0.8 * self.limit + 0.2 * (self.limit * gradient + 4.0)
        self.limit = min(max(self.limit, self._bounds[0]), self._bounds[1])


class EnvoyGradient:
    """Every minute three requests at a time are let in until 50 have ended; their latency is the base."""

    def __init__(self, least: float, most: float, first_s: float = 0.0) -> None:
        self.limit = 3.0
        self._bounds = least, most
        self._base_s = 0.0
        self._later = 3.0  # the limit after the measurement
        self._samples: list[float] = []
        self._measures_at_s = first_s
        self._is_measuring = True
        self._epoch_s = 0.0
        self._since_s = 0.0

    def has_room(self, in_flight: int) -> bool:
        return in_flight < int(self.limit)

    def ended(self, latency_s: float, succeeded: bool, in_flight: int, now_s: float) -> None:
        if not self._is_measuring and now_s >= self._measures_at_s:
            self._is_measuring, self._samples, self._epoch_s = True, [], now_s
            self._later, self.limit = self.limit, 3.0
        if now_s - latency_s < self._epoch_s:
            return  # sent before the measurement
        self._samples.append(latency_s)
        if self._is_measuring:
            if len(self._samples) >= 50:
                self._base_s = median(self._samples)
                self._is_measuring, self._samples, self.limit = False, [], self._later
                self._measures_at_s, self._since_s = now_s + 60.0, now_s
        elif now_s - self._since_s >= 0.1:
            gradient = max(0.5, min(2.0, 1.25 * self._base_s / median(self._samples)))
            self._samples, self._since_s = [], now_s
            self.limit = self.limit * gradient + sqrt(self.limit)
            self.limit = min(max(self.limit, self._bounds[0]), self._bounds[1])


class NoLimit:
    """As many requests as there may be."""

    limit = 1_000.0

    def has_room(self, in_flight: int) -> bool:
        return in_flight < 1_000

    def ended(self, latency_s: float, succeeded: bool, in_flight: int, now_s: float) -> None:
        pass


@dataclass
class Job:
    left_s: float  # processor time
    began_s: float
    sender: int


@dataclass
class Pod:
    """Each request gets a processor, or an equal part of all of them if there are more requests."""

    slower: float = 1.0
    now_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)

    def speed(self) -> float:
        return min(1.0, PROCESSORS / max(len(self.jobs), 1)) / self.slower

    def next_end_s(self) -> float:
        return self.now_s + min(job.left_s for job in self.jobs) / self.speed() if self.jobs else float("inf")

    def advance(self, now_s: float) -> list[Job]:
        """Return the requests that have ended."""
        done_s = (now_s - self.now_s) * self.speed()
        self.now_s = now_s
        for job in self.jobs:
            job.left_s -= done_s
        ended = [job for job in self.jobs if job.left_s <= 1e-9]
        self.jobs = [job for job in self.jobs if job.left_s > 1e-9]
        return ended


@dataclass
class Scenario:
    """A load and a change of the pod; `factor`: the load as a multiple of its initial capacity."""

    name: str
    factor: float
    slower: float = 1.0
    varies: bool = True  # the service times are distributed exponentially
    seconds: float = SECONDS
    change_s: float = CHANGE_S


@dataclass
class Outcome:
    """The second half of a run."""

    goodput: float
    latency_s: float
    limits: list[float]
    shares: list[float]  # share of the served requests, by controller


def run(limits: list[Controller], scenario: Scenario, seed: int) -> Outcome:
    """Let the controllers send an equal load to one pod."""
    chance, pod = random.Random(seed), Pod()
    half_s = scenario.seconds / 2.0
    waiting, in_flight, served = [0] * len(limits), [0] * len(limits), [0] * len(limits)
    latencies: list[float] = []
    seen: list[float] = []
    arrival_s = 0.0
    while pod.now_s < scenario.seconds:
        now_s = min(arrival_s, pod.next_end_s())
        if now_s >= scenario.change_s:
            pod.slower = scenario.slower
        for job in pod.advance(now_s):
            in_flight[job.sender] -= 1
            limits[job.sender].ended(now_s - job.began_s, True, in_flight[job.sender], now_s)
            if now_s > half_s:
                latencies.append(now_s - job.began_s)
                served[job.sender] += 1
                seen.append(limits[job.sender].limit)
        if now_s == arrival_s:
            arrival_s += chance.expovariate(CAPACITY_PER_S * scenario.factor)
            sender = chance.randrange(len(limits))
            waiting[sender] = min(waiting[sender] + 1, WAITING_MAX)
        for sender, limit in enumerate(limits):
            while waiting[sender] and limit.has_room(in_flight[sender]):
                waiting[sender] -= 1
                in_flight[sender] += 1
                work_s = chance.expovariate(1.0 / SERVICE_S) if scenario.varies else SERVICE_S
                pod.jobs.append(Job(work_s, now_s, sender))
    possible = CAPACITY_PER_S * half_s / scenario.slower
    return Outcome(len(latencies) / possible, mean(latencies), seen, [one / sum(served) for one in served])


CONTROLLERS: Final[dict[str, Callable[[int], Controller]]] = {
    "activator": lambda number: AdaptiveLimit(4, 1_000),
    "Envoy": lambda number: EnvoyGradient(3.0, 1_000.0, 7.0 * number),
    "Netflix": lambda number: NetflixGradient2(4.0, 1_000.0),
    "no limit": lambda number: NoLimit(),
}
SCENARIOS: Final = (
    Scenario("3 times the capacity", 3.0),
    Scenario("3 times, equal requests", 3.0, varies=False),
    Scenario("the pod becomes 3 times slower", 3.0, slower=3.0),
    Scenario("0.8 of the capacity", 0.8),
    Scenario("3 times, by two controllers", 3.0),
)


def report(json_path: str | None) -> int:
    """Run `python -m bench adaptive`."""
    head = header.collect([])
    rows, measured = [], []
    for scenario in SCENARIOS:
        count = 2 if "two" in scenario.name else 1
        for name, make in CONTROLLERS.items():
            found = run([make(number) for number in range(count)], scenario, 1)
            latency = found.latency_s / (SERVICE_S * scenario.slower)
            limits = f"{min(found.limits):.0f} to {max(found.limits):.0f}"
            shares = f"{100 * min(found.shares):.0f} to {100 * max(found.shares):.0f} %" if count > 1 else ""
            rows.append([
                f"{scenario.name}: {name}", results.figure(found.goodput), results.figure(latency), limits, shares
            ])  # fmt: skip
            for figure, value, lower in (("goodput", found.goodput, False), ("latency", latency, True)):
                measured.append(Result(f"adaptive.{figure}.{name}", value, "x", lower, {"scenario": scenario.name}))
    print(results.table(["load: controller", "goodput", "latency", "limit", "shares"], rows))
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
