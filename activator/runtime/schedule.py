"""Keys with one due time each, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from activator.runtime.clock import NEVER

OUTDATED_SPARE: Final = 64  # outdated heap entries that may be kept beyond one for each key

Key = TypeVar("Key", bound=Hashable)


class Schedule(Generic[Key]):
    """A keyed priority queue of due times. Planning a key again replaces its time; equal times keep their order.

    A replaced or cancelled entry stays in the heap until it comes up or the heap is rebuilt, so the heap holds at most
    two entries for each key and OUTDATED_SPARE others. Every operation takes O(log n) amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers: dict[Key, int] = {}  # the number of each key's current entry
        self._planned = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, key: Key) -> bool:
        return key in self._numbers

    @property
    def entries(self) -> int:
        """The heap's length, outdated entries included."""
        return len(self._heap)

    def plan(self, key: Key, due_s: float) -> None:
        """Set the time at which `key` is due."""
        self._planned += 1
        self._numbers[key] = self._planned
        if len(self._heap) > 2 * len(self._numbers) + OUTDATED_SPARE:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (due_s, self._planned, key))

    def cancel(self, key: Key) -> None:
        """Remove `key`; without effect if it is not planned."""
        self._numbers.pop(key, None)

    def clear(self) -> None:
        """Remove every key."""
        self._heap.clear()
        self._numbers.clear()

    def next_s(self) -> float:
        """Return the earliest due time; NEVER if nothing is planned."""
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER

    def pop(self, now_s: float) -> Key | None:
        """Remove and return the key that has been due the longest; None if no key is due."""
        if self.next_s() > now_s or not self._heap:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._numbers[key]
        return key

    def _is_current(self, entry: tuple[float, int, Key]) -> bool:
        return self._numbers.get(entry[2]) == entry[1]
