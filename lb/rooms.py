"""Room structures: data structures of the pods with room, from which one kind of policy picks in constant time.

Rules
  1. A structure contains exactly the pods with `has_room`, either the near or the far ones. The table reports when a
     pod gets room (`insert`) or loses it (`remove`) and, if the structure `counts_load`, when the load of a pod in it
     has changed by one.
  2. A table has only structures of the kind that its policy needs; a policy that scans the slots has no such cost.
  3. Every operation is O(1); a search in a bitmap reads at most four words.
  4. Structures hold references to slots instead of numbers: slots are never replaced, and a reference saves a lookup
     (and boxing, in compiled code) per request.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.bitmap import Bitmap
from lb.ring import NOWHERE, RoomNode, link, stand_alone, stands_between, unlink
from lb.rng import Rng
from lb.tracker import PodTracker


class RoomStructure:
    """The base class of room structures, and the empty structure of a policy that scans the slots."""

    def __init__(self) -> None:
        self.counts_load: bool = False

    def insert(self, tracker: PodTracker) -> None:
        """Insert a pod that has got room; its load is `in_flight + elsewhere`."""

    def remove(self, tracker: PodTracker) -> None:
        """Remove a pod that has no room any more; its `in_flight` may already be higher."""

    def load_rose(self, tracker: PodTracker) -> None:
        """Update a pod in the structure whose `in_flight` has risen by one."""

    def load_fell(self, tracker: PodTracker) -> None:
        """Update a pod in the structure whose `in_flight` has fallen by one."""

    def resize(self, slots: i64) -> None:
        """Adapt to the table's new number of slots."""

    def members(self) -> list[PodTracker] | None:
        """Return the pods in the structure, None if it stores none. Raises AssertionError if it is inconsistent."""
        return None

    def size(self) -> i64:
        """Return the number of pods in the structure; -1 if it stores none."""
        return -1

    def holds(self, tracker: PodTracker) -> bool:
        """Return True if the pod is in the structure, at its right place; for checks of one pod at a time."""
        return False


NO_ROOMS: Final = RoomStructure()


@final
class RoomArray(RoomStructure):
    """A dense, unordered array: each pod has its index, and the last pod takes the place of one that is removed.

    Only the first `count` entries are valid: the list does not shrink when pods are removed, because a list that
    alternates between empty and one pod would allocate its memory each time (70 ns).
    """

    def __init__(self) -> None:
        super().__init__()
        self.pods: list[PodTracker] = []
        self.count: i64 = 0

    def insert(self, tracker: PodTracker) -> None:
        count = self.count
        tracker.room_index = count
        if count == len(self.pods):
            self.pods.append(tracker)
        else:
            self.pods[count] = tracker
        self.count = count + 1

    def remove(self, tracker: PodTracker) -> None:
        count = self.count - 1
        self.count = count
        index = tracker.room_index
        if index != count:
            last = self.pods[count]
            self.pods[index] = last
            last.room_index = index

    def only(self) -> PodTracker | None:
        """Return the pod if there is exactly one, otherwise None."""
        return self.pods[0] if self.count == 1 else None

    def draw_two(self, rng: Rng) -> tuple[PodTracker, PodTracker]:
        """Return two different random pods; there must be at least two."""
        first = rng.below(self.count)
        second = rng.below(self.count - 1)
        if second >= first:
            second += 1
        return self.pods[first], self.pods[second]

    def less_loaded_of_two(self, rng: Rng) -> PodTracker | None:
        """Return the less loaded of two random pods, by requests in flight here and elsewhere; in a tie, the first.

        If there are fewer than two, return `only`.
        """
        if self.count <= 1:
            return self.only()
        one, other = self.draw_two(rng)
        return other if other.in_flight + other.elsewhere < one.in_flight + one.elsewhere else one

    def resize(self, slots: i64) -> None:
        del self.pods[self.count :]  # these may be slots that the table has released

    def size(self) -> i64:
        return self.count

    def holds(self, tracker: PodTracker) -> bool:
        return tracker.room_index < self.count and self.pods[tracker.room_index] is tracker

    def members(self) -> list[PodTracker] | None:
        for index in range(self.count):
            tracker = self.pods[index]
            assert tracker.room_index == index, (
                f"{tracker!r} is at index {index}, its room_index is {tracker.room_index}"
            )
        return self.pods[: self.count]


@final
class RoomRing(RoomStructure):
    """A ring of pods, and the pod to pick next. A pod that gets room is inserted before it, so it is picked last."""

    def __init__(self) -> None:
        super().__init__()
        self.count: i64 = 0
        self.turn: RoomNode = NOWHERE  # undefined while count is 0

    def insert(self, tracker: PodTracker) -> None:
        if self.count == 0:
            stand_alone(tracker)
            self.turn = tracker
        else:
            link(tracker, self.turn)
        self.count += 1

    def remove(self, tracker: PodTracker) -> None:
        self.count -= 1
        if self.count == 0:
            return
        if self.turn.slot == tracker.slot:
            self.turn = tracker.room_next
        unlink(tracker)

    def size(self) -> i64:
        return self.count

    def holds(self, tracker: PodTracker) -> bool:
        if tracker.room_next is tracker:
            return self.count == 1 and self.turn is tracker
        return self.count > 1 and stands_between(tracker)

    def members(self) -> list[PodTracker] | None:
        found: list[PodTracker] = []
        node = self.turn
        for _ in range(self.count):
            assert isinstance(node, PodTracker), f"{node!r} is in a ring of pods"
            assert node.room_next.room_prev is node, f"the ring is broken after {node!r}"
            found.append(node)
            node = node.room_next
        assert self.count == 0 or node is self.turn, f"the ring has more than {self.count} pods"
        return found


@final
class RoomBitmap(RoomStructure):
    """A bitmap by slot number, and the pod in the lowest slot, so that a pick that does not fill it needs no search."""

    def __init__(self, slots: list[PodTracker]) -> None:
        super().__init__()
        self._slots = slots  # the table's own list, which grows in place
        self._bitmap: Bitmap = Bitmap()
        self._count: i64 = 0
        self.lowest: PodTracker | None = None

    def insert(self, tracker: PodTracker) -> None:
        self._bitmap.add(tracker.slot)
        self._count += 1
        lowest = self.lowest
        if lowest is None or tracker.slot < lowest.slot:
            self.lowest = tracker

    def remove(self, tracker: PodTracker) -> None:
        slot = tracker.slot
        self._bitmap.discard(slot)
        self._count -= 1
        if self._count == 0:
            self.lowest = None
        elif self.lowest is tracker:
            self.lowest = self._slots[self._bitmap.lowest_from(slot)]

    def resize(self, slots: i64) -> None:
        self._bitmap.resize(slots)

    def size(self) -> i64:
        return self._count

    def holds(self, tracker: PodTracker) -> bool:
        return tracker.slot in self._bitmap

    def members(self) -> list[PodTracker] | None:
        self._bitmap.check_invariants()
        found = [self._slots[slot] for slot in self._bitmap.members()]
        lowest = found[0] if found else None
        assert self._count == len(found), f"{len(found)} slots have room, {self._count} are counted"
        assert lowest is self.lowest, f"the lowest slot with room is {lowest!r}, not {self.lowest!r}"
        return found
