"""The plain line, first come, first served; priority.py and fair.py have the others."""

from __future__ import annotations

from activator.data_plane.throttle.waiters import Lane, Waiter, WaitingLine


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
