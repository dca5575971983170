"""Reports the concurrency of each revision in the form that Knative's autoscaler expects.

Rules
  1. A revision is reported at once with its first request, as one request of concurrency one, which starts it from
     zero. The next regular report subtracts it. The same holds for a request that finds no pod of a revision which was
     reported a moment ago.
  2. Every CONCURRENCY_REPORT_S each revision with requests is reported with its mean concurrency since the last report
     and the number of its requests; once more, with zero, when it has none.
  3. Figures that were not delivered are not lost: when the connection is restored, every revision with requests is
     reported at once, so that a first request does not wait for an interval. The next report subtracts this one too.

The means come from the integral that the data plane keeps (`Load.request_seconds`), so they are exact however rarely a
load is reported. Source: knative.dev/serving pkg/activator/handler/concurrency_reporter.go (v1.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from activator.messages import Load
from activator.runtime.clock import Now

POKE_INTERVAL_S: Final = 0.05  # between two immediate reports of one revision


class ConcurrencyStat(NamedTuple):
    """One revision's figures since the last report."""

    key: str  # namespace/name
    average_concurrency: float
    request_count: float


class _Entry:
    """A revision that is being reported."""

    def __init__(self, load: Load, requests_before: int) -> None:
        # Reported at once, and subtracted from the next report.
        self.reported_average = 1.0
        self.reported_count = 1.0
        self.poked_s = load.at_s
        self.load = load
        # The start of the next report; the time before this first load does not count.
        self.since_s = load.at_s
        self.seconds_before = load.request_seconds
        self.requests_before = requests_before


class ConcurrencyReporter:
    """The reporter. `send` passes a batch to the autoscaler's connection and does not wait."""

    def __init__(self, now: Now, send: Callable[[list[ConcurrencyStat]], None]) -> None:
        self._now = now
        self._send = send
        self._entries: dict[str, _Entry] = {}
        self._requests: dict[str, int] = {}  # by revision: the total of requests at its last report

    def load(self, load: Load) -> None:
        """Record the present load of a revision; report its first request at once."""
        entry = self._entries.get(load.key)
        if entry is not None:
            entry.load = load
            return
        before = self._requests.get(load.key, 0)
        if load.requests_total > before:
            self._entries[load.key] = _Entry(load, before)
            self._send([ConcurrencyStat(load.key, 1.0, 1.0)])

    def poke(self, key: str) -> None:
        """Report at once that requests wait for this revision, which has no pod."""
        entry = self._entries.get(key)
        now_s = self._now()
        if entry is not None and now_s - entry.poked_s >= POKE_INTERVAL_S:
            entry.poked_s = now_s
            entry.reported_average += 1.0
            self._send([ConcurrencyStat(key, 1.0, 0.0)])

    def drop_revision(self, key: str) -> None:
        """Forget the revision, which was removed."""
        self._entries.pop(key, None)
        self._requests.pop(key, None)

    def report(self) -> None:
        """Send the figures since the last report. Call it every CONCURRENCY_REPORT_S."""
        now_s = self._now()
        stats = []
        for key, entry in list(self._entries.items()):
            average, count = self._take_figures(entry, now_s)
            unreported_average = max(average - entry.reported_average, 0.0)
            unreported_count = max(count - entry.reported_count, 0.0)
            stats.append(ConcurrencyStat(key, unreported_average, unreported_count))
            self._begin_next_report(key, entry)
            # An average of 0 alone may mean that a request has only just arrived.
            if average == 0.0 and entry.load.concurrency == 0:
                del self._entries[key]
        if stats:
            self._send(stats)

    def connected(self) -> None:
        """Report the current loads at once, because the autoscaler may have missed some."""
        carrying = []
        for key, entry in self._entries.items():
            if entry.load.concurrency > 0:
                entry.reported_average, entry.reported_count = float(entry.load.concurrency), 1.0
                carrying.append(ConcurrencyStat(key, entry.reported_average, entry.reported_count))
        if carrying:
            self._send(carrying)

    def _take_figures(self, entry: _Entry, now_s: float) -> tuple[float, float]:
        """Return the mean concurrency and the number of requests since the last report; the next figures begin now."""
        load = entry.load
        # The load of a revision without requests is not sent again, because nothing is added to it.
        until_s = load.at_s if load.concurrency > 0 else max(now_s, load.at_s)
        elapsed_s = until_s - entry.since_s
        average = (load.request_seconds - entry.seconds_before) / elapsed_s if elapsed_s > 0.0 else 0.0
        if elapsed_s <= 0.0 and load.concurrency > 0:
            average = float(load.concurrency)  # a report directly after the first request
        entry.since_s = until_s
        return average, float(load.requests_total - entry.requests_before)

    def _begin_next_report(self, key: str, entry: _Entry) -> None:
        entry.reported_average = entry.reported_count = 0.0
        entry.seconds_before = entry.load.request_seconds
        entry.requests_before = entry.load.requests_total
        self._requests[key] = entry.load.requests_total
