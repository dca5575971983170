"""Many leases in one call, for the benchmarks: lb/drill.py with a lease around each request."""

from __future__ import annotations

from mypy_extensions import i64

from activator.data_plane.throttle.lease import Lease
from lb.table import TrackerTable


def cycle_with_lease(table: TrackerTable, times: i64) -> i64:
    """Pick, capture in a lease, reserve, and release by the lease, so many times; how many picks found a pod."""
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
