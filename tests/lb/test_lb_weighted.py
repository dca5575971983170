"""weighted: shares in proportion, whatever the weights and however pods fill, against plain sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.registry import create
from lb.rng import Rng
from lb.structures import make_structure
from lb.table import TrackerTable
from lb.testing import grant, release
from lb.tracker import READY, PodTracker
from lb.weights import WEIGHT_MAX, RoomWeights

DRAWS = 20_000


def table_of(weights: list[int], limit: int = 5, seed: int = 3) -> TrackerTable:
    table = TrackerTable(create("weighted", Rng(seed)), len(weights))
    for number, weight in enumerate(weights):
        tracker = table.add(f"pod-{number}", f"10.0.0.{number}:80", limit, READY)
        assert tracker is not None
        table.set_weight(tracker, weight)
    return table


def counts(table: TrackerTable, draws: int = DRAWS) -> list[int]:
    found = [0] * len(table.slots)
    for _ in range(draws):
        tracker = grant(table)
        assert tracker is not None
        found[tracker.slot] += 1
        release(table, tracker)
    return found


def chi_square(found: list[int], weights: list[int]) -> float:
    expected = [sum(found) * weight / sum(weights) for weight in weights]
    assert all(count == 0 for count, mean in zip(found, expected) if mean == 0)
    return sum((count - mean) ** 2 / mean for count, mean in zip(found, expected) if mean)


@pytest.mark.parametrize(
    ("weights", "bound"),  # the 1 - 10^-6 quantiles of chi-square: what another seed would exceed once in 10^6
    [
        ([1, 1], 23.9),
        ([1, 2, 3, 4], 30.7),
        ([100, 1, 50, 3, 3, 17, 1, 1, 1, 999], 47.0),
        ([1000, 1000, 1000, 511, 512, 513, 255, 256, 2, 1], 47.0),
        ([0, 5, 0, 10], 23.9),
    ],
)
def test_shares_are_the_weights(weights: list[int], bound: float) -> None:
    assert chi_square(counts(table_of(weights))[: len(weights)], weights) < bound


def test_the_share_of_a_full_pod_goes_to_the_others_in_proportion() -> None:
    table = table_of([1000, 1, 2, 3], limit=1)
    table.reserve(table.slots[0])
    assert chi_square(counts(table)[:4], [0, 1, 2, 3]) < 27.7  # 1 - 10^-6 for 2 degrees of freedom


def test_a_reserve_is_used_when_no_other_has_room() -> None:
    table = table_of([0, 1, 0], limit=1)
    picked = [grant(table) for _ in range(4)]
    assert [tracker.slot for tracker in picked[:1] if tracker] == [1]
    assert {tracker.slot for tracker in picked[1:3] if tracker} == {0, 2}
    assert picked[3] is None


def test_weights_change_live() -> None:
    table = table_of([1, 1])
    table.set_weight(table.slots[0], 9)
    table.check_invariants()
    assert chi_square(counts(table)[:2], [9, 1]) < 23.9
    table.set_weight(table.slots[0], 0)
    assert counts(table, 500)[:2] == [0, 500]


def test_a_weight_ends_with_its_pod() -> None:
    table = table_of([7])
    table.free(table.slots[0])
    again = table.add("other", "10.0.0.9:80", 1, READY)
    assert again is table.slots[0]
    assert again.weight == 1


@pytest.mark.parametrize("weight", [-1, WEIGHT_MAX + 1])
def test_a_weight_out_of_bounds_is_refused(weight: int) -> None:
    with pytest.raises(AssertionError, match="a weight is 0"):
        table_of([1]).set_weight(table_of([1]).add("a", "1.1.1.1:1", 1, READY) or PodTracker(0, 0), weight)


moves = st.tuples(st.booleans(), st.integers(0, 15), st.sampled_from((0, 1, 2, 3, 4, 511, 512, 1000)))


@given(st.lists(moves, max_size=80))
def test_the_classes_hold_what_a_dictionary_holds(steps: list[tuple[bool, int, int]]) -> None:
    structure = make_structure(RoomWeights, [])
    assert isinstance(structure, RoomWeights)
    pods = [PodTracker(slot, 0) for slot in range(16)]
    model: dict[int, int] = {}
    rng = Rng(1)
    for comes, slot, weight in steps:
        if comes and slot not in model:
            pods[slot].weight = weight
            structure.insert(pods[slot])
            model[slot] = weight
        elif not comes and slot in model:
            structure.remove(pods[slot])
            del model[slot]
        members = structure.members()
        assert members is not None
        assert {int(tracker.slot): int(tracker.weight) for tracker in members} == model
        assert (structure.total, structure.count) == (sum(model.values()), len(model))
        if model:
            drawn = structure.draw(rng)
            assert drawn.slot in model
            assert model[drawn.slot] > 0 or sum(model.values()) == 0
