"""Histograms with fixed buckets, cheap enough for every request.

Rules
  1. The request path writes a histogram, and metrics read it; nothing is computed in between.
  2. The buckets are a linked list, searched from the lowest bound: a short duration takes a step or two, a long one
     more.
  3. A bound belongs to its bucket (less or equal, as in Prometheus); the last bucket has no bound.
  4. Traced requests add exemplars after their observation; other requests have no cost. A bucket keeps only its last
     exemplar, and a histogram without exemplars allocates nothing for them.
"""

from __future__ import annotations

from math import inf
from typing import final

from mypy_extensions import i64


@final
class Bucket:
    """The count of values above the previous bound and not above this one."""

    following: Bucket  # not set in the last bucket

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.count: i64 = 0


@final
class Exemplar:
    """An observed value and its trace; `time_s` is the time of the observation in seconds since 1970."""

    def __init__(self, trace_id: str, value: float, time_s: float) -> None:
        self.trace_id = trace_id
        self.value = value
        self.time_s = time_s


@final
class Histogram:
    """A histogram; `bounds` ascend and exclude the infinite one, and their unit is the caller's."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.sum: float = 0.0
        self._first = Bucket(inf)
        for bound in reversed(bounds):
            bucket = Bucket(bound)
            bucket.following = self._first
            self._first = bucket
        self._exemplars: dict[float, Exemplar] | None = None  # by the bound of their bucket

    def observe(self, value: float) -> None:
        """Count a value; NaN counts in the first bucket."""
        bucket = self._first
        while value > bucket.bound:
            bucket = bucket.following
        bucket.count += 1
        self.sum += value

    def exemplify(self, value: float, trace_id: str, time_s: float) -> None:
        """Make a value that was just observed the exemplar of its bucket."""
        bucket = self._first
        while value > bucket.bound:
            bucket = bucket.following
        exemplars = self._exemplars
        if exemplars is None:
            exemplars = self._exemplars = {}
        exemplars[bucket.bound] = Exemplar(trace_id, value, time_s)

    def exemplars(self) -> dict[float, Exemplar]:
        """Return the current exemplars by the bound of their bucket."""
        exemplars = self._exemplars
        return {} if exemplars is None else exemplars.copy()

    def buckets(self) -> list[tuple[float, int]]:
        """Return (bound, cumulative count) of each bucket, the infinite bound last."""
        found: list[tuple[float, int]] = []
        count = 0
        bucket = self._first
        while True:
            count += bucket.count
            found.append((bucket.bound, count))
            if bucket.bound == inf:
                return found
            bucket = bucket.following
