"""The adaptive limit in front of a pod that shares its processors between requests, and at a throttler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from activator.config.specs import AdaptiveSpec, QueueSpec, RevisionSpec
from activator.data_plane.throttle.adaptive_limit import AdaptiveLimit
from bench.adaptive import PROCESSORS, SERVICE_S, Scenario, run
from tests.data_plane.throttle.test_throttle_bounds import HEALTH, Asking, Room

OVERLOAD = Scenario("", 3.0, seconds=30.0, change_s=10.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("varies", [False, True])
def test_an_overloaded_pod_gets_what_it_can_do_and_stays_quick(seed: int, varies: bool) -> None:
    found = run([AdaptiveLimit(4, 1_000)], replace(OVERLOAD, varies=varies), seed)
    assert found.goodput > 0.9
    assert found.latency_s < 2.2 * SERVICE_S
    assert max(found.limits) < 3 * PROCESSORS


@pytest.mark.parametrize("seed", range(3))
def test_a_pod_that_becomes_slower_is_not_starved(seed: int) -> None:
    """The latency of a database behind it, for example: fewer requests would not make it quicker."""
    found = run([AdaptiveLimit(4, 1_000)], replace(OVERLOAD, slower=3.0), seed)
    assert found.goodput > 0.85
    assert found.latency_s < 2.2 * 3.0 * SERVICE_S


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_that_is_not_used_does_not_grow(seed: int) -> None:
    found = run([AdaptiveLimit(4, 1_000)], replace(OVERLOAD, factor=0.3), seed)
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
    exempted = [room.ask("/healthz") for _ in range(10)]
    assert [one.ends for one in exempted] == [["granted"]] * 10, "exempted requests pass, and do not count"
    second.release()
    assert (third.ends, fourth.ends) == (["granted"], [])
    exempted[0].release()
    assert fourth.ends == []
    first.release()
    assert fourth.ends == ["granted"]


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
