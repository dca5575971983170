"""The room structure of `consistent-hash`: the pods with room on a circle of hashes.

This is multi-probe consistent hashing, with a load bound because full pods are skipped. Each pod has one point on the
circle, the hash of its address. A key has PROBES points; its pod is the one with the smallest distance before any of
them. So every key has an order of all pods, nearest first, that depends only on the key and the addresses. The
structure finds the first pod of that order that has room.

Rules
  1. Only pods with room are on the circle: skipping full pods costs nothing, however many they are.
  2. A new pod takes keys from the others and moves none between them. When a pod is removed or becomes full, only its
     keys move, each to the next pod in its order.
  3. The circle is divided into positions, two to four per pod; a bitmap marks those that have pods, and each position
     has a list of its pods in order. A search reads a position, usually one or two words of the bitmap, and a pod: O(1)
     except for the bitmap's four levels. The number of positions does not change the result.
  4. The PROBES points of a key even out the gaps between pods: the largest share is on average at most
     PROBES / (PROBES - 1) of the mean, 1.25 with five, for any number of pods. With several points per pod instead, a
     pod would need hundreds of them, and all would have to be removed when it becomes full.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.bitmap import NONE, Bitmap
from lb.hashing import MASK_32, hash_bytes, mix
from lb.ring import NOWHERE, RoomNode
from lb.rooms import RoomArray, RoomStructure
from lb.tracker import PodTracker

PROBES: Final = 5
POINT_BITS: Final = 48
POINT_MASK: Final = (1 << POINT_BITS) - 1
FARTHEST: Final = 1 << POINT_BITS  # larger than the distance of any two points
_HASH_SPARE_BITS: Final = 14  # bits of the hash, of 62, that are not used
_POSITION_BITS_MIN: Final = 5
_STEPS_MAX: Final = 64  # bounds `holds` if many pods are at one position, as slots with one address are


@final
class RoomCircle(RoomStructure):
    """The pods by their points, and a dense array of them for requests without a key."""

    def __init__(self) -> None:
        super().__init__()
        self.array: RoomArray = RoomArray()
        self.distance: i64 = FARTHEST  # the distance of the last result of `nearest`
        self._bits: i64 = _POSITION_BITS_MIN
        self._heads: list[RoomNode] = [NOWHERE] * (1 << _POSITION_BITS_MIN)  # the farthest pod of each position
        self._bitmap: Bitmap = Bitmap()

    def insert(self, tracker: PodTracker) -> None:
        if tracker.room_point == 0:
            tracker.room_point = point_of(tracker.address)
        self.array.insert(tracker)
        self._place(tracker)

    def remove(self, tracker: PodTracker) -> None:
        self.array.remove(tracker)
        position = tracker.room_point >> (POINT_BITS - self._bits)
        node = self._heads[position]
        if node.slot == tracker.slot:
            self._heads[position] = tracker.room_next
            if tracker.room_next.slot == NOWHERE.slot:
                self._bitmap.discard(position)
            return
        while node.room_next.slot != tracker.slot:
            node = node.room_next
        node.room_next = tracker.room_next

    def nearest(self, key: i64) -> PodTracker | None:
        """Return the first pod with room in the key's order, None if there is none. Sets `distance`."""
        if self.array.count == 0:
            self.distance = FARTHEST
            return None
        low = mix(key & MASK_32)
        high = mix(((key >> 32) & MASK_32) ^ low)
        probe = ((high << 16) ^ low) & POINT_MASK  # the first of the key's points, which are `step` apart
        step = (((low << 16) ^ high) & POINT_MASK) | 1
        found = self._at_or_before(probe)
        shortest = (probe - found.room_point) & POINT_MASK
        probes: i64 = PROBES - 1
        while probes > 0:
            probes -= 1
            probe = (probe + step) & POINT_MASK
            tracker = self._at_or_before(probe)
            distance = (probe - tracker.room_point) & POINT_MASK
            if distance < shortest:
                shortest = distance
                found = tracker
        self.distance = shortest
        return found

    def resize(self, slots: i64) -> None:
        self.array.resize(slots)
        bits: i64 = _POSITION_BITS_MIN
        positions: i64 = 1 << _POSITION_BITS_MIN
        while positions < slots:
            bits += 1
            positions += positions
        if bits == self._bits:
            return
        self._bits = bits
        self._heads = [NOWHERE] * positions
        self._bitmap = Bitmap()
        self._bitmap.resize(positions)
        index: i64 = 0
        while index < self.array.count:
            self._place(self.array.pods[index])
            index += 1

    def size(self) -> i64:
        return self.array.count

    def holds(self, tracker: PodTracker) -> bool:
        if not self.array.holds(tracker):
            return False
        node = self._heads[tracker.room_point >> (POINT_BITS - self._bits)]
        steps: i64 = _STEPS_MAX
        while node.slot != NOWHERE.slot and node is not tracker and steps > 0:
            steps -= 1
            node = node.room_next
        return node.slot != NOWHERE.slot

    def members(self) -> list[PodTracker] | None:
        found: list[PodTracker] = []
        self._bitmap.check_invariants()
        for position, head in enumerate(self._heads):
            assert (head is not NOWHERE) == (position in self._bitmap), f"the bit of position {position} is wrong"
            node = head
            before: PodTracker | None = None
            while node is not NOWHERE:
                assert isinstance(node, PodTracker), f"{node!r} is on a circle of pods"
                assert node.room_point == point_of(node.address), f"{node!r} is at the wrong point"
                assert node.room_point >> (POINT_BITS - self._bits) == position, f"{node!r} is at another position"
                assert before is None or _goes_first(before, node), f"{before!r} is before {node!r}"
                found.append(node)
                before = node
                node = node.room_next
        in_array = self.array.members()
        assert in_array is not None
        assert sorted([int(t.slot) for t in in_array]) == sorted([int(t.slot) for t in found]), (
            "circle and array differ"
        )
        return found

    def _at_or_before(self, probe: i64) -> PodTracker:
        """Return the pod at this point of the circle, or the next one before it."""
        position = probe >> (POINT_BITS - self._bits)
        node = self._heads[position]
        while node.slot != NOWHERE.slot:
            assert isinstance(node, PodTracker)
            if node.room_point <= probe:
                return node
            node = node.room_next
        position = self._bitmap.highest_below(position)
        if position == NONE:
            position = self._bitmap.highest()
        node = self._heads[position]
        assert isinstance(node, PodTracker)
        return node

    def _place(self, tracker: PodTracker) -> None:
        """Insert the pod into the list of its position."""
        position = tracker.room_point >> (POINT_BITS - self._bits)
        node = self._heads[position]
        if node.slot == NOWHERE.slot:
            self._bitmap.add(position)
        else:
            assert isinstance(node, PodTracker)
            if _goes_first(node, tracker):
                self._place_after(node, tracker)
                return
        tracker.room_next = node
        self._heads[position] = tracker

    def _place_after(self, before: PodTracker, tracker: PodTracker) -> None:
        """Insert the pod into the list of its position, somewhere after `before`."""
        while True:
            node = before.room_next
            if node.slot == NOWHERE.slot:
                break
            assert isinstance(node, PodTracker)
            if _goes_first(tracker, node):
                break
            before = node
        tracker.room_next = node
        before.room_next = tracker


def point_of(address: str) -> i64:
    """Return a pod's point on the circle: 1 … 2^48 - 1."""
    point = hash_bytes(address.encode()) >> _HASH_SPARE_BITS
    return point if point != 0 else 1


def _goes_first(one: PodTracker, other: PodTracker) -> bool:
    """Return True if `one` precedes `other` in its position's list: by descending point, then by ascending slot."""
    if one.room_point != other.room_point:
        return one.room_point > other.room_point
    return one.slot < other.slot
