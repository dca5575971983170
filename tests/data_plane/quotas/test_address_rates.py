"""The rates of addresses: exact within the bound, and never too generous beyond it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.data_plane.quotas.address_rates import ADDRESSES_MAX, CELLS_MAX, CELLS_PER_ADDRESS, AddressRates
from activator.data_plane.quotas.bucket import Bucket

SEED = b"seed"
TICK_S = 0.25
START_S = 1_000.0
RATES = st.tuples(st.integers(1, 8), st.sampled_from([1.0, 4.0, 60.0]), st.integers(1, 6))
# (ticks since the request before, address)
TRAFFIC = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=60)


class Oracle:
    """A bucket of one address, in exact numbers."""

    def __init__(self, requests: int, period_s: float, burst: int) -> None:
        self.interval = Fraction(period_s) / requests
        self.burst = burst
        self.used = Fraction(0)
        self.at = Fraction(START_S)

    def take(self, now_s: float) -> Fraction:
        """0 if it is admitted, else the time to wait."""
        now = Fraction(now_s)
        self.used = max(self.used - (now - self.at) / self.interval, Fraction(0))
        self.at = now
        if self.used + 1 <= self.burst:
            self.used += 1
            return Fraction(0)
        return (self.used + 1 - self.burst) * self.interval


@given(RATES, TRAFFIC)
def test_it_agrees_with_exact_buckets(rate: tuple[int, float, int], traffic: list[tuple[int, int]]) -> None:
    rates = AddressRates(*rate, SEED)
    oracles = [Oracle(*rate) for _ in range(6)]
    now_s = START_S
    for ticks, address in traffic:
        now_s += ticks * TICK_S
        assert rates.admit(f"a{address}", now_s) == pytest.approx(float(oracles[address].take(now_s)), abs=1e-5)


@given(RATES, TRAFFIC)
def test_it_agrees_with_the_buckets_of_users(rate: tuple[int, float, int], traffic: list[tuple[int, int]]) -> None:
    requests, period_s, burst = rate
    rates = AddressRates(*rate, SEED)
    bucket = Bucket(burst, burst * period_s / requests)
    now_s = START_S
    for ticks, _ in traffic:
        now_s += ticks * TICK_S
        wait_s = bucket.wait_s(1, now_s)
        assert rates.admit("a", now_s) == pytest.approx(wait_s, abs=1e-5)
        if wait_s == 0.0:
            bucket.add(1, now_s)


@given(RATES, TRAFFIC, st.integers(0, 3), st.integers(1, 8))
def test_no_address_gets_more_however_many_there_are(
    rate: tuple[int, float, int], traffic: list[tuple[int, int]], addresses_max: int, cells_max: int
) -> None:
    """In any interval, by trying all of them; with room for few addresses, or for none."""
    requests, period_s, burst = rate
    rates = AddressRates(*rate, SEED, addresses_max, cells_max)
    admitted: dict[int, list[float]] = {}
    oracles = [Oracle(*rate) for _ in range(6)]
    now_s = START_S
    for ticks, address in traffic:
        now_s += ticks * TICK_S
        wait_s = rates.admit(f"a{address}", now_s)
        oracle = oracles[address]
        if wait_s == 0.0:
            assert oracle.take(now_s) == 0, "admitted although its own bucket is empty"
            admitted.setdefault(address, []).append(now_s)
        assert rates.size() <= 2 * addresses_max
    for times in admitted.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                allowed = burst + (times[last] - times[first]) * requests / period_s
                assert last - first + 1 <= allowed + 1e-6


@given(RATES, TRAFFIC, st.booleans())
@example((1, 1.0, 1), [(0, 0), (1, 1), (0, 0), (0, 1), (0, 5), (0, 0)], True)
def test_a_refusal_names_the_time_at_which_a_request_is_admitted(
    rate: tuple[int, float, int], traffic: list[tuple[int, int]], is_crowded: bool
) -> None:
    """An address that leaves its generation in that time may have to wait for others in its cells as well."""
    rates = AddressRates(*rate, SEED, *((2, 4) if is_crowded else ()))
    now_s = START_S
    for ticks, address in traffic:
        now_s += ticks * TICK_S
        wait_s = rates.admit(f"a{address}", now_s)
        if wait_s > 0.0:
            now_s += wait_s
            again_s = rates.admit(f"a{address}", now_s)
            if is_crowded and again_s > 0.0:
                now_s += again_s
                again_s = rates.admit(f"a{address}", now_s)
            assert again_s == 0.0


def test_addresses_that_are_kept_are_not_affected_by_an_attack() -> None:
    rates = AddressRates(60, 60.0, 3, SEED, addresses_max=100, cells_max=64)
    assert [rates.admit("victim", START_S) for _ in range(3)] == [0.0] * 3
    for number in range(5_000):
        rates.admit(f"attacker {number}", START_S)
    assert rates.size() == 100
    assert rates.admit("victim", START_S) == pytest.approx(1.0)
    assert rates.admit("victim", START_S + 1.0) == 0.0, "neither refused longer nor admitted earlier"
    assert rates.admit("victim", START_S + 1.0) > 0.0


def test_an_attacker_with_many_addresses_cannot_reset_its_own() -> None:
    rates = AddressRates(1, 60.0, 1, SEED, addresses_max=10, cells_max=1_000)
    assert rates.admit("attacker", START_S) == 0.0
    for number in range(1_000):
        rates.admit(f"other {number}", START_S + 1.0)
    assert rates.admit("attacker", START_S + 2.0) == pytest.approx(58.0)
    last = "other 999"  # among the cells
    assert rates.admit(last, START_S + 2.0) > 0.0
    assert rates.admit(last, START_S + 60.5) > 0.0, "also in the next generation, which has room for it"


def test_memory_is_free_again_after_an_attack() -> None:
    rates = AddressRates(1, 1.0, 1, SEED, addresses_max=10, cells_max=16)
    for number in range(100):
        rates.admit(f"a{number}", START_S)
    assert rates._cells
    for step in range(1, 4):
        rates.admit("b", START_S + step * 1.1)
    assert not rates._cells and rates.size() <= 2


@pytest.mark.parametrize(("others", "share_max"), [(1_000, 0.001), (10_000, 0.06)])
def test_how_many_newcomers_are_refused_early(others: int, share_max: float) -> None:
    """As the module promises: beyond the addresses that are kept, `others` use all that they may."""
    rates = AddressRates(1, 86_400.0, 1, SEED, addresses_max=0)
    for number in range(others):
        rates.admit(f"attacker {number}", START_S)
    refused = sum(rates.admit(f"newcomer {number}", START_S) > 0.0 for number in range(1_000))
    used = 1 - (1 - 1 / CELLS_MAX) ** (CELLS_PER_ADDRESS * (others + 1_000))
    assert refused / 1_000 <= max(used**CELLS_PER_ADDRESS * 1.5, share_max)


def test_the_bound_of_a_generation() -> None:
    rates = AddressRates(1, 86_400.0, 1, SEED)
    for number in range(ADDRESSES_MAX + 1_000):
        rates.admit(str(number), START_S)
    assert rates.size() == ADDRESSES_MAX
