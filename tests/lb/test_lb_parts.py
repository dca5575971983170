"""The small parts: bitmap, generator, sizes, registry."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.bitmap import NONE, Bitmap
from lb.policy import Policy
from lb.registry import BUILT_IN, UnknownPolicyError, create, default_name, names
from lb.rng import Rng
from lb.sizing import first_slots, grown_slots, kept_slots
from lb.table import TrackerTable
from tests.lb.lb_oracles import ScanningPolicy

SIZE = 40_000

operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "discard", "discard", "lowest", "resize", "fit"]),
        st.one_of(st.integers(0, 70), st.integers(0, SIZE - 1)),
    ),
    max_size=60,
)


@given(operations)
def test_bitmap_is_a_set_that_knows_its_smallest(steps: list[tuple[str, int]]) -> None:
    bitmap, model, size = Bitmap(), set[int](), 32
    for what, number in steps:
        if what in {"resize", "fit"}:
            size = max(number if what == "resize" else 0, max(model, default=0) + 1)
            bitmap.resize(size)
        elif what == "lowest" or number >= size:
            assert bitmap.lowest() == min(model, default=NONE)
            assert bitmap.highest() == max(model, default=NONE)
        elif what == "add":
            bitmap.add(number)
            model.add(number)
        else:
            bitmap.discard(number)
            was_lowest = number == min(model, default=NONE)
            model.discard(number)
            if was_lowest:
                assert bitmap.lowest_from(number) == min(model, default=NONE)
        if number < size:
            smaller = [member for member in model if member < number]
            assert bitmap.highest_below(number) == max(smaller, default=NONE)
        bitmap.check_invariants()
    assert bitmap.members() == sorted(model)
    assert all((number in bitmap) == (number in model) for number in range(min(size, 100)))


def test_bitmap_made_smaller_forgets_where_members_were() -> None:
    """What summed up the words that go, must go: else a search follows it to where nothing is."""
    for size, number in ((70, 69), (2_000, 1_999), (131_072, 131_071)):
        bitmap = Bitmap()
        bitmap.resize(size)
        bitmap.add(number)
        bitmap.discard(number)
        for smaller in (number // 2 + 1, 33, 1):
            bitmap.resize(smaller)
            bitmap.check_invariants()
            assert bitmap.lowest() == NONE


def test_generator_is_the_same_in_every_world() -> None:
    """Numbers written down once: plain and compiled, today and later, they must not change."""
    rng = Rng(42)
    assert [int(rng.below(1 << 30)) for _ in range(4)] == [137957894, 36006472, 80635911, 758702342]
    assert [int(Rng(seed).below(1_000_000)) for seed in (0, -1, 1 << 32, (1 << 63) + 5)] == [
        392125,
        919709,
        854172,
        820654,
    ]


def test_generator_stays_below() -> None:
    rng = Rng(1)
    for n in (1, 2, 3, 131_072, 1 << 30):
        assert all(0 <= rng.below(n) < n for _ in range(200))


@given(st.integers(min_value=0, max_value=131_072), st.sampled_from((0, 1, 7, 500, 65_536, 1 << 63)))
def test_a_table_keeps_what_it_holds_and_can_always_grow_to_its_maximum(length: int, max_scale: int) -> None:
    slots_max = 131_072
    kept = kept_slots(length, max_scale, slots_max)
    assert length <= kept <= slots_max
    assert kept >= first_slots(max_scale, slots_max)
    assert grown_slots(kept, max_scale, slots_max) > kept or kept == slots_max


@given(
    st.integers(min_value=0, max_value=131_072),
    st.sampled_from((0, 1, 2, 33, 500, 65_536, 131_072, 1 << 63)),
    st.sampled_from((1, 63, 500, 131_072)),
)
def test_what_a_table_keeps_is_what_growing_step_by_step_comes_to(length: int, max_scale: int, slots_max: int) -> None:
    step_by_step = first_slots(max_scale, slots_max)
    while step_by_step < 2 * length and step_by_step < slots_max:
        step_by_step = grown_slots(step_by_step, max_scale, slots_max)
    assert kept_slots(length, max_scale, slots_max) == step_by_step


def test_registry_knows_the_built_in_policies() -> None:
    assert names()[: len(BUILT_IN)] == tuple(BUILT_IN)
    for name in BUILT_IN:
        assert create(name, Rng(1)).name == name
    assert create("choice-of-two", Rng(1)).name == "choice-of-2"
    assert repr(create("random", Rng(1))) == "<policy random>"


@pytest.mark.parametrize(
    ("container_concurrency", "name"),
    [(0, "choice-of-2"), (1, "first-available"), (3, "first-available"), (4, "round-robin"), (100, "round-robin")],
)
def test_default_policy(container_concurrency: int, name: str) -> None:
    assert default_name(container_concurrency) == name


def test_policy_by_dotted_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_up_policies")
    module.Scanning = ScanningPolicy  # type: ignore[attr-defined]
    module.NoPolicy = str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_policies", module)
    assert isinstance(create("made_up_policies:Scanning", Rng(1)), ScanningPolicy)
    with pytest.raises(UnknownPolicyError, match="not a subclass"):
        create("made_up_policies:NoPolicy", Rng(1))
    with pytest.raises(UnknownPolicyError, match="cannot be loaded"):
        create("made_up_policies:Missing", Rng(1))
    with pytest.raises(UnknownPolicyError, match="cannot be loaded"):
        create("no_such_module_at_all:Policy", Rng(1))


def test_unknown_policy_is_told_what_there_is() -> None:
    with pytest.raises(UnknownPolicyError, match=r"no policy is called 'least'.*least-connections"):
        create("least", Rng(1))


def test_a_policy_without_pick_says_so() -> None:
    class Nothing(Policy):
        name = "nothing"

    with pytest.raises(NotImplementedError, match="Nothing defines no pick"):
        TrackerTable(Nothing(Rng(1))).pick(0, 0.0)
