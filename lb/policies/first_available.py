"""first-available: the pod in the lowest slot with room, so that few pods are full and idle pods can be removed.

Slots are filled lowest first, so the lowest slot usually holds the oldest, and warmest, pod.
"""

from __future__ import annotations

from typing import ClassVar, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rooms import RoomBitmap, RoomStructure
from lb.tracker import PodTracker


@final
class FirstAvailable(Policy):
    """The policy `first-available`: pick the pod in the lowest slot with room."""

    name: ClassVar[str] = "first-available"
    needs: ClassVar[type[RoomStructure]] = RoomBitmap

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomBitmap)
        return structure.lowest
