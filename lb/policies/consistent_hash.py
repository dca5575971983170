"""consistent-hash (multi-probe consistent hashing): requests with the same key go to the same pod while it has room.

A key names an order of all pods that depends on nothing but the key and the pods' addresses: the same in every process
and after every restart. The first in that order that has room is picked, so a full pod's keys spill at once, each to
its own next pod, and come back when there is room. Pods that come or go move no key between two others (lb/circle.py).

A request without a key (0) goes to the less loaded of two, drawn by chance. Weights are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.circle import RoomCircle
from lb.policy import Policy
from lb.rooms import NEEDS_CIRCLE
from lb.tracker import PodTracker

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class ConsistentHash(Policy):
    """The first pod with room in the key's own order."""

    name: ClassVar[str] = "consistent-hash"
    needs: ClassVar[int] = NEEDS_CIRCLE
    wants_key: ClassVar[bool] = True

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomCircle)
        pods = structure.array.pods
        count = structure.array.count
        if count <= 1:
            return pods[0] if count == 1 else None
        if key != 0:
            return structure.nearest(key)
        rng = self.rng
        first = rng.below(count)
        second = rng.below(count - 1)
        if second >= first:
            second += 1
        one = pods[first]
        other = pods[second]
        return other if other.in_flight < one.in_flight else one
