"""The curves of the last hour: differences of totals, bounded in samples, revisions and time of the loop."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.data_plane import statistics
from activator.messages import RevisionStatistics
from activator.runtime.reasons import Reason
from activator.telemetry.history import (
    HISTORY_DAY_INTERVAL_S,
    HISTORY_DAY_S,
    HISTORY_INTERVAL_S,
    HISTORY_REVISIONS_MAX,
    HISTORY_SPAN_S,
    RECENT_S,
    SAMPLING_TURN_S,
    History,
    Sample,
    between,
    quantiles,
    summary,
)
from tests.manual_clock import ManualClock
from tests.telemetry.revision_figures import a_throttler, read_from, throttlers

KEY = "ns/r0"


def no_state(one: RevisionStatistics) -> str:
    return ""


def sampled(history: History, clock: ManualClock, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(history.take_samples())
        clock.now_s += HISTORY_INTERVAL_S


def test_a_sample_is_the_difference_between_two_looks() -> None:
    clock = ManualClock()
    one = a_throttler(KEY, requests=7)
    history = History(read_from({KEY: one}), clock.now, no_state)
    sampled(history, clock)
    assert history.shown() == {KEY: {}}, "one sample makes no difference"
    one.counters.requests_total += 50
    one.counters.codes[503] = one.counters.codes.get(503, 0) + 20
    for _ in range(50):
        one.counters.traffic.duration.observe(0.002)
    sampled(history, clock, 2)
    shown = history.shown([KEY, "ns/unknown"])[KEY]
    assert shown["age_s"] == [20.0, 10.0]
    assert shown["rate"] == [5.0, 0.0]
    assert shown["failures"] == [2.0, 0.0]
    assert shown["p50_s"][0] is not None and 0.0 < shown["p50_s"][0] <= 0.005
    assert shown["p50_s"][1] is None, "nothing ended"


def test_failures_are_recent_for_some_minutes_unless_they_are_the_clients_own() -> None:
    clock = ManualClock()
    one = a_throttler(KEY, requests=1)
    history = History(read_from({KEY: one}), clock.now, no_state)

    def recent() -> int:
        return history.recent_failures(statistics.revision(one))

    sampled(history, clock, 2)
    one.counters.failed_totals.update({Reason.KEY_NOT_ALLOWED: 3, Reason.QUOTA_EXCEEDED: 1, Reason.CLIENT_GONE: 2})
    assert recent() == 0
    one.counters.failed_totals[Reason.QUEUE_FULL] = 3
    one.counters.codes[502] = one.counters.codes.get(502, 0) + 4
    assert recent() == 7, "before the next reading"
    one.counters.requests_total += 13
    sampled(history, clock, 2)
    assert history.shown()[KEY]["failures"][-2:] == [0.7, 0.0]
    assert recent() == 7
    sampled(history, clock, int(RECENT_S / HISTORY_INTERVAL_S))
    assert recent() == 0


def test_a_revision_that_does_nothing_keeps_nothing() -> None:
    clock = ManualClock()
    history = History(read_from(throttlers(20)), clock.now, no_state)
    sampled(history, clock, 3)
    assert history.shown() == {}


def test_another_revision_of_the_same_name_begins_at_zero() -> None:
    clock = ManualClock()
    known = {KEY: a_throttler(KEY, requests=100)}
    history = History(read_from(known), clock.now, no_state)
    sampled(history, clock, 2)
    known[KEY] = a_throttler(KEY, requests=10)
    sampled(history, clock)
    assert history.shown()[KEY]["rate"] == [0.0, 1.0]


def test_one_that_is_gone_is_forgotten() -> None:
    clock = ManualClock()
    known = {KEY: a_throttler(KEY, requests=1)}
    history = History(read_from(known), clock.now, no_state)
    sampled(history, clock, 2)
    known.clear()
    sampled(history, clock)
    assert history.shown() == {}


def test_the_samples_of_an_hour_are_kept() -> None:
    clock = ManualClock()
    history = History(read_from({KEY: a_throttler(KEY, requests=1)}), clock.now, no_state)
    sampled(history, clock, 1 + 2 * int(HISTORY_SPAN_S / HISTORY_INTERVAL_S))
    ages = history.shown()[KEY]["age_s"]
    assert len(ages) == HISTORY_SPAN_S / HISTORY_INTERVAL_S
    assert ages[0] == HISTORY_SPAN_S and ages[-1] == HISTORY_INTERVAL_S


def test_a_sample_of_the_day_summarises_five_minutes() -> None:
    clock = ManualClock()
    one = a_throttler(KEY, requests=1)
    history = History(read_from({KEY: one}), clock.now, no_state)
    sampled(history, clock, 3)
    one.counters.requests_total += 300
    sampled(history, clock, int(HISTORY_DAY_INTERVAL_S / HISTORY_INTERVAL_S))
    shown = history.shown([KEY], is_day=True)[KEY]
    assert len(shown["rate"]) == 1 and 0.9 < shown["rate"][0] < 1.1
    sampled(history, clock, 2 * int(HISTORY_DAY_S / HISTORY_INTERVAL_S))
    ages = history.shown([KEY], is_day=True)[KEY]["age_s"]
    assert len(ages) == HISTORY_DAY_S / HISTORY_DAY_INTERVAL_S
    assert ages[0] <= HISTORY_DAY_S


def test_a_summary_shows_the_worst_and_the_mean() -> None:
    quiet = Sample(1.0, 0.0, math.nan, math.nan, 0, 1, 2)
    busy = Sample(3.0, 1.0, 0.2, 0.9, 7, 2, 1)
    assert summary([quiet, busy]) == Sample(2.0, 0.5, 0.2, 0.9, 7, 2, 2)
    assert math.isnan(summary([quiet]).p99_s)


def test_the_age_of_a_state_is_known() -> None:
    clock = ManualClock()
    states = {KEY: "asleep"}
    known = {KEY: a_throttler(KEY, requests=1)}
    history = History(read_from(known), clock.now, lambda one: states[one.key])
    sampled(history, clock, 3)
    assert history.state_age_s(KEY, "asleep") == 3 * HISTORY_INTERVAL_S
    assert history.state_age_s(KEY, "failed") == 0.0, "it changed after the last reading"
    states[KEY] = "failed"
    sampled(history, clock)
    assert history.state_age_s(KEY, "failed") == HISTORY_INTERVAL_S
    assert history.state_age_s("ns/unknown", "failed") == 0.0


def test_those_that_did_something_last_are_kept() -> None:
    clock = ManualClock()
    known = throttlers(HISTORY_REVISIONS_MAX + 3, requests=1)
    history = History(read_from(known), clock.now, no_state)
    sampled(history, clock)
    kept = history.shown()
    assert len(kept) == HISTORY_REVISIONS_MAX
    assert KEY not in kept and f"ns/r{HISTORY_REVISIONS_MAX + 2}" in kept
    known[KEY].counters.requests_total += 1
    sampled(history, clock)
    assert KEY in history.shown() and len(history.shown()) == HISTORY_REVISIONS_MAX


def test_many_revisions_are_looked_at_in_turns_of_the_loop() -> None:
    clock = ManualClock()
    known = throttlers(50)

    def costly() -> list[RevisionStatistics]:
        return [statistics.revision(one) for one in known.values()]

    def slow_now() -> float:
        clock.now_s += SAMPLING_TURN_S / 4
        return clock.now_s

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def samples() -> float:
        other = asyncio.get_running_loop().create_task(count_turns())
        took_s = await History(costly, slow_now, no_state).take_samples()
        other.cancel()
        return took_s

    took_s = asyncio.run(samples())
    assert turns >= 10
    assert took_s == pytest.approx(clock.now_s - 1000.0, rel=0.5), "what it says decides how often it samples"


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60), st.floats(0.01, 1.0))
@example([0.0, 0.0, 0.0], 1.0)
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    bounds = [0.1, 0.5, 1.0, 5.0, 10.0, math.inf]
    buckets = [(bound, sum(value <= bound for value in values)) for bound in bounds]
    exact = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    upper = next(bound for bound in bounds if exact <= bound)
    lower = max([bound for bound in (0.0, *bounds) if bound < upper], default=0.0)
    (found,) = quantiles(buckets, [share])
    assert lower <= found <= (10.0 if upper == math.inf else upper)


def test_differences_of_distributions() -> None:
    assert between([(1.0, 2), (math.inf, 3)], [(1.0, 5), (math.inf, 9)]) == [(1.0, 3), (math.inf, 6)]
    assert between((), [(1.0, 5), (math.inf, 9)]) == [(1.0, 5), (math.inf, 9)]
    assert all(map(math.isnan, quantiles([], (0.5, 0.99))))
