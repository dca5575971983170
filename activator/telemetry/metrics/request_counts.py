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
    coarser,
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

    def set(self, settings: KnativeExport) -> None:
        """Apply the settings now."""
        self._proxy.measurer = None if settings.protocol == "none" else self.requests


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


Name = tuple[str, Combination]  # the key of a revision, and a combination; it names one series


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
        by_name = self._of_workers.setdefault(worker, {})
        for counts in series:
            by_name[counts.key, counts.combination] = counts
            self._name_of(counts)

    def worker_ended(self, worker: int) -> None:
        """Move the totals of a worker that has ended to the permanent sums."""
        for counts in self._of_workers.pop(worker, {}).values():
            self._add(self._ended, counts)

    def read(self, revisions: AbstractSet[str]) -> Iterator[tuple[str, RequestCounts]]:
        self.forget_others(revisions)
        sums = dict(self._ended)
        for by_name in list(self._of_workers.values()):
            for counts in by_name.values():
                self._add(sums, counts)
        for (key, _), counts in sums.items():
            yield key, counts

    def _add(self, sums: dict[Name, RequestCounts], counts: RequestCounts) -> None:
        name = self._name_of(counts)
        total = sums.get(name)
        sums[name] = counts._replace(key=name[0], combination=name[1]) if total is None else total.plus(counts)

    def _name_of(self, counts: RequestCounts) -> Name:
        """Return the name under which a series is summed: its own, or a coarser one beyond the bounds."""
        key, combination = counts.key, counts.combination
        combinations = self._distinguished.get(key)
        if combinations is None:
            if len(self._distinguished) >= self._revisions_max:
                key = OTHER
            combinations = self._distinguished.setdefault(key, set())
        if combination not in combinations:
            if len(combinations) < self._series_max:
                combinations.add(combination)
            else:
                combination = coarser(combination)
        return key, combination

    def forget_others(self, revisions: AbstractSet[str]) -> None:
        """Delete the counts of all revisions but these."""
        removed = {key for key in self._distinguished if key and key != OTHER and key not in revisions}
        for key in removed:
            del self._distinguished[key]
        for by_name in (self._ended, *self._of_workers.values()):
            for name in [name for name in by_name if name[0] not in revisions and name[0] not in {"", OTHER}]:
                del by_name[name]
