"""What a pick, a reserve and a release cost together, and a table's adds, removes and bytes.

    pytest bench/micro --benchmark-enable

Operations under 1 us are timed as 10,000 per round; a column "ns" per operation stands in `extra_info`, with the empty
loop beside it (`loop_ns`), not subtracted. "in_place" is the caller that counts: the throttler, compiled beside the
table (lb/drill.py). "from_python" is an interpreted caller, whose own calls cost several times what is called;
`floor_ns` beside it is three calls into the compiled code that do nothing.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import lb
from lb.drill import cycle, idle
from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY, PodTracker

TIMES = 10_000
ROUNDS = 100
SIZES = (10, 100, 500, 10_000)

every_policy = pytest.mark.parametrize("name", list(BUILT_IN))
every_size = pytest.mark.parametrize("pods", SIZES)
every_load = pytest.mark.parametrize("load", ["idle", "one_free"])


def make_table(name: str, pods: int, load: str) -> TrackerTable:
    """Pods of concurrency 10 with nothing to do, or of concurrency 1 and all but the middle one busy."""
    table = TrackerTable(create(name, Rng(1)), pods)
    for number in range(pods):
        table.add(f"pod-{number}", f"10.0.{number // 250}.{number % 250}:8012", 10 if load == "idle" else 1, READY)
    if load == "one_free":
        for tracker in table.slots[:pods]:
            if tracker.slot != pods // 2:
                table.reserve(tracker)
        assert table.room == 1
    return table


def from_python(table: TrackerTable, times: int) -> None:
    pick, reserve, release = table.pick, table.reserve, table.release
    for _ in repeat(None, times):
        tracker = pick(0, 0.0)
        assert tracker is not None
        reserve(tracker)
        release(tracker, tracker.generation, 0.0)


def nothing_from_python(table: TrackerTable, tracker: PodTracker, times: int) -> None:
    find, capacity = table.find, tracker.capacity
    for _ in repeat(None, times):
        find("")
        capacity()
        capacity()


def best_ns(operation: Callable[[], object]) -> float:
    """The best of some rounds: what is beside a figure, measured as coarsely as it needs to be."""
    best_s = float("inf")
    for _ in range(20):
        began_s = time.perf_counter()
        operation()
        best_s = min(best_s, time.perf_counter() - began_s)
    return round(best_s / TIMES * 1e9, 1)


def rounds_of(benchmark: BenchmarkFixture) -> Callable[..., Any]:
    """`pedantic`, which has no types."""
    pedantic: Callable[..., Any] = benchmark.pedantic
    return pedantic


def note(benchmark: BenchmarkFixture, **beside: float) -> None:
    benchmark.extra_info["world"] = "compiled" if lb.COMPILED else "plain"
    benchmark.extra_info.update(beside)
    if benchmark.stats is not None:  # None: benchmarks are disabled, the operation was run once as a test
        benchmark.extra_info["ns"] = round(benchmark.stats.stats.min / TIMES * 1e9, 1)


@pytest.mark.benchmark(group="policies, in place")
@every_policy
@every_size
@every_load
def test_in_place(benchmark: BenchmarkFixture, name: str, pods: int, load: str) -> None:
    table = make_table(name, pods, load)
    assert rounds_of(benchmark)(cycle, args=(table, TIMES), rounds=ROUNDS, warmup_rounds=2) == TIMES
    note(benchmark, loop_ns=best_ns(lambda: idle(TIMES)))


@pytest.mark.benchmark(group="policies, from Python")
@every_policy
@pytest.mark.parametrize("pods", [100, 10_000])
@every_load
def test_from_python(benchmark: BenchmarkFixture, name: str, pods: int, load: str) -> None:
    table = make_table(name, pods, load)
    rounds_of(benchmark)(from_python, args=(table, TIMES), rounds=20, warmup_rounds=1)
    floor_ns = best_ns(lambda: nothing_from_python(table, table.slots[0], TIMES))
    note(benchmark, floor_ns=floor_ns)


@pytest.mark.benchmark(group="table")
@every_policy
def test_add_and_remove(benchmark: BenchmarkFixture, name: str) -> None:
    """10,000 times: a pod comes to a table of 500 and goes."""
    table = make_table(name, 500, "idle")
    names = [(f"new-{number}", f"10.9.{number // 250}.{number % 250}:8012") for number in range(TIMES)]

    def add_and_remove() -> None:
        for identity, address in names:
            tracker = table.add(identity, address, 10, READY)
            assert tracker is not None
            table.drain(tracker)

    rounds_of(benchmark)(add_and_remove, rounds=20, warmup_rounds=1)
    note(benchmark)


@pytest.mark.benchmark(group="table")
@every_policy
@pytest.mark.parametrize("slots", [2_000, 20_000])
def test_bytes_of_a_table(benchmark: BenchmarkFixture, name: str, slots: int) -> None:
    """The slots of a known scale, with one pod: what a revision's table costs before it is used."""

    def measure() -> int:
        gc.collect()
        tracemalloc.start()
        try:
            table = TrackerTable(create(name, Rng(1)), slots // 2)
            table.add("pod", "10.0.0.1:8012", 10, READY)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    size_bytes = rounds_of(benchmark)(measure, rounds=1)
    benchmark.extra_info["bytes_per_slot"] = round(size_bytes / slots)
    assert size_bytes <= 250 * slots


@every_policy
def test_a_pick_leaves_no_byte_behind(name: str) -> None:
    table = make_table(name, 100, "idle")
    cycle(table, 100)
    gc.collect()
    tracemalloc.start()
    try:
        cycle(table, 100)
        before = tracemalloc.get_traced_memory()[0]
        cycle(table, TIMES)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before <= 256  # a few integers that live in the fields at the end, however many the picks were
