"""The room structure of `weighted`: pods with room by weight, drawn with a probability in proportion to their weights.

Rules
  1. Weights are integers from 0 to WEIGHT_MAX. A pod of weight 0 is a reserve, drawn only when no other has room.
  2. Pods are in classes: class c has the weights from 2^(c-1) to 2^c - 1, class 0 the reserve. A class is a dense array
     with the sum of its weights.
  3. A draw selects a class in proportion to its sum, among those that have pods (at most ten), then a random pod of the
     class, which it accepts with the probability weight / highest weight of the class. That is at least a half, so a
     draw takes at most two tries on average, for any weights and any number of pods.
  4. A pod's weight changes only while it is not in the structure.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.bitmap import highest_bit, mask_of
from lb.rng import Rng
from lb.rooms import RoomArray, RoomStructure
from lb.tracker import PodTracker

WEIGHT_MAX: Final = 1000
_CLASSES: Final = 11  # the reserve and 1, 2 …, 512 … 1023
_TRIES_MAX: Final = 40  # after so many tries, once in 2^40 draws, the last pod is accepted


@final
class _WeightClass:
    """A class of pods of which none has twice the weight of another."""

    __slots__ = ("array", "highest", "total")

    def __init__(self, number: int) -> None:
        self.array: RoomArray = RoomArray()
        self.total: i64 = 0
        self.highest: i64 = (1 << number) - 1


@final
class RoomWeights(RoomStructure):
    """The pods with room by weight; if `by_weight` is False, all have weight 1."""

    def __init__(self, by_weight: bool = True) -> None:
        super().__init__()
        self.count: i64 = 0
        self.total: i64 = 0
        self._by_weight: bool = by_weight
        self._classes: list[_WeightClass] = [_WeightClass(number) for number in range(_CLASSES)]
        self._present: i64 = 0  # a bit for each class that has pods, except the reserve

    def insert(self, tracker: PodTracker) -> None:
        weight = tracker.weight if self._by_weight else 1
        number = _class_of(weight)
        weight_class = self._classes[number]
        weight_class.array.insert(tracker)
        weight_class.total += weight
        self.total += weight
        self.count += 1
        if weight != 0:
            self._present |= mask_of(number)

    def remove(self, tracker: PodTracker) -> None:
        weight = tracker.weight if self._by_weight else 1
        number = _class_of(weight)
        weight_class = self._classes[number]
        weight_class.array.remove(tracker)
        weight_class.total -= weight
        self.total -= weight
        self.count -= 1
        if weight_class.total == 0 and weight != 0:
            self._present &= ~mask_of(number)

    def draw(self, rng: Rng) -> PodTracker:
        """Return a random pod, each with the probability weight / total; `count` must not be 0."""
        array = self._classes[0].array
        if self.total == 0:
            return array.pods[rng.below(array.count)]
        drawn = rng.below(self.total)
        present = self._present
        while True:
            number = highest_bit(present)
            weight_class = self._classes[number]
            drawn -= weight_class.total
            if drawn < 0:
                break
            present &= ~mask_of(number)
        array = weight_class.array
        tracker = array.pods[rng.below(array.count)]
        highest = weight_class.highest
        tries: i64 = 1
        while highest > 1 and rng.below(highest) >= tracker.weight and tries < _TRIES_MAX:
            tracker = array.pods[rng.below(array.count)]
            tries += 1
        return tracker

    def resize(self, slots: i64) -> None:
        for weight_class in self._classes:
            weight_class.array.resize(slots)

    def size(self) -> i64:
        return self.count

    def holds(self, tracker: PodTracker) -> bool:
        return self._classes[_class_of(tracker.weight if self._by_weight else 1)].array.holds(tracker)

    def members(self) -> list[PodTracker] | None:
        found: list[PodTracker] = []
        total = 0
        for number, weight_class in enumerate(self._classes):
            pods = weight_class.array.members()
            assert pods is not None
            weights = [int(tracker.weight) if self._by_weight else 1 for tracker in pods]
            assert all(_class_of(weight) == number for weight in weights), f"class {number} holds weights {weights}"
            assert weight_class.total == sum(weights), (
                f"class {number} weighs {sum(weights)}, its total is {weight_class.total}"
            )
            is_present = (self._present >> number) & 1 != 0
            assert is_present == (number > 0 and len(pods) > 0), f"the bit of class {number} does not match its pods"
            total += sum(weights)
            found += pods
        assert self.total == total, f"the pods weigh {total}, the total is {self.total}"
        assert self.count == len(found), f"{len(found)} pods have room, {self.count} are counted"
        return found


def _class_of(weight: i64) -> i64:
    """Return the number of the class that has this weight."""
    return 0 if weight == 0 else highest_bit(weight) + 1
