"""choice-of-2 (power of two choices): draw two different pods with room, take the less loaded.

The draw is without replacement (the second is drawn from the others), and a tie falls to the first drawn, which is a
fair coin. The fullest of n pods then carries O(log log n) more than the average; with `random`, O(log n / log log n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.policy import Policy
from lb.rooms import NEEDS_ARRAY, RoomArray
from lb.tracker import PodTracker

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class ChoiceOfTwo(Policy):
    """The less loaded of two."""

    name: ClassVar[str] = "choice-of-2"
    needs: ClassVar[int] = NEEDS_ARRAY

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        pods = structure.pods
        count = structure.count
        if count <= 1:
            return pods[0] if count == 1 else None
        rng = self.rng
        first = rng.below(count)
        second = rng.below(count - 1)
        if second >= first:
            second += 1
        one = pods[first]
        other = pods[second]
        return other if other.in_flight < one.in_flight else one
