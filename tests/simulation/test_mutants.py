"""The simulation finds deliberate bugs of the protocol. These few show that it looks; `mutants.py` makes them all."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import battery, is_found, mutants

NAMES = [
    "borrowing.Borrowing._give_back:leave-0",
    "lending.Lending._take_back:leave-0",
    "lending.Lending.line_formed:leave-0",
]


def test_the_battery_finds_nothing_where_there_is_no_bug() -> None:
    battery()


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_is_found(name: str) -> None:
    assert name in {one.name for one in mutants()}
    assert is_found(name)
