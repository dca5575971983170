"""The promises of a table, each counted anew: asserted by its tests after every step, by the audit now and then."""

from __future__ import annotations

from lb.pod_table import PodTable
from lb.tracker import DRAINING, PodTracker
from lb.warming import WarmUp


def check_table(table: PodTable, pods: list[PodTracker], warm_up: WarmUp | None) -> None:
    """AssertionError with a sentence if a sum or the room structure differs from `pods`, all slots that hold one.

    `warm_up`: of its slow start, while it is on.
    """
    check_sums(table, pods)
    for tracker in pods:
        assert tracker.has_room == tracker.may_take_one(), f"has_room is {tracker.has_room} on {tracker!r}"
        assert tracker.in_flight >= 0, f"less than nothing is in flight in {tracker!r}"
        assert 0 <= tracker.trials <= tracker.in_flight, f"{tracker.trials} trials are under way at {tracker!r}"
        draining = tracker.state == DRAINING
        assert not draining or tracker.capacity() == 0, f"{tracker!r} drains and counts as capacity"
    warming = [tracker for tracker in pods if tracker.warming]
    if warm_up is not None:
        warm_up.check_invariants(pods)
    else:
        assert not warming, f"without slow start there are newcomers: {warming}"
    members = table.structure.members()
    if members is None:
        return
    expected = [int(tracker.slot) for tracker in pods if tracker.may_take_one() and not tracker.warming]
    found = sorted([int(tracker.slot) for tracker in members])
    assert found == expected, f"the room structure holds slots {found}, room have {expected}"


def check_sums(table: PodTable, pods: list[PodTracker]) -> None:
    in_flight = 0
    capacity = 0
    room = 0
    for tracker in pods:
        in_flight += tracker.in_flight
        capacity += tracker.capacity()
        if tracker.may_take_one():
            room += 1
    assert table.in_flight == in_flight, f"in flight are {in_flight}, the table says {table.in_flight}"
    assert table.capacity == capacity, f"the capacity is {capacity}, the table says {table.capacity}"
    assert table.room == room, f"{room} pods have room, the table says {table.room}"
