"""The cost of telemetry per request without sockets: counting requests, and the text of /metrics.

Counting is measured in place, by a compiled caller (data_plane/throttle/benchmark.py), for one warm request.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.config.specs import RevisionSpec
from activator.data_plane import statistics
from activator.data_plane.throttle.benchmark import ThrottlerBenchmark
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.telemetry.metrics.exposition import READ_PER_SLICE, samples_of
from activator.telemetry.metrics.families import Kind
from activator.telemetry.metrics.named import NamedRevisions
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from activator.telemetry.metrics.sample_text import FamilyText
from bench.micro.rounds import TIMES, in_rounds, note
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

REVISIONS = 1_000
ROUNDS = 5


class Deaf(SlotEvents):
    """An observer that ignores all events."""

    def activated(self, key: str) -> None:
        pass

    def request_scale_up(self, key: str) -> None:
        pass


def make(number: int) -> RevisionThrottler:
    table = TrackerTable(create("round-robin", Rng(1)), 4)
    for pod in range(2):
        table.add(f"pod-{number}-{pod}", f"10.{pod}.{number // 250}.{number % 250}:8012", 10, READY)
    spec = RevisionSpec(key=f"namespace-{number % 20}/revision-{number:05}")
    return RevisionThrottler(spec, table, time.monotonic, _defer, Deaf(), 256)


def _defer(callback: Callable[[], None]) -> None:
    raise AssertionError("nothing is to be left for another turn")


@pytest.mark.benchmark(group="telemetry")
@pytest.mark.parametrize("histograms", [True, False])
def test_counting_a_request(benchmark: BenchmarkFixture, histograms: bool) -> None:
    loop = ThrottlerBenchmark(make(0))
    in_rounds(benchmark, lambda: loop.count(TIMES, histograms), extra={"histograms": histograms})
    assert loop.throttler.counters.requests_total >= TIMES


@pytest.mark.benchmark(group="telemetry")
@pytest.mark.parametrize("histograms", [True, False])
def test_the_metrics_of_a_thousand_revisions(benchmark: BenchmarkFixture, histograms: bool) -> None:
    """Measure the lines of revisions, in slices and packed as in the admin port.

    The clock is that of the thread; the best of some rounds counts.
    """
    throttlers = {}
    for number in range(REVISIONS):
        throttler = make(number)
        ThrottlerBenchmark(throttler).count(10 + number % 7, True)
        throttler.counters.codes[200] = 10
        throttlers[throttler.key] = throttler
    families = [one for one in REVISION_FAMILIES if histograms or one.kind is not Kind.HISTOGRAM]
    roster = NamedRevisions(tuple(families), REVISIONS)
    writers = [(family, FamilyText(family)) for family in families]
    lines = 0

    def all_slices() -> Iterator[bytes]:
        reading = roster.read()
        for number, throttler in enumerate(throttlers.values(), start=1):
            reading.add(statistics.revision(throttler))
            if number % READ_PER_SLICE == 0:
                yield b""
        for family, writer in writers:
            yield from samples_of(reading, roster.others_text, family, writer)

    def page() -> tuple[float, float]:
        """Return the milliseconds of the whole page and of its longest slice."""
        nonlocal lines
        lines = 0
        took: list[float] = []
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        slices = all_slices()
        while True:
            began_s = time.thread_time()
            one = next(slices, None)
            if one is None:
                break
            packer.compress(one)
            took.append(time.thread_time() - began_s)
            lines += one.count(b"\n")
        return sum(took) * 1e3, max(took) * 1e3

    rounds = [page() for _ in range(ROUNDS)]
    pedantic: Callable[..., Any] = benchmark.pedantic  # untyped
    pedantic(page, rounds=1)
    note(
        benchmark,
        round(min(whole for whole, _ in rounds), 1),
        "ms",
        revisions=REVISIONS,
        lines=lines,
        longest_slice_ms=round(min(longest for _, longest in rounds), 2),
        histograms=histograms,
    )
