"""The table and each policy against the model, in random order of everything that may happen.

Every run tries a slice whose examples are derived from the machine's name. `make deep` goes on with new seeds until
DEEP_STEPS steps have been taken over all policies together; it prints how many there were, and the seed of each round,
so that a failure can be had again.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lb.registry import BUILT_IN
from tests.lb.lb_model import machine_for

DEEP_STEPS = 200_000

EVERYWHERE = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
QUICK = settings(EVERYWHERE, max_examples=25, stateful_step_count=40, derandomize=False)
ROUND = settings(EVERYWHERE, max_examples=100, stateful_step_count=200, derandomize=False)
ROUNDS_MAX = 100  # for each policy; 20,000 steps each if no example ends early


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_table_equals_its_model(name: str) -> None:
    """Until growth and trims have been among the steps: what hypothesis draws depends on what is loaded."""
    machine = machine_for(name)
    rounds = 0
    while machine.steps < 500 or machine.grown == 0 or machine.trims_seen == 0:
        assert rounds < 20, f"{machine.steps} steps, {machine.grown} growths, {machine.trims_seen} trims"
        run_state_machine_as_test(seed(rounds)(machine), settings=QUICK)
        rounds += 1


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_table_equals_its_model_at_length(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its share of DEEP_STEPS."""
    machine = machine_for(name)
    wanted = -(-DEEP_STEPS // len(BUILT_IN))
    rounds = 0
    while machine.steps < wanted:
        assert rounds < ROUNDS_MAX, f"{machine.steps} steps after {rounds} rounds"
        run_state_machine_as_test(seed(rounds)(machine), settings=ROUND)
        rounds += 1
    with capfd.disabled():
        print(
            f"\n{name}: {machine.steps:,} steps in {rounds} rounds (seeds 0 to {rounds - 1}), "
            f"{machine.grown:,} growths, {machine.trims_seen:,} trims"
        )
