"""Whether an operation costs the same however much there is: its CPU time at 100 and at 10,000, in one run.

Two kinds of figures (bench/growth_cases.py has the cases): what one operation costs, and how long the longest turn of
the loop is while a lot of work is done. Where an operation is linear, the second figure is a hundred times the first;
`python -m bench micro --group growth` prints both with their ratio, and a test fails where the ratio is high.
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
    """`prepare(size)` makes what is measured, anew for each round, and returns what does it: CPU ns of one."""

    name: str
    what: str
    prepare: Callable[[int], Measure]
    ratio_max: float = RATIO_MAX


class Growth(NamedTuple):
    """The best of all rounds, CPU ns."""

    small_ns: float
    large_ns: float

    @property
    def ratio(self) -> float:
        return self.large_ns / self.small_ns


def growth(case: Case, rounds: int, sizes: tuple[int, int] = (SMALL, LARGE)) -> Growth:
    """Rounds at either size alternate; garbage collection is off while an operation is timed."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, size in enumerate(sizes):
            best[index] = min(best[index], _one_round(case, size))
    return Growth(best[0], best[1])


def growth_below(case: Case, ratio_max: float, rounds_max: int, sizes: tuple[int, int] = (SMALL, LARGE)) -> Growth:
    """As `growth`, but no more rounds than it takes to show that the ratio is not higher."""
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
    """CPU time of an operation that is done `times` times in one call."""

    def measure() -> float:
        began_ns = time.thread_time_ns()
        operation()
        return (time.thread_time_ns() - began_ns) / times

    return measure


class Loop:
    """An event loop turned by hand, which knows how long its longest turn took. Its time stands still."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._deferred: list[Callable[[], object]] = []
        self._timers: list[Timer] = []

    def now(self) -> float:
        return self.now_s

    def defer(self, callback: Callable[[], object]) -> None:
        """`call_soon`."""
        self._deferred.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def settle(self) -> None:
        """Turn until nothing is left to do now."""
        while self._ready():
            pass

    def longest_turn_ns(self, pass_s: float = 0.0) -> float:
        """Let so much time pass and turn until nothing is left; CPU ns of the longest turn."""
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
    """What `call_later` returns."""

    def __init__(self, due_s: float, callback: Callable[[], object]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
