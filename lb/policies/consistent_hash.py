"""consistent-hash (multi-probe consistent hashing): requests with the same key go to the same pod while it has room.

A key names an order of all pods that depends on nothing but the key and the pods' addresses: the same in every process
and after every restart. The first in that order that has room is picked, so a full pod's keys spill at once, each to
its own next pod, and come back when there is room. Pods that come or go move no key between two others (lb/circle.py).

A request without a key (0) goes to the less loaded of two, drawn by chance. Weights are not looked at.
"""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.circle import RoomCircle
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomStructure
from lb.tracker import PodTracker


@final
class ConsistentHash(Policy):
    """The first pod with room in the key's own order."""

    name: ClassVar[str] = "consistent-hash"
    needs: ClassVar[type[RoomStructure]] = RoomCircle
    wants_key: ClassVar[bool] = True

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomCircle)
        array = structure.array
        if key == 0 or array.count <= 1:
            return array.less_loaded_of_two(self.rng)
        return structure.nearest(key)
