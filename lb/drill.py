"""Many picks in one call, for the benchmarks: what a request costs the throttler, which is compiled beside the table.

Timed from Python, three calls into compiled code cost several times what they do there: one measures the interpreter.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.table import TrackerTable


def cycle(table: TrackerTable, times: i64, keyed: bool = False, latency_s: float = 0.0) -> i64:
    """Pick, reserve and release so many times; how many picks found a pod. `keyed`: each request has another key."""
    found: i64 = 0
    while times > 0:  # a for loop over a range boxes its number
        tracker = table.pick(times if keyed else 0, 0.0)
        times -= 1
        if tracker is not None:
            table.reserve(tracker)
            table.release(tracker, tracker.generation, latency_s)
            found += 1
    return found


def idle(times: i64) -> i64:
    """The loop without its body."""
    found: i64 = 0
    while times > 0:
        times -= 1
        found += 1
    return found
