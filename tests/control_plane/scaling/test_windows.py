"""Windows give what a walk over all observations gives, and what Knative's own tests expect of their buckets."""

from __future__ import annotations

from math import ceil, floor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from activator.control_plane.scaling.windows import RATE_SPAN_MIN_S, Totals, Windows
from activator.messages import Load


class Oracle:
    """Keeps every observation: (when, the total then), even between two."""

    def __init__(self, at_s: float, total: float, is_rate: bool) -> None:
        self.points = [(at_s, total)]
        self.since = {6: (at_s, total), 60: (at_s, total)}
        self.is_rate = is_rate

    def observe(self, at_s: float, total: float, silent_s: float) -> None:
        before = self.points[-1][1]
        self.points.append((at_s, total))
        for window in self.since:
            if silent_s >= window:
                self.since[window] = (at_s, before if self.is_rate else total)

    def total_at(self, at_s: float) -> float:
        for (from_s, before), (to_s, after) in zip(self.points, self.points[1:], strict=False):
            if from_s <= at_s <= to_s and to_s > from_s:
                return before + (after - before) * (at_s - from_s) / (to_s - from_s)
        return self.points[-1][1]

    def average(self, now_s: float, window: int) -> float | None:
        last_s, last = self.points[-1]
        if floor(now_s) - floor(last_s) >= window:
            return 0.0
        begin_s, before = self.since[window]
        start_s = floor(now_s) - window + 1.0
        if start_s > begin_s:
            begin_s, before = start_s, self.total_at(start_s)
        span_s = max(last_s - begin_s, RATE_SPAN_MIN_S if self.is_rate else 0.0)
        return (last - before) / span_s if span_s > 0.0 else None


steps = st.lists(
    st.tuples(st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0, 7.5, 20.0, 80.0]), st.integers(0, 50), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(steps, st.booleans(), st.sampled_from([0.0, 0.5, 5.0, 30.0, 59.5, 100.0]))
def test_averages_are_those_of_all_observations(
    observed: list[tuple[float, int, bool]], is_rate: bool, later_s: float
) -> None:
    now_s, total = 1000.25, 5.0
    totals = Totals(60.0, 6.0, now_s, total, is_rate)
    oracle = Oracle(now_s, total, is_rate)
    for step_s, added, is_silent in observed:
        now_s += step_s
        total += added
        silent_s = step_s if is_silent else 0.0
        totals.observe(now_s, total, silent_s)
        oracle.observe(now_s, total, silent_s)
        for window, panic in ((60, False), (6, True)):
            expected = oracle.average(now_s + later_s, window)
            found = totals.average(now_s + later_s, panic)
            assert (found is None) == (expected is None)
            assert found == pytest.approx(expected, abs=1e-6)


@given(steps, st.sampled_from([2, 6, 10, 30, 60, 61, 90, 240]))
def test_another_window_keeps_the_past(observed: list[tuple[float, int, bool]], stable: int) -> None:
    """Where the past is known, an average is that of a window that was so long from the beginning."""
    now_s, total = 1000.25, 0.0
    resized = Totals(60.0, 6.0, now_s, total, is_rate=False)
    ever = Totals(float(stable), 1.0, now_s, total, is_rate=False)
    for step_s, added, _ in observed:
        now_s += step_s
        total += added
        resized.observe(now_s, total)
        ever.observe(now_s, total)
    resized.resize(float(stable), 1.0)
    if stable <= 60 or now_s < 1060.0:
        assert resized.average(now_s, panic=False) == pytest.approx(ever.average(now_s, panic=False), abs=1e-6)
    for _ in range(2 * stable):
        now_s += 1.0
        total += 3.0
        resized.observe(now_s, total)
        ever.observe(now_s, total)
    assert resized.average(now_s, panic=False) == pytest.approx(ever.average(now_s, panic=False), abs=1e-6)


def of_buckets(values: list[float]) -> tuple[Totals, float]:
    """Knative's buckets of one second, as far as the last one, as totals over five seconds."""
    totals = Totals(5.0, 5.0, 100.0, 0.0, is_rate=False)
    total = 0.0
    for second, value in enumerate(values, start=1):
        total += value
        totals.observe(100.0 + second - 1e-9, total)
    return totals, 100.0 + len(values) - 1e-9


def test_the_figures_of_timed_float_64_buckets_window_average() -> None:
    """`TestTimedFloat64BucketsWindowAverage` of pkg/autoscaler/aggregation/bucketing_test.go."""
    totals, now_s = of_buckets([1.0])
    assert totals.average(now_s, panic=False) == pytest.approx(1.0), "not 0.2: the window has just begun"
    totals, now_s = of_buckets([1.0, 2.0, 3.0, 4.0, 5.0])
    assert totals.average(now_s, panic=False) == pytest.approx(15.0 / 5.0)
    assert totals.average(now_s + 2.0, panic=False) == pytest.approx((15.0 - 1.0 - 2.0) / (5 - 2)), "a short hole"
    assert totals.average(now_s + 6.0, panic=False) == 0.0, "a long hole"
    totals.observe(now_s + 60.0, 15.0 + 1984.0, silent_s=60.0)
    totals.observe(now_s + 61.0, 15.0 + 1984.0 + 7.0)
    assert totals.average(now_s + 61.0, panic=False) == pytest.approx(7.0), "after a silence it begins anew"


def test_the_figures_of_resize_window() -> None:
    """`TestTimedFloat64BucketsResizeWindow`: 10 buckets, then 4."""
    totals, now_s = of_buckets([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert totals.average(now_s, panic=False) == pytest.approx((2.0 + 3 + 4 + 5 + 6) / 5)
    totals.resize(10.0, 10.0)
    totals.observe(now_s + 1.0, 21.0 + 7.0)
    # Knative has dropped the bucket of 1 by then; the beginning of that bucket is kept here, as it is that of the next.
    assert totals.average(now_s + 1.0, panic=False) == pytest.approx((1.0 + 2 + 3 + 4 + 5 + 6 + 7) / 7, rel=0.15)
    totals.resize(4.0, 4.0)
    assert totals.average(now_s + 1.0, panic=False) == pytest.approx((4.0 + 5 + 6 + 7) / 4)


def load(at_s: float, here: int, seconds: float, requests: int) -> Load:
    return Load("default/app", here, 0, requests, here, seconds, at_s)


def test_a_known_silence_counts_as_zero() -> None:
    windows = Windows(60.0, 6.0, 100.0, 0.0, 0)
    windows.observe(load(100.0, 10, 0.0, 10))
    windows.observe(load(130.0, 0, 300.0, 10))
    assert windows.averages("concurrency", 130.0) == pytest.approx((10.0, 10.0))
    stable, panic = windows.averages("concurrency", 150.0)
    assert (stable, panic) == pytest.approx((6.0, 0.0))
    assert windows.averages("concurrency", 200.0) == (0.0, 0.0)


def test_a_load_that_is_not_reported_any_more_is_not_zero() -> None:
    windows = Windows(60.0, 6.0, 100.0, 0.0, 0)
    windows.observe(load(100.0, 10, 0.0, 10))
    windows.observe(load(130.0, 10, 300.0, 10))
    assert windows.averages("concurrency", 150.0) == pytest.approx((10.0, 0.0))


def test_a_burst_after_a_silence_counts_in_the_panic_window_at_once() -> None:
    windows = Windows(60.0, 6.0, 100.0, 0.0, 0)
    windows.observe(load(100.0, 1, 0.0, 1))
    windows.observe(load(110.0, 0, 10.0, 1))
    windows.observe(load(125.0, 50, 10.0, 51))
    stable, panic = windows.averages("concurrency", 125.0)
    assert (stable, panic) == pytest.approx((10.0 / 25.0, 50.0))
    windows.observe(load(125.5, 50, 35.0, 51))
    assert windows.averages("concurrency", 125.5)[1] == pytest.approx(50.0)


def test_slow_clients_need_no_pod() -> None:
    """Ten requests, of which pods have answered eight: their clients still read."""
    windows = Windows(60.0, 6.0, 100.0, 0.0, 0)
    for step in range(1, 601):
        windows.observe(Load("default/app", 2, 0, 10, 10, 1.0 * step, 100.0 + 0.1 * step))
    assert windows.averages("concurrency", 160.0) == pytest.approx((2.0, 2.0))
    assert windows.peak(160.0) == 2


def test_totals_that_fall_are_of_a_new_life() -> None:
    windows = Windows(60.0, 6.0, 100.0, 500.0, 1000)
    windows.observe(load(101.0, 2, 0.0, 0))
    windows.observe(load(103.0, 2, 4.0, 8))
    assert windows.averages("concurrency", 103.0)[0] == pytest.approx(4.0 / 3.0)
    assert windows.averages("rps", 103.0)[0] == pytest.approx(8.0 / 3.0)


def test_one_request_is_one_per_second_at_the_most() -> None:
    windows = Windows(60.0, 6.0, 100.0, 0.0, 0)
    windows.observe(load(100.0, 1, 0.0, 1))
    windows.observe(load(100.001, 0, 0.001, 1))
    assert windows.averages("rps", 100.001) == (1.0, 1.0)


@given(st.lists(st.tuples(st.sampled_from([0.1, 1.0, 4.0]), st.integers(0, 30)), min_size=1, max_size=80))
def test_the_peak_is_that_of_the_window(observed: list[tuple[float, int]]) -> None:
    windows = Windows(10.0, 1.0, 0.0, 0.0, 0)
    now_s, seen = 0.0, []
    for step_s, here in observed:
        now_s += step_s
        seen.append((floor(now_s), here))
        windows.observe(load(now_s, here, 0.0, 0))
        within = [one for bucket, one in seen if floor(now_s) - bucket <= 10]
        assert windows.peak(now_s) == max(within)
        assert len(windows._peaks) <= 11


@given(st.floats(1.0, 3600.0), st.integers(1, 200))
def test_memory_is_bounded_by_the_window(stable_s: float, observations: int) -> None:
    totals = Totals(stable_s, 1.0, 0.0, 0.0, is_rate=False)
    for step in range(observations):
        totals.observe(step * 97.3, float(step))
    assert len(totals._beginnings) == ceil(stable_s) + 1
