"""The sparse array: slots made ahead, held and given back, with holes inside and an empty tail.

Rules
  1. The slots below `length` are in use or were since the last trim; `top` is one past the highest that holds a pod, so
     `top` … `length` is the empty tail. Only a trim lowers `length`.
  2. The empty slots below `top` are holes; exactly they are in the bitmap. A pod gets the lowest hole, else slot `top`.
     Hence `top` rises only when there are no holes, and its walk down is amortised O(1) per free.
  3. When a slot is given back, fragmentation is (holes + tail) / length. Only above the threshold is the tail trimmed;
     a hole is never closed, no pod ever moves. A table that had grown then also gives slots back (lb/sizing.py). One
     without pods gives all of them back when it is told to.
  4. Each use of a slot has its own generation, taken from one counter: a slot that is dropped and made anew does not
     start again.

The threshold makes walks over `slots[:length]` shorter. Its cost is trims, each O(slots trimmed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from mypy_extensions import i64

from lb.bitmap import NONE, Bitmap
from lb.sizing import SLOTS_MAX, first_slots, grown_slots, kept_slots
from lb.tracker import EMPTY, PodTracker


class Trim(NamedTuple):
    """What one trim did, for its one log line."""

    length_before: int
    length_after: int
    fragmentation_before: float
    threshold: float
    slots_before: int
    slots_after: int  # fewer if the table had grown and gave memory back


@final
class SlotArray:
    """The slots of one table, and which of them are held."""

    def __init__(self, max_scale: int, threshold: float, slots_max: int, first_generation: int) -> None:
        assert 0 < slots_max <= SLOTS_MAX, f"slots_max is 1 … {SLOTS_MAX}, not {slots_max}"
        assert 0.0 <= threshold <= 1.0, f"the threshold is a share, not {threshold}"
        # Settings.
        self.max_scale: int = max_scale
        self.slots_max: int = slots_max
        self.threshold: float = threshold
        self.on_trim: Callable[[Trim], None] | None = None
        # Now. No slot is made before the first pod comes.
        self.slots: list[PodTracker] = []
        self.length: i64 = 0
        self.top: i64 = 0
        self.held: i64 = 0
        self.generation: i64 = first_generation  # of the latest use
        self._holes: Bitmap = Bitmap()
        # Since the table was made.
        self.trims: i64 = 0
        self.grown: i64 = 0

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

    def take(self) -> PodTracker | None:
        """The lowest empty slot, under a new generation; None when all of `slots_max` are held."""
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

    def give_back(self, tracker: PodTracker) -> None:
        """Empty the slot, and trim the tail if that is worth it."""
        self.generation += 1
        tracker.vacate(self.generation)
        self.held -= 1
        if tracker.slot + 1 == self.top:
            self._lower_top()
        else:
            self._holes.add(tracker.slot)
        self.trim_if_worth_it()

    def trim_if_worth_it(self) -> None:
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
        """Grow to the new scale at once, or give back what it no longer asks for."""
        self.max_scale = max_scale
        if not self.slots:
            return
        wanted = first_slots(max_scale, self.slots_max)
        if wanted > len(self.slots):
            self._resize(wanted)
        else:
            self.shrink()

    def set_threshold(self, threshold: float) -> None:
        assert 0.0 <= threshold <= 1.0, f"the threshold is a share, not {threshold}"
        self.threshold = threshold
        self.trim_if_worth_it()

    def shrink(self) -> None:
        """Give back the slots above `length` that the scale does not ask for."""
        kept = kept_slots(self.length, self.max_scale, self.slots_max)
        if kept < len(self.slots):
            self._resize(kept)

    def drop(self) -> None:
        """Drop all slots; none is held."""
        assert self.held == 0, "slots that hold a pod were dropped"
        self.length = 0
        self.top = 0
        self._holes = Bitmap()
        self.slots.clear()

    def pods(self) -> list[PodTracker]:
        """The slots that hold a pod, lowest first."""
        return [tracker for tracker in self.slots[: self.length] if tracker.state != EMPTY]

    def check_slot(self, slot: int) -> None:
        """What can be said of one slot below `length`, whatever the others are."""
        tracker = self.slots[slot]
        assert tracker.slot == slot, f"slot {slot} believes it is {tracker.slot}"
        assert tracker.generation <= self.generation, f"slot {slot} is ahead of the generations"
        is_hole = slot in self._holes
        if tracker.state == EMPTY:
            assert tracker.is_vacant(), f"the empty slot {slot} refers to something"
            assert is_hole == (slot < self.top), f"that the empty slot {slot} is a hole is {is_hole}"
        else:
            assert slot < self.top, f"slot {slot} is held, and top is {self.top}"
            assert not is_hole, f"slot {slot} is held, and a hole"

    def check_invariants(self) -> None:
        held = [int(tracker.slot) for tracker in self.pods()]
        assert self.held == len(held), f"{self.held} slots are counted as held, {len(held)} are"
        top = held[-1] + 1 if held else 0
        assert self.top == top, f"the highest slot held is {top - 1}, top is {self.top}"
        assert self.top <= self.length <= len(self.slots) <= self.slots_max, f"length {self.length} is out of bounds"
        holes = sorted(set(range(top)) - set(held))
        assert self._holes.members() == holes, f"holes are {holes}, the bitmap says {self._holes.members()}"
        self._holes.check_invariants()
        for slot, tracker in enumerate(self.slots):
            assert tracker.slot == slot, f"slot {slot} believes it is {tracker.slot}"
            assert tracker.state != EMPTY or tracker.is_vacant(), f"the empty slot {slot} refers to something"
            assert tracker.generation <= self.generation, f"slot {slot} is ahead of the generations"

    def _lower_top(self) -> None:
        top = self.top - 1
        while top > 0 and self.slots[top - 1].state == EMPTY:
            top -= 1
            self._holes.discard(top)
        self.top = top

    def _grow(self) -> bool:
        slots = len(self.slots)
        if slots == 0:
            self._resize(first_slots(self.max_scale, self.slots_max))
            return True
        wanted = grown_slots(slots, self.max_scale, self.slots_max)
        if wanted == slots:
            return False
        self._resize(wanted)
        self.grown += 1
        return True

    def _resize(self, size: int) -> None:
        # In place: the room structure holds the same list, and no slot object is replaced.
        del self.slots[size:]
        for slot in range(len(self.slots), size):
            self.slots.append(PodTracker(slot, self.generation))
        self._holes.resize(size)
