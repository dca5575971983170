"""least-connections: the pod with the fewest requests in flight; in a tie, the one with this load the longest."""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.buckets import RoomBuckets
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomStructure
from lb.tracker import PodTracker


@final
class LeastConnections(Policy):
    """The policy `least-connections`: pick the pod with the fewest requests in flight."""

    name: ClassVar[str] = "least-connections"
    needs: ClassVar[type[RoomStructure]] = RoomBuckets

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomBuckets)
        if structure.lowest.count == 0:
            return None
        head = structure.lowest.head
        assert isinstance(head, PodTracker)
        return head
