"""No operation costs more because there is more of everything: the ratio of 10,000 to 100 within one run.

Not a test of time: each figure is the best CPU time of several rounds, and linear growth would give a ratio of 100.
"""

from __future__ import annotations

import pytest

from bench.growth import RATIO_MAX, SMALL, Case, Growth, each, growth_below
from bench.growth_cases import CASES

ROUNDS_MAX = 8

# Linear still.
GROWS = {
    "slice_event",
    "slice_event_of_a_new_pod",
    "rebuild_turn",
}


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in GROWS], ids=lambda case: case.name)
def test_an_operation_costs_the_same_however_much_there_is(case: Case) -> None:
    found = growth_below(case, RATIO_MAX, ROUNDS_MAX)
    assert found.ratio <= RATIO_MAX, f"{case.what}: {found.small_ns:,.0f} ns, {found.large_ns:,.0f} ns"


def test_what_is_linear_is_found_out() -> None:
    """A sum over as many numbers as there are."""
    linear = Case("sum", "a sum", lambda size: each(lambda: [sum(range(size * 10)) for _ in range(10)], 10))
    constant = Case("no sum", "no sum", lambda size: each(lambda: [sum(range(SMALL * 10)) for _ in range(10)], 10))
    assert growth_below(linear, RATIO_MAX, ROUNDS_MAX).ratio > RATIO_MAX
    assert growth_below(constant, RATIO_MAX, ROUNDS_MAX).ratio <= RATIO_MAX
    assert Growth(2.0, 3.0).ratio == 1.5
