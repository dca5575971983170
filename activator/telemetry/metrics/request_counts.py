"""The sums of all workers' request counts for Knative's dashboards.

Rules
  1. A worker sends the series that have changed, with their totals since its start. Its last totals remain in the sums
     after it has ended.
  2. The bounds are those of one worker (knative_requests.py): the first revisions that any worker sends, and the first
     combinations of each, are distinguished. This choice does not change while the revision exists.
  3. The counts of a removed revision are deleted when the sums are read, or earlier by `forget_others`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from activator.config.model.telemetry import KnativeExport
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.knative_requests import (
    KNATIVE_SERIES_MAX,
    OTHER,
    Combination,
    KnativeRequests,
    RequestSeries,
    attributes_of,
    less_distinguished,
)
from activator.telemetry.request_hooks import RequestHooks


class RequestCounts(NamedTuple):
    """One series as plain data."""

    key: str
    combination: Combination
    duration: Distribution
    request_size: Distribution
    response_size: Distribution

    @classmethod
    def of(cls, key: str, series: RequestSeries) -> RequestCounts:
        duration, request_size = Distribution.of(series.duration), Distribution.of(series.request_size)
        return cls(key, series.combination, duration, request_size, Distribution.of(series.response_size))

    def plus(self, other: RequestCounts) -> RequestCounts:
        """Return the sum of both, with this one's key and combination."""
        return RequestCounts(
            self.key,
            self.combination,
            self.duration.plus(other.duration),
            self.request_size.plus(other.request_size),
            self.response_size.plus(other.response_size),
        )

    def attributes(self) -> dict[str, str | int]:
        return attributes_of(self.combination)


class RequestCounter:
    """The counter of a worker's requests while Knative's metrics are enabled; the parent shows them."""

    def __init__(self, proxy: RequestHooks, failed: Callable[[Exception], None]) -> None:
        self.requests = KnativeRequests(failed)
        self._proxy = proxy

    def set(self, wanted: KnativeExport) -> None:
        """Apply the settings now."""
        self._proxy.measurer = None if wanted.protocol == "none" else self.requests


class CountedRequests(Protocol):
    """One series, of one worker or of all."""

    @property
    def duration(self) -> Histogram | Distribution: ...

    @property
    def request_size(self) -> Histogram | Distribution: ...

    @property
    def response_size(self) -> Histogram | Distribution: ...

    def attributes(self) -> dict[str, str | int]: ...


class RequestReader(Protocol):
    """The interface of `KnativeRequests` (one process) and `WorkersRequests` (all workers)."""

    def read(self, revisions: AbstractSet[str]) -> Iterator[tuple[str, CountedRequests]]:
        """Yield the series as `KnativeRequests.read` does."""


Name = tuple[str, Combination]


class WorkersRequests:
    """The sums of all workers, bounded by `series_max` and `revisions_max` as in `KnativeRequests`."""

    def __init__(self, series_max: int = KNATIVE_SERIES_MAX, revisions_max: int = METRICS_REVISIONS_MAX) -> None:
        self._series_max = series_max
        self._revisions_max = revisions_max
        self._distinguished: dict[str, set[Combination]] = {}  # by revision
        self._of_workers: dict[int, dict[Name, RequestCounts]] = {}  # by worker, then by the worker's name
        self._ended: dict[Name, RequestCounts] = {}  # by the name in the sums, for workers that have ended

    def received(self, worker: int, series: tuple[RequestCounts, ...]) -> None:
        """Record the totals that a worker has sent."""
        known = self._of_workers.setdefault(worker, {})
        for one in series:
            known[one.key, one.combination] = one
            self._name_of(one)

    def worker_ended(self, worker: int) -> None:
        """Move the totals of a worker that has ended to the permanent sums."""
        for one in self._of_workers.pop(worker, {}).values():
            self._add(self._ended, one)

    def read(self, revisions: AbstractSet[str]) -> Iterator[tuple[str, RequestCounts]]:
        self.forget_others(revisions)
        sums = dict(self._ended)
        for known in list(self._of_workers.values()):
            for one in known.values():
                self._add(sums, one)
        for (key, _), one in sums.items():
            yield key, one

    def _add(self, sums: dict[Name, RequestCounts], one: RequestCounts) -> None:
        name = self._name_of(one)
        before = sums.get(name)
        sums[name] = one._replace(key=name[0], combination=name[1]) if before is None else before.plus(one)

    def _name_of(self, one: RequestCounts) -> Name:
        """Return the name of a series in the sums."""
        key, combination = one.key, one.combination
        of = self._distinguished.get(key)
        if of is None:
            if len(self._distinguished) >= self._revisions_max:
                key = OTHER
            of = self._distinguished.setdefault(key, set())
        if combination not in of:
            if len(of) < self._series_max:
                of.add(combination)
            else:
                combination = less_distinguished(combination)
        return key, combination

    def forget_others(self, revisions: AbstractSet[str]) -> None:
        """Delete the counts of all revisions but these."""
        removed = {key for key in self._distinguished if key and key != OTHER and key not in revisions}
        for key in removed:
            del self._distinguished[key]
        for known in (self._ended, *self._of_workers.values()):
            for name in [name for name in known if name[0] not in revisions and name[0] not in {"", OTHER}]:
                del known[name]
