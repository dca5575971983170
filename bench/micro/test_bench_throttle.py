"""The cost of a request in the throttler: with room, handed over from line to slot, cancelled among 10,000 others.

"in place" is the relevant caller: the proxy, compiled together with the throttler (data_plane/throttle/benchmark.py).
A hand-over is a release, the choice of the next request, its reservation and its grant.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.codec.message import UNKNOWN_LENGTH, Fields, RequestHead
from activator.config.specs import DisciplineSpec, QueueSpec, RevisionSpec
from activator.data_plane.throttle.benchmark import BenchmarkWaiter, ThrottlerBenchmark
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import TICK_S, WHEEL_SLOTS, TimingWheel
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

TIMES = 10_000
WAITERS = 10_000

DISCIPLINES = {
    "fifo": DisciplineSpec(),
    "priority": DisciplineSpec("priority", "X-Priority", 10.0),
    "fair": DisciplineSpec("fair", key_header="X-Tenant", weights={"t1": 3}),
}
every_discipline = pytest.mark.parametrize("discipline", list(DISCIPLINES))


class Deaf(SlotEvents):
    """An observer that ignores all events."""

    def activated(self, key: str) -> None:
        pass

    def queue_formed(self, key: str) -> None:
        pass


def rounds_of(benchmark: BenchmarkFixture) -> Callable[..., Any]:
    """Return `pedantic`, which has no types."""
    pedantic: Callable[..., Any] = benchmark.pedantic
    return pedantic


def note(benchmark: BenchmarkFixture, times: int = TIMES, **extra: float) -> None:
    benchmark.extra_info.update(extra)
    if benchmark.stats is not None:
        benchmark.extra_info.update(figure=round(benchmark.stats.stats.min / times * 1e9, 1), unit="ns")


def make(discipline: str, limit: int, policy: str = "round-robin") -> ThrottlerBenchmark:
    """Return a throttler with one pod that takes `limit` requests at a time."""
    table = TrackerTable(create(policy, Rng(1)), 4)
    table.add("pod", "10.0.0.1:8012", limit, READY)
    spec = RevisionSpec(key="ns/bench", queue=QueueSpec(depth=WAITERS + 1, discipline=DISCIPLINES[discipline]))
    return ThrottlerBenchmark(RevisionThrottler(spec, table, time.monotonic, _defer, Deaf(), 256))


def _defer(callback: Callable[[], None]) -> None:
    raise AssertionError("nothing is to be left for another turn")


def heads() -> list[RequestHead]:
    """Return the heads of 20 tenants, on all levels."""
    fields = [
        Fields.from_pairs([(b"X-Priority", b"%d" % (number % 8)), (b"X-Tenant", b"t%d" % number)])
        for number in range(20)
    ]
    return [RequestHead(b"GET", b"/", b"a.test", one, UNKNOWN_LENGTH, False) for one in fields]


def full(discipline: str) -> tuple[ThrottlerBenchmark, list[BenchmarkWaiter]]:
    """Return a throttler whose only slot is taken and whose line has WAITERS waiters."""
    loop = make(discipline, 1)
    holder = BenchmarkWaiter(loop, None)
    lease = loop.throttler.try_acquire(holder, 1.0)
    assert lease is not None
    holder.granted(lease)
    return loop, loop.fill_queue(heads(), WAITERS)


@pytest.mark.benchmark(group="throttle")
@every_discipline
def test_acquire_and_release_with_room(benchmark: BenchmarkFixture, discipline: str) -> None:
    loop = make(discipline, 10)
    assert rounds_of(benchmark)(loop.pass_through, args=(TIMES,), rounds=50, warmup_rounds=2) == TIMES
    note(benchmark)


@pytest.mark.benchmark(group="throttle")
@every_discipline
def test_hand_over_with_ten_thousand_waiting(benchmark: BenchmarkFixture, discipline: str) -> None:
    loops: list[ThrottlerBenchmark] = []

    def setup() -> tuple[tuple[int], dict[str, Any]]:
        loops.append(full(discipline)[0])
        return (WAITERS,), {}

    def hand_over(times: int) -> int:
        return int(loops[-1].hand_over(times))

    assert rounds_of(benchmark)(hand_over, setup=setup, rounds=20) == WAITERS
    assert loops[-1].throttler.queue.waiters.length == 0
    note(benchmark)


@pytest.mark.benchmark(group="throttle")
@every_discipline
def test_line_up(benchmark: BenchmarkFixture, discipline: str) -> None:
    """Ask, find no room, be sorted by the header fields, join the line; includes creating the request object."""
    loops: list[ThrottlerBenchmark] = []
    asked = heads()

    def setup() -> tuple[tuple[list[RequestHead], int], dict[str, Any]]:
        loop = make(discipline, 1)
        lease = loop.throttler.try_acquire(BenchmarkWaiter(loop, None), 1.0)
        assert lease is not None
        loops.append(loop)
        return (asked, WAITERS), {}

    def fill_queue(asked: list[RequestHead], count: int) -> None:
        loops[-1].fill_queue(asked, count)

    rounds_of(benchmark)(fill_queue, setup=setup, rounds=10)
    assert loops[-1].throttler.queue.waiters.length == WAITERS
    note(benchmark)


@pytest.mark.benchmark(group="throttle")
@every_discipline
def test_cancel_ten_thousand(benchmark: BenchmarkFixture, discipline: str) -> None:
    """Measure one cancellation; 10,000 times that is the cost of a crowd that leaves at once."""
    lines: list[tuple[ThrottlerBenchmark, list[BenchmarkWaiter]]] = []

    def setup() -> tuple[tuple[list[BenchmarkWaiter]], dict[str, Any]]:
        lines.append(full(discipline))
        return (lines[-1][1],), {}

    def cancel_all(waiters: list[BenchmarkWaiter]) -> None:
        lines[-1][0].cancel_all(waiters)

    rounds_of(benchmark)(cancel_all, setup=setup, rounds=10)
    assert lines[-1][0].throttler.queue.waiters.length == 0
    note(benchmark, WAITERS)
    if benchmark.stats is not None:
        benchmark.extra_info["all_ms"] = round(benchmark.stats.stats.min * 1e3, 2)


@pytest.mark.benchmark(group="throttle")
def test_ten_thousand_deadlines_for_a_rotation(benchmark: BenchmarkFixture) -> None:
    """Measure 10,000 waiters for one rotation (10.24 s) of the timer wheel.

    A rotation checks each waiter once.
    """
    now = [0.0]
    wheel = TimingWheel(lambda: now[0], lambda delay_s, callback: _Never(), _fail)
    loop, waiters = full("fifo")
    for waiter in waiters:
        wheel.arm(waiter, 3_600.0)

    def rotation() -> None:
        for _ in range(WHEEL_SLOTS):
            now[0] += TICK_S
            wheel.advance()

    rounds_of(benchmark)(rotation, rounds=5)
    assert wheel.armed == loop.throttler.queue.waiters.length == WAITERS
    note(benchmark, WAITERS)
    if benchmark.stats is not None:
        benchmark.extra_info["share_of_a_core"] = round(benchmark.stats.stats.min / (WHEEL_SLOTS * TICK_S), 6)


@pytest.mark.benchmark(group="throttle")
@every_discipline
def test_bytes_of_a_waiter(benchmark: BenchmarkFixture, discipline: str) -> None:
    """Measure the memory in the throttler alone, without the connection and the head."""

    def measure() -> int:
        loop = make(discipline, 1)
        holder = BenchmarkWaiter(loop, None)
        lease = loop.throttler.try_acquire(holder, 1.0)
        assert lease is not None
        asked = heads()
        gc.collect()
        tracemalloc.start()
        try:
            waiters = loop.fill_queue(asked, WAITERS)
            size_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        loop.cancel_all(waiters)
        return size_bytes

    size_bytes = rounds_of(benchmark)(measure, rounds=1)
    benchmark.extra_info.update(figure=round(size_bytes / WAITERS), unit="bytes")
    assert size_bytes < 2_000 * WAITERS


class _Never:
    def cancel(self) -> None:
        pass


def _fail(error: Exception) -> None:
    raise error
