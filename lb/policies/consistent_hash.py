"""consistent-hash (multi-probe consistent hashing): requests with the same key go to the same pod while it has room.

Each key defines an order of all pods that depends only on the key and the pods' addresses, and is therefore the same in
every process and after every restart. The policy picks the first pod in that order that has room, so the keys of a full
pod spill over at once, each to its own next pod, and return when there is room. Adding or removing a pod moves no key
between two others (lb/circle.py).

A request without a key (0) goes to the less loaded of two random pods. Weights are ignored.
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
    """The policy `consistent-hash`: pick the same pod for the same key while it has room."""

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
