"""The programs of one revision in one group, counted by their states."""

from __future__ import annotations

from typing import NamedTuple


class ProgramCounts(NamedTuple):
    """The programs of one revision in one group."""

    started: int = 0  # wanted programs: they start, run, or are being woken
    ready: int = 0  # the part of `started` that has been ready
    leaving: int = 0  # being stopped, or put to sleep
    falling_asleep: int = 0  # the part of `leaving` that is being put to sleep
    sleeping: int = 0
    stopping_asleep: int = 0  # slept, and are being stopped
    may_start: bool = True  # not in the backoff after a failed start
    start_s: float = 0.0  # how long the last start took
    wake_s: float = 0.0  # how long the last wake took
