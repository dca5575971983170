"""choice-of-2 (power of two choices): draw two different pods with room, and pick the less loaded one.

The draw is without replacement, and in a tie the first pod drawn is picked, which is a fair coin. The fullest of n pods
then has O(log log n) more requests than the average; with `random`, O(log n / log log n).
"""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomArray, RoomStructure
from lb.tracker import PodTracker


@final
class ChoiceOfTwo(Policy):
    """The policy `choice-of-2`: draw two pods with room and pick the less loaded one."""

    name: ClassVar[str] = "choice-of-2"
    needs: ClassVar[type[RoomStructure]] = RoomArray

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        return structure.less_loaded_of_two(self.rng)
