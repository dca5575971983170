"""Connections that go on in a later turn of the loop, first come, first served, a bounded number in each turn.

A connection has a share of each turn (runtime/reading.py). A thousand connections that use up theirs would still make
the turn a thousand shares long: new connections are accepted, and others served, between two turns. Measured with
1,000 clients that each send 40,000 requests ahead: the last of them was accepted after 31 s without this bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from activator.runtime.clock import Defer

SHARES_PER_TURN_MAX: Final = 32  # of 0.1 ms each, where requests are answered at once; of 0.5 ms where bodies are read


class TurnQueue:
    """`defer` runs a callable in the loop's next turn; `on_error` is called with what a callback raised."""

    def __init__(self, defer: Defer, on_error: Callable[[Exception], None]) -> None:
        self._defer = defer
        self._on_error = on_error
        self._waiting: deque[Callable[[], None]] = deque()
        self._deferred: bool = False  # the next turn is asked for, or is at work

    def add(self, callback: Callable[[], None]) -> None:
        """Call it in the next turn, or in one of those after it, behind all that wait already."""
        self._waiting.append(callback)
        if not self._deferred:
            self._deferred = True
            self._defer(self._next_turn)

    def _next_turn(self) -> None:
        waiting = self._waiting
        for _ in range(min(len(waiting), SHARES_PER_TURN_MAX)):
            try:
                waiting.popleft()()
            except Exception as error:
                self._on_error(error)
        self._deferred = len(waiting) > 0
        if self._deferred:
            self._defer(self._next_turn)
