"""Checks of a table's invariants, used by its tests after every step and by the audit periodically.

The audit must not spend a whole turn on a large table, so it calls `check_pod` for one slot after the other while the
table is in use.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.rooms import RoomStructure
from lb.tracker import DRAINING, PodTracker
from lb.warming import WarmUp


def check_table(table: PodTable, pods: list[PodTracker], warm_up: WarmUp | None) -> None:
    """Raise AssertionError if a sum or a room structure does not match `pods`, all slots that hold a pod.

    `warm_up` is the table's slow start, None if it is off.
    """
    for tracker in pods:
        check_pod(table, tracker, warm_up)
    check_sums(table, pods)
    check_room(table, warm_up)
    if warm_up is not None:
        warm_up.check_invariants(pods)
    _check_members(table.structure, "near", [tracker for tracker in pods if not tracker.is_far])
    _check_members(table.far, "far", [tracker for tracker in pods if tracker.is_far])


def _check_members(structure: RoomStructure, name: str, pods: list[PodTracker]) -> None:
    """Compare the pods in a room structure with those of `pods` that should be in it."""
    members = structure.members()
    if members is None:
        return
    expected = [int(tracker.slot) for tracker in pods if tracker.may_take_one() and not tracker.warming]
    found = sorted([int(tracker.slot) for tracker in members])
    assert found == expected, f"the structure of {name} pods holds slots {found}, but {expected} have room"


def check_pod(table: PodTable, tracker: PodTracker, warm_up: WarmUp | None) -> None:
    """Check one slot, even an empty one, independently of the others. Raises AssertionError."""
    assert tracker.has_room == tracker.may_take_one(), f"has_room is {tracker.has_room} on {tracker!r}"
    assert tracker.in_flight >= 0, f"in_flight is negative in {tracker!r}"
    trials = i64(tracker.trials)
    assert 0 <= trials <= tracker.in_flight, f"{trials} trials are in flight at {tracker!r}"
    assert tracker.state != DRAINING or tracker.capacity() == 0, f"{tracker!r} drains and counts as capacity"
    is_expected = tracker.has_room
    if warm_up is not None:
        warm_up.check_pod(tracker)
        is_expected = is_expected and not tracker.warming
    else:
        assert not tracker.warming, f"slow start is off, but {tracker!r} is warming"
    structure = table.far if tracker.is_far else table.structure
    if structure.size() >= 0:
        holds = structure.holds(tracker)
        assert holds == is_expected, f"the room structure holds {tracker!r}: {holds}, expected {is_expected}"


def check_sums(table: PodTable, pods: list[PodTracker]) -> None:
    """Raise AssertionError if a total of the table is not the sum over `pods`, all slots that hold a pod."""
    in_flight = 0
    capacity = 0
    room = 0
    far_room = 0
    draining = 0
    for tracker in pods:
        in_flight += tracker.in_flight
        capacity += tracker.capacity()
        if tracker.may_take_one():
            room += 1
            if tracker.is_far:
                far_room += 1
        if tracker.state == DRAINING:
            draining += 1
    assert table.in_flight == in_flight, f"{in_flight} requests are in flight, the table counts {table.in_flight}"
    assert table.room == room, f"{room} pods have room, the table counts {table.room}"
    assert table.far_room == far_room, f"{far_room} far pods have room, the table counts {table.far_room}"
    check_totals(table, len(pods), capacity, draining)


def check_totals(table: PodTable, held: int, capacity: int, draining: int) -> None:
    """Compare the totals that only structural changes affect with those that the caller has counted."""
    assert table.used == held, f"{held} slots are held, the table counts {table.used}"
    assert table.capacity == capacity, f"the capacity is {capacity}, the table counts {table.capacity}"
    assert table.draining == draining, f"{draining} pods drain, the table counts {table.draining}"


def check_room(table: PodTable, warm_up: WarmUp | None) -> None:
    """Compare the table's number of pods with room with those of the room structures and of slow start."""
    near = table.structure.size()
    far = table.far.size()
    warming = 0 if warm_up is None else warm_up.room_count
    message = f"{near} near and {far} far pods are in the room structures and {warming} are warming, the table counts"
    assert near in {-1, table.room - table.far_room - warming}, f"{message} {table.room}, {table.far_room} of them far"
    assert far in {-1, table.far_room}, f"{message} {table.far_room} far ones"
