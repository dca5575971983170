"""The sparse array of a table: preallocated slots, with holes between the held ones and an empty tail.

Rules
  1. The slots below `length` are held or were held since the last trim; `top` is one past the highest that is held, so
     `top` … `length` is the empty tail. Only a trim lowers `length`.
  2. The empty slots below `top` are holes; the bitmap contains exactly these. A pod gets the lowest hole, or slot `top`
     if there is none. Hence `top` rises only when there are no holes, and lowering it is amortised O(1) per free.
  3. Fragmentation is (holes + tail) / length, computed when a slot is given back. If it exceeds the threshold, the tail
     is trimmed; holes are never closed, because pods never move. A table that had grown then also shrinks
     (lb/sizing.py). `drop` releases all slots of a table without pods.
  4. Each use of a slot has its own generation, from one counter per table: a slot that is dropped and made again does
     not restart its numbers.

A lower threshold makes scans of `slots[:length]` shorter, at the cost of more trims, each O(slots trimmed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from mypy_extensions import i64

from lb.bitmap import NONE, Bitmap
from lb.sizing import SLOTS_MAX, first_slots, grown_slots, kept_slots
from lb.tracker import EMPTY, PodTracker


class Trim(NamedTuple):
    """The result of one trim, for its log line."""

    length_before: int
    length_after: int
    fragmentation_before: float
    threshold: float
    slots_before: int
    slots_after: int  # fewer if the table had grown and has shrunk


@final
class SlotArray:
    """The slots of one table, held and empty."""

    def __init__(self, max_scale: int, threshold: float, slots_max: int, first_generation: int) -> None:
        assert 0 < slots_max <= SLOTS_MAX, f"slots_max is 1 … {SLOTS_MAX}, not {slots_max}"
        assert 0.0 <= threshold <= 1.0, f"the threshold is a share, not {threshold}"
        # Settings.
        self.max_scale: int = max_scale
        self.slots_max: int = slots_max
        self.threshold: float = threshold
        self.on_trim: Callable[[Trim], None] | None = None
        # State. No slot is allocated before the first pod is added.
        self.slots: list[PodTracker] = []
        self.length: i64 = 0
        self.top: i64 = 0
        self.held: i64 = 0
        self.generation: i64 = first_generation  # the last generation given out
        self._holes: Bitmap = Bitmap()
        # Counters since the table was made.
        self.trims: i64 = 0
        self.grown: i64 = 0  # how often a full table has grown

    @property
    def holes(self) -> int:
        return self.top - self.held

    @property
    def trailing(self) -> int:
        return self.length - self.top

    @property
    def fragmentation(self) -> float:
        """The share of empty slots below `length`; 0.0 at length 0."""
        if self.length == 0:
            return 0.0
        return float(self.length - self.held) / float(self.length)

    def claim_lowest(self) -> PodTracker | None:
        """Hold and return the lowest empty slot, under a new generation; None if all of `slots_max` are held."""
        slot = self._holes.lowest()
        if slot != NONE:
            self._holes.discard(slot)
        else:
            slot = self.top
            if slot == len(self.slots) and not self._grow():
                return None
            self.top = slot + 1
            self.length = max(self.length, self.top)
        self.held += 1
        tracker = self.slots[slot]
        self.generation += 1
        tracker.generation = self.generation
        return tracker

    def free_slot(self, tracker: PodTracker) -> None:
        """Empty a held slot, and trim the tail if fragmentation exceeds the threshold."""
        self.generation += 1
        tracker.vacate(self.generation)
        self.held -= 1
        if tracker.slot + 1 == self.top:
            self._lower_top()
        else:
            self._holes.add(tracker.slot)
        self.trim_if_fragmented()

    def trim_if_fragmented(self) -> None:
        """Trim the tail, and release slots, if fragmentation exceeds the threshold."""
        if self.length == self.top or self.fragmentation <= self.threshold:
            return
        length_before = self.length
        fragmentation_before = self.fragmentation
        slots_before = len(self.slots)
        self.length = self.top
        self.trims += 1
        self.shrink()
        if self.on_trim is not None:
            slots = len(self.slots)
            self.on_trim(Trim(length_before, self.length, fragmentation_before, self.threshold, slots_before, slots))

    def set_max_scale(self, max_scale: int) -> None:
        """Set the scale. Grow to it at once, or release the slots that it does not need."""
        self.max_scale = max_scale
        if not self.slots:
            return
        size = first_slots(max_scale, self.slots_max)
        if size > len(self.slots):
            self._resize(size)
        else:
            self.shrink()

    def set_threshold(self, threshold: float) -> None:
        assert 0.0 <= threshold <= 1.0, f"the threshold is a share, not {threshold}"
        self.threshold = threshold
        self.trim_if_fragmented()

    def shrink(self) -> None:
        """Release the slots above `length` that the scale does not need."""
        kept = kept_slots(self.length, self.max_scale, self.slots_max)
        if kept < len(self.slots):
            self._resize(kept)

    def drop(self) -> None:
        """Release all slots; none may be held."""
        assert self.held == 0, "slots that hold a pod were dropped"
        self.length = 0
        self.top = 0
        self._holes = Bitmap()
        self.slots.clear()

    def pods(self) -> list[PodTracker]:
        """Return the slots that hold a pod, lowest first."""
        return [tracker for tracker in self.slots[: self.length] if tracker.state != EMPTY]

    def check_slot(self, slot: int) -> None:
        """Check one slot below `length` independently of the others. Raises AssertionError."""
        tracker = self.slots[slot]
        assert tracker.slot == slot, f"slot {slot} has the number {tracker.slot}"
        assert tracker.generation <= self.generation, f"the generation of slot {slot} is ahead of the counter"
        is_hole = slot in self._holes
        if tracker.state == EMPTY:
            assert tracker.is_vacant(), f"the empty slot {slot} has data of a pod"
            assert is_hole == (slot < self.top), f"the empty slot {slot} is marked as a hole: {is_hole}"
        else:
            assert slot < self.top, f"slot {slot} is held, but top is {self.top}"
            assert not is_hole, f"slot {slot} is held, but marked as a hole"

    def check_invariants(self) -> None:
        held = [int(tracker.slot) for tracker in self.pods()]
        assert self.held == len(held), f"{self.held} slots are counted as held, {len(held)} are"
        top = held[-1] + 1 if held else 0
        assert self.top == top, f"the highest slot held is {top - 1}, top is {self.top}"
        assert self.top <= self.length <= len(self.slots) <= self.slots_max, f"length {self.length} is out of bounds"
        holes = sorted(set(range(top)) - set(held))
        assert self._holes.members() == holes, f"the holes are {holes}, the bitmap has {self._holes.members()}"
        self._holes.check_invariants()
        for slot, tracker in enumerate(self.slots):
            assert tracker.slot == slot, f"slot {slot} has the number {tracker.slot}"
            assert tracker.state != EMPTY or tracker.is_vacant(), f"the empty slot {slot} has data of a pod"
            assert tracker.generation <= self.generation, f"the generation of slot {slot} is ahead of the counter"

    def _lower_top(self) -> None:
        """Set `top` after the highest slot was emptied; holes that are above it then become a part of the tail."""
        top = self.top - 1
        while top > 0 and self.slots[top - 1].state == EMPTY:
            top -= 1
            self._holes.discard(top)
        self.top = top

    def _grow(self) -> bool:
        """Allocate the first or further slots. Return False if all of `slots_max` are allocated."""
        slots = len(self.slots)
        if slots == 0:
            self._resize(first_slots(self.max_scale, self.slots_max))
            return True
        size = grown_slots(slots, self.max_scale, self.slots_max)
        if size == slots:
            return False
        self._resize(size)
        self.grown += 1
        return True

    def _resize(self, size: int) -> None:
        # In place: the room structure holds the same list, and no slot object is replaced.
        del self.slots[size:]
        for slot in range(len(self.slots), size):
            self.slots.append(PodTracker(slot, self.generation))
        self._holes.resize(size)
