"""Which index is tried, and who moves where before a claim ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.members.claims.errors import ClaimFailedError
from activator.members.claims.names import SEATS_MAX
from activator.members.claims.table import Table
from lb.rng import Rng

INDEXES = st.sets(st.integers(0, 30), min_size=1, max_size=20)


def table(*indexes: int) -> Table:
    return Table((index, f"uid-{index}") for index in indexes)


def test_the_lowest_free_one() -> None:
    assert table().candidate(1, Rng(1)) == 0
    assert table(0, 1, 3).candidate(1, Rng(1)) == 2


def test_one_of_the_lowest_free_ones() -> None:
    tried = {table(0, 1, 3).candidate(4, Rng(seed)) for seed in range(200)}
    assert tried == {2, 4, 5, 6}


def test_no_index_is_free() -> None:
    with pytest.raises(ClaimFailedError):
        table(*range(SEATS_MAX)).candidate(1, Rng(1))
    assert table(*range(SEATS_MAX - 1)).candidate(16, Rng(1)) == SEATS_MAX - 1


def test_an_index_that_is_about_to_be_left_is_not_firm() -> None:
    moving = Table([(0, "a"), (1, "b"), (2, "c"), (2, "x"), (4, "b")])
    assert moving.of("b") == 1 and moving.firm == {0, 1, 2} and moving.taken == {0, 1, 2, 4}
    assert moving.is_shared(2) and not moving.is_shared(1)
    assert moving.is_dense_below(3) and not moving.is_dense_below(4)


def test_as_many_as_there_are_holes_move() -> None:
    holes = table(0, 2, 5, 6)  # 1, 3, 4 are free
    assert [holes.hole_for(index) for index in (6, 5, 2, 0)] == [1, 3, None, None]


@given(INDEXES)
def test_moves_of_all_who_may_move_close_all_holes(indexes: set[int]) -> None:
    """Nobody moves up, no two to the same hole, and afterwards there is none; whoever waits need not have waited."""
    before = table(*indexes)
    after = []
    for index in indexes:
        hole = before.hole_for(index)
        assert hole is None or (hole < index and hole not in indexes)
        after.append(index if hole is None else hole)
    assert sorted(after) == list(range(len(indexes)))
