"""Room structures: which pods have room, kept in the shape that one kind of policy picks from in constant time.

Rules
  1. Exactly the pods with `has_room` stand in the structure. The table says when one comes to have room (`insert`), no
     longer has (`remove`), and, if the structure `counts_load`, when the load of one that stays has changed by one.
  2. A table keeps the one structure that its policy needs and no other; a policy that scans the slots pays for none.
  3. Every operation is O(1); the bitmaps' walk is at most four words.
  4. They hold references to slots, not numbers: slots are never replaced, a reference is as good as a number and saves
     the look-up (and, compiled, the boxing) on the way of every request.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from lb.bitmap import Bitmap
from lb.ring import NOWHERE, RoomNode, link, stand_alone, stands_between, unlink
from lb.rng import Rng
from lb.tracker import PodTracker


class RoomStructure:
    """The structure of a policy that needs none, since it scans the slots, and the base of the others."""

    def __init__(self) -> None:
        self.counts_load: bool = False

    def insert(self, tracker: PodTracker) -> None:
        """The pod has room from now on; its load is `in_flight + elsewhere`."""

    def remove(self, tracker: PodTracker) -> None:
        """The pod has no room from now on; `in_flight` may have risen already."""

    def load_rose(self, tracker: PodTracker) -> None:
        """`in_flight` of a pod in the structure has risen by one."""

    def load_fell(self, tracker: PodTracker) -> None:
        """`in_flight` of a pod in the structure has fallen by one."""

    def resize(self, slots: i64) -> None:
        """The table has so many slots from now on."""

    def members(self) -> list[PodTracker] | None:
        """The pods in the structure, checked for consistency on the way; None if it keeps none."""
        return None

    def size(self) -> i64:
        """How many pods it holds; -1 if it keeps none."""
        return -1

    def holds(self, tracker: PodTracker) -> bool:
        """Whether the pod stands in it, and right; for checks of one pod at a time."""
        return False


@final
class RoomArray(RoomStructure):
    """A dense array in no particular order: each pod knows its index; the last pod takes the place of one that leaves.

    The list keeps its length when pods leave (a list of one pod that empties and fills would give its memory back and
    take it anew each time: 70 ns): only the first `count` entries mean anything.
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
        """The one pod; None when there is none."""
        return self.pods[0] if self.count == 1 else None

    def draw_two(self, rng: Rng) -> tuple[PodTracker, PodTracker]:
        """Two different pods, the second drawn from the others than the first; there must be two."""
        first = rng.below(self.count)
        second = rng.below(self.count - 1)
        if second >= first:
            second += 1
        return self.pods[first], self.pods[second]

    def less_loaded_of_two(self, rng: Rng) -> PodTracker | None:
        """Of two that are drawn the one with fewer requests in flight, here and elsewhere; a tie falls to the first
        drawn, a fair coin.

        Of fewer than two, `only`.
        """
        if self.count <= 1:
            return self.only()
        one, other = self.draw_two(rng)
        return other if other.in_flight + other.elsewhere < one.in_flight + one.elsewhere else one

    def resize(self, slots: i64) -> None:
        del self.pods[self.count :]  # they may be slots that the table has dropped

    def size(self) -> i64:
        return self.count

    def holds(self, tracker: PodTracker) -> bool:
        return tracker.room_index < self.count and self.pods[tracker.room_index] is tracker

    def members(self) -> list[PodTracker] | None:
        for index in range(self.count):
            tracker = self.pods[index]
            assert tracker.room_index == index, f"{tracker!r} stands at {index} and believes {tracker.room_index}"
        return self.pods[: self.count]


@final
class RoomRing(RoomStructure):
    """A circle of pods and whose turn it is. A pod that comes to have room joins at the end, just before that one."""

    def __init__(self) -> None:
        super().__init__()
        self.count: i64 = 0
        self.turn: RoomNode = NOWHERE  # means nothing while count is 0

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
            assert isinstance(node, PodTracker), f"{node!r} stands in a circle of pods"
            assert node.room_next.room_prev is node, f"the circle is broken after {node!r}"
            found.append(node)
            node = node.room_next
        assert self.count == 0 or node is self.turn, f"the circle has more than {self.count} pods"
        return found


@final
class RoomBitmap(RoomStructure):
    """A bitmap by slot number, and the lowest pod at hand: a pick that does not fill it needs no search."""

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
        assert lowest is self.lowest, f"the lowest slot with room is {lowest!r}, at hand is {self.lowest!r}"
        return found
