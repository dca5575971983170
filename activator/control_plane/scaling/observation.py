"""The figures from which the number of pods of a revision is decided."""

from __future__ import annotations

from typing import NamedTuple


class Observation(NamedTuple):
    """The figures of one revision at one time; `now_s` is monotonic."""

    now_s: float
    stable: float = 0.0  # the average of the rule's metric over the stable window, for all pods together
    panic: float = 0.0  # the same average over the panic window
    in_flight: int = 0
    queued: int = 0
    peak: int = 0  # the most concurrent requests in the stable window
    ready: int = 0  # pods
    idle_s: float = 0.0  # since the last request; 0 while there is one
    scheduled: int = 0  # the minimum that the schedule demands now
    held: int = 0  # pods that an operator has requested for a time
    busy: int = 0  # pods that report work without a request
    users: int = 0  # revisions that depend on it and want a pod
    is_unloaded: bool = False  # an operator has unloaded it, and no request has been queued since

    @property
    def carried(self) -> int:
        """The number of requests in flight and in the queue."""
        return self.in_flight + self.queued
