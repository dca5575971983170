"""Where a request goes that may go beyond a pod's limit: one that a rule exempts, when no pod has room."""

from __future__ import annotations

from lb.table import TrackerTable
from lb.tracker import READY, PodTracker


def least_loaded(table: TrackerTable) -> PodTracker | None:
    """The ready pod with the least load for its limit; None where no pod is ready.

    Walks the table: some nanoseconds a slot, and only for exempted requests that find every pod full. A pod that is
    being tried, suspected or not ours to use (limit 0) is left out.
    """
    best: PodTracker | None = None
    for tracker in table.slots[: table.length]:
        if tracker.state != READY or tracker.own_limit == 0 or tracker.suspect_until_s != 0.0:
            continue
        if best is None or tracker.in_flight * best.own_limit < best.in_flight * tracker.own_limit:
            best = tracker
    return best
