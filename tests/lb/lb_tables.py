"""Tables with a few pods, for the tests of what tables promise."""

from __future__ import annotations

from lb.registry import create
from lb.rng import Rng
from lb.sizing import SLOTS_MAX
from lb.table import TrackerTable
from lb.tracker import READY, PodTracker


def make_table(
    max_scale: int = 0, threshold: float = 0.5, slots_max: int = SLOTS_MAX, policy: str = "round-robin"
) -> TrackerTable:
    return TrackerTable(create(policy, Rng(1)), max_scale, threshold, slots_max)


def add(table: TrackerTable, number: int, limit: int = 2, state: int = READY) -> PodTracker:
    tracker = table.add(f"pod-{number}", f"10.0.0.{number}:8012", limit, state)
    assert tracker is not None
    return tracker


def fill(table: TrackerTable, count: int) -> list[PodTracker]:
    return [add(table, number) for number in range(count)]
