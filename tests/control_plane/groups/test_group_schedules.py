"""Random schedules in simulated time: none is stuck, no active work is aborted, the budget is kept at every moment."""

from __future__ import annotations

import os
from random import Random

import pytest

from activator.control_plane.groups.rule import GroupRule
from bench.group_world import Machine, World, WorldError
from tests.control_plane.groups.group_schedules import run

SOME = 150
FOUND = (517_607,)  # seeds that once failed: woken in the plan that stops it asleep
ALL = int(os.environ.get("SCHEDULES", "20_000"))  # of SCHEDULES=1_000_000, an hour of two cores, none has failed
PARTS = 20


def test_some_random_schedules() -> None:
    ended: dict[str, int] = {}
    for seed in (*range(SOME), *FOUND):
        for request in run(seed).requests:
            ended[request.ended] = ended.get(request.ended, 0) + 1
    assert ended.keys() == {"served", "cancelled", "crashed", "removed", "failed"} or ended.keys() == {
        "served",
        "cancelled",
        "crashed",
        "removed",
    }
    assert ended["served"] > 1000


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_schedules(part: int) -> None:
    share = ALL // PARTS
    for seed in range(part * share, (part + 1) * share):
        run(seed)


def test_a_world_that_breaks_its_budget_is_found() -> None:
    """The judge is no decoration: a policy that grants everything is caught."""
    world = World(Random(1))
    machine = Machine({"gpu": 1})
    rule = GroupRule("gpu", ("gpu",), (1,), {})
    world.configure({"a": (machine, "gpu"), "b": (machine, "gpu")}, [rule])
    world.grant("a", 1, False)
    world.check()
    world.grant("b", 1, False)
    with pytest.raises(WorldError, match="uses"):
        world.check()
