"""ewma: what it learns of a pod, and what comes of it, against the formulas written out."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.policies.ewma import FIRST_GUESS_S, TIME_CONSTANT_S, TYPICAL_SHARE, Ewma
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import NOT_READY, READY, PodTracker


def made(pods: int, limit: int = 1_000) -> tuple[TrackerTable, Ewma]:
    policy = Ewma(Rng(4))
    table = TrackerTable(policy, pods)
    for number in range(pods):
        assert table.add(f"pod-{number}", f"10.0.0.{number}:80", limit, READY) is not None
    return table, policy


def answer(table: TrackerTable, slot: int, latency_s: float, now_s: float) -> None:
    """A request that the pod answers after so long, at `now_s`."""
    table.pick(0, now_s)
    tracker = table.slots[slot]
    table.reserve(tracker)
    table.release(tracker, tracker.generation, latency_s)


def test_without_answers_load_alone_decides() -> None:
    table, policy = made(2)
    table.reserve(table.slots[0])
    assert policy.cost_s(table.slots[0], 0.0) == 2 * FIRST_GUESS_S
    assert {table.pick(0, 1.0) for _ in range(30)} == {table.slots[1]}


def test_a_peak_counts_at_once_and_fades() -> None:
    table, policy = made(2)
    answer(table, 0, 0.01, 1.0)
    answer(table, 0, 2.0, 1.0)
    assert table.slots[0].latency_s == 2.0
    costs = [policy.cost_s(table.slots[0], 1.0 + age_s) for age_s in (0.0, 10.0, 20.0, 200.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == 2.0
    assert costs[3] == pytest.approx(policy.typical_s, rel=1e-6)


def test_the_fast_pod_is_preferred_and_the_slow_one_not_forgotten() -> None:
    """Two pods, 10 ms and 200 ms, one request each 50 ms for 200 s: the slow one gets some, never many."""
    table, _ = made(2)
    count = [0, 0]
    for step in range(4_000):
        now_s = step * 0.05
        tracker = table.pick(0, now_s)
        assert tracker is not None
        count[tracker.slot] += 1
        table.reserve(tracker)
        table.release(tracker, tracker.generation, (0.01, 0.2)[tracker.slot])
    assert 1 <= count[1] <= 200


def test_a_stalled_pod_is_left_alone_after_one_timeout() -> None:
    """Requests that end without an answer count as what they were: at least that slow."""
    table, _ = made(3)
    for slot in range(3):
        answer(table, slot, 0.01, 1.0)
    answer(table, 1, -5.0, 1.1)
    picked = {table.pick(0, 1.2 + step * 0.01) for step in range(200)}
    assert picked == {table.slots[0], table.slots[2]}


def test_a_quick_failure_makes_no_pod_look_fast() -> None:
    table, policy = made(2)
    answer(table, 0, 0.1, 1.0)
    before = policy.cost_s(table.slots[0], 1.0)
    answer(table, 0, -0.0001, 1.0)
    answer(table, 1, -0.0001, 1.0)
    answer(table, 1, 0.0, 1.0)
    assert policy.cost_s(table.slots[0], 1.0) == before
    assert table.slots[1].latency_s == 0.0


def test_a_newcomer_is_neither_flooded_nor_starved() -> None:
    """Nine pods busy with two requests each at 100 ms, then a tenth: it gets its share until it is as busy."""
    table, policy = made(10)
    for slot in range(9):
        answer(table, slot, 0.1, 1.0)
        table.reserve(table.slots[slot])
        table.reserve(table.slots[slot])
    assert policy.cost_s(table.slots[9], 1.0) == pytest.approx(0.1)
    for _ in range(60):
        tracker = table.pick(0, 1.0)
        assert tracker is not None
        table.reserve(tracker)
    loads = [int(tracker.in_flight) for tracker in table.slots[:10]]
    assert 5 <= loads[9] <= 10  # 78 requests over 10 pods
    assert sum(loads) == 78


@pytest.mark.parametrize("seed", range(8))
def test_a_pod_that_nobody_has_asked_does_not_wait_for_one_that_gets_faster(seed: int) -> None:
    """One of two takes 1 s, a little less each time, so that it stays below the average that it makes by itself."""
    table, policy = made(2)
    policy.rng = Rng(seed)
    count = [0, 0]
    now_s = 1.0
    for step in range(100):
        tracker = table.pick(0, now_s)
        assert tracker is not None
        count[tracker.slot] += 1
        latency_s = (1.0 - step * 1e-4, 0.001)[tracker.slot]
        now_s += latency_s
        table.reserve(tracker)
        table.release(tracker, tracker.generation, latency_s)
    assert count[0] <= 3


def test_a_pod_that_fails_at_once_is_not_taken_for_one_that_nobody_has_asked() -> None:
    table, _ = made(2)
    answer(table, 0, 0.1, 1.0)
    answer(table, 1, -0.0001, 1.0)
    picked = [table.pick(0, 1.0) for _ in range(60)]
    assert set(picked) == {table.slots[0], table.slots[1]}, "as an average pod, as before"


def test_a_slot_that_is_used_again_knows_nothing() -> None:
    table, policy = made(2)
    answer(table, 0, 9.0, 1.0)
    table.free(table.slots[0])
    assert table.slots[0].latency_s == 0.0
    table.add("other", "10.0.0.7:80", 5, READY)
    assert policy.cost_s(table.slots[0], 1.0) == policy.typical_s
    table.check_invariants()


def test_a_pod_that_is_not_ready_for_a_while_is_not_forgotten_but_one_that_came_back_is() -> None:
    table, _ = made(1)
    answer(table, 0, 9.0, 1.0)
    table.set_state(table.slots[0], NOT_READY)
    table.set_state(table.slots[0], READY)
    assert table.slots[0].latency_s == 9.0
    table.reserve(table.slots[0])
    table.drain(table.slots[0])
    table.add("pod-0", "10.0.0.0:80", 5, READY)
    assert table.slots[0].latency_s == 0.0


def test_a_new_policy_does_not_believe_what_the_last_one_learnt() -> None:
    table, _ = made(2)
    answer(table, 0, 9.0, 1.0)
    table.set_policy(Ewma(Rng(1)))
    assert table.slots[0].latency_s == 0.0


steps = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.one_of(st.floats(0.0001, 5.0), st.floats(-5.0, -0.0001), st.just(0.0))),
    max_size=40,
)


@given(steps)
def test_equal_to_the_formulas(samples: list[tuple[float, float]]) -> None:
    table, policy = made(1)
    tracker: PodTracker = table.slots[0]
    known, at, typical, now = 0.0, 0.0, 0.0, 0.0
    for wait_s, latency_s in samples:
        now += wait_s
        answer(table, 0, latency_s, now)
        if latency_s > 0.0:
            typical = latency_s if typical == 0.0 else typical
            typical += (latency_s - typical) * TYPICAL_SHARE
            peak = latency_s >= known
            known = latency_s if peak else latency_s + (known - latency_s) * exp((at - now) / TIME_CONSTANT_S)
            at = now
        elif -latency_s > max(known, typical):
            known, at = -latency_s, now
        assert tracker.latency_s == pytest.approx(known)
        assert policy.typical_s == pytest.approx(typical)
        expected = typical or FIRST_GUESS_S
        if known:
            expected += (known - expected) * exp((at - now) / TIME_CONSTANT_S)
        assert policy.cost_s(tracker, now) == pytest.approx(expected)
