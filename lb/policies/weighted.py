"""weighted: pods with room in proportion to their weights, by chance and with no memory.

A pod of weight 3 gets three times what one of weight 1 gets, as long as both have room; full pods' shares go to the
others in the same proportion. A pod of weight 0 is a reserve, used when no other has room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.policy import Policy
from lb.rooms import NEEDS_WEIGHTS
from lb.tracker import PodTracker
from lb.weights import RoomWeights

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class Weighted(Policy):
    """A draw from the pods with room, each as likely as its weight says."""

    name: ClassVar[str] = "weighted"
    needs: ClassVar[int] = NEEDS_WEIGHTS

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomWeights)
        if structure.count == 0:
            return None
        return structure.draw(self.rng)
