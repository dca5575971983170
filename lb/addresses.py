"""What slots that share an address mean for one another.

An IP is used again while the connections of its former pod are still open, or one process has two names: nobody can
tell from the address. So the newest slot may have only what the older ones leave it. Where the former pod is really
gone, its connections break (the data path sees to that), and the newest has its whole limit.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.tracker import DRAINING, UNLIMITED, PodTracker


def limit_at_address(tracker: PodTracker) -> i64:
    """The slot's own limit without what is in flight in older slots at its address."""
    limit = tracker.own_limit
    older = tracker.older_at_address
    if older is None or limit >= UNLIMITED:
        return limit
    while older is not None and limit > 0:
        limit -= older.in_flight
        older = older.older_at_address
    return max(limit, 0)


def check_addresses(pods: list[PodTracker]) -> None:
    """AssertionError with a sentence where two pods have one address, or a limit is not what it should be."""
    holders: dict[str, PodTracker] = {}
    for tracker in pods:
        if tracker.state == DRAINING:
            continue
        other = holders.setdefault(tracker.address, tracker)
        assert other is tracker, f"{other!r} and {tracker!r} have one address"
        check_limit(tracker)


def check_limit(tracker: PodTracker) -> None:
    """AssertionError with a sentence where the limit of a pod is not what its address leaves it."""
    if tracker.state != DRAINING:
        limit = limit_at_address(tracker)
        assert tracker.limit == limit, f"{tracker!r} may have {limit} of its {tracker.own_limit}"
