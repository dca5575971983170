"""Which room structure goes with which need."""

from __future__ import annotations

from lb.buckets import RoomBuckets
from lb.circle import RoomCircle
from lb.rooms import (
    NEEDS_ARRAY,
    NEEDS_BITMAP,
    NEEDS_BUCKETS,
    NEEDS_CIRCLE,
    NEEDS_NOTHING,
    NEEDS_RING,
    NEEDS_WEIGHTS,
    RoomArray,
    RoomBitmap,
    RoomRing,
    RoomStructure,
)
from lb.tracker import PodTracker
from lb.weights import RoomWeights


def make_structure(needs: int, slots: list[PodTracker]) -> RoomStructure:
    """The empty structure that a policy asked for; `slots` is the table's list."""
    if needs == NEEDS_ARRAY:
        return RoomArray()
    if needs == NEEDS_RING:
        return RoomRing()
    if needs == NEEDS_BITMAP:
        return RoomBitmap(slots)
    if needs == NEEDS_BUCKETS:
        return RoomBuckets()
    if needs == NEEDS_WEIGHTS:
        return RoomWeights()
    if needs == NEEDS_CIRCLE:
        return RoomCircle()
    if needs == NEEDS_NOTHING:
        return RoomStructure()
    raise ValueError(f"a policy needs {needs!r}, which is no room structure: see NEEDS_… in lb.rooms")
