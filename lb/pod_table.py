"""The read-only view of a table: for policies, slow start and checks.

Rules
  1. Users of this class only read. `TrackerTable` (lb/table.py), which derives from it, writes.
  2. It imports no policy and nothing that imports a policy, so that both may import it.
"""

from __future__ import annotations

from mypy_extensions import i64

from lb.rooms import RoomStructure
from lb.slots import SlotArray
from lb.tracker import PodTracker


class PodTable:
    """One revision's slots; walk `slots[: length]`."""

    def __init__(self, array: SlotArray, structure: RoomStructure) -> None:
        self._array: SlotArray = array
        self.slots: list[PodTracker] = array.slots  # always the same list
        self.structure: RoomStructure = structure  # the pods with room, as the policy needs them
        # Sums over the slots.
        self.in_flight: i64 = 0
        self.capacity: i64 = 0
        self.room: i64 = 0  # how many pods a pick could return
        self.draining: i64 = 0  # slots whose pod drains
        # Since the table was made.
        self.tables_full: i64 = 0
        self.bad_picks: i64 = 0  # of a policy: a pod that may not be picked, or none though one has room
        self.late_releases: i64 = 0

    @property
    def length(self) -> int:
        """The high-water mark: one past the highest slot used since the last trim."""
        return self._array.length

    @property
    def used(self) -> int:
        """Slots that hold a pod."""
        return self._array.held

    @property
    def placed(self) -> int:
        """Slots that hold a pod that does not drain."""
        return self._array.held - self.draining

    @property
    def capacity_slots(self) -> int:
        """Slots made."""
        return len(self.slots)

    @property
    def holes(self) -> int:
        return self._array.holes

    @property
    def trailing(self) -> int:
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
