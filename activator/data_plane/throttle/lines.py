"""Whose turn it is: the line of one revision, whatever its discipline.

Rules
  1. A line says who goes first and nothing else: it grants, refuses and times nobody.
  2. `first` names the same waiter until somebody joins or leaves; the throttler then takes that waiter and no other.
  3. Each step costs the same however many wait: O(1), or O(levels) where there are levels.
"""

from __future__ import annotations

from activator.data_plane.throttle.waiters import Lane, Waiter


class WaitingLine:
    """The interface. `length` counts all who stand in it."""

    def __init__(self) -> None:
        self.length: int = 0

    def first(self) -> Waiter | None:
        """Who is granted the next slot."""
        raise NotImplementedError

    def join(self, waiter: Waiter) -> None:
        """A waiter that has just arrived, or arrived after all who are there."""
        raise NotImplementedError

    def rejoin(self, waiter: Waiter) -> None:
        """Back into the old place: the slot that it was granted came to nothing."""
        raise NotImplementedError

    def leave(self, waiter: Waiter) -> None:
        """Out of the line without a slot; the waiter must be in it."""
        raise NotImplementedError

    def take(self, waiter: Waiter) -> None:
        """Out of the line with a slot; the waiter must be the first."""
        raise NotImplementedError

    def ahead_of(self, waiter: Waiter) -> int:
        """How many are certain to be granted before `waiter`, were it to join now: a lower bound."""
        raise NotImplementedError

    def waiters(self) -> list[Waiter]:
        """All who wait, in order of arrival. Walks the line."""
        raise NotImplementedError

    def shares(self) -> dict[str, object]:
        """What else there is to see of it; a few numbers, never names that clients choose."""
        return {}


class FifoLine(WaitingLine):
    """First come, first served."""

    def __init__(self) -> None:
        super().__init__()
        self._lane: Lane = Lane(self)

    def first(self) -> Waiter | None:
        return self._lane.first()

    def join(self, waiter: Waiter) -> None:
        self._lane.add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self._lane.add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        self._lane.remove(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self._lane.remove(waiter)
        self.length -= 1

    def ahead_of(self, waiter: Waiter) -> int:
        return self.length

    def waiters(self) -> list[Waiter]:
        return by_arrival(self._lane.waiters())


def by_arrival(waiters: list[Waiter]) -> list[Waiter]:
    """In order of arrival."""
    return sorted(waiters, key=arrival_of)


def arrival_of(waiter: Waiter) -> int:
    return waiter.arrival
