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
    return enter(table, f"pod-{number}", f"10.0.0.{number}:8012", limit, state)


def enter(table: TrackerTable, identity: str, address: str, limit: int = 1, state: int = READY) -> PodTracker:
    """A pod with names of its own."""
    tracker = table.add(identity, address, limit, state)
    assert tracker is not None
    return tracker


def leave(table: TrackerTable, tracker: PodTracker) -> None:
    """The pod is told to go while it carries a request, and stays in its slot until that has ended."""
    table.reserve(tracker)
    assert not table.drain(tracker)


def fill(table: TrackerTable, count: int) -> list[PodTracker]:
    return [add(table, number) for number in range(count)]
