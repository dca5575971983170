"""choice-of-2 (power of two choices): draw two different pods with room, take the less loaded.

The draw is without replacement (the second is drawn from the others), and in a tie the first drawn is taken, a fair
coin. The fullest of n pods then carries O(log log n) more than the average; with `random`, O(log n / log log n).
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
    """The less loaded of two."""

    name: ClassVar[str] = "choice-of-2"
    needs: ClassVar[type[RoomStructure]] = RoomArray

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        return structure.less_loaded_of_two(self.rng)
