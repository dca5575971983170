"""`python -m bench groups`: swaps and waits of the trace A B A A C A C B, with one program at a time, by policy.

The policies and the group are the real ones; time is simulated (`group_world.py`), so the figures are the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from activator.control_plane.groups.rule import GroupRule, MemberRule
from bench import header, results
from bench.group_world import Machine, World
from bench.results import Document, Result, Value

TRACE: Final = "ABAACACB" * 10
LOAD_S: Final = 2.0
SERVICE_S: Final = 0.1
EVERY_S: Final = (0.1, 0.25, 0.5, 1.0)
OVERTAKEN_AT_MOST_S: Final = 30.0
TICK_S: Final = 0.1
ENDS_S: Final = 2000.0


class Figures(NamedTuple):
    """The figures of one run; waits are in seconds."""

    swaps: int
    mean_wait_s: float
    worst_wait_s: float
    passed_over_s: float  # the longest time by which a request overtook an earlier one


def run_trace(discipline: str, every_s: float, overtaken_at_most_s: float = OVERTAKEN_AT_MOST_S) -> Figures:
    """Run the trace with a request every `every_s`."""
    world = World(Random(1))
    machine = Machine({"gpu": 1}, start_s=LOAD_S, idle_s=ENDS_S)
    members = {name: MemberRule((1,)) for name in "ABC"}
    rule = GroupRule("gpu", ("gpu",), (1,), members, False, discipline, overtaken_at_most_s)
    world.configure(dict.fromkeys("ABC", (machine, "gpu")), [rule])
    for place, name in enumerate(TRACE):
        world.at(1.0 + place * every_s, _arrival(world, name))
    world.tick_every(TICK_S, ENDS_S)
    world.run(ENDS_S)
    waits = [request.served_s - request.arrival_s for request in world.requests]
    assert all(request.ended == "served" for request in world.requests)
    passed_over_s = max(
        (
            other.arrival_s - request.arrival_s
            for request in world.requests
            for other in world.requests
            if other.served_s < request.served_s
        ),
        default=0.0,
    )
    return Figures(world.starts - 1, sum(waits) / len(waits), max(waits), max(passed_over_s, 0.0))


def _arrival(world: World, name: str) -> Callable[[], None]:
    def arrive() -> None:
        world.arrive(name, SERVICE_S)

    return arrive


def run(json_path: str | None) -> int:
    """Run `python -m bench groups`."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    rows, measured = [], []
    for every_s in EVERY_S:
        for discipline in ("fifo", "affinity"):
            found = run_trace(discipline, every_s)
            waits = [results.figure(one) for one in (found.mean_wait_s, found.worst_wait_s, found.passed_over_s)]
            rows.append([f"{discipline}, a request every {every_s:g} s", str(found.swaps), *waits])
            params: dict[str, Value] = {"policy": discipline, "every_s": every_s, "load_s": LOAD_S}
            measured.append(Result("groups.swaps", float(found.swaps), "swaps", True, params))
            measured.append(Result("groups.mean_wait", found.mean_wait_s, "s", True, params))
            measured.append(Result("groups.worst_wait", found.worst_wait_s, "s", True, params))
    print(
        "\n"
        + results.table(
            [f"{len(TRACE)} requests, a load takes {LOAD_S:g} s", "swaps", "mean wait s", "worst s", "passed over s"],
            rows,
        )
    )
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
