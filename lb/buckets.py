"""The room structure of `least-connections`: the pods with room in order of their load.

Rules
  1. All pods are in one ring in descending order of load; behind the pods of the lowest load are those of the highest.
     Each `Load` refers to its first pod, which has had this load the longest, and counts its pods.
  2. A pod is inserted as the last of its load: immediately before the first pod of the next lower load or, at the
     lowest load, of the highest.
  3. So the first pod of a load need not move when its load rises: it is already the last of the next higher load. The
     first pod of the highest load need not move either when it falls to the lowest, because the two are adjacent in the
     ring. These cases are the most frequent ones, and they write no link (six writes with their reference counts cost
     18 ns).
  4. There is one `Load` for each number up to the highest load that a pod ever had. Its 100 bytes are little compared
     with the request that it was created for.
  5. A bitmap of the loads finds the next one that has pods, because a scan of empty loads would not be O(1). The bit of
     a load stays set when its last pod leaves, until a search finds it stale and clears it (amortised O(1)).
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from lb.bitmap import NONE, Bitmap
from lb.ring import Load, link, stand_alone, stands_between, unlink
from lb.rooms import RoomStructure
from lb.tracker import PodTracker


@final
class RoomBuckets(RoomStructure):
    """The ring of pods in order of load, and the lowest load that has pods."""

    def __init__(self) -> None:
        super().__init__()
        self.counts_load = True
        self._loads: list[Load] = [Load(0)]
        self._marked: Bitmap = Bitmap()
        self._count: i64 = 0  # pods in the ring
        self._highest: i64 = 0  # the highest load that has pods
        self.lowest: Load = self._loads[0]  # any load with count 0 if no pod has room

    def insert(self, tracker: PodTracker) -> None:
        load = tracker.in_flight + tracker.elsewhere
        while load >= len(self._loads):
            self._add_load()
        self._join(tracker, self._loads[load])

    def remove(self, tracker: PodTracker) -> None:
        self._leave(tracker)

    def load_rose(self, tracker: PodTracker) -> None:
        load = tracker.in_flight + tracker.elsewhere
        if load == len(self._loads):
            self._add_load()
        if tracker.room_load.head.slot != tracker.slot:
            self._leave(tracker)
            self._join(tracker, self._loads[load])
            return
        if tracker.room_load.count > 1:
            tracker.room_load.head = tracker.room_next
        tracker.room_load.count -= 1
        tracker.room_load = tracker.room_load.higher  # without a change of its links (rule 3)
        self._count_in(tracker)
        if load > self._highest:
            self._highest = load
        if self.lowest.count == 0:
            self.lowest = tracker.room_load

    def load_fell(self, tracker: PodTracker) -> None:
        load = tracker.in_flight + tracker.elsewhere
        was_highest = load + 1 == self._highest
        if not was_highest or load != self.lowest.load or tracker.room_load.head.slot != tracker.slot:
            self._leave(tracker)
            self._join(tracker, self._loads[load])
            return
        if tracker.room_load.count > 1:
            tracker.room_load.head = tracker.room_next
        else:
            self._highest = load
        tracker.room_load.count -= 1
        tracker.room_load = tracker.room_load.lower  # without a change of its links (rule 3)
        self._count_in(tracker)

    def size(self) -> i64:
        return self._count

    def holds(self, tracker: PodTracker) -> bool:
        if tracker.room_next is tracker:
            is_linked = self._count == 1 and self.lowest.head is tracker
        else:
            is_linked = self._count > 1 and stands_between(tracker)
        return is_linked and tracker.room_load.load == tracker.in_flight + tracker.elsewhere

    def members(self) -> list[PodTracker] | None:
        self._marked.check_invariants()
        found: list[PodTracker] = []
        for load in reversed(self._loads):
            self._check_load(load, found)
        assert self._count == len(found), f"{len(found)} pods have room, {self._count} are counted"
        if found:
            assert self.lowest is found[-1].room_load, f"the lowest load is not {self.lowest.load}"
            assert self._highest == found[0].room_load.load, f"the highest load is not {self._highest}"
        for index, tracker in enumerate(found):
            assert tracker.room_prev is found[index - 1], f"the ring is broken before {tracker!r}"
            assert found[index - 1].room_next is tracker, f"the ring is broken before {tracker!r}"
        return found

    def _check_load(self, load: Load, found: list[PodTracker]) -> None:
        """Check one load, and append its pods to `found`. Raises AssertionError."""
        assert self._loads[load.load] is load, f"load {load.load} is at the wrong index"
        assert load.marked == (load.load in self._marked), f"`marked` of load {load.load} does not match its bit"
        assert load.marked or load.count == 0, f"load {load.load} has pods and no bit"
        tracker = load.head
        for _ in range(load.count):
            assert isinstance(tracker, PodTracker), f"{tracker!r} is in a ring of pods"
            matches = tracker.in_flight + tracker.elsewhere == load.load
            assert matches, f"{tracker!r} is among the pods of load {load.load}"
            assert tracker.room_load is load, f"room_load of {tracker!r} is not {load.load}"
            found.append(tracker)
            tracker = tracker.room_next

    def _join(self, tracker: PodTracker, load: Load) -> None:
        """Insert the pod into the ring as the last one of `load` (rule 2)."""
        tracker.room_load = load
        if self._count == 0:
            stand_alone(tracker)
            self._highest = load.load
            if self.lowest.load != load.load:
                self.lowest = load
        elif load.load <= self.lowest.load:
            link(tracker, self._loads[self._highest].head)
            self.lowest = load
        else:
            link(tracker, self._next_lower(load).head)
            if load.load > self._highest:
                self._highest = load.load
        self._count += 1
        self._count_in(tracker)

    def _count_in(self, tracker: PodTracker) -> None:
        """Count the pod in its load. If it is the only one there, make it the first."""
        if tracker.room_load.count == 0:
            tracker.room_load.head = tracker
            if not tracker.room_load.marked:
                tracker.room_load.marked = True
                self._marked.add(tracker.room_load.load)
        tracker.room_load.count += 1

    def _leave(self, tracker: PodTracker) -> None:
        """Remove the pod from the ring and from its load."""
        self._count -= 1
        tracker.room_load.count -= 1
        if self._count == 0:
            return
        load = tracker.room_load
        if load.head is tracker:
            load.head = tracker.room_next
        unlink(tracker)
        if load.count > 0:
            return
        if load is self.lowest:
            self.lowest = self._find_lowest()
        elif load.load == self._highest:
            self._highest = self._next_lower(load).load

    def _next_lower(self, load: Load) -> Load:
        """Return the next lower load that has pods; there must be one."""
        lower = load.lower
        while lower.count == 0:
            number = self._marked.highest_below(load.load)
            assert number != NONE, "a load that is not the lowest has no lower"
            lower = self._loads[number]
            if lower.count == 0:
                lower.marked = False
                self._marked.discard(number)
        return lower

    def _find_lowest(self) -> Load:
        """Return the lowest load that has pods; there must be one."""
        while True:
            number = self._marked.lowest()
            assert number != NONE, "pods have room and no load is marked"
            load = self._loads[number]
            if load.count > 0:
                return load
            load.marked = False
            self._marked.discard(number)

    def _add_load(self) -> None:
        highest = self._loads[len(self._loads) - 1]
        load = Load(highest.load + 1)
        highest.higher = load
        load.lower = highest
        self._loads.append(load)
        self._marked.resize(len(self._loads))
