"""How often something took how long: counts in fixed buckets, cheap enough for every request.

Rules
  1. Written by the request path, read when metrics are asked for; nothing is computed in between.
  2. Buckets are a chain walked from the shortest: a short time costs a step or two, and a long one some more.
  3. A bound belongs to its bucket (less or equal, as Prometheus has it), and the last bucket has none.
  4. Exemplars are left by traced requests, after they have been observed; other requests pay nothing for them.
     A bucket keeps its last one only, and a histogram without any keeps no place for them.
"""

from __future__ import annotations

from math import inf
from typing import final

from mypy_extensions import i64


@final
class Bucket:
    """What was above the bound before and not above this one."""

    following: Bucket  # all but the last have one

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.count: i64 = 0


@final
class Exemplar:
    """An observed value, and the trace that shows it. `time_s`: when, in seconds since 1970."""

    def __init__(self, trace_id: str, value: float, time_s: float) -> None:
        self.trace_id = trace_id
        self.value = value
        self.time_s = time_s


@final
class Histogram:
    """`bounds` rise, without the infinite one; the unit is the caller's."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.sum: float = 0.0
        self._first = Bucket(inf)
        for bound in reversed(bounds):
            bucket = Bucket(bound)
            bucket.following = self._first
            self._first = bucket
        self._exemplars: dict[float, Exemplar] | None = None  # by the bound of their bucket

    def observe(self, value: float) -> None:
        """Count one more value; NaN would count as the least."""
        bucket = self._first
        while value > bucket.bound:
            bucket = bucket.following
        bucket.count += 1
        self.sum += value

    def exemplify(self, value: float, trace_id: str, time_s: float) -> None:
        """A value that was just observed becomes the exemplar of its bucket, in place of the one before."""
        bucket = self._first
        while value > bucket.bound:
            bucket = bucket.following
        exemplars = self._exemplars
        if exemplars is None:
            exemplars = self._exemplars = {}
        exemplars[bucket.bound] = Exemplar(trace_id, value, time_s)

    def exemplars(self) -> dict[float, Exemplar]:
        """The current ones, by the bound of their bucket."""
        exemplars = self._exemplars
        return {} if exemplars is None else exemplars.copy()

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound, the infinite one last, with how many were not above it."""
        found: list[tuple[float, int]] = []
        count = 0
        bucket = self._first
        while True:
            count += bucket.count
            found.append((bucket.bound, count))
            if bucket.bound == inf:
                return found
            bucket = bucket.following
