"""first-available: the lowest slot with room, so that few pods are kept full and the others idle and can go.

Slots are filled lowest first, so the lowest slot is mostly the oldest pod, the warmest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from mypy_extensions import i64

from lb.policy import Policy
from lb.rooms import NEEDS_BITMAP, RoomBitmap
from lb.tracker import PodTracker

if TYPE_CHECKING:
    from lb.table import TrackerTable


@final
class FirstAvailable(Policy):
    """The lowest slot with room."""

    name: ClassVar[str] = "first-available"
    needs: ClassVar[int] = NEEDS_BITMAP

    def pick(self, table: TrackerTable, key: i64, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomBitmap)
        return structure.lowest
