"""The averages of one revision over its stable and its panic window, from monotonic totals.

Rules
  1. Time is divided into buckets of BUCKET_S. A window of n buckets is the current one so far and the n - 1 before it.
     The total at the start of each bucket is kept, so an average is one subtraction and one division, whatever the
     window; an observation writes the starts that it has passed, one a second.
  2. The average of a concurrency comes from its time integral, so it is exact however rarely a load is reported.
     Between two observations it is assumed to be constant.
  3. Missing data do not count as zero. A window that has just begun is divided by its age; one whose last observations
     are missing is divided by the time until the last one; one without any observation is 0. After a silence as long as
     a window, that window begins again.
  4. A revision that was last observed without a request has none until the next observation, which comes with its first
     request: that silence is known, so it counts as zero. (Knative leaves such seconds out of its averages and divides
     by fewer, until the window is empty.)
  5. Requests that pods have answered, and whose slow clients have not received everything, need no pod. Of the integral
     since the last load, only the share of the requests at pods and in the queue among all requests counts.

Source: knative.dev/serving pkg/autoscaler/aggregation/bucketing.go, pkg/autoscaler/metrics/collector.go (v1.23).
"""

from __future__ import annotations

from array import array
from collections import deque
from math import ceil, floor
from typing import Final

from activator.config.model.scaling import METRIC_RPS
from activator.messages import Load

BUCKET_S: Final = 1.0
AVERAGE_DIGITS: Final = 6  # decimal places
RATE_SPAN_MIN_S: Final = 1.0  # the least divisor of a rate: one request after a millisecond is not 1000 per second


class _Window:
    """One window: its length, and the earliest time that it includes."""

    def __init__(self, seconds: float, at_s: float) -> None:
        self.buckets = _buckets(seconds)
        self.first_s = at_s
        self.first_total = 0.0  # the total at `first_s`


class Totals:
    """A total over time, and its averages per second over two windows.

    `span_min_s`: the least divisor of an average. `counts_first`: the increase in the observation that ends a silence
    belongs to the windows that begin with it.
    """

    def __init__(self, stable_s: float, panic_s: float, at_s: float, total: float, is_rate: bool) -> None:
        self._span_min_s = RATE_SPAN_MIN_S if is_rate else 0.0
        self._counts_first = is_rate
        self._counted = total  # as last observed
        self._total = 0.0  # the increase since the beginning
        self._last_s = at_s
        self._next_s = (floor(at_s / BUCKET_S) + 1) * BUCKET_S  # the end of the current bucket
        self._stable = _Window(stable_s, at_s)
        self._panic = _Window(panic_s, at_s)
        self._beginnings = self._empty_ring()

    def observe(self, at_s: float, total: float, silent_s: float = 0.0) -> None:
        """Record the total; `silent_s`: how long there was no request before it.

        A total that has fallen comes from a new counter, and adds nothing.
        """
        added = max(total - self._counted, 0.0)
        self._counted = total
        before = self._total
        if at_s > self._last_s:
            if at_s >= self._next_s:
                self._fill_buckets(at_s, added)
            self._last_s = at_s
        self._total += added
        if silent_s == 0.0:
            return
        for window in (self._stable, self._panic):
            if silent_s >= window.buckets * BUCKET_S:
                window.first_s = at_s
                window.first_total = before if self._counts_first else self._total

    def advance(self, now_s: float) -> None:
        """Record that nothing has been added until now."""
        if now_s > self._last_s:
            if now_s >= self._next_s:
                self._fill_buckets(now_s, 0.0)
            self._last_s = now_s

    def average(self, now_s: float, panic: bool) -> float | None:
        """Return the average over the window: 0.0 if all of its data have expired, None before any time has passed."""
        window = self._panic if panic else self._stable
        bucket = floor(now_s / BUCKET_S)
        if bucket - floor(self._last_s / BUCKET_S) >= window.buckets:
            return 0.0
        start = bucket - window.buckets + 1
        begin_s, before = window.first_s, window.first_total
        if start * BUCKET_S > begin_s:
            begin_s, before = start * BUCKET_S, self._beginnings[start % len(self._beginnings)]
        span_s = max(self._last_s - begin_s, self._span_min_s)
        # Rounded as in Knative: 40.0000001 at a target of 10 is not five pods.
        return round((self._total - before) / span_s, AVERAGE_DIGITS) if span_s > 0.0 else None

    def resize(self, stable_s: float, panic_s: float) -> None:
        """Change the windows, and keep the past as far as the longer of the former ones has it."""
        old = self._beginnings
        self._stable.buckets, self._panic.buckets = _buckets(stable_s), _buckets(panic_s)
        last = floor(self._last_s / BUCKET_S)
        oldest = last - len(old) + 1
        for window in (self._stable, self._panic):
            if window.first_s < oldest * BUCKET_S:
                window.first_s, window.first_total = oldest * BUCKET_S, old[oldest % len(old)]
        self._beginnings = self._empty_ring()
        for bucket in range(max(oldest, last - len(self._beginnings) + 1), last + 1):
            self._beginnings[bucket % len(self._beginnings)] = old[bucket % len(old)]

    def _empty_ring(self) -> array[float]:
        """Return an empty ring of the totals at the starts of buckets, as long as the longer window."""
        return array("d", [0.0]) * (max(self._stable.buckets, self._panic.buckets) + 1)

    def _fill_buckets(self, at_s: float, added: float) -> None:
        """Write the totals at the starts of the buckets since the last observation, at most as many as the ring has."""
        ring = self._beginnings
        last = floor(at_s / BUCKET_S)
        per_s = added / (at_s - self._last_s)
        for bucket in range(max(floor(self._last_s / BUCKET_S) + 1, last - len(ring) + 1), last + 1):
            ring[bucket % len(ring)] = self._total + per_s * (bucket * BUCKET_S - self._last_s)
        self._next_s = (last + 1) * BUCKET_S


class Windows:
    """The windows of one revision: its concurrency, its rate, and its largest number of concurrent requests."""

    def __init__(self, stable_s: float, panic_s: float, at_s: float, seconds: float, requests: int) -> None:
        self._concurrency = Totals(stable_s, panic_s, at_s, 0.0, is_rate=False)
        self._reported = seconds  # the integral as last reported
        self._seconds = 0.0  # the part of it that needs pods
        self._rate = Totals(stable_s, panic_s, at_s, float(requests), is_rate=True)
        self._requests = requests
        self._present = 0  # last observed requests, including those that pods have answered
        self._needing_pods = 0  # last observed requests at pods and in the queue
        self._idle_since_s = at_s  # the time since which there has been no request, if there is none
        self._peak_buckets = _buckets(stable_s)
        self._peaks: deque[tuple[int, int]] = deque()  # (bucket, its maximum), with falling maxima

    def observe(self, load: Load) -> None:
        """Record a load of the revision."""
        at_s = load.at_s
        needing_pods = load.in_flight + load.queued
        present = max(load.concurrency, needing_pods)
        silent_s = 0.0
        # Rule 4: the silence before this load had no request. It ends with a request that is present, or with one that
        # has come and gone since; the latter also begins another silence.
        if self._present == 0 and (present or load.requests_total != self._requests):
            silent_s = max(at_s - self._idle_since_s, 0.0)
        if not present and (self._present or load.requests_total != self._requests):
            self._idle_since_s = at_s
        self._seconds += max(load.request_seconds - self._reported, 0.0) * (needing_pods / present if present else 1.0)
        self._reported = load.request_seconds
        self._concurrency.observe(at_s, self._seconds, silent_s)
        self._rate.observe(at_s, float(load.requests_total), silent_s)
        self._requests = load.requests_total
        self._present, self._needing_pods = present, needing_pods
        self._record_peak(floor(at_s / BUCKET_S), needing_pods)

    def averages(self, metric: str, now_s: float) -> tuple[float, float]:
        """Return the averages of this metric over the stable and over the panic window."""
        totals = self._rate if metric == METRIC_RPS else self._concurrency
        if self._present == 0:
            self._concurrency.advance(now_s)
            self._rate.advance(now_s)
        default = 0.0 if metric == METRIC_RPS else float(self._needing_pods)
        stable, panic = totals.average(now_s, panic=False), totals.average(now_s, panic=True)
        return default if stable is None else stable, default if panic is None else panic

    def peak(self, now_s: float) -> int:
        """Return the largest number of concurrent requests in the stable window."""
        self._drop_old_peaks(floor(now_s / BUCKET_S))
        return max(self._needing_pods, self._peaks[0][1] if self._peaks else 0)

    def resize(self, stable_s: float, panic_s: float) -> None:
        """Change the windows, and keep the past."""
        self._concurrency.resize(stable_s, panic_s)
        self._rate.resize(stable_s, panic_s)
        self._peak_buckets = _buckets(stable_s)

    def _record_peak(self, bucket: int, requests: int) -> None:
        """Add the number of requests; drop the peaks that can no longer be the largest of the window."""
        if self._peaks and self._peaks[-1][0] == bucket and requests <= self._peaks[-1][1]:
            return
        self._drop_old_peaks(bucket)
        while self._peaks and self._peaks[-1][1] <= requests:
            self._peaks.pop()
        if not self._peaks or self._peaks[-1][0] != bucket:
            self._peaks.append((bucket, requests))

    def _drop_old_peaks(self, bucket: int) -> None:
        while self._peaks and bucket - self._peaks[0][0] > self._peak_buckets:
            self._peaks.popleft()


def _buckets(seconds: float) -> int:
    """Return the number of buckets of a window of this length."""
    return max(ceil(seconds / BUCKET_S), 1)
