"""The bound on the new connections of one pod: slow start, as in TCP, to protect its accept queue.

A server with a small backlog loses connections that arrive faster than it accepts them, and the kernel repeats a lost
SYN only after one second. Measured with 200 simultaneous dials to a backlog of 5: 70 answered and 130 timed out; with
at most 5 unanswered ones at a time, all 200 answered within 0.1 s.

Rules
  1. A connection is *new* from its dial until it has passed or is closed. It passes with the first byte of its first
     response, or after it has been open for `age_s`: a response may take minutes, but the pod has accepted it by then.
  2. After a whole window has passed, the window grows: it doubles until a dial has been lost, then it grows by one.
  3. A window that passed by age alone halves the age: the pod is slow to respond, not to accept. If neither the window
     nor the age changed, a pod that responds later than the age and closes its connections would never get more than
     `DIAL_WINDOW_INITIAL` new connections per age: 16 per second, whatever its capacity.
  4. A lost dial halves the window and resets the age to its maximum: open connections may still be in the accept queue.
"""

from __future__ import annotations

from typing import Final

DIAL_WINDOW_INITIAL: Final = 4  # new connections of one pod at the same time
DIAL_WINDOW_MAX: Final = 256
DIAL_AGE_INITIAL_S: Final = 0.01  # the age at which a new connection counts as accepted, with or without a response
DIAL_AGE_MIN_S: Final = 0.01  # the minimum, for pods that respond slowly
DIAL_AGE_MAX_S: Final = 0.25  # the maximum, set when a dial is lost


class DialWindow:
    """The window of one pod. `size`: the bound; `new`: the number of new connections; `age_s`: how long one is new."""

    def __init__(self) -> None:
        self.size: int = DIAL_WINDOW_INITIAL
        self.new: int = 0
        self.age_s: float = DIAL_AGE_INITIAL_S
        self._passed: int = 0  # connections since the last change of the window
        self._answered: bool = False  # at least one of these has passed by a response
        self._lost: bool = False  # a dial was lost: the window grows by one

    def has_room(self) -> bool:
        return self.new < self.size

    def dialled(self) -> None:
        self.new += 1

    def new_ended(self) -> None:
        """Count the end of a new connection that has not passed: refused, abandoned or closed."""
        self.new -= 1

    def answered(self) -> None:
        """Count a new connection that got the first byte of its first response, or that is kept idle unused."""
        self.new -= 1
        self._answered = True
        self._count_passed()

    def aged(self) -> None:
        """Count a new connection that has been open for `age_s`."""
        self.new -= 1
        self._count_passed()

    def lost(self) -> None:
        """Shrink the window after a dial that timed out; the caller also calls `new_ended`."""
        self.size = max(self.size // 2, 1)
        self.age_s = DIAL_AGE_MAX_S
        self._lost = True
        self._restart()

    def _count_passed(self) -> None:
        """Count a connection that has passed; grow the window after a whole one."""
        self._passed += 1
        if self._passed < self.size:
            return
        if not self._answered:
            self.age_s = max(self.age_s / 2.0, DIAL_AGE_MIN_S)
        self.size = min(self.size + 1 if self._lost else self.size * 2, DIAL_WINDOW_MAX)
        self._restart()

    def _restart(self) -> None:
        self._passed = 0
        self._answered = False
