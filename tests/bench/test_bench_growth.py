"""No operation costs more because there is more of everything: the ratio of 2,000 to 100 within one run, or of 10,000.

Not a test of time: each figure is the best CPU time of several rounds, and linear growth would give a ratio of 20 or,
in `make deep`, of 100.
"""

from __future__ import annotations

import pytest

from bench.growth import LARGE, RATIO_MAX, SMALL, Case, Growth, each, growth_below
from bench.growth_cases import CASES, SLICE_PODS
from tests.conftest import DEEP

ROUNDS_MAX = 8
SLICE_RATIO_MAX = 3.0
SIZES = (SMALL, LARGE if DEEP else 2_000)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_costs_the_same_however_much_there_is(case: Case) -> None:
    ratio_max = case.ratio_max if DEEP else min(case.ratio_max, RATIO_MAX)
    found = growth_below(case, ratio_max, ROUNDS_MAX, SIZES)
    assert found.ratio <= ratio_max, f"{case.what}: {found.small_ns:,.0f} ns, {found.large_ns:,.0f} ns"


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith("slice_event")], ids=lambda case: case.name
)
def test_an_event_of_one_slice_costs_the_same_beside_twenty_as_beside_two(case: Case) -> None:
    """All slices have as many pods; reading all of them again would give a ratio of 8 to 10."""
    found = growth_below(case, SLICE_RATIO_MAX, ROUNDS_MAX, (2 * SLICE_PODS, 20 * SLICE_PODS))
    assert found.ratio <= SLICE_RATIO_MAX, f"{case.what}: {found.small_ns:,.0f} ns, {found.large_ns:,.0f} ns"


def test_what_is_linear_is_found_out() -> None:
    """A sum over as many numbers as there are."""
    linear = Case("sum", "a sum", lambda size: each(lambda: [sum(range(size * 10)) for _ in range(10)], 10))
    constant = Case("no sum", "no sum", lambda size: each(lambda: [sum(range(SMALL * 10)) for _ in range(10)], 10))
    assert growth_below(linear, RATIO_MAX, ROUNDS_MAX).ratio > RATIO_MAX
    assert growth_below(constant, RATIO_MAX, ROUNDS_MAX).ratio <= RATIO_MAX
    assert Growth(2.0, 3.0).ratio == 1.5
