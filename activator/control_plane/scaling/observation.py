"""The figures from which the number of pods of a revision is decided."""

from __future__ import annotations

from typing import NamedTuple


class Observation(NamedTuple):
    """The figures of one revision at one time; `now_s` is monotonic."""

    now_s: float
    stable: float = 0.0  # the average of the rule's metric over the stable window, of all pods together
    panic: float = 0.0  # the same average over the panic window
    in_flight: int = 0
    queued: int = 0
    peak: int = 0  # the most requests that were here at once, in the stable window
    ready: int = 0  # pods
    idle_s: float = 0.0  # since the last request; 0 while there is one
    scheduled: int = 0  # the minimum that the schedule demands now
    held: int = 0  # what an operator has asked for, for some time
    busy: int = 0  # pods that report work without a request
    is_unloaded: bool = False  # an operator wants no pod, and no request has waited since

    @property
    def carried(self) -> int:
        return self.in_flight + self.queued
