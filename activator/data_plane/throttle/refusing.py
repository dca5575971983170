"""Telling those who wait in vain, a bounded number in each turn of the loop.

An answer costs a write to a socket: ten thousand at once would stop the loop for everybody else. Who is told in a later
turn has left the line already: it holds no place, and a client that goes meanwhile is not told at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from activator.data_plane.throttle.lines import FifoLine, WaitingLine
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import Defer, Now
from activator.runtime.errors import Reason

REFUSING_PER_TURN_S: Final = 0.005  # … or when telling them has taken this long

_LOOK_AT_CLOCK_EVERY: Final = 16


class Condemned:
    """A line whose waiters are all told the same."""

    def __init__(self, line: WaitingLine, reason: Reason, detail: str) -> None:
        self.line = line
        self.reason = reason
        self.detail = detail


class Refusals:
    """Of one revision. `left()` is called for each waiter that is no longer held, `failed(error)` when one raised."""

    def __init__(
        self,
        now: Now,
        defer: Defer,
        left: Callable[[], None],
        failed: Callable[[Exception], None],
        per_turn_max: int,
    ) -> None:
        self._now = now
        self._defer = defer
        self._left = left
        self._failed = failed
        self._per_turn_max = per_turn_max
        self._waiting: deque[Condemned] = deque()
        self._told: int = 0  # in this turn
        self._until_s: float = 0.0  # when this turn has told for long enough
        self._deferred: bool = False
        self._telling: bool = False

    @property
    def length(self) -> int:
        """Those who are still to be told."""
        return sum(condemned.line.length for condemned in self._waiting)

    def tell(self, waiter: Waiter, reason: Reason, detail: str) -> None:
        """A waiter that has been taken out of its line."""
        if not self._waiting or self._waiting[-1].reason is not reason or self._waiting[-1].detail != detail:
            self._waiting.append(Condemned(FifoLine(), reason, detail))
        self._waiting[-1].line.join(waiter)
        self._tell_some()

    def tell_all(self, line: WaitingLine, reason: Reason, detail: str) -> None:
        """A whole line, which nobody joins any more."""
        if line.length:
            self._waiting.append(Condemned(line, reason, detail))
            self._tell_some()

    def _tell_some(self) -> None:
        if not self._deferred:
            self._deferred = True
            self._told = 0
            self._until_s = self._now() + REFUSING_PER_TURN_S
            self._defer(self._next_turn)
        if self._telling:
            return  # somebody who was told has brought this about; the loop that told it goes on
        self._telling = True
        while self._waiting and self._told < self._per_turn_max:
            condemned = self._waiting[0]
            waiter = condemned.line.first()
            if waiter is None:
                self._waiting.popleft()
                continue
            self._told += 1
            if self._told % _LOOK_AT_CLOCK_EVERY == 0 and self._now() >= self._until_s:
                self._told = self._per_turn_max
            condemned.line.leave(waiter)
            self._left()
            self._tell_one(waiter, condemned)
        self._telling = False

    def _tell_one(self, waiter: Waiter, condemned: Condemned) -> None:
        try:
            waiter.refused(condemned.reason, condemned.detail)
        except Exception as error:
            self._failed(error)

    def _next_turn(self) -> None:
        self._deferred = False
        while self._waiting and self._waiting[0].line.length == 0:
            self._waiting.popleft()
        if self._waiting:
            self._tell_some()
