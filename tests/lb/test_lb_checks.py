"""What is checked of one slot at a time, and of the sums: each way in which a table can be wrong is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lb.circle import RoomCircle
from lb.registry import BUILT_IN
from lb.ring import NOWHERE
from lb.rng import Rng
from lb.rooms import RoomStructure
from lb.structures import STRUCTURES
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, PodTracker
from tests.lb.lb_oracles import ScanningPolicy
from tests.lb.lb_tables import fill, make_table

POLICIES = list(BUILT_IN)


def wrong(table: TrackerTable) -> set[str]:
    """Where something is wrong: numbers of slots, "room", "totals"."""
    found = {}
    for slot in range(table.length):
        try:
            table.check_slot(slot)
        except AssertionError as error:
            found[str(slot)] = str(error)
    held = [one for one in table.slots[: table.length] if one.state != EMPTY]
    capacity = sum(int(one.capacity()) for one in held)
    draining = sum(one.state == DRAINING for one in held)
    for name, check in (
        ("room", table.check_room),
        ("totals", lambda: table.check_totals(len(held), capacity, draining)),
    ):
        try:
            check()
        except AssertionError as error:
            found[name] = str(error)
    assert all(found.values()), "each with a sentence"
    return set(found)


def table_of(policy: str, slow: bool = False) -> tuple[TrackerTable, list[PodTracker]]:
    """Seven pods, with requests at some, one full, one gone; with slow start some are newcomers."""
    table = make_table(policy=policy)
    if slow:
        table.set_slow_start(30.0)
    pods = fill(table, 7)
    for index in (1, 1, 2, 6):
        table.reserve(pods[index])
    table.drain(pods[4])
    assert wrong(table) == set()
    table.check_invariants()
    return table, pods


@pytest.mark.parametrize("policy", POLICIES)
def test_a_far_pod_in_no_structure_and_one_that_is_full_in_its_structure_are_found(policy: str) -> None:
    table, pods = table_of(policy)
    for index in (0, 1, 3):
        table.set_far(pods[index], True)
    assert wrong(table) == set()
    assert (table.far.size(), table.structure.size()) == (table.far_room, table.room - table.far_room) == (2, 3)
    table.far.remove(pods[3])
    assert wrong(table) >= {"3", "room"}
    table.far.insert(pods[3])
    assert wrong(table) == set()
    table.far.insert(pods[1])
    assert wrong(table) >= {"1", "room"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_far_pod_among_the_near_ones_is_found(policy: str) -> None:
    table, pods = table_of(policy)
    table.set_far(pods[3], True)
    table.far.remove(pods[3])
    table.structure.insert(pods[3])
    assert "room" in wrong(table)
    with pytest.raises(AssertionError):
        table.check_invariants()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_that_stands_where_it_should_not_or_does_not_where_it_should_is_found(policy: str, slow: bool) -> None:
    table, pods = table_of(policy, slow)
    full, free = pods[1], pods[3]
    structure: RoomStructure = table.structure
    if free.warming:
        table.warm_up.remove(free)
        assert "3" in wrong(table)
        table.warm_up.insert(free)
    else:
        structure.remove(free)
        assert wrong(table) >= {"3", "room"}
        structure.insert(free)
    assert wrong(table) == set()
    if full.warming:
        table.warm_up.insert(full)
    else:
        structure.insert(full)
    assert wrong(table) >= {"1", "room"}


def test_every_structure_says_how_many_it_holds() -> None:
    for policy in POLICIES:
        table, _ = table_of(policy)
        assert table.structure.size() == table.room == 5
    table = TrackerTable(ScanningPolicy(Rng(1)))
    fill(table, 3)
    assert table.structure.size() == -1 and wrong(table) == set()
    assert len(STRUCTURES) == len({type(table_of(policy)[0].structure) for policy in POLICIES}) + 1


Wrong = Callable[[TrackerTable, list[PodTracker]], None]


def names(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].identity = "another"


def address(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].address = "10.9.9.9:80"


def flag(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].has_room = False


def place(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].slot = 5


def generation(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].generation = table.generation + 1


def trials(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].trials = 1


def newcomer(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].warming = True


def zone(table: TrackerTable, pods: list[PodTracker]) -> None:
    table.set_far(pods[0], True)
    pods[3].is_far = True


def less_than_nothing(table: TrackerTable, pods: list[PodTracker]) -> None:
    pods[3].in_flight = -1


@pytest.mark.parametrize("spoil", [names, address, flag, place, generation, trials, newcomer, zone, less_than_nothing])
def test_what_is_wrong_with_a_slot_is_found_there(spoil: Wrong) -> None:
    table, pods = table_of("random")
    spoil(table, pods)
    assert "3" in wrong(table)


def test_an_empty_slot_that_is_not_empty_and_a_hole_that_is_none_are_found() -> None:
    table, pods = table_of("random")
    pods[4].attachment = object()
    assert wrong(table) == {"4"}
    pods[4].attachment = None
    table._array._holes.discard(4)
    assert wrong(table) == {"4"}
    table._array._holes.add(4)
    table._array._holes.add(3)
    assert wrong(table) == {"3"}
    table._array._holes.discard(3)
    table._array.top = 6
    assert wrong(table) == {"6"}


@pytest.mark.parametrize(
    ("name", "where"), [("capacity", "totals"), ("draining", "totals"), ("room", "room"), ("far_room", "room")]
)
def test_a_wrong_sum_is_found(name: str, where: str) -> None:
    table, _ = table_of("random")
    setattr(table, name, getattr(table, name) + 1)
    assert wrong(table) == {where}


def test_a_pod_that_is_not_on_its_place_of_the_circle_is_found() -> None:
    table, pods = table_of("consistent-hash")
    structure = table.structure
    assert isinstance(structure, RoomCircle)
    place = structure._heads.index(pods[3]) if pods[3] in structure._heads else None
    assert place is not None
    structure._heads[place] = NOWHERE
    assert "3" in wrong(table)
