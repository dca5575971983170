"""round-robin: the pods with room in turn.

The pods stand in a circle and the turn goes round. A cursor over the dense array would not be round-robin: every
leaver's place is taken by the last pod, which then comes early, or is passed over, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.policy import Policy
from lb.rooms import NEEDS_RING, RoomRing
from lb.tracker import PodTracker

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class RoundRobin(Policy):
    """The pod that was picked, or came to have room, the longest ago."""

    name: ClassVar[str] = "round-robin"
    needs: ClassVar[int] = NEEDS_RING

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomRing)
        if structure.count == 0:
            return None
        node = structure.turn
        structure.turn = node.room_next
        assert isinstance(node, PodTracker)
        return node
