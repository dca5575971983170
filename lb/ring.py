"""Pods in a circle, linked through fields of their own: joining, leaving and turning cost the same at any size.

Rules
  1. A circle has no end and no node of its own: its owner knows one of its pods and how many there are. It handles a
     single pod itself, so that `link` and `unlink` never check whether there are neighbours.
  2. A pod stands in at most one circle. The links of one that stands in none mean nothing; they lead NOWHERE after
     `forget`, which is called when a slot is freed, so that no slot keeps another alive for good.
  3. Links are never None. In compiled code each look at a value that may be None counts a reference up and down; each
     count waits for the one before, and together they were a large part of the cost of a move.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64


class RoomNode:
    """A member of a circle, always a pod. (lb/tracker.py imports this module, so pods have no other name here.)"""

    __slots__ = ("room_next", "room_prev", "slot")

    def __init__(self, slot: i64) -> None:
        self.slot: i64 = slot  # to distinguish pods: `is` on a field counts references, a number does not
        self.room_next: RoomNode = self
        self.room_prev: RoomNode = self


NOWHERE: Final[RoomNode] = RoomNode(-1)


def stand_alone(node: RoomNode) -> None:
    """Make a circle of one."""
    node.room_next = node
    node.room_prev = node


def link(node: RoomNode, following: RoomNode) -> None:
    """Let the node join just before another."""
    node.room_next = following
    node.room_prev = following.room_prev
    node.room_prev.room_next = node
    following.room_prev = node


def unlink(node: RoomNode) -> None:
    """Take the node out of its circle, in which others stay; its own links stay as they are."""
    node.room_prev.room_next = node.room_next
    node.room_next.room_prev = node.room_prev


def stands_between(node: RoomNode) -> bool:
    """Whether its neighbours know it; for checks. Of one that was alone, its links lead to itself."""
    return node.room_next.room_prev is node and node.room_prev.room_next is node


def forget(node: RoomNode) -> None:
    """Drop the links of a node that stands in no circle."""
    node.room_next = NOWHERE
    node.room_prev = NOWHERE


class Load:
    """A load: its pods, and links to the loads beside it (lb/buckets.py)."""

    __slots__ = ("count", "head", "higher", "load", "lower", "marked")

    def __init__(self, load: i64) -> None:
        self.load: i64 = load
        self.count: i64 = 0
        self.head: RoomNode = NOWHERE  # the first pod; means nothing while count is 0
        self.higher: Load = self  # itself: there is none yet
        self.lower: Load = self
        self.marked: bool = False  # its bit is set in the bitmap of loads


NO_LOAD: Final[Load] = Load(-1)


class Newcomer(RoomNode):
    """A pod whose share is still growing (lb/warming.py), in the circle of all such pods in order of their start."""

    __slots__ = ("from_s", "pod")

    def __init__(self, pod: RoomNode) -> None:
        super().__init__(pod.slot)
        self.pod: RoomNode = pod
        self.from_s: float = -1.0  # since when; negative: it has not been seen by a pick yet


NO_NEWCOMER: Final[Newcomer] = Newcomer(NOWHERE)


class LeaseNode:
    """A request at a pod, as a link in the chains of whoever grants them: those of its pod, and all of them.

    A slot keeps the newest of its pod's, for its user alone; lb only drops it with the pod.
    """

    __slots__ = ("is_lease", "newer", "older", "pod_newer", "pod_older")

    def __init__(self) -> None:
        self.is_lease: bool = False  # else the end of a chain
        self.older: LeaseNode = self
        self.newer: LeaseNode = self
        self.pod_older: LeaseNode = self
        self.pod_newer: LeaseNode = self


NO_LEASE: Final[LeaseNode] = LeaseNode()
