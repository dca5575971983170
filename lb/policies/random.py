"""random: any pod with room, each as likely as the other. No memory, no order, the cheapest to reason about."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.policy import Policy
from lb.rooms import NEEDS_ARRAY, RoomArray
from lb.tracker import PodTracker

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class RandomPick(Policy):
    """A uniform draw from the pods with room."""

    name: ClassVar[str] = "random"
    needs: ClassVar[int] = NEEDS_ARRAY

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        pods = structure.pods
        count = structure.count
        if count == 0:
            return None
        return pods[self.rng.below(count)]
