"""Measurements of growth: the CPU time of an operation at sizes of 100 and 10,000, in one run.

There are two kinds of figures (bench/growth_cases.py has the cases): the cost of one operation, and the longest turn of
the loop during much work. For a linear operation the figure at 10,000 is a hundred times that at 100;
`python -m bench micro --group growth` prints both with their ratio, and a test fails if the ratio is high.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final, NamedTuple

SMALL: Final = 100
LARGE: Final = 10_000
RATIO_MAX: Final = 8.0  # linear growth would give 100; caches and O(log n) alone give 1.2 to 3

Measure = Callable[[], float]


class Case(NamedTuple):
    """A case; `prepare(size)` is called for each round and returns a function that measures one operation in CPU ns."""

    name: str
    what: str
    prepare: Callable[[int], Measure]
    ratio_max: float = RATIO_MAX


class Growth(NamedTuple):
    """The best of all rounds, in CPU ns."""

    small_ns: float
    large_ns: float

    @property
    def ratio(self) -> float:
        return self.large_ns / self.small_ns


def growth(case: Case, rounds: int, sizes: tuple[int, int] = (SMALL, LARGE)) -> Growth:
    """Measure a case, alternating between the sizes, with garbage collection off while an operation is timed."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, size in enumerate(sizes):
            best[index] = min(best[index], _one_round(case, size))
    return Growth(best[0], best[1])


def growth_below(case: Case, ratio_max: float, rounds_max: int, sizes: tuple[int, int] = (SMALL, LARGE)) -> Growth:
    """Measure as `growth` does, but stop as soon as the ratio is at most `ratio_max`."""
    found = growth(case, 2, sizes)
    for _ in range(rounds_max - 2):
        if found.ratio <= ratio_max:
            break
        again = growth(case, 1, sizes)
        found = Growth(min(found.small_ns, again.small_ns), min(found.large_ns, again.large_ns))
    return found


def _one_round(case: Case, size: int) -> float:
    measure = case.prepare(size)
    gc.collect()
    gc.disable()
    try:
        return measure()
    finally:
        gc.enable()


def each(operation: Callable[[], object], times: int) -> Measure:
    """Return a measurement of the CPU time of an operation that is done `times` times in one call."""

    def measure() -> float:
        began_ns = time.thread_time_ns()
        operation()
        return (time.thread_time_ns() - began_ns) / times

    return measure


class Loop:
    """An event loop that is turned manually, with a fixed time, and measures its longest turn."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._deferred: list[Callable[[], object]] = []
        self._timers: list[Timer] = []

    def now(self) -> float:
        return self.now_s

    def defer(self, callback: Callable[[], object]) -> None:
        """Run a callback in the next turn, as `call_soon` does."""
        self._deferred.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def settle(self) -> None:
        """Run turns until nothing is left to do now."""
        while self._ready():
            pass

    def longest_turn_ns(self, pass_s: float = 0.0) -> float:
        """Advance the time by `pass_s` and run all turns. Return the CPU ns of the longest turn."""
        self.now_s += pass_s
        longest_ns = 0
        while ready := self._ready(run=False):
            began_ns = time.thread_time_ns()
            for callback in ready:
                callback()
            longest_ns = max(longest_ns, time.thread_time_ns() - began_ns)
        return float(longest_ns)

    def _ready(self, run: bool = True) -> list[Callable[[], object]]:
        ready, self._deferred = self._deferred, []
        due = [timer for timer in self._timers if timer.due_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer.due_s > self.now_s and not timer.cancelled]
        ready += [timer.callback for timer in due if not timer.cancelled]
        if run:
            for callback in ready:
                callback()
        return ready


class Timer:
    """The handle that `call_later` returns."""

    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
