"""One start from zero, from the first request that waits for the start to the first ready pod.

The requests that wait for the start keep a reference, so that the phases of their wait are known afterwards.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

PHASES: Final[tuple[str, ...]] = ("start", "ready", "queue", "connect", "first_byte")


class ColdPhases(NamedTuple):
    """The time of one request from its arrival to its first byte, split into phases, in seconds."""

    start_s: float  # until a pod existed
    ready_s: float  # until the pod was ready
    queue_s: float  # until this request had a slot, including failed attempts
    connect_s: float
    first_byte_s: float


@final
class Start:
    """The times of one start, in monotonic seconds; 0.0: not yet."""

    def __init__(self, wanted_s: float) -> None:
        self.wanted_s = wanted_s
        self.placed_s: float = 0.0
        self.ready_s: float = 0.0

    def phases(self, arrived_s: float, granted_s: float, connected_s: float, first_byte_s: float) -> ColdPhases:
        """Return the phases of a request that received a response. Phases that ended before its arrival are 0."""
        ready_s = _clamped(arrived_s, self.ready_s, granted_s) if self.ready_s > 0.0 else granted_s
        placed_s = _clamped(arrived_s, self.placed_s, ready_s) if self.placed_s > 0.0 else ready_s
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
    """Return the value of Server-Timing (W3C), in milliseconds; with the phases of the start if there was one."""
    waited = f"queue;dur={1000.0 * (granted_s - arrived_s):.3f}"
    if start is not None:
        phases = start.phases(arrived_s, granted_s, connected_s, first_byte_s)
        waited = (
            f"start;dur={1000.0 * phases.start_s:.3f}, ready;dur={1000.0 * phases.ready_s:.3f}, "
            f"queue;dur={1000.0 * phases.queue_s:.3f}"
        )
    connect = f"connect;dur={1000.0 * (connected_s - granted_s):.3f}"
    return f"{waited}, {connect}, first_byte;dur={1000.0 * (first_byte_s - connected_s):.3f}".encode()


def _clamped(low: float, value: float, high: float) -> float:
    """Return `value`, or the bound that it exceeds."""
    return min(max(value, low), high)
