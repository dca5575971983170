"""The limit of a pod whose address other slots share.

Two slots share an address if an IP is reused while connections of its former pod are still open, or if one process has
two names; the address alone does not distinguish the two cases. So the limit of the newest slot is reduced by the
requests in flight in the older ones. If the former pod no longer exists, the data path closes its connections, and the
newest slot gets its full limit.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.tracker import DRAINING, UNLIMITED, PodTracker


def limit_at_address(tracker: PodTracker) -> i64:
    """Return the slot's own limit minus the requests in flight in older slots at its address."""
    limit = tracker.own_limit
    older = tracker.older_at_address
    if older is None or limit >= UNLIMITED:
        return limit
    while older is not None and limit > 0:
        limit -= older.in_flight
        older = older.older_at_address
    return max(limit, 0)


def check_addresses(pods: list[PodTracker]) -> None:
    """Raise AssertionError if two pods that do not drain share an address, or if a limit is wrong."""
    holders: dict[str, PodTracker] = {}
    for tracker in pods:
        if tracker.state == DRAINING:
            continue
        other = holders.setdefault(tracker.address, tracker)
        assert other is tracker, f"{other!r} and {tracker!r} have one address"
        check_limit(tracker)


def check_limit(tracker: PodTracker) -> None:
    """Raise AssertionError if the limit of a pod does not account for the older slots at its address."""
    if tracker.state != DRAINING:
        limit = limit_at_address(tracker)
        assert tracker.limit == limit, f"the limit of {tracker!r} should be {limit}, of its own {tracker.own_limit}"
