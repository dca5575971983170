"""Slow start: a newcomer's share is its ramp's part of a full share, under every policy, and nobody waits for it."""

from __future__ import annotations

import math

import pytest

from lb.hashing import hash_bytes
from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.testing import candidates, grant, release
from lb.tracker import NOT_READY, QUARANTINED, READY, PodTracker
from tests.lb.lb_oracles import ScanningPolicy, order_of

WINDOW_S = 30.0
DRAWS = 20_000
every_policy = pytest.mark.parametrize("name", [*BUILT_IN, "third-party"])


def made(name: str, pods: int, limit: int = 1_000_000, seed: int = 6) -> TrackerTable:
    """So many pods that have been there for long."""
    rng = Rng(seed)
    table = TrackerTable(ScanningPolicy(rng) if name == "third-party" else create(name, rng), pods + 5)
    for number in range(pods):
        add(table, number, limit)
    table.set_slow_start(WINDOW_S)
    return table


def add(table: TrackerTable, number: int, limit: int = 1_000_000) -> PodTracker:
    tracker = table.add(f"pod-{number}", f"10.0.0.{number}:80", limit, READY)
    assert tracker is not None
    return tracker


def share(table: TrackerTable, tracker: PodTracker, now_s: float) -> float:
    count = 0
    for _ in range(DRAWS):
        picked = grant(table, 0, now_s)
        assert picked is not None
        count += picked is tracker
        release(table, picked)
    return count / DRAWS


def is_near(found: float, expected: float) -> bool:
    """Within 5 standard deviations of a share among DRAWS: one seed in 10^6 is not."""
    return abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / DRAWS)


@every_policy
@pytest.mark.parametrize(("age_s", "ramp"), [(0.0, 0.1), (3.0, 0.1), (15.0, 0.5), (27.0, 0.9)])
def test_a_newcomers_share_is_its_ramps_part_of_a_full_one(name: str, age_s: float, ramp: float) -> None:
    table = made(name, 4)
    newcomer = add(table, 4)
    table.pick(0, 100.0)  # its age begins
    assert table.warm_up.ramp(newcomer, 100.0 + age_s) == pytest.approx(ramp)
    assert is_near(share(table, newcomer, 100.0 + age_s), ramp / 5)
    table.check_invariants()


@every_policy
def test_after_its_window_it_is_like_the_others(name: str) -> None:
    table = made(name, 4)
    newcomer = add(table, 4)
    found = []
    for now_s in (100.0, 99.9 + WINDOW_S, 100.0 + WINDOW_S):
        table.pick(0, now_s)
        found.append(newcomer.warming)
    assert found == [True, True, False]
    assert newcomer.has_room
    table.check_invariants()


def test_the_share_under_weights_is_of_its_weight() -> None:
    table = made("weighted", 2)
    newcomer = add(table, 2)
    table.set_weight(newcomer, 6)
    table.set_weight(table.slots[0], 3)
    table.pick(0, 1.0)
    assert is_near(share(table, newcomer, 16.0), 0.5 * 6 / 10)


def test_a_reserve_waits_for_the_others_also_while_it_is_new() -> None:
    table = made("weighted", 1, limit=1)
    newcomer = add(table, 1, limit=1)
    table.set_weight(newcomer, 0)
    assert [grant(table, 0, 1.0), grant(table, 0, 1.0)] == [table.slots[0], newcomer]


def test_a_newcomer_is_used_rather_than_a_reserve() -> None:
    table = made("weighted", 1)
    table.set_weight(table.slots[0], 0)
    newcomer = add(table, 1)
    assert {grant(table, 0, 1.0) for _ in range(50)} == {newcomer}


@every_policy
def test_it_ranks_and_never_withholds(name: str) -> None:
    """Two old pods and three new: ten requests find the ten places that there are, whoever has them."""
    table = made(name, 2, limit=2)
    for number in (2, 3, 4):
        add(table, number, limit=2)
    for key in range(10):
        fit = candidates(table)
        tracker = grant(table, key, 50.0)
        assert tracker in fit
        table.check_invariants()
    assert table.pick(0, 50.0) is None


@every_policy
def test_a_start_from_zero_has_no_ramp(name: str) -> None:
    """Five pods come within a tenth of a second: a second later all have nine tenths of a full share or more."""
    table = made(name, 0)
    for number in range(5):
        add(table, number)
        grant(table, 0, 100.0 + number * 0.02)
    assert [tracker.warming for tracker in table.slots[:5]] == [False, True, True, True, True]
    ramps = [table.warm_up.ramp(tracker, 101.0) for tracker in table.slots[:5]]
    assert min(ramps) > 0.9
    assert ramps[0] == 1.0


def test_pods_that_come_while_nobody_asks_are_as_old_as_the_first() -> None:
    table = made("round-robin", 0)
    for number in range(3):
        add(table, number)
    picked = [grant(table, 0, 5.0) for _ in range(300)]
    assert all(table.warm_up.ramp(tracker, 5.0) == 1.0 for tracker in table.slots[:3])
    assert {tracker.slot for tracker in picked if tracker} == {0, 1, 2}


def test_the_oldest_newcomer_takes_the_place_of_the_last_old_pod() -> None:
    table = made("least-connections", 1)
    first, second = add(table, 1), add(table, 2)
    table.pick(0, 10.0)
    table.drain(table.slots[0])
    assert (first.warming, second.warming) == (False, True)
    table.check_invariants()


def test_a_pod_that_comes_back_from_quarantine_is_new_again() -> None:
    table = made("round-robin", 3)
    for state in (QUARANTINED, NOT_READY):
        table.set_state(table.slots[1], state)
        table.set_state(table.slots[1], READY)
        assert table.slots[1].warming
        table.pick(0, 100.0)
        table.pick(0, 200.0)
        assert not table.slots[1].warming


def test_a_pod_that_flaps_stands_there_once() -> None:
    table = made("round-robin", 2)
    for _ in range(1_000):
        table.set_state(table.slots[1], NOT_READY)
        table.set_state(table.slots[1], READY)
    assert table.warm_up.warming_count == 1
    table.check_invariants()


def test_slow_start_is_switched_on_and_off_live() -> None:
    table = made("first-available", 2)
    newcomer = add(table, 2)
    table.set_slow_start(0.0)
    assert not newcomer.warming
    assert not table.slow_starts
    table.check_invariants()
    add(table, 3)
    table.set_slow_start(10.0)
    assert not any(tracker.warming for tracker in table.slots[:4])
    last = add(table, 4)
    table.pick(0, 7.0)
    table.set_slow_start(2.0)
    table.pick(0, 9.5)
    assert not last.warming
    table.check_invariants()


def test_newcomers_stay_new_under_another_policy() -> None:
    table = made("round-robin", 2)
    newcomer = add(table, 2)
    table.pick(0, 10.0)
    for name in BUILT_IN:
        table.set_policy(create(name, Rng(2)))
        table.check_invariants()
        assert newcomer.warming
    assert table.warm_up.ramp(newcomer, 25.0) == 0.5


def test_a_newcomer_of_an_emptied_or_trimmed_table_leaves_nothing_behind() -> None:
    table = made("consistent-hash", 2)
    for number in range(2, 90):
        add(table, number)
    for tracker in list(table.slots[2:90]):
        table.free(tracker)
    table.check_invariants()
    add(table, 2)
    table.check_invariants()
    for tracker in table.slots[:3]:
        table.free(tracker)
    assert table.drop_slots()
    table.check_invariants()


def test_keys_move_to_a_newcomer_once_and_stay() -> None:
    """Of the keys that will be its own a growing part, and none of any other pod's keys moves."""
    table = made("consistent-hash", 9)
    keys = [hash_bytes(b"%d" % number) for number in range(2_000)]
    before = [table.pick(key, 0.0) for key in keys]
    newcomer = add(table, 9)
    own = {key for key in keys if order_of(key, table.slots[:10])[0] is newcomer}
    table.pick(0, 100.0)
    taken: set[int] = set()
    for age_s, low, high in ((0.0, 0.0, 0.25), (15.0, 0.35, 0.65), (29.9, 0.97, 1.0), (30.0, 1.0, 1.0)):
        now = {key for key in keys if table.pick(key, 100.0 + age_s) is newcomer}
        assert taken <= now <= own
        assert low <= len(now) / len(own) <= high
        assert all(table.pick(key, 100.0 + age_s) is old for key, old in zip(keys, before) if key not in now)
        taken = now


def test_full_pods_and_newcomers_by_key() -> None:
    table = made("consistent-hash", 1, limit=1)
    first, second = add(table, 1, limit=3), add(table, 2, limit=3)
    assert grant(table, 0, 1.0) is not None
    while table.slots[0].has_room:
        grant(table, 0, 1.0)
    key = 77
    assert table.pick(key, 1.0) is order_of(key, [first, second])[0]
