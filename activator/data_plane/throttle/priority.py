"""The discipline `priority`: higher first, first come first served within a level, and no level starves.

A request of level n goes ahead of requests of level 0 that arrived up to n x ageing before it: the line is ordered by
(arrival time - level x ageing). That order never changes while requests wait, so ageing needs no work.

The bound: a request of level n is never overtaken by one that arrives more than (highest level - n) x ageing after it.
"""

from __future__ import annotations

from activator.data_plane.throttle.lines import by_arrival
from activator.data_plane.throttle.waiters import Lane, Waiter, WaitingLine


class Level(Lane):
    """The requests of one level, and how far they are ahead of those of level 0."""

    def __init__(self, line: WaitingLine, ahead_s: float) -> None:
        super().__init__(line)
        self.ahead_s = ahead_s


class PriorityLine(WaitingLine):
    """`levels` lanes; a waiter's level is 0 … levels - 1. Each step looks at one waiter per level at most."""

    def __init__(self, levels: int, ageing_s: float) -> None:
        super().__init__()
        self._lanes: list[Level] = [Level(self, level * ageing_s) for level in range(levels)]

    def first(self) -> Waiter | None:
        chosen: Waiter | None = None
        chosen_at_s = 0.0
        for lane in self._lanes:
            if lane.length == 0:
                continue
            waiter = lane.first()
            assert waiter is not None
            at_s = waiter.asked_s - lane.ahead_s
            if chosen is None or at_s <= chosen_at_s:  # of equals the higher level goes first
                chosen = waiter
                chosen_at_s = at_s
        return chosen

    def join(self, waiter: Waiter) -> None:
        self._lanes[waiter.level].add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self._lanes[waiter.level].add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        lane = waiter.lane
        assert lane is not None
        lane.remove(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self.leave(waiter)

    def ahead_of(self, waiter: Waiter) -> int:
        count = 0
        for lane in self._lanes[waiter.level :]:
            count += lane.length
        return count

    def shares(self) -> dict[str, object]:
        return {"waiting_by_level": [lane.length for lane in self._lanes]}

    def waiters(self) -> list[Waiter]:
        found: list[Waiter] = []
        for lane in self._lanes:
            found.extend(lane.waiters())
        return by_arrival(found)
