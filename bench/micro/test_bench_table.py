"""The cost of adding and removing pods, and the memory of a table."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from array import array
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import lb
from bench.micro.rounds import POLICIES, TIMES, in_rounds, make_table, note
from bench.processes import ROOT
from bench.seed_figures import ADD_POD_NS, TABLE_BYTES
from lb.benchmark import add_all, cycle, drain_all
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

every_policy = pytest.mark.parametrize("name", POLICIES)
every_table = pytest.mark.parametrize("slots", sorted(TABLE_BYTES))

PODS = 500
COMERS = 1_000
NAMES = [(f"new-{number}", f"10.9.{number // 250}.{number % 250}:8012") for number in range(COMERS)]

# In a separate process, after a small table has created everything that is created once.
RESIDENT = """
import resource, sys
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
def resident():
    with open("/proc/self/statm") as line:
        return int(line.read().split()[1]) * resource.getpagesize()
def table(slots):
    made = TrackerTable(create(sys.argv[1], Rng(1)), slots // 2)
    made.add("pod", "10.0.0.1:8012", 10, 2)
    return made
first = table(64)
before = resident()
second = table(int(sys.argv[2]))
print(resident() - before)
"""


@pytest.mark.benchmark(group="table")
@every_policy
def test_add(benchmark: BenchmarkFixture, name: str) -> None:
    """Add 1,000 pods to 500 in existing slots; test_add_growing has a table that must create them."""

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        table = make_table(name, PODS, "idle")
        table.set_max_scale(PODS + COMERS)
        return (table, NAMES), {}

    in_rounds(benchmark, add_all, COMERS, 20, setup, {"policy": name, "seed_ns": ADD_POD_NS})


@pytest.mark.benchmark(group="table")
@every_policy
def test_add_growing(benchmark: BenchmarkFixture, name: str) -> None:
    """Add 1,000 pods to an empty table of unknown scale, which doubles four times."""

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (TrackerTable(create(name, Rng(1))), NAMES), {}

    in_rounds(benchmark, add_all, COMERS, 20, setup, {"policy": name, "seed_ns": ADD_POD_NS})


@pytest.mark.benchmark(group="table")
@every_policy
def test_remove(benchmark: BenchmarkFixture, name: str) -> None:
    """Remove 1,000 of 1,500 pods, the oldest first, which leaves holes; the threshold is the default."""

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        table = make_table(name, PODS, "idle")
        table.set_max_scale(PODS + COMERS)
        return (table, add_all(table, NAMES)), {}

    in_rounds(benchmark, drain_all, COMERS, 20, setup, {"policy": name})


@pytest.mark.benchmark(group="table")
@every_policy
def test_add_and_remove_from_python(benchmark: BenchmarkFixture, name: str) -> None:
    """Add a pod to a table of 500 and remove it, from Python: two operations and two calls."""
    table = make_table(name, PODS, "idle")

    def add_and_remove() -> None:
        for identity, address in NAMES:
            tracker = table.add(identity, address, 10, READY)
            assert tracker is not None
            table.drain(tracker)

    in_rounds(benchmark, add_and_remove, COMERS, 20, extra={"policy": name})


@pytest.mark.benchmark(group="memory")
@every_policy
@every_table
def test_bytes_of_a_table(benchmark: BenchmarkFixture, name: str, slots: int) -> None:
    """Measure the slots of a known scale with one pod (tracemalloc): the cost of an unused table."""

    def measure() -> int:
        gc.collect()
        tracemalloc.start()
        try:
            table = TrackerTable(create(name, Rng(1)), slots // 2)
            table.add("pod", "10.0.0.1:8012", 10, READY)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    size_bytes = benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    extra: dict[str, str | float] = {"policy": name, "slots": slots, "seed_bytes": TABLE_BYTES[slots]}
    note(benchmark, size_bytes, "bytes", per_slot=round(size_bytes / slots), **extra)
    assert not lb.COMPILED or size_bytes <= TABLE_BYTES[slots]  # the limit applies to compiled slots


@pytest.mark.benchmark(group="memory")
@pytest.mark.parametrize("name", ["round-robin"])
@every_table
def test_resident_bytes_of_a_table(benchmark: BenchmarkFixture, name: str, slots: int) -> None:
    """Measure the same in the kernel: the growth of the resident set of a new process."""

    def measure() -> int:
        command = [sys.executable, "-c", RESIDENT, name, str(slots)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return int(done.stdout)

    size_bytes = benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    extra: dict[str, str | float] = {"policy": name, "slots": slots, "seed_bytes": TABLE_BYTES[slots]}
    note(benchmark, size_bytes, "bytes", per_slot=round(size_bytes / slots), **extra)


@pytest.mark.benchmark(group="memory")
@every_policy
def test_bytes_left_behind_by_picks(benchmark: BenchmarkFixture, name: str) -> None:
    """Measure the memory that 10,000 picks leave allocated."""
    table = make_table(name, 100, "idle")

    def measure() -> int:
        readings = array("q", [0, 0, 0])  # has no integer objects, which would count as well
        gc.collect()
        tracemalloc.start()
        try:
            for index in range(3):  # the first one leaves its tuple in Python's free list
                cycle(table, TIMES)
                readings[index] = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        return readings[2] - readings[1]

    left = benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    note(benchmark, left, "bytes", policy=name, picks=TIMES)
