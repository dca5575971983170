"""round-robin: the pods with room in turn.

The pods are in a ring. A cursor over the dense array would not be round-robin: the last pod takes the place of one that
is removed, and would repeatedly be picked too early or skipped.
"""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomRing, RoomStructure
from lb.tracker import PodTracker


@final
class RoundRobin(Policy):
    """The policy `round-robin`: pick the pods with room in turn."""

    name: ClassVar[str] = "round-robin"
    needs: ClassVar[type[RoomStructure]] = RoomRing

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomRing)
        if structure.count == 0:
            return None
        node = structure.turn
        structure.turn = node.room_next
        assert isinstance(node, PodTracker)
        return node
