"""One start from zero: from the first request that waits for it to the first pod that is ready.

The requests that wait for it keep it, so that each part of their wait is known afterwards.
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
        """Of a request that was answered. Parts that were over before it arrived count as 0."""
        ready_s = _between(arrived_s, self.ready_s, granted_s) if self.ready_s > 0.0 else granted_s
        placed_s = _between(arrived_s, self.placed_s, ready_s) if self.placed_s > 0.0 else ready_s
        return ColdPhases(
            placed_s - arrived_s,
            ready_s - placed_s,
            granted_s - ready_s,
            connected_s - granted_s,
            first_byte_s - connected_s,
        )


def server_timing(
    start: Start | None, arrived_s: float, granted_s: float, connected_s: float, first_byte_s: float
) -> bytes:
    """The value of the header Server-Timing (W3C): the phases in milliseconds; those of a start where there was one."""
    waited = f"queue;dur={1000.0 * (granted_s - arrived_s):.3f}"
    if start is not None:
        phases = start.phases(arrived_s, granted_s, connected_s, first_byte_s)
        waited = (
            f"start;dur={1000.0 * phases.start_s:.3f}, ready;dur={1000.0 * phases.ready_s:.3f}, "
            f"queue;dur={1000.0 * phases.queue_s:.3f}"
        )
    connect = f"connect;dur={1000.0 * (connected_s - granted_s):.3f}"
    return f"{waited}, {connect}, first_byte;dur={1000.0 * (first_byte_s - connected_s):.3f}".encode()


def _between(least: float, value: float, most: float) -> float:
    return min(max(value, least), most)
