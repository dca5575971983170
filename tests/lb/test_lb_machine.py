"""The table and each policy against the model, in random order of everything that may happen."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from lb.registry import BUILT_IN
from tests.lb.lb_model import DEEP, LONG, QUICK, machine_for


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_table_equals_its_model(name: str) -> None:
    run_state_machine_as_test(machine_for(name), settings=LONG if DEEP else QUICK)


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_table_equals_its_model_at_length(name: str) -> None:
    """5 policies, 1,000 examples, 200 steps each: 10^6 steps."""
    run_state_machine_as_test(machine_for(name), settings=LONG)
