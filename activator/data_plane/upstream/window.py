"""How many connections of one pod may be new at the same time: slow start, as TCP has it, for its accept queue.

A server with a small backlog loses the connections that come faster than it accepts them, and the kernel repeats a lost
SYN only after a second. Measured with 200 simultaneous dials to a backlog of 5: 70 answered, 130 timed out; with at
most 5 unanswered ones at a time, all 200 in 0.1 s.

Rules
  1. A connection is *new* from its dial until it has passed. It has passed with the first byte of its first answer; or
     when it has stood for `age_s`, since an answer may take minutes and the pod must have accepted it by then; or when
     it is closed.
  2. When a whole window has passed, the window grows: it doubles until a dial has been lost, then it grows by one.
  3. A window that passed by age alone halves the age: the pod is slow to answer, not to accept. Were neither the window
     nor the age to change, a pod that takes longer than the age and closes its connections would get
     `DIAL_WINDOW_INITIAL` new ones per age for ever: 16 a second, whatever it could do.
  4. A lost dial halves the window and makes the age its longest: what stands may still be in the accept queue.
"""

from __future__ import annotations

from typing import Final

DIAL_WINDOW_INITIAL: Final = 4  # new connections of one pod at the same time (data_plane/upstream/window.py)
DIAL_WINDOW_MAX: Final = 256
DIAL_AGE_INITIAL_S: Final = 0.01  # then a new connection counts as accepted, answered or not …
DIAL_AGE_MIN_S: Final = 0.01  # … which is halved where pods are slow to answer, …
DIAL_AGE_MAX_S: Final = 0.25  # … and so long after a dial was lost


class DialWindow:
    """The window of one pod. `size`: how many may be new; `new`: how many are; `age_s`: how long one counts as new."""

    def __init__(self) -> None:
        self.size: int = DIAL_WINDOW_INITIAL
        self.new: int = 0
        self.age_s: float = DIAL_AGE_INITIAL_S
        self._passed: int = 0  # since the window last changed
        self._answered: bool = False  # one of these by its answer
        self._lost: bool = False  # one ever was: the window grows by one

    def has_room(self) -> bool:
        return self.new < self.size

    def dialled(self) -> None:
        self.new += 1

    def ended(self) -> None:
        """A new one has ended without having passed: refused, given up or closed."""
        self.new -= 1

    def answered(self) -> None:
        """A new one has got the first byte of its first answer, or was not wanted and is kept idle."""
        self.new -= 1
        self._answered = True
        self._pass()

    def aged(self) -> None:
        """A new one has stood for `age_s`."""
        self.new -= 1
        self._pass()

    def lost(self) -> None:
        """A dial got no answer in time; `ended` is called as well."""
        self.size = max(self.size // 2, 1)
        self.age_s = DIAL_AGE_MAX_S
        self._lost = True
        self._restart()

    def _pass(self) -> None:
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
