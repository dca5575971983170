"""Loops of table operations for the benchmarks, compiled like the table and its caller, the throttler.

If the operations were called from plain Python, a benchmark would mostly measure the interpreter.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from lb.table import TrackerTable
from lb.tracker import READY, RECOVERING, PodTracker

LATENCY_S: Final = 0.001  # the latency of each request, for policies that use it


def cycle(table: TrackerTable, times: i64) -> i64:
    """Pick, reserve and release `times` times. Return how many picks found a pod.

    If the policy wants keys, each request has a different one.
    """
    found: i64 = 0
    keyed = table.policy.wants_key
    while times > 0:  # a for loop over a range would box its number
        tracker = table.pick(times if keyed else 0, 0.0)
        times -= 1
        if tracker is not None:
            table.reserve(tracker)
            table.release(tracker, tracker.generation, LATENCY_S)
            found += 1
    return found


def idle(times: i64) -> i64:
    """Run the loop of `cycle` without its body, as the cost to subtract. Return `times`."""
    done: i64 = 0
    while times > 0:
        times -= 1
        done += 1
    return done


def scan(table: TrackerTable) -> PodTracker | None:
    """Return the least loaded pod by a scan of all slots below `length`, for comparison with room structures."""
    best: PodTracker | None = None
    least: i64 = 0
    slots = table.slots
    slot: i64 = 0
    length: i64 = table.length
    while slot < length:
        tracker = slots[slot]
        slot += 1
        if (tracker.state == READY or tracker.state == RECOVERING) and tracker.suspect_until_s == 0.0:
            in_flight = tracker.in_flight
            if in_flight < tracker.limit and (best is None or in_flight < least):
                best = tracker
                least = in_flight
    return best


def cycle_scanning(table: TrackerTable, times: i64) -> i64:
    """Run `cycle` with `scan` instead of the pick."""
    found: i64 = 0
    while times > 0:
        times -= 1
        tracker = scan(table)
        if tracker is not None:
            table.reserve(tracker)
            table.release(tracker, tracker.generation, 0.0)
            found += 1
    return found


def add_all(table: TrackerTable, names: list[tuple[str, str]]) -> list[PodTracker]:
    """Add pods of concurrency 10 with these identities and addresses. Return their slots."""
    pods: list[PodTracker] = []
    for identity, address in names:
        tracker = table.add(identity, address, 10, READY)
        if tracker is not None:
            pods.append(tracker)
    return pods


def drain_all(table: TrackerTable, pods: list[PodTracker]) -> None:
    """Drain the pods in this order."""
    for tracker in pods:
        table.drain(tracker)
