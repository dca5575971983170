"""The read-only view of a table, for policies, slow start and checks.

Rules
  1. Users of this class only read it; its subclasses (lb/serving_table.py, lb/table.py) write.
  2. This module imports no policy and no module that does, so that those can import it.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.rooms import NO_ROOMS, RoomStructure
from lb.slots import SlotArray
from lb.tracker import PodTracker


class PodTable:
    """The slots of one revision; to visit all pods, iterate over `slots[: length]`."""

    def __init__(self, array: SlotArray, structure: RoomStructure) -> None:
        self._array: SlotArray = array
        self.slots: list[PodTracker] = array.slots  # always the same list
        # The near pods with room, in the structure that the policy needs; during a pick among far pods, the far ones.
        self.structure: RoomStructure = structure
        self.far: RoomStructure = NO_ROOMS  # the far pods with room; made with the first far pod
        # Sums over the slots.
        self.in_flight: i64 = 0
        self.capacity: i64 = 0
        self.room: i64 = 0  # the number of pods that a pick could return
        self.far_room: i64 = 0  # the number of far pods among them
        self.draining: i64 = 0  # the number of slots whose pod drains
        # Counters since the table was made.
        self.times_full: i64 = 0
        self.bad_picks: i64 = 0  # picks of a pod that must not be picked, or of no pod although one has room
        self.late_releases: i64 = 0

    @property
    def length(self) -> int:
        """The high-water mark: one past the highest slot used since the last trim."""
        return self._array.length

    @property
    def used(self) -> int:
        """The number of slots that hold a pod."""
        return self._array.held

    @property
    def placed(self) -> int:
        """The number of slots that hold a pod that does not drain."""
        return self._array.held - self.draining

    @property
    def capacity_slots(self) -> int:
        """The number of allocated slots."""
        return len(self.slots)

    @property
    def holes(self) -> int:
        """The number of empty slots below the highest pod."""
        return self._array.holes

    @property
    def trailing(self) -> int:
        """The number of empty slots between the highest pod and `length`."""
        return self._array.trailing

    @property
    def fragmentation(self) -> float:
        return self._array.fragmentation

    @property
    def generation(self) -> int:
        return self._array.generation

    @property
    def trims(self) -> int:
        return self._array.trims

    @property
    def grown(self) -> int:
        return self._array.grown
