"""One start from zero: from the first request that waits for it to the first pod that is ready.

The requests that wait for it keep it, so that each can tell afterwards which part of its wait was which.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

PHASES: Final[tuple[str, ...]] = ("start", "ready", "queue", "connect", "first_byte")


class ColdPhases(NamedTuple):
    """Where the time of one request went, in seconds; together they are all of it, from arrival to first byte."""

    start_s: float  # until there was a pod
    ready_s: float  # until it was ready
    queue_s: float  # until this request had its turn, attempts on pods that failed it included
    connect_s: float
    first_byte_s: float


@final
class Start:
    """Times are monotonic seconds; 0.0: has not happened."""

    def __init__(self, wanted_s: float) -> None:
        self.wanted_s = wanted_s
        self.placed_s: float = 0.0
        self.ready_s: float = 0.0

    def phases(self, arrived_s: float, granted_s: float, connected_s: float, first_byte_s: float) -> ColdPhases:
        """Of a request that was answered. What was over before it arrived cost it nothing."""
        ready_s = _between(arrived_s, self.ready_s, granted_s) if self.ready_s > 0.0 else granted_s
        placed_s = _between(arrived_s, self.placed_s, ready_s) if self.placed_s > 0.0 else ready_s
        return ColdPhases(
            placed_s - arrived_s,
            ready_s - placed_s,
            granted_s - ready_s,
            connected_s - granted_s,
            first_byte_s - connected_s,
        )


def _between(least: float, value: float, most: float) -> float:
    return min(max(value, least), most)
