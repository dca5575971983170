"""Many picks in one call, for the benchmarks: what a request costs the throttler, which is compiled beside the table.

Timed from Python, three calls into compiled code cost several times what they do there: one measures the interpreter.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from lb.table import TrackerTable

LATENCY_S: Final = 0.001  # of each request, so that a policy that learns from answers has something to learn


def cycle(table: TrackerTable, times: i64) -> i64:
    """Pick, reserve and release so many times; how many picks found a pod.

    Under a policy that wants keys each request has another.
    """
    found: i64 = 0
    keyed = table.policy.wants_key
    while times > 0:  # a for loop over a range boxes its number
        tracker = table.pick(times if keyed else 0, 0.0)
        times -= 1
        if tracker is not None:
            table.reserve(tracker)
            table.release(tracker, tracker.generation, LATENCY_S)
            found += 1
    return found


def idle(times: i64) -> i64:
    """The loop without its body."""
    found: i64 = 0
    while times > 0:
        times -= 1
        found += 1
    return found
