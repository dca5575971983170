"""The room structures that a policy may need: the policy names the class, and its table makes and keeps the object."""

from __future__ import annotations

from typing import Final

from lb.buckets import RoomBuckets
from lb.circle import RoomCircle
from lb.rooms import RoomArray, RoomBitmap, RoomRing, RoomStructure
from lb.tracker import PodTracker
from lb.weights import RoomWeights

STRUCTURES: Final[tuple[type[RoomStructure], ...]] = (
    RoomStructure,  # none: the policy scans table.slots[: table.length]
    RoomArray,  # any pod by index
    RoomRing,  # the pods in turn
    RoomBitmap,  # the lowest slot
    RoomBuckets,  # the least loaded pods
    RoomWeights,  # one in proportion to its weight
    RoomCircle,  # a key's pod
)


def make_structure(needs: type[RoomStructure], slots: list[PodTracker]) -> RoomStructure:
    """Return an empty structure of the class `needs`; `slots` is the table's list. Raises ValueError if unknown."""
    if needs not in STRUCTURES:
        known = ", ".join(structure.__name__ for structure in STRUCTURES)
        raise ValueError(f"a policy needs {needs!r}, which is not a room structure; lb.structures has {known}")
    return RoomBitmap(slots) if needs is RoomBitmap else needs()
