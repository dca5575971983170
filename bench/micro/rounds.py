"""The common part of the micro benchmarks: tables in a known state, timing by rounds, and additional values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

import lb
from bench.allocations import allocations
from lb.registry import ALIASES, create, names
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

TIMES = 10_000  # operations per round
ROUNDS = 100 if lb.COMPILED else 20
SIZES = (10, 100, 500, 10_000)
LOADS = ("idle", "one_free")
POLICIES = [name for name in names() if name not in ALIASES]  # includes any new one

Extra = str | float
Setup = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def make_table(name: str, pods: int, load: str) -> TrackerTable:
    """Return a table of idle pods of concurrency 10, or of busy pods of concurrency 1 (one is free)."""
    table = TrackerTable(create(name, Rng(1)), pods)
    for number in range(pods):
        table.add(f"pod-{number}", f"10.0.{number // 250}.{number % 250}:8012", 10 if load == "idle" else 1, READY)
    if load == "one_free":
        for tracker in table.slots[:pods]:
            if tracker.slot != pods // 2:
                table.reserve(tracker)
        assert table.room == 1
    return table


def best_ns(operation: Callable[[], object], times: int = TIMES) -> float:
    """Return the best of some rounds, for the less exact additional values of a figure."""
    best_s = float("inf")
    for _ in range(20):
        began_s = time.perf_counter()
        operation()
        best_s = min(best_s, time.perf_counter() - began_s)
    return round(best_s / times * 1e9, 1)


def in_rounds(
    benchmark: BenchmarkFixture,
    operation: Callable[..., object],
    times: int = TIMES,
    rounds: int = ROUNDS,
    setup: Setup | None = None,
    extra: Mapping[str, Extra] | None = None,
) -> None:
    """Time `operation`, which does something `times` times; the figure is its best round, per operation.

    `setup` returns the arguments of each round. Blocks and bytes are counted in a separate round.
    """
    pedantic: Callable[..., Any] = benchmark.pedantic  # untyped
    if setup is None:
        pedantic(operation, rounds=rounds, warmup_rounds=1)
    else:
        pedantic(operation, setup=setup, rounds=rounds)
    info = benchmark.extra_info
    info.update(extra or {})
    if benchmark.stats is None:  # benchmarks are disabled: the operation ran once as a test
        return
    arguments, _ = setup() if setup is not None else ((), {})
    counted = allocations(lambda: operation(*arguments), times)
    if counted is not None:
        info["blocks_per_op"], info["bytes_per_op"] = counted
    info["figure"], info["unit"] = round(benchmark.stats.stats.min / times * 1e9, 1), "ns"


def note(benchmark: BenchmarkFixture, value: float, unit: str, **extra: Extra) -> None:
    """Set a figure that is not a duration."""
    benchmark.extra_info.update(extra, figure=value, unit=unit)
