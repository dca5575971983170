"""A reading of a histogram: plain data for messages and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from activator.runtime.histogram import Histogram


class ExemplarReading(NamedTuple):
    """An observed value and its trace; `time_s` is the time of the observation in seconds since 1970."""

    trace_id: str
    value: float
    time_s: float


class Distribution(NamedTuple):
    """Cumulative counts by bound (the last one is infinite), the sum of all values, and exemplars."""

    buckets: tuple[tuple[float, int], ...]
    total: float
    exemplars: dict[float, ExemplarReading] = {}  # noqa: RUF012 (a default of a tuple's field) by the bucket's bound

    @classmethod
    def of(cls, histogram: Histogram) -> Distribution:
        exemplars = {
            bound: ExemplarReading(exemplar.trace_id, exemplar.value, exemplar.time_s)
            for bound, exemplar in histogram.exemplars().items()
        }
        return cls(tuple(histogram.buckets()), histogram.sum, exemplars)

    @classmethod
    def empty(cls, bounds: Iterable[float]) -> Distribution:
        return cls(tuple((bound, 0) for bound in (*bounds, inf)), 0.0)

    def plus(self, other: Distribution) -> Distribution:
        """Return the sum of both, which must have the same bounds. Raises ValueError if their numbers differ."""
        both = zip(self.buckets, other.buckets, strict=True)
        buckets = tuple((bound, count + more) for (bound, count), (_, more) in both)
        return Distribution(buckets, self.total + other.total, _latest(self.exemplars, other.exemplars))


def _latest(
    exemplars: dict[float, ExemplarReading], others: dict[float, ExemplarReading]
) -> dict[float, ExemplarReading]:
    """Return the latest exemplar of each bucket, because Prometheus refuses one older than the last scrape's."""
    if not others:
        return exemplars
    found = dict(exemplars)
    for bound, other in others.items():
        before = found.get(bound)
        if before is None or other.time_s > before.time_s:
            found[bound] = other
    return found
