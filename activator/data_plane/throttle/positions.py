"""Those who are told how their revision gets on, and where a waiter stands in its line.

A line does not know how many stand before one of its waiters; to count them costs a walk. So the arrivals of a line are
read at most every POSITIONS_AGE_S, and each question costs a search among them: 10,000 clients that ask all the time
cost one walk in that time. By arrival: with priorities or fair shares others may be served first.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from activator.data_plane.throttle.waiters import Waiter, WaitingLine

POSITIONS_AGE_S: Final = 0.5


class Positions:
    """Of one line."""

    def __init__(self) -> None:
        self._arrivals: list[int] = []
        self._read_s: float = 0.0

    def of(self, line: WaitingLine, waiter: Waiter, now_s: float) -> int:
        """1: it is the next. What has left since the line was read may still be counted; one that has come since is
        taken as the last, as it is when it joins.
        """
        if now_s - self._read_s >= POSITIONS_AGE_S or len(self._arrivals) == 0:
            self._arrivals = [one.arrival for one in line.waiters()]
            self._read_s = now_s
        arrivals = self._arrivals
        if len(arrivals) == 0 or waiter.arrival > arrivals[-1]:
            return max(line.length, 1)
        return min(bisect_left(arrivals, waiter.arrival) + 1, max(line.length, 1))


class Onlookers:
    """Of one revision, from the first one on."""

    def __init__(self) -> None:
        self.ticket: Waiter | None = None  # waits for a start in the place of others (filters/start_ticket.py)
        self.output: tuple[str, ...] = ()  # what its program has written since its start began, to be shown there
        self.positions = Positions()
