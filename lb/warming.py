"""Slow start: the share of a new pod grows over a window, under any policy.

A *warming* pod became routable less than a window ago, while others were routable already. Its ramp grows from
RAMP_LEAST to 1: it is its age divided by the window, or by the age of the oldest pod if that is younger than the
window. So pods that start from zero together, all equally cold, share as if there were no slow start.

Rules
  1. Slow start ranks pods and never makes a request wait: a warming pod with room is picked when no other has room.
  2. Warming pods with room are stored here, not in the structure that the policy picks from. Each pick first draws one
     of all pods with room, with the probability of its full share. A warming pod that is drawn is accepted with the
     probability of its ramp; otherwise the policy picks among the others. So the share of a warming pod is exactly its
     ramp times its full share.
  3. If the policy picks by key, nothing is drawn: a warming pod takes a part of the keys that will be its own. The part
     grows with the ramp, and no key is returned.
  4. At least one routable pod is not warming, for comparison: the first pod to arrive is not, and when the last such
     pod leaves, the oldest warming pod stops warming.
  5. Slow start is among near pods only: far pods never warm, and count neither here nor in a draw. A pod that becomes
     far leaves, and one that becomes near arrives. Warming pods are picked before far ones.
  6. Time is measured at picks: the age of a warming pod begins with the first pick after its arrival, because only
     requests warm it. Warming pods are kept in order of age, so a pick checks only the oldest, in amortised O(1). No
     clock is read.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.circle import RoomCircle
from lb.hashing import MASK_32, mix
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.ring import NO_WARMING_NODE, WarmingNode, link, stand_alone, unlink
from lb.rng import Rng
from lb.rooms import RoomStructure
from lb.tracker import PodTracker
from lb.weights import RoomWeights

RAMP_LEAST: Final = 0.1
LONG_AGO_S: Final = -1e18
_NOT_YET_S: Final = 1e18
_CHANCE: Final = 1 << 30


@final
class WarmUp:
    """The warming pods of one table."""

    def __init__(self, window_s: float, routable: int) -> None:
        """Start with `routable` near pods that are routable already and count as warm."""
        self.window_s: float = window_s
        self.warm_count: i64 = routable  # the number of routable near pods that are not warming
        self.warming_count: i64 = 0  # the number of warming pods
        self.room_count: i64 = 0  # the number of warming pods with room
        self._oldest: WarmingNode = NO_WARMING_NODE  # undefined while warming_count is 0
        self._ages_begun: bool = True  # False: pods were added since the last pick
        self._warm_from_s: float = LONG_AGO_S  # when the oldest pod that is not warming began; -1.0: at the next pick
        self._ends_s: float = _NOT_YET_S  # when the window of the oldest warming pod ends
        self._by_weight: bool = False  # the policy picks by weight
        self._by_key: bool = False  # the policy picks by key
        self._weights: RoomWeights = RoomWeights(False)
        self._circle: RoomCircle = RoomCircle()

    # The request path.

    def pick(self, table: PodTable, policy: Policy, key: i64, now_s: float) -> PodTracker | None:
        """Return the pod for the next request; the table calls this instead of the `pick` of `policy`."""
        if not self._ages_begun or now_s >= self._ends_s:
            self.advance(table, now_s)
        if self.room_count == 0:
            return policy.pick(table, key, now_s)
        if self.room_count == table.room - table.far_room:
            return self._any_warming(key, policy.rng)
        if self._by_key and key != 0:
            warming = self._nearest_warming(table, key, now_s)
        else:
            warming = self._draw(table, policy.rng, now_s)
        if warming is not None:
            return warming
        return policy.pick(table, key, now_s)

    def advance(self, table: PodTable, now_s: float) -> None:
        """Begin the ages of new pods, and end the windows that are over."""
        if not self._ages_begun:
            self._begin_ages(now_s)
        while now_s >= self._ends_s:
            self._graduate(table)

    def insert(self, tracker: PodTracker) -> None:
        """Insert a warming pod that has got room."""
        self.room_count += 1
        if self._by_key:
            self._circle.insert(tracker)
        else:
            self._weights.insert(tracker)

    def remove(self, tracker: PodTracker) -> None:
        """Remove a warming pod that has no room any more."""
        self.room_count -= 1
        if self._by_key:
            self._circle.remove(tracker)
        else:
            self._weights.remove(tracker)

    # Structure.

    def add_pod(self, tracker: PodTracker) -> None:
        """Add a near pod that has become routable and is in no structure yet."""
        if self.warm_count == 0:
            self.warm_count = 1
            self._warm_from_s = -1.0
            self._ages_begun = False
            return
        node = WarmingNode(tracker)
        if self.warming_count == 0:
            self._oldest = node
        else:
            link(node, self._oldest)
        self.warming_count += 1
        self._ages_begun = False
        tracker.warming_node = node
        tracker.warming = True

    def remove_pod(self, table: PodTable, tracker: PodTracker) -> None:
        """Remove a pod that is not routable or not near any more, and is in no structure."""
        if tracker.warming:
            self._end_warming(tracker)
            return
        self.warm_count -= 1
        if self.warm_count == 0 and self.warming_count > 0:
            self._warm_from_s = self._oldest.from_s
            self._graduate(table)

    def graduate_all(self, table: PodTable) -> None:
        """End the slow start of all pods, which may then get their full shares."""
        while self.warming_count > 0:
            self._graduate(table)

    def set_window(self, window_s: float) -> None:
        self.window_s = window_s
        self._update_end()

    def set_needs(self, needs: type[RoomStructure], slots: i64) -> None:
        """Make the structures for another policy; no warming pod may be in them."""
        assert self.room_count == 0, "warming pods with room are in the structures of another policy"
        self._by_weight = needs is RoomWeights
        self._by_key = needs is RoomCircle
        self._weights = RoomWeights(self._by_weight)
        self._circle = RoomCircle()
        self.resize(slots)

    def resize(self, slots: i64) -> None:
        self._weights.resize(slots)
        if self._by_key:
            self._circle.resize(slots)

    def ramp(self, tracker: PodTracker, now_s: float) -> float:
        """Return the part of its full share that the pod has, RAMP_LEAST … 1."""
        if not tracker.warming or tracker.warming_node.from_s < 0.0:
            return RAMP_LEAST if tracker.warming else 1.0
        whole_s = min(self.window_s, now_s - self._warm_from_s)
        age_s = now_s - tracker.warming_node.from_s
        if age_s >= whole_s:
            return 1.0
        return max(age_s / whole_s, RAMP_LEAST)

    def check_pod(self, tracker: PodTracker) -> None:
        """Check one slot independently of the others. Raises AssertionError."""
        holds = self._circle.holds(tracker) if self._by_key else self._weights.holds(tracker)
        expected = tracker.warming and tracker.has_room
        assert holds == expected, f"{tracker!r} is among the warming pods with room: {holds}, expected {expected}"
        assert not tracker.warming or tracker.is_routable(), f"{tracker!r} is warming, but not routable"
        assert not tracker.warming or not tracker.is_far, f"{tracker!r} is warming, but far"
        assert not tracker.warming or tracker.warming_node.pod is tracker, f"the age of {tracker!r} is another pod's"

    def check_invariants(self, pods: list[PodTracker]) -> None:
        """Raise AssertionError if the state does not match `pods`, the slots that hold a pod."""
        warming = [tracker for tracker in pods if tracker.warming]
        warm = [tracker for tracker in pods if tracker.is_routable() and not tracker.warming and not tracker.is_far]
        assert all(tracker.is_routable() for tracker in warming), "a warming pod is not routable"
        assert self.warming_count == len(warming), f"{len(warming)} pods are warming, {self.warming_count} are counted"
        assert self.warm_count == len(warm), f"{len(warm)} pods are warm, {self.warm_count} are counted"
        assert self.warm_count > 0 or self.warming_count == 0, "all pods are warming"
        node = self._oldest
        found: list[int] = []
        for _ in range(self.warming_count):
            assert node.pod in warming, f"{node.pod!r} is not warming"
            following = node.room_next
            assert isinstance(following, WarmingNode), f"{following!r} is among the warming pods"
            found.append(int(node.slot))
            in_order = following.from_s < 0.0 or node.from_s <= following.from_s or following is self._oldest
            assert in_order, "the warming pods are not in order of age"
            node = following
        assert self.warming_count == 0 or node is self._oldest, f"there are more warming pods than {self.warming_count}"
        assert sorted(found) == [int(tracker.slot) for tracker in warming], f"the ring of warming pods has {found}"
        members = self._circle.members() if self._by_key else self._weights.members()
        assert members is not None
        expected = [int(tracker.slot) for tracker in warming if tracker.may_take_one()]
        slots = sorted([int(tracker.slot) for tracker in members])
        assert slots == expected, f"the warming pods with room are {expected}, the structure has {slots}"
        assert self.room_count == len(expected), (
            f"{len(expected)} warming pods have room, {self.room_count} are counted"
        )

    # The next pod.

    def _draw(self, table: PodTable, rng: Rng, now_s: float) -> PodTracker | None:
        """Return a warming pod if the draw over near pods with room selects one and its ramp accepts the request."""
        others = table.room - table.far_room - self.room_count
        warming = self.room_count
        if self._by_weight:
            structure = table.structure
            assert isinstance(structure, RoomWeights)
            others = structure.total
            warming = self._weights.total
            if warming == 0:
                return None  # all warming pods are reserves
        if self._by_key:
            tracker = self._circle.array.pods[rng.below(self.room_count)]
        else:
            tracker = self._weights.draw(rng)
        if others == 0:  # the others are reserves, used only when no other pod has room
            return tracker
        if rng.below(others + warming) < others:
            return None
        is_accepted = float(rng.below(_CHANCE)) < self.ramp(tracker, now_s) * float(_CHANCE)
        return tracker if is_accepted else None

    def _nearest_warming(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        """Return the warming pod to which the key will belong, if its ramp already includes the key."""
        circle = table.structure
        assert isinstance(circle, RoomCircle)
        tracker = self._circle.nearest(key)
        assert tracker is not None
        circle.nearest(key)
        if circle.distance <= self._circle.distance:
            return None
        key_share = mix((key ^ tracker.room_point) & MASK_32)
        return tracker if float(key_share) < self.ramp(tracker, now_s) * float(MASK_32) else None

    def _any_warming(self, key: i64, rng: Rng) -> PodTracker | None:
        """Return a warming pod for the request, because no other near pod has room."""
        if not self._by_key:
            return self._weights.draw(rng)
        if key != 0:
            return self._circle.nearest(key)
        return self._circle.array.pods[rng.below(self.room_count)]

    # Ages.

    def _begin_ages(self, now_s: float) -> None:
        """Begin the ages of the pods added since the last pick, which are the last in order."""
        self._ages_begun = True
        if self._warm_from_s == -1.0:
            self._warm_from_s = now_s
        node = self._oldest.room_prev
        for _ in range(self.warming_count):
            assert isinstance(node, WarmingNode)
            if node.from_s >= 0.0:
                break
            node.from_s = now_s
            node = node.room_prev
        self._update_end()

    def _update_end(self) -> None:
        """Compute when the window of the oldest warming pod ends."""
        if self.warming_count > 0 and self._oldest.from_s >= 0.0:
            self._ends_s = self._oldest.from_s + self.window_s
        else:
            self._ends_s = _NOT_YET_S

    def _graduate(self, table: PodTable) -> None:
        """End the slow start of the oldest warming pod."""
        tracker = self._oldest.pod
        assert isinstance(tracker, PodTracker)
        if tracker.has_room:
            self.remove(tracker)
        self._end_warming(tracker)
        self.warm_count += 1
        if tracker.has_room:
            table.structure.insert(tracker)

    def _end_warming(self, tracker: PodTracker) -> None:
        """Remove the pod from the warming ones."""
        node = tracker.warming_node
        tracker.warming_node = NO_WARMING_NODE
        tracker.warming = False
        self.warming_count -= 1
        if self.warming_count == 0:
            self._oldest = NO_WARMING_NODE
        else:
            if self._oldest is node:
                following = node.room_next
                assert isinstance(following, WarmingNode)
                self._oldest = following
            unlink(node)
        stand_alone(node)  # it must not keep its neighbours alive
        self._update_end()


NO_WARM_UP: Final = WarmUp(0.0, 0)
