"""Loops over a throttler and over leases, called once per benchmark to measure their cost to the proxy.

This module is compiled as the proxy is: calls from Python into compiled code would cost more than the measured work.
"""

from __future__ import annotations

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.reasons import Reason
from lb.table import TrackerTable


def cycle_with_lease(table: TrackerTable, times: i64) -> i64:
    """Pick, reserve and release by a lease `times` times; return how many picks found a pod.

    lb/benchmark.py does the same without leases.
    """
    found: i64 = 0
    while times > 0:
        times -= 1
        tracker = table.pick(0, 0.0)
        if tracker is not None:
            lease = Lease(tracker, 0.0)
            table.reserve(tracker)
            table.release(lease.tracker, lease.generation, 0.0)
            found += 1
    return found


class BenchmarkWaiter(Waiter):
    """A waiter that stores its lease in the benchmark."""

    def __init__(self, benchmark: ThrottlerBenchmark, head: RequestHead | None) -> None:
        super().__init__()
        self._benchmark = benchmark
        self._head = head

    def request(self) -> RequestHead | None:
        return self._head

    def granted(self, lease: Lease) -> None:
        self._benchmark.waiter = self
        self._benchmark.lease = lease

    def refused(self, reason: Reason, detail: str) -> None:
        self._benchmark.refused += 1


class ThrottlerBenchmark:
    """A benchmark loop around one throttler; `lease` and `waiter` are those of the last grant."""

    def __init__(self, throttler: RevisionThrottler) -> None:
        self.throttler = throttler
        self.waiter: BenchmarkWaiter | None = None
        self.lease: Lease | None = None
        self.refused: int = 0

    def pass_through(self, times: i64) -> i64:
        """Acquire and release a free slot `times` times; return how many acquisitions succeeded."""
        throttler = self.throttler
        waiter = BenchmarkWaiter(self, None)
        found: i64 = 0
        while times > 0:
            times -= 1
            lease = throttler.try_acquire(waiter, 1.0)
            if lease is not None:
                throttler.release(lease, 0.0, True)
                found += 1
        return found

    def count(self, times: i64, histograms: bool) -> i64:
        """Update the counters as the proxy does for `times` warm requests."""
        throttler = self.throttler
        arrived_s = 1.0
        for _ in range(times):
            arrived_s += 0.00002
            counters = throttler.counters
            counters.requests_total += 1
            traffic = counters.traffic
            traffic.begun(arrived_s)
            traffic.ended(arrived_s + 0.0012)
            traffic.request_bytes += 10
            traffic.response_bytes += 100
            if histograms:
                traffic.duration.observe(0.0012)
                traffic.first_byte.observe(0.0011)
        return times

    def fill_queue(self, heads: list[RequestHead], count: int) -> list[BenchmarkWaiter]:
        """Enqueue `count` waiters, which use `heads` in turn."""
        waiters = [BenchmarkWaiter(self, heads[number % len(heads)]) for number in range(count)]
        for waiter in waiters:
            assert self.throttler.try_acquire(waiter, 1.0) is None
            assert self.throttler.queue.enqueue(waiter) is None
        return waiters

    def hand_over(self, times: i64) -> i64:
        """Release the only slot `times` times, each time to the first waiter; return the number of handovers."""
        throttler = self.throttler
        found: i64 = 0
        while times > 0:
            times -= 1
            lease = self.lease
            assert lease is not None
            throttler.release(lease, 0.0, True)
            if self.lease is not lease:
                found += 1
        return found

    def cancel_all(self, waiters: list[BenchmarkWaiter]) -> None:
        for waiter in waiters:
            self.throttler.queue.cancel(waiter)
