"""The histogram against counting."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from activator.runtime.histogram import Histogram

BOUNDS = st.lists(st.floats(0.0, 1000.0), unique=True, max_size=20).map(sorted)


@given(BOUNDS, st.lists(st.floats(-1.0, 2000.0)))
def test_each_bucket_counts_what_is_not_above_it(bounds: list[float], values: list[float]) -> None:
    histogram = Histogram(tuple(bounds))
    for value in (*bounds, *values):  # each bound itself is in its bucket
        histogram.observe(value)
    observed = [*bounds, *values]
    assert histogram.buckets() == [(bound, sum(value <= bound for value in observed)) for bound in (*bounds, inf)]
    total = 0.0
    for value in observed:
        total += value
    assert histogram.sum == total


def test_what_is_endless_is_in_the_last_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(inf)
    assert histogram.buckets() == [(1.0, 0), (2.0, 0), (inf, 1)]
