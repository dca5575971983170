"""The history of each revision over the last hour and the last day: samples for the charts of the live page.

Rules
  1. A sample is the difference between two readings of the statistics that the metrics show. The request path is not
     involved.
  2. A revision has no samples before its first activity. At most `HISTORY_REVISIONS_MAX` revisions have samples: those
     that were active most recently.
  3. A sample of the day summarises those of `HISTORY_DAY_INTERVAL_S`: means of the rates and of p50, else the greatest.
  4. Reading takes at most `SAMPLING_SHARE_MAX` of the loop's time, in turns of `SAMPLING_TURN_S`: with many revisions,
     samples are taken less often.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import inf, isinf, isnan, nan
from typing import Any, Final, NamedTuple

from activator.messages import RevisionStatistics
from activator.runtime.clock import Now
from activator.runtime.distribution import Distribution
from activator.runtime.reasons import CLIENTS_OWN
from activator.runtime.tasks import pause
from lb.tracker import READY

HISTORY_INTERVAL_S: Final = 10.0  # the least time between two samples
HISTORY_SPAN_S: Final = 3_600.0
HISTORY_DAY_INTERVAL_S: Final = 300.0  # the least time between two samples of the day
HISTORY_DAY_S: Final = 86_400.0
HISTORY_REVISIONS_MAX: Final = 500  # some 20 KiB each
RECENT_S: Final = 300.0  # failures need attention for this time
SAMPLING_SHARE_MAX: Final = 0.002  # the largest share of the loop's time
SAMPLING_TURN_S: Final = 0.001

_SAMPLES_MAX: Final = int(HISTORY_SPAN_S / HISTORY_INTERVAL_S)
_DAY_SAMPLES_MAX: Final = int(HISTORY_DAY_S / HISTORY_DAY_INTERVAL_S)
_DIGITS: Final = 4  # significant digits in the output


class Sample(NamedTuple):
    """The activity of one revision between two readings, and its state at the second."""

    rate: float  # requests that began, per second
    failures: float  # as counted by `failures`, per second
    p50_s: float  # the median duration of requests that ended; NaN if there were none
    p99_s: float
    queued: int
    in_flight: int
    ready: int  # pods


_FAILURES: Final = Sample._fields.index("failures")


class _Totals(NamedTuple):
    """The totals of a revision at the last reading, and the time since which it has its state."""

    incarnation: int
    requests: int
    failures: int
    buckets: tuple[tuple[float, int], ...]
    state: str
    since_s: float


class _Samples:
    """At most `samples_max` samples, the oldest first."""

    def __init__(self, samples_max: int) -> None:
        self.times_s = array("d")  # monotonic
        self._samples_max = samples_max
        self._columns = tuple(array("f") for _ in Sample._fields)

    def add(self, now_s: float, sample: Sample) -> None:
        if len(self.times_s) >= self._samples_max:
            for column in (self.times_s, *self._columns):
                del column[0]
        self.times_s.append(now_s)
        for column, value in zip(self._columns, sample, strict=True):
            column.append(value)

    def failures_since(self, since_s: float) -> float:
        """Return how many requests failed in the samples that were taken after this time."""
        times_s, rates, count = self.times_s, self._columns[_FAILURES], 0.0
        for index in range(len(times_s) - 1, -1, -1):
            if times_s[index] <= since_s:
                break
            before_s = times_s[index - 1] if index else times_s[0] - HISTORY_INTERVAL_S
            count += rates[index] * (times_s[index] - before_s)
        return count

    def shown(self, now_s: float, span_s: float) -> dict[str, list[float | None]]:
        """Return the samples of the last `span_s` as plain data: a list of their ages, and a list for each figure."""
        first = next((index for index, time_s in enumerate(self.times_s) if now_s - time_s <= span_s), None)
        if first is None:
            return {}
        ages: list[float | None] = [round(now_s - time_s, 1) for time_s in self.times_s[first:]]
        figures = zip(Sample._fields, self._columns, strict=True)
        return {"age_s": ages, **{name: [_rounded(value) for value in column[first:]] for name, column in figures}}


class _Series:
    """The samples of one revision."""

    def __init__(self) -> None:
        self.hour = _Samples(_SAMPLES_MAX)
        self.day = _Samples(_DAY_SAMPLES_MAX)
        self._gathered: list[Sample] = []  # samples for the next one of the day
        self._day_s = nan  # time of the last sample of the day

    def add(self, now_s: float, sample: Sample) -> None:
        self.hour.add(now_s, sample)
        self._gathered.append(sample)
        if isnan(self._day_s):
            self._day_s = now_s
        elif now_s - self._day_s >= HISTORY_DAY_INTERVAL_S:
            self._day_s = now_s
            self.day.add(now_s, summary(self._gathered))
            self._gathered.clear()


class History:
    """The history of all revisions.

    `statistics` returns the current statistics of all revisions, of this process or as reported by the workers;
    `state` the state of one of them.
    """

    def __init__(
        self,
        statistics: Callable[[], Iterable[RevisionStatistics]],
        now: Now,
        state: Callable[[RevisionStatistics], str],
    ) -> None:
        self._statistics = statistics
        self._state = state
        self._now = now
        self._series: OrderedDict[str, _Series] = OrderedDict()  # by last activity, the most recent last
        self._totals: dict[str, _Totals] = {}
        self._read_s = nan  # the last reading

    async def step(self) -> None:
        """Take a sample, and wait until the next one is due."""
        took_s = await self.take_samples()
        await pause(max(HISTORY_INTERVAL_S, took_s / SAMPLING_SHARE_MAX))

    async def take_samples(self) -> float:
        """Take one sample of every revision. Return how much of the loop's time it took, in seconds."""
        began_s = self._now()
        gap_s, self._read_s = began_s - self._read_s, began_s
        took_s = 0.0
        current: dict[str, _Totals] = {}
        for statistics in self._statistics():
            if not statistics.dropped:
                current[statistics.key] = self._take(statistics, gap_s)
            if self._now() - began_s >= SAMPLING_TURN_S:
                took_s += self._now() - began_s
                await pause(0.0)
                began_s = self._now()
        self._totals = current
        for key in self._series.keys() - current.keys():
            del self._series[key]
        return took_s + self._now() - began_s

    def shown(self, keys: Sequence[str] = (), is_day: bool = False) -> dict[str, Any]:
        """Return the series of these revisions, of the hour or the day, as plain data; of all if `keys` is empty."""
        now_s = self._now()
        chosen = [(key, self._series[key]) for key in keys or [*self._series] if key in self._series]
        if is_day:
            return {key: series.day.shown(now_s, HISTORY_DAY_S) for key, series in chosen}
        return {key: series.hour.shown(now_s, HISTORY_SPAN_S) for key, series in chosen}

    def state_age_s(self, key: str, state: str) -> float:
        """Return for how long a revision has had its state, to HISTORY_INTERVAL_S."""
        before, now_s = self._totals.get(key), self._now()
        return now_s - before.since_s if before is not None and before.state == state else 0.0

    def recent_failures(self, statistics: RevisionStatistics) -> int:
        """Return how many requests of a revision failed in the last `RECENT_S`, to HISTORY_INTERVAL_S."""
        failed = failures(statistics)
        before, series = self._totals.get(statistics.key), self._series.get(statistics.key)
        if not failed or before is None or before.incarnation != statistics.incarnation:
            return failed
        sampled = 0.0 if series is None else series.hour.failures_since(self._now() - RECENT_S)
        return failed - before.failures + round(sampled)

    def _take(self, statistics: RevisionStatistics, gap_s: float) -> _Totals:
        """Add a sample of a revision, `gap_s` after the last reading; return its totals."""
        before = self._totals.get(statistics.key)
        duration = None if statistics.traffic is None else statistics.traffic.duration
        failed = failures(statistics)
        buckets = () if duration is None else duration.buckets
        state = self._state(statistics)
        since_s = self._read_s if before is None or before.state != state else before.since_s
        now = _Totals(statistics.incarnation, statistics.requests_total, failed, buckets, state, since_s)
        if before is None or before.incarnation != statistics.incarnation:
            before = _Totals(statistics.incarnation, 0, 0, (), "", 0.0)
        ready = statistics.table.pods[READY]
        series = self._series.get(statistics.key)
        has_requests = now.requests != before.requests or statistics.queued or statistics.table.in_flight
        if has_requests or (ready and series is None):
            if series is None:
                series = self._series[statistics.key] = _Series()
                if len(self._series) > HISTORY_REVISIONS_MAX:
                    self._series.popitem(last=False)
            self._series.move_to_end(statistics.key)
        if series is not None and not isnan(gap_s):
            p50_s, p99_s = quantiles(between(before.buckets, buckets), (0.5, 0.99))
            rates = ((now.requests - before.requests) / gap_s, (failed - before.failures) / gap_s)
            series.add(self._read_s, Sample(*rates, p50_s, p99_s, statistics.queued, statistics.table.in_flight, ready))
        return now


def failures(statistics: RevisionStatistics) -> int:
    """Return how many requests failed: their pod responded with 500 or more, or the reason is not the client's own."""
    refused = sum(count for word, count in statistics.failures.items() if word not in CLIENTS_OWN)
    return refused + sum(count for code, count in statistics.responses.items() if code >= 500)


def summary(samples: Sequence[Sample]) -> Sample:
    """Return one sample for all of these: means of the rates and of p50, the greatest of the others."""
    p50 = [sample.p50_s for sample in samples if not isnan(sample.p50_s)]
    p99 = [sample.p99_s for sample in samples if not isnan(sample.p99_s)]
    return Sample(
        sum(sample.rate for sample in samples) / len(samples),
        sum(sample.failures for sample in samples) / len(samples),
        sum(p50) / len(p50) if p50 else nan,
        max(p99, default=nan),
        max(sample.queued for sample in samples),
        max(sample.in_flight for sample in samples),
        max(sample.ready for sample in samples),
    )


def between(before: Sequence[tuple[float, int]], after: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the cumulative counts of the observations between two readings of one distribution."""
    if len(before) != len(after):
        return [*after]
    return [(bound, count - was) for (bound, count), (_, was) in zip(after, before, strict=True)]


def quantiles(buckets: Sequence[tuple[float, int]], shares: Sequence[float]) -> list[float]:
    """Return the quantiles at `shares` of cumulative counts, interpolated as by Prometheus' `histogram_quantile`.

    The results are NaN if there are no observations. A quantile above the last finite bound is reported as that bound.
    """
    count = buckets[-1][1] if buckets else 0
    return [_quantile(buckets, share * count) if count > 0 else nan for share in shares]


def _quantile(buckets: Sequence[tuple[float, int]], rank: float) -> float:
    """Return the value at which the cumulative count reaches `rank`."""
    lower, below = 0.0, 0
    for bound, count in buckets:
        if count >= rank:
            if isinf(bound):
                return lower
            return min(lower + (bound - lower) * (rank - below) / max(count - below, 1), bound)  # bound: rounding
        lower, below = bound, count
    return lower


def distribution_figures(distribution: Distribution) -> dict[str, float | int | None]:
    """Return the count, the mean and two quantiles, in the unit of the distribution."""
    count = distribution.buckets[-1][1] if distribution.buckets else 0
    p50, p99 = quantiles(distribution.buckets, (0.5, 0.99))
    mean = distribution.total / count if count else nan
    return {"count": count, "mean_s": _rounded(mean), "p50_s": _rounded(p50), "p99_s": _rounded(p99)}


def _rounded(value: float) -> float | None:
    """Round to `_DIGITS` significant digits. Return None for NaN and infinities, which JSON does not have."""
    return None if isnan(value) or value in (inf, -inf) else float(f"{value:.{_DIGITS}g}")
