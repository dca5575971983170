"""random: a pod with room, drawn with equal probability and without state."""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomArray, RoomStructure
from lb.tracker import PodTracker


@final
class RandomPick(Policy):
    """The policy `random`: pick a random pod with room."""

    name: ClassVar[str] = "random"
    needs: ClassVar[type[RoomStructure]] = RoomArray

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        pods = structure.pods
        count = structure.count
        if count == 0:
            return None
        return pods[self.rng.below(count)]
