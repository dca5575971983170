"""The promises of a table, each counted anew: asserted by its tests after every step, by the audit now and then.

The audit has no time for a whole table in one turn: it asks `check_pod` of one slot after the other, while the table
lives on.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.tracker import DRAINING, PodTracker
from lb.warming import WarmUp


def check_table(table: PodTable, pods: list[PodTracker], warm_up: WarmUp | None) -> None:
    """AssertionError with a sentence if a sum or the room structure differs from `pods`, all slots that hold one.

    `warm_up`: of its slow start, while it is on.
    """
    for tracker in pods:
        check_pod(table, tracker, warm_up)
    check_sums(table, pods)
    check_room(table, warm_up)
    if warm_up is not None:
        warm_up.check_invariants(pods)
    members = table.structure.members()
    if members is None:
        return
    expected = [int(tracker.slot) for tracker in pods if tracker.may_take_one() and not tracker.warming]
    found = sorted([int(tracker.slot) for tracker in members])
    assert found == expected, f"the room structure holds slots {found}, room have {expected}"


def check_pod(table: PodTable, tracker: PodTracker, warm_up: WarmUp | None) -> None:
    """What can be said of one slot, whatever the others are; of an empty one too."""
    assert tracker.has_room == tracker.may_take_one(), f"has_room is {tracker.has_room} on {tracker!r}"
    assert tracker.in_flight >= 0, f"less than nothing is in flight in {tracker!r}"
    trials = i64(tracker.trials)
    assert 0 <= trials <= tracker.in_flight, f"{trials} trials are under way at {tracker!r}"
    assert tracker.state != DRAINING or tracker.capacity() == 0, f"{tracker!r} drains and counts as capacity"
    stands_here = tracker.has_room
    if warm_up is not None:
        warm_up.check_pod(tracker)
        stands_here = stands_here and not tracker.warming
    else:
        assert not tracker.warming, f"without slow start there is a newcomer: {tracker!r}"
    if table.structure.size() >= 0:
        holds = table.structure.holds(tracker)
        assert holds == stands_here, f"that the room structure holds it is {holds} of {tracker!r}"


def check_sums(table: PodTable, pods: list[PodTracker]) -> None:
    in_flight = 0
    capacity = 0
    room = 0
    draining = 0
    for tracker in pods:
        in_flight += tracker.in_flight
        capacity += tracker.capacity()
        if tracker.may_take_one():
            room += 1
        if tracker.state == DRAINING:
            draining += 1
    assert table.in_flight == in_flight, f"in flight are {in_flight}, the table says {table.in_flight}"
    assert table.room == room, f"{room} pods have room, the table says {table.room}"
    check_totals(table, len(pods), capacity, draining)


def check_totals(table: PodTable, held: int, capacity: int, draining: int) -> None:
    """What changes with the structure alone, and was counted by whoever walked the slots."""
    assert table.used == held, f"{held} slots are held, the table says {table.used}"
    assert table.capacity == capacity, f"the capacity is {capacity}, the table says {table.capacity}"
    assert table.draining == draining, f"{draining} pods drain, the table says {table.draining}"


def check_room(table: PodTable, warm_up: WarmUp | None) -> None:
    """Those with room stand in the room structure or among the newcomers: what the table counts is what these count."""
    size = table.structure.size()
    newcomers = 0 if warm_up is None else warm_up.room
    told = f"{size} pods stand in the room structure and {newcomers} among newcomers, the table says {table.room}"
    assert size in {-1, table.room - newcomers}, told
