"""Operations at sizes of 100 and 10,000, in one run, by CPU time: bench/growth_cases.py has the cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.growth import LARGE, SMALL, Case, growth
from bench.growth_cases import CASES
from bench.micro.rounds import note

ROUNDS = 5


@pytest.mark.benchmark(group="growth")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_growth(benchmark: BenchmarkFixture, case: Case) -> None:
    found = growth(case, ROUNDS)
    pedantic: Callable[..., Any] = benchmark.pedantic  # untyped
    pedantic(lambda: None, rounds=1)
    extra = {f"ns_at_{SMALL}": round(found.small_ns), f"ns_at_{LARGE}": round(found.large_ns)}
    note(benchmark, round(found.ratio, 2), "times", operation=case.name, what=case.what, **extra)
