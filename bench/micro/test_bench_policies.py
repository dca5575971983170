"""The cost of a pick, a reserve and a release together, for every registered policy.

    pytest bench/micro --benchmark-enable

`caller` is the calling code. "in_place" is the relevant one: the throttler, which is compiled together with the table
(lb/benchmark.py); "lease" is the same with the lease that each request gets (data_plane/throttle/benchmark.py).
"Python" is an interpreted caller: three calls from the interpreter cost more than the operations, and `floor_ns` is the
cost of three such calls that do nothing. `loop_ns` is the empty loop. Neither is subtracted. In plain Python all
callers run the same code, interpreted. "scan" is the cost of a pick that inspects every slot: that of the oracle, and
of any policy without room structures.
"""

from __future__ import annotations

import gc
import tracemalloc
from itertools import repeat

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import lb
from activator.data_plane.throttle.benchmark import cycle_with_lease
from bench.micro.rounds import LOADS, POLICIES, SIZES, TIMES, Extra, best_ns, in_rounds, make_table
from lb.benchmark import cycle, cycle_scanning, idle
from lb.table import TrackerTable
from lb.tracker import PodTracker

every_policy = pytest.mark.parametrize("name", POLICIES)
every_size = pytest.mark.parametrize("pods", SIZES)
every_load = pytest.mark.parametrize("load", LOADS)


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


@pytest.mark.benchmark(group="policies")
@every_policy
@every_size
@every_load
def test_in_place(benchmark: BenchmarkFixture, name: str, pods: int, load: str) -> None:
    table = make_table(name, pods, load)
    assert cycle(table, 10) == 10
    loop_ns = best_ns(lambda: idle(TIMES))
    where: dict[str, Extra] = {"policy": name, "pods": pods, "load": load, "caller": "in_place"}
    in_rounds(benchmark, lambda: cycle(table, TIMES), extra={**where, "loop_ns": loop_ns})


@pytest.mark.benchmark(group="policies")
@every_policy
@every_size
@every_load
def test_with_lease(benchmark: BenchmarkFixture, name: str, pods: int, load: str) -> None:
    table = make_table(name, pods, load)
    where: dict[str, Extra] = {"policy": name, "pods": pods, "load": load, "caller": "lease"}
    in_rounds(benchmark, lambda: cycle_with_lease(table, TIMES), extra=where)


@pytest.mark.benchmark(group="policies")
@every_policy
@every_size
@every_load
def test_from_python(benchmark: BenchmarkFixture, name: str, pods: int, load: str) -> None:
    table = make_table(name, pods, load)
    floor_ns = best_ns(lambda: nothing_from_python(table, table.slots[0], TIMES))
    where: dict[str, Extra] = {"policy": name, "pods": pods, "load": load, "caller": "Python"}
    in_rounds(benchmark, lambda: from_python(table, TIMES), extra={**where, "floor_ns": floor_ns})


@pytest.mark.benchmark(group="policies")
@every_size
@every_load
def test_scan(benchmark: BenchmarkFixture, pods: int, load: str) -> None:
    table = make_table("random", pods, load)
    times = max((TIMES if lb.COMPILED else TIMES // 50) * 10 // pods, 4)
    where: dict[str, Extra] = {"policy": "scan", "pods": pods, "load": load, "caller": "in_place"}
    in_rounds(benchmark, lambda: cycle_scanning(table, times), times, extra=where)


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
    assert after - before <= 256  # the integers that remain in fields, independently of the number of picks
