"""The sparse array: how many slots there are, which are used, and what is given back."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from lb.registry import BUILT_IN
from lb.serving_table import RELEASED
from lb.sizing import SLOTS_MAX
from lb.slots import Trim
from lb.tracker import READY, PodTracker
from tests.lb.lb_tables import add, fill, make_table

# Size.

SCALES = [
    (1 << 63, 64),
    ((1 << 63) - 1, 64),
    (-(1 << 63), 64),
    ((1 << 31) - 1, 64),
    (SLOTS_MAX + 1, 64),
    (SLOTS_MAX, SLOTS_MAX),
    (SLOTS_MAX // 2 + 1, SLOTS_MAX),
    (10, 20),
    (0, 64),
    (-5, 64),
]


def test_no_slot_is_made_before_the_first_pod() -> None:
    table = make_table(max_scale=500)
    assert (table.capacity_slots, table.length, table.fragmentation) == (0, 0, 0.0)
    add(table, 1)
    assert (table.capacity_slots, table.length) == (1_000, 1)


def test_unknown_scale_doubles_in_place() -> None:
    table = make_table()
    first = fill(table, 64)
    add(table, 64)
    assert (table.capacity_slots, table.grown) == (128, 1)
    assert [tracker.slot for tracker in first] == list(range(64))
    assert all(table.slots[tracker.slot] is tracker for tracker in first)


def test_known_scale_grows_by_a_block_when_all_slots_are_held_and_refuses_at_the_maximum() -> None:
    table = make_table(max_scale=2, slots_max=70)
    fill(table, 70)
    assert (table.capacity_slots, table.grown, table.times_full) == (70, 2, 0)
    assert table.add("late", "10.0.0.1:99", 1, READY) is None
    assert table.times_full == 1
    table.free(table.slots[11])
    late = table.add("late", "10.0.0.1:99", 1, READY)
    assert late is table.slots[11]


@pytest.mark.parametrize(("max_scale", "slots"), SCALES)
def test_scale_is_clamped_or_unknown(max_scale: int, slots: int) -> None:
    table = make_table(max_scale=max_scale)
    add(table, 1)
    assert table.capacity_slots == slots


@pytest.mark.parametrize(("max_scale", "slots"), SCALES)
def test_scale_is_clamped_or_unknown_when_it_changes_live(max_scale: int, slots: int) -> None:
    table = make_table(max_scale=1)
    tracker = add(table, 1)
    table.set_max_scale(max_scale)
    assert table.capacity_slots == slots
    assert table.slots[0] is tracker
    table.check_invariants()


def test_scale_changes_live() -> None:
    table = make_table(max_scale=4, policy="first-available")
    pods = fill(table, 3)
    table.set_max_scale(100)
    assert table.capacity_slots == 200
    assert table.slots[:3] == pods
    table.set_max_scale(1)
    assert table.capacity_slots == 66  # 2, and blocks of 64 until length is at most half
    table.check_invariants()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_table_grows_in_place_under_running_requests(name: str) -> None:
    """References, leases and the room structure outlive every growth."""
    table = make_table(policy=name)
    leases = []
    pods: list[PodTracker] = []
    for number in range(300):  # 64 -> 128 -> 256 -> 512
        pods.append(add(table, number))
        if table.capacity_slots != 512:
            tracker = table.pick(0, 0.0)
            assert tracker is not None
            table.reserve(tracker)
            leases.append((tracker, tracker.generation))
    assert (table.capacity_slots, table.grown) == (512, 3)
    assert all(table.slots[slot] is tracker for slot, tracker in enumerate(pods))
    table.check_invariants()
    assert [table.release(tracker, generation, 0.0) for tracker, generation in leases] == [RELEASED] * len(leases)
    table.check_invariants()


@pytest.mark.deep
def test_the_largest_table() -> None:
    table = make_table(policy="first-available")
    for number in range(SLOTS_MAX):
        add(table, number)
    assert (table.capacity_slots, table.used, table.grown) == (SLOTS_MAX, SLOTS_MAX, 11)
    assert table.add("late", "10.9.9.9:99", 1, READY) is None
    for tracker in table.slots[10:]:
        table.free(tracker)
    assert (table.capacity_slots, table.length, table.times_full) == (64, 10, 1)
    table.check_invariants()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("max_scale", [0, 5])
def test_grown_table_gives_memory_back_after_a_trim(name: str, max_scale: int) -> None:
    """1,000 pods come and 990 of them go: what is left is what ten pods cost, but for a little slack."""
    names = [(f"pod-{number}", f"10.0.0.{number}:8012") for number in range(1_000)]
    gc.collect()
    tracemalloc.start()
    try:
        table = make_table(max_scale=max_scale, policy=name)
        for identity, address in names[:10]:
            assert table.add(identity, address, 2, READY) is not None
        table.set_max_scale(32)  # 64 slots in any case
        at_ten, slots_at_ten = traced_bytes(), table.capacity_slots
        table.set_max_scale(max_scale)
        for identity, address in names[10:]:
            assert table.add(identity, address, 2, READY) is not None
        at_thousand = traced_bytes()
        for tracker in table.slots[10:1_000]:
            table.free(tracker)
        del tracker
        after = traced_bytes()
    finally:
        tracemalloc.stop()
    assert (table.length, table.used) == (10, 10)
    assert table.capacity_slots <= slots_at_ten + 10
    assert at_thousand - at_ten > 150_000
    assert after - at_ten < 10_000
    table.check_invariants()


def test_names_of_pods_that_went_cost_nothing_even_where_no_slot_is_given_back() -> None:
    """A table of known scale keeps its slots; the dictionaries of names shrink all the same."""
    names = [(f"pod-{number}", f"10.0.0.{number}:8012") for number in range(2_000)]
    table = make_table(max_scale=1_000)
    assert table.add(*names[0], 2, READY) is not None
    tracemalloc.start()
    try:
        for identity, address in names[1:]:
            assert table.add(identity, address, 2, READY) is not None
        at_most = traced_bytes()
        for tracker in table.slots[1:2_000]:
            table.free(tracker)
        after = traced_bytes()
    finally:
        tracemalloc.stop()
    assert table.capacity_slots == 2_000
    assert at_most - after > 90_000, "the dictionaries; interpreted, each slot also keeps an integer, its generation"


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_table_that_went_to_zero_comes_back(name: str) -> None:
    """It grew, its pods left lowest first, it gave slots back: the next pods find it in order."""
    table = make_table(threshold=0.0, policy=name)
    for _ in range(3):
        for tracker in fill(table, 500):
            table.free(tracker)
            table.check_invariants()
        assert (table.capacity_slots, table.length) == (64, 0)


def test_slots_given_back_are_gone() -> None:
    def slot_objects() -> int:
        gc.collect()
        return sum(isinstance(one, PodTracker) for one in gc.get_objects())

    at_first = slot_objects()
    table = make_table(policy="least-connections")
    fill(table, 500)
    assert slot_objects() == at_first + 512
    for tracker in table.slots[3:500]:
        table.free(tracker)
    del tracker
    assert slot_objects() <= at_first + 64 + 1  # an empty structure may remember the last one it held
    for tracker in table.slots[:3]:
        table.free(tracker)
    del tracker
    assert table.drop_slots()
    assert slot_objects() == at_first


# Fragmentation.


def test_fragmentation_threshold_triggering() -> None:
    trims: list[Trim] = []
    table = make_table(max_scale=10, threshold=0.5)
    table.on_trim = trims.append
    pods = fill(table, 8)
    for slot in (1, 7, 6, 5):  # 1 hole and 3 trailing of 8: exactly the threshold
        table.free(pods[slot])
    assert (table.fragmentation, table.length, table.trims) == (0.5, 8, 0)
    table.free(pods[3])  # 2 holes and 3 trailing of 8
    assert (table.length, table.holes, table.trailing, table.trims) == (5, 2, 0, 1)
    assert table.fragmentation == 0.4
    assert trims == [Trim(8, 5, 0.625, 0.5, 20, 20)]
    assert [pods[slot].state for slot in (0, 2, 4)] == [READY] * 3  # nobody has moved
    assert add(table, 20).slot == 1
    assert add(table, 21).slot == 3
    assert add(table, 22).slot == 5
    table.check_invariants()


@pytest.mark.parametrize(("threshold", "length"), [(0.0, 3), (1.0, 4)])
def test_threshold_at_its_ends(threshold: float, length: int) -> None:
    table = make_table(threshold=threshold)
    pods = fill(table, 4)
    table.free(pods[3])
    assert table.length == length


def test_interior_holes_alone_never_trim() -> None:
    table = make_table(threshold=0.0)
    pods = fill(table, 10)
    for tracker in pods[:9]:
        table.free(tracker)
    assert (table.length, table.holes, table.trims) == (10, 9, 0)
    table.free(pods[9])
    assert (table.length, table.fragmentation, table.trims) == (0, 0.0, 1)


def test_lower_threshold_acts_at_once() -> None:
    table = make_table(threshold=1.0)
    for tracker in fill(table, 4)[1:]:
        table.free(tracker)
    assert table.length == 4
    table.set_threshold(0.1)
    assert (table.length, table.trims) == (1, 1)


@pytest.mark.parametrize(
    ("threshold", "of", "empty"), [(0.25, 8, 2), (0.5, 8, 4), (0.75, 8, 6), (0.1, 10, 1), (0.3, 10, 3), (0.6, 5, 3)]
)
def test_exactly_the_threshold_does_not_trim(threshold: float, of: int, empty: int) -> None:
    table = make_table(threshold=threshold)
    pods = fill(table, of)
    for tracker in reversed(pods[of - empty :]):
        table.free(tracker)
    assert (table.length, table.trims, table.fragmentation) == (of, 0, threshold)
    table.free(pods[of - empty - 1])
    assert (table.length, table.trims) == (of - empty - 1, 1)


def test_holes_are_used_again_lowest_first_and_nobody_moves() -> None:
    table = make_table(threshold=0.0)
    pods = fill(table, 200)
    gone = [150, 3, 77, 64, 63, 31, 32, 198]
    for slot in gone:
        table.free(pods[slot])
    assert (table.length, table.holes) == (200, len(gone))
    assert [int(add(table, 1_000 + number).slot) for number in range(len(gone))] == sorted(gone)
    assert all(table.slots[slot].identity == f"pod-{slot}" for slot in range(200) if slot not in gone)
    assert int(add(table, 2_000).slot) == 200


def test_only_a_trim_lowers_the_high_water_mark() -> None:
    table = make_table(threshold=1.0)
    for tracker in fill(table, 50):
        table.free(tracker)
    assert (table.length, table.used, table.trailing, table.fragmentation) == (50, 0, 50, 1.0)
    table.set_threshold(0.99)
    assert (table.length, table.trims, table.fragmentation) == (0, 1, 0.0)
