"""The benefit and the cost of the threshold in four scenarios. The tuning guide in docs/table.md is based on this.

Every table is of unknown scale, so that it grows and shrinks. A walk is lb.benchmark.scan over `slots[:length]`.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.rounds import best_ns, note
from lb.benchmark import scan
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY, PodTracker

THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 1.0)
LIVES_EACH = 5  # runs of each scenario; the fastest counts


class Life:
    """A table that is changed, and its length after each change."""

    def __init__(self, threshold: float) -> None:
        self.table = TrackerTable(create("round-robin", Rng(1)), 0, threshold)
        self.rng = Rng(2)
        self.changes = 0
        self.lengths = 0
        self.seconds = 0.0

    def add(self) -> PodTracker:
        number = self.changes
        identity, address = f"pod-{number}", f"10.0.{number // 250 % 250}.{number % 250}:{number}"
        began_s = time.perf_counter()
        tracker = self.table.add(identity, address, 10, READY)
        self._changed(began_s)
        assert tracker is not None
        return tracker

    def remove(self, tracker: PodTracker) -> None:
        began_s = time.perf_counter()
        self.table.drain(tracker)
        self._changed(began_s)

    def _changed(self, began_s: float) -> None:
        self.seconds += time.perf_counter() - began_s
        self.changes += 1
        self.lengths += self.table.length


def scale_up_and_down(life: Life) -> None:
    """Scale from 10 pods to 1,000 and back, three times.

    The youngest of three randomly chosen pods is removed, as in Kubernetes.
    """
    pods = [life.add() for _ in range(10)]
    for _ in range(3):
        pods += [life.add() for _ in range(990)]
        while len(pods) > 10:
            life.remove(pods.pop(max(int(life.rng.below(len(pods))) for _ in range(3))))


def rolling_update(life: Life) -> None:
    """Replace 500 pods four times, 50 at a time: the new ones are added, then the oldest removed."""
    pods = [life.add() for _ in range(500)]
    for _ in range(40):
        pods += [life.add() for _ in range(50)]
        for tracker in pods[:50]:
            life.remove(tracker)
        del pods[:50]


def breathing(life: Life) -> None:
    """Remove a fifth of 500 pods (the youngest) and add as many, twenty times."""
    pods = [life.add() for _ in range(500)]
    for _ in range(20):
        for _ in range(100):
            life.remove(pods.pop())
        pods += [life.add() for _ in range(100)]


def pathological_churn(life: Life) -> None:
    """Add 1,000 pods, remove all but the one in the top slot, add and remove others; three times.

    The last time that pod stays.
    """
    for last in (False, False, True):
        pods = [life.add() for _ in range(1_000)]
        for tracker in pods[:-1]:
            life.remove(tracker)
        for _ in range(500):
            life.remove(life.add())
        if not last:
            life.remove(pods[-1])
            for _ in range(500):
                life.remove(life.add())


LIVES: dict[str, Callable[[Life], None]] = {
    "scale-up-and-down": scale_up_and_down,
    "rolling-update": rolling_update,
    "breathing": breathing,
    "pathological-churn": pathological_churn,
}


@pytest.mark.benchmark(group="fragmentation")
@pytest.mark.parametrize("scenario", list(LIVES))
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_fragmentation(benchmark: BenchmarkFixture, scenario: str, threshold: float) -> None:
    def live() -> Life:
        life = Life(threshold)
        LIVES[scenario](life)
        return life

    lives = [live() for _ in range(LIVES_EACH)]
    life = benchmark.pedantic(live, rounds=1)  # type: ignore[no-untyped-call]
    table = life.table
    table.check_invariants()
    note(
        benchmark,
        best_ns(lambda: scan(table), 1),
        "ns",
        scenario=scenario,
        threshold=threshold,
        pods=table.used,
        length=table.length,
        length_mean=round(life.lengths / life.changes, 1),
        holes=table.holes,
        trailing=table.trailing,
        trims=table.trims,
        slots=table.capacity_slots,
        bytes=_bytes_of(live),
        change_ns=round(min(one.seconds for one in lives) / life.changes * 1e9),
    )


def _bytes_of(live: Callable[[], Life]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        life = live()
        gc.collect()
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert life.changes > 0
    return size_bytes
