"""The adaptive limit in front of a pod that shares its processors between requests, and at a throttler."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from activator.config.specs import AdaptiveSpec, QueueSpec, RevisionSpec
from activator.data_plane.throttle.adaptive_limit import AdaptiveLimit
from tests.data_plane.throttle.test_throttle_bounds import HEALTH, Asking, Room

PROCESSORS = 20
SERVICE_S = 0.1
CAPACITY_PER_S = PROCESSORS / SERVICE_S
SECONDS = 30.0


@dataclass
class Job:
    left_s: float  # of a processor's time
    began_s: float


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
class Outcome:
    """The second half of a run."""

    goodput: float  # share of the capacity, of the pod as it was then
    latency_s: float
    limits: list[float]


def run(limit: AdaptiveLimit, factor: float, seed: int, slower: float = 1.0, varies: bool = True) -> Outcome:
    """Send requests at `factor` times the capacity, of which 50 wait at most; the pod becomes slower after 10 s."""
    chance, pod = random.Random(seed), Pod()
    waiting, latencies, limits = 0, [], []
    arrival_s = 0.0
    while pod.now_s < SECONDS:
        now_s = min(arrival_s, pod.next_end_s())
        if now_s >= 10.0:
            pod.slower = slower
        for job in pod.advance(now_s):
            limit.ended(now_s - job.began_s, True, len(pod.jobs), now_s)
            if now_s > SECONDS / 2:
                latencies.append(now_s - job.began_s)
                limits.append(limit.limit)
        if now_s == arrival_s:
            arrival_s += chance.expovariate(CAPACITY_PER_S * factor)
            waiting = min(waiting + 1, 50)
        while waiting and limit.has_room(len(pod.jobs)):
            waiting -= 1
            pod.jobs.append(Job(chance.expovariate(1.0 / SERVICE_S) if varies else SERVICE_S, now_s))
    capacity = CAPACITY_PER_S * SECONDS / 2 / slower
    return Outcome(len(latencies) / capacity, sum(latencies) / len(latencies), limits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("varies", [False, True])
def test_an_overloaded_pod_gets_what_it_can_do_and_stays_quick(seed: int, varies: bool) -> None:
    found = run(AdaptiveLimit(4, 1_000), 3.0, seed, varies=varies)
    assert found.goodput > 0.9
    assert found.latency_s < 2.0 * SERVICE_S
    assert max(found.limits) < 3 * PROCESSORS


@pytest.mark.parametrize("seed", range(3))
def test_a_pod_that_becomes_slower_is_not_starved(seed: int) -> None:
    """The latency of a database behind it, for example: fewer requests would not make it quicker."""
    found = run(AdaptiveLimit(4, 1_000), 3.0, seed, slower=3.0)
    assert found.goodput > 0.85
    assert found.latency_s < 2.0 * 3.0 * SERVICE_S


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_that_is_not_used_does_not_grow(seed: int) -> None:
    found = run(AdaptiveLimit(4, 1_000), 0.3, seed)
    assert found.goodput > 0.25
    assert max(found.limits) < 2 * PROCESSORS


def test_without_samples_nothing_changes_and_the_bounds_hold() -> None:
    limit = AdaptiveLimit(4, 10)
    assert (limit.has_room(3), limit.has_room(4)) == (True, False)
    now_s = 0.0
    for _ in range(1_000):
        now_s += 0.1
        limit.ended(0.05, True, 20, now_s)
    assert limit.limit == 10
    limit.configure(2, 6)
    assert limit.limit == 6
    for _ in range(1_000):
        now_s += 0.1
        limit.ended(now_s, True, 20, now_s)
    assert limit.limit >= 2


def test_quick_failures_show_nothing_and_slow_ones_count() -> None:
    limit = AdaptiveLimit(4, 1_000)
    now_s = 0.0
    for _ in range(100):
        now_s += 0.01
        limit.ended(0.1, True, 10, now_s)
    base_s, grown = limit.base_s, limit.limit
    for _ in range(1_000):
        now_s += 0.01
        limit.ended(0.001, False, 10, now_s)
        limit.ended(0.0, True, 10, now_s)
    assert (limit.base_s, limit.limit) == (base_s, grown)
    for _ in range(100):
        now_s += 0.01
        limit.ended(5.0, False, 10, now_s)
    assert limit.limit < grown


# --- at a throttler ---


def adaptive(least: int, **queue: object) -> Room:
    room = Room(queue=QueueSpec(adaptive=AdaptiveSpec(least, 1_000), **queue))  # type: ignore[arg-type]
    room.pod(limit=1_000)
    return room


def test_a_request_waits_at_the_limit_although_a_pod_has_room() -> None:
    room = adaptive(2, rules=(HEALTH,))
    first, second, third, fourth = [room.ask() for _ in range(4)]
    assert [one.ends for one in (first, second, third, fourth)] == [["granted"], ["granted"], [], []]
    assert not room.throttler.is_stalled()
    assert room.ask("/healthz").ends == ["granted"], "exempted requests pass"
    second.release()
    assert third.ends == [], "the exempted one counts"
    first.release()
    assert (third.ends, fourth.ends) == (["granted"], [])


def test_a_limit_that_grows_lets_several_in_at_once() -> None:
    room = adaptive(4)
    line: list[Asking] = []
    for _ in range(400):
        line.append(room.ask())
        holders = [one for one in line if one.lease is not None]
        room.clock.pass_time(0.05)
        lease = holders[0].lease
        assert lease is not None
        holders[0].lease = None
        room.throttler.release(lease, 0.05, True)
        assert not room.throttler.is_stalled()
        assert room.table.in_flight <= int(room.throttler.adaptive.limit if room.throttler.adaptive else 0)


def test_a_reload_ends_it() -> None:
    room = adaptive(1)
    first, second = room.ask(), room.ask()
    room.throttler.reconfigure(RevisionSpec(key=room.throttler.key))
    room.throttler.pump()
    assert (first.ends, second.ends) == (["granted"], ["granted"])
