"""weighted: a random pod with room, in proportion to the weights, without state.

A pod of weight 3 gets three times as many requests as one of weight 1, as long as both have room; the shares of full
pods go to the others in the same proportion. A pod of weight 0 is a reserve, used when no other has room.
"""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomStructure
from lb.tracker import PodTracker
from lb.weights import RoomWeights


@final
class Weighted(Policy):
    """The policy `weighted`: pick a random pod with room in proportion to the weights."""

    name: ClassVar[str] = "weighted"
    needs: ClassVar[type[RoomStructure]] = RoomWeights

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomWeights)
        if structure.count == 0:
            return None
        return structure.draw(self.rng)
