"""Intrusive circular lists of pods, with O(1) insertion and removal.

Rules
  1. A ring has no sentinel node: its owner keeps one of its pods and their number. The owner handles a ring of one pod
     itself, so that `link` and `unlink` need no check for neighbours.
  2. A pod is in at most one ring. The links of a pod in no ring are undefined; `clear_links`, which is called when a
     slot is freed, sets them to NOWHERE, so that no slot keeps another one alive.
  3. Links are never None. In compiled code each read of a value that may be None changes a reference count, and these
     dependent operations were a large part of the cost of a move.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64


class RoomNode:
    """A node of a ring. It is always a pod; `PodTracker` cannot be named here because lb/tracker.py imports this."""

    __slots__ = ("room_next", "room_prev", "slot")

    def __init__(self, slot: i64) -> None:
        self.slot: i64 = slot  # compared instead of the objects: `is` on a field changes reference counts
        self.room_next: RoomNode = self
        self.room_prev: RoomNode = self


NOWHERE: Final[RoomNode] = RoomNode(-1)


def stand_alone(node: RoomNode) -> None:
    """Make a ring of one node."""
    node.room_next = node
    node.room_prev = node


def link(node: RoomNode, following: RoomNode) -> None:
    """Insert the node immediately before `following`."""
    node.room_next = following
    node.room_prev = following.room_prev
    node.room_prev.room_next = node
    following.room_prev = node


def unlink(node: RoomNode) -> None:
    """Remove the node from its ring, which must have others; the node's own links do not change."""
    node.room_prev.room_next = node.room_next
    node.room_next.room_prev = node.room_prev


def stands_between(node: RoomNode) -> bool:
    """Return True if the node's neighbours link to it; for checks. A node alone in its ring is its own neighbour."""
    return node.room_next.room_prev is node and node.room_prev.room_next is node


def clear_links(node: RoomNode) -> None:
    """Clear the links of a node that is in no ring."""
    node.room_next = NOWHERE
    node.room_prev = NOWHERE


class Load:
    """The pods with one load, and links to the adjacent loads (lb/buckets.py)."""

    __slots__ = ("count", "head", "higher", "load", "lower", "marked")

    def __init__(self, load: i64) -> None:
        self.load: i64 = load
        self.count: i64 = 0
        self.head: RoomNode = NOWHERE  # the first pod; undefined while count is 0
        self.higher: Load = self  # itself if there is none yet
        self.lower: Load = self
        self.marked: bool = False  # the load's bit in the bitmap of loads is set


NO_LOAD: Final[Load] = Load(-1)


class WarmingNode(RoomNode):
    """A pod in slow start (lb/warming.py), in the ring of all such pods in order of their start."""

    __slots__ = ("from_s", "pod")

    def __init__(self, pod: RoomNode) -> None:
        super().__init__(pod.slot)
        self.pod: RoomNode = pod
        self.from_s: float = -1.0  # the time of the first pick after it was added; negative: no pick yet


NO_WARMING_NODE: Final[WarmingNode] = WarmingNode(NOWHERE)


class LeaseNode:
    """A request at a pod, as a node in the throttler's lists: of the leases of its pod, and of all leases.

    A slot refers to its pod's newest lease for the throttler; lb itself only clears the reference with the pod.
    """

    __slots__ = ("is_lease", "newer", "older", "pod_newer", "pod_older")

    def __init__(self) -> None:
        self.is_lease: bool = False  # False: the end of a list
        self.older: LeaseNode = self
        self.newer: LeaseNode = self
        self.pod_older: LeaseNode = self
        self.pod_newer: LeaseNode = self


NO_LEASE: Final[LeaseNode] = LeaseNode()
