"""Pauses that grow: exact without jitter, within its bounds with one, and never shorter than a server asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.runtime.backoff import RETRY_AFTER_MAX_S, Backoff, fraction, grown_s
from lb.rng import Rng

seconds = st.floats(0.001, 10.0)
factors = st.floats(1.1, 4.0)


@given(seconds, st.floats(1.0, 1000.0), factors, st.integers(1, 100))
def test_pauses_grow_by_the_factor_up_to_the_maximum(initial_s: float, ratio: float, factor: float, count: int) -> None:
    backoff = Backoff(initial_s, initial_s * ratio, factor=factor)
    pauses = []
    for failures in range(count):
        assert backoff.failures == failures
        ceiling_s = backoff.ceiling_s
        pauses.append(backoff.next_s())
        assert pauses[-1] == ceiling_s
    assert pauses == pytest.approx([grown_s(initial_s, times, initial_s * ratio, factor) for times in range(count)])
    assert pauses == sorted(pauses) and pauses[0] == initial_s and pauses[-1] <= initial_s * ratio
    backoff.reset()
    assert (backoff.failures, backoff.next_s()) == (0, initial_s)


@given(st.integers(0, 2**32), st.sampled_from([(0.5, 1.0), (0.75, 1.25), (1.0, 1.5)]), st.integers(1, 50))
def test_jitter_stays_within_its_factors_and_does_not_change_the_growth(
    seed: int, jitter: tuple[float, float], count: int
) -> None:
    backoff, exact = Backoff(0.1, 30.0, Rng(seed), jitter=jitter), Backoff(0.1, 30.0)
    for _ in range(count):
        whole_s = exact.next_s()
        assert jitter[0] * whole_s <= backoff.next_s() <= jitter[1] * whole_s
        assert backoff.ceiling_s == exact.ceiling_s


def test_jitter_spreads_those_that_fail_together() -> None:
    rng = Rng(5)
    pauses = [Backoff(1.0, 8.0, rng).next_s() for _ in range(1000)]
    assert min(pauses) < 0.51 and max(pauses) > 0.99 and len(set(pauses)) > 990


@given(seconds, st.integers(0, 2**32), st.floats(0.0, 10_000.0))
def test_what_a_server_asks_for_is_waited_for_and_bounded(initial_s: float, seed: int, asked_s: float) -> None:
    backoff = Backoff(initial_s, 10.0, Rng(seed))
    pause_s = backoff.next_s(asked_s)
    least_s = min(asked_s, RETRY_AFTER_MAX_S)
    assert least_s <= pause_s <= max(1.25 * least_s, initial_s)
    assert backoff.is_asked_for is (asked_s > 0.0)
    assert Backoff(initial_s, 10.0).next_s(asked_s) == max(initial_s, least_s), "exact without a jitter"
    backoff.next_s()
    assert not backoff.is_asked_for


def test_a_lowered_backoff_continues_from_there_and_still_counts_its_failures() -> None:
    backoff = Backoff(0.25, 30.0)
    for _ in range(6):
        backoff.next_s()
    backoff.lower(1.0)
    assert [backoff.next_s() for _ in range(3)] == [1.0, 2.0, 4.0]
    assert backoff.failures == 9
    backoff.lower(20.0)
    assert backoff.next_s() == 8.0, "it never raises a pause"


@given(st.integers(0, 10**9))
def test_growth_without_end_does_not_overflow(times: int) -> None:
    assert grown_s(0.1, times, 30.0) == min(0.1 * 2.0 ** min(times, 40), 30.0)


@given(st.integers(0, 2**32))
def test_fractions_are_from_0_to_less_than_1(seed: int) -> None:
    rng = Rng(seed)
    assert all(0.0 <= fraction(rng) < 1.0 for _ in range(50))
