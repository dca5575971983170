"""Slow start: the share of a pod that has just come grows over a window, whatever the policy.

A *newcomer* is a pod that came to be routable less than a window ago while others were routable already. Its ramp goes
from RAMP_LEAST to 1: its age over the window, or over the age of the oldest pod if that is younger than the window.
So pods that start from zero together, all equally cold, share as if there were no slow start.

Rules
  1. It ranks and never withholds: a newcomer with room is picked when no other pod has room.
  2. Newcomers with room stand here, not in the structure that the policy picks from. Each pick first draws one of all
     pods with room, as likely as it should be at full share; if that is a newcomer it is taken with the probability of
     its ramp, else the policy picks among the others. So a newcomer has exactly its ramp's part of its full share.
  3. Where the policy picks by key nothing is drawn: a newcomer takes a part of the keys that will be its own. The part
     grows with the ramp, and no key is given back.
  4. There is always one pod that is no newcomer, to compare with: the first pod to come is none, and when the last pod
     that is none leaves, the oldest newcomer takes its place.
  5. Time is that of the picks: a newcomer's age begins with the first pick after it came, since only requests warm it.
     Newcomers stand in order of age, so a pick looks at the oldest only: O(1), each pod once. No clock is read.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from lb.circle import RoomCircle
from lb.hashing import MASK_32, mix
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.ring import NO_NEWCOMER, Newcomer, link, stand_alone, unlink
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
    """The newcomers of one table."""

    def __init__(self, window_s: float, routable: int) -> None:
        """`routable`: how many pods are routable already and count as warm."""
        self.window_s: float = window_s
        self.warm: i64 = routable  # pods that are routable and no newcomers
        self.cold: i64 = 0  # newcomers
        self.room: i64 = 0  # newcomers with room
        self._oldest: Newcomer = NO_NEWCOMER  # means nothing while cold is 0
        self._stamped: bool = True  # every age has begun
        self._warm_from_s: float = LONG_AGO_S  # of the oldest pod that is no newcomer; negative and near: not yet seen
        self._ends_s: float = _NOT_YET_S  # when the oldest newcomer's window is over
        self._by_weight: bool = False
        self._by_key: bool = False
        self._weights: RoomWeights = RoomWeights(False)
        self._circle: RoomCircle = RoomCircle()

    # The request path.

    def pick(self, table: PodTable, policy: Policy, key: i64, now_s: float) -> PodTracker | None:
        """Called by the table instead of the `pick` of `policy`."""
        if not self._stamped or now_s >= self._ends_s:
            self.advance(table, now_s)
        if self.room == 0:
            return policy.pick(table, key, now_s)
        if self.room == table.room:
            return self._any(key, policy.rng)
        if self._by_key and key != 0:
            newcomer = self._nearest(table, key, now_s)
        else:
            newcomer = self._drawn(table, policy.rng, now_s)
        if newcomer is not None:
            return newcomer
        return policy.pick(table, key, now_s)

    def advance(self, table: PodTable, now_s: float) -> None:
        """Begin the ages of those that have come, and end the windows that are over."""
        if not self._stamped:
            self._stamp(now_s)
        while now_s >= self._ends_s:
            self._graduate(table)

    def insert(self, tracker: PodTracker) -> None:
        """A newcomer has room."""
        self.room += 1
        if self._by_key:
            self._circle.insert(tracker)
        else:
            self._weights.insert(tracker)

    def remove(self, tracker: PodTracker) -> None:
        """A newcomer has no room."""
        self.room -= 1
        if self._by_key:
            self._circle.remove(tracker)
        else:
            self._weights.remove(tracker)

    # Structure.

    def arrive(self, tracker: PodTracker) -> None:
        """The pod is routable from now on, and stands in no structure yet."""
        if self.warm == 0:
            self.warm = 1
            self._warm_from_s = -1.0
            self._stamped = False
            return
        newcomer = Newcomer(tracker)
        if self.cold == 0:
            self._oldest = newcomer
        else:
            link(newcomer, self._oldest)
        self.cold += 1
        self._stamped = False
        tracker.newcomer = newcomer
        tracker.warming = True

    def leave(self, table: PodTable, tracker: PodTracker) -> None:
        """The pod is not routable any more, and stands in no structure."""
        if tracker.warming:
            self._forget(tracker)
            return
        self.warm -= 1
        if self.warm == 0 and self.cold > 0:
            self._warm_from_s = self._oldest.from_s
            self._graduate(table)

    def graduate_all(self, table: PodTable) -> None:
        while self.cold > 0:
            self._graduate(table)

    def set_window(self, window_s: float) -> None:
        self.window_s = window_s
        self._look_at_oldest()

    def set_needs(self, needs: type[RoomStructure], slots: i64) -> None:
        """The policy has changed. No newcomer stands here at the moment."""
        assert self.room == 0, "newcomers with room stand in the structures of another policy"
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
        """RAMP_LEAST … 1: which part of its full share the pod has."""
        if not tracker.warming or tracker.newcomer.from_s < 0.0:
            return RAMP_LEAST if tracker.warming else 1.0
        whole_s = min(self.window_s, now_s - self._warm_from_s)
        age_s = now_s - tracker.newcomer.from_s
        if age_s >= whole_s:
            return 1.0
        return max(age_s / whole_s, RAMP_LEAST)

    def check_pod(self, tracker: PodTracker) -> None:
        """What can be said of one slot, whatever the others are."""
        stands = self._circle.holds(tracker) if self._by_key else self._weights.holds(tracker)
        stands_here = tracker.warming and tracker.has_room
        assert stands == stands_here, f"that it stands among the newcomers with room is {stands} of {tracker!r}"
        assert not tracker.warming or tracker.is_routable(), f"the newcomer {tracker!r} is not routable"
        assert not tracker.warming or tracker.newcomer.pod is tracker, f"the age of {tracker!r} is another pod's"

    def check_invariants(self, pods: list[PodTracker]) -> None:
        """`pods` are the slots that hold one."""
        newcomers = [tracker for tracker in pods if tracker.warming]
        warm = [tracker for tracker in pods if tracker.is_routable() and not tracker.warming]
        assert all(tracker.is_routable() for tracker in newcomers), "a newcomer is not routable"
        assert self.cold == len(newcomers), f"{len(newcomers)} pods are newcomers, {self.cold} are counted"
        assert self.warm == len(warm), f"{len(warm)} pods are none, {self.warm} are counted"
        assert self.warm > 0 or self.cold == 0, "all pods are newcomers"
        newcomer = self._oldest
        found: list[int] = []
        for _ in range(self.cold):
            assert newcomer.pod in newcomers, f"{newcomer.pod!r} is no newcomer"
            following = newcomer.room_next
            assert isinstance(following, Newcomer), f"{following!r} stands among the newcomers"
            found.append(int(newcomer.slot))
            in_order = following.from_s < 0.0 or newcomer.from_s <= following.from_s or following is self._oldest
            assert in_order, "the newcomers do not stand in order of age"
            newcomer = following
        assert self.cold == 0 or newcomer is self._oldest, f"there are more newcomers than {self.cold}"
        assert sorted(found) == [int(tracker.slot) for tracker in newcomers], f"the newcomers are said to be {found}"
        members = self._circle.members() if self._by_key else self._weights.members()
        assert members is not None
        expected = [int(tracker.slot) for tracker in newcomers if tracker.may_take_one()]
        slots = sorted([int(tracker.slot) for tracker in members])
        assert slots == expected, f"newcomers with room are {expected}, here stand {slots}"
        assert self.room == len(expected), f"{len(expected)} newcomers have room, {self.room} are counted"

    # The next pod.

    def _drawn(self, table: PodTable, rng: Rng, now_s: float) -> PodTracker | None:
        """A newcomer, if the draw over all pods with room falls on one and its ramp lets it have the request."""
        others = table.room - self.room
        newcomers = self.room
        if self._by_weight:
            structure = table.structure
            assert isinstance(structure, RoomWeights)
            others = structure.total
            newcomers = self._weights.total
            if newcomers == 0:
                return None  # all of them are reserves
        if self._by_key:
            newcomer = self._circle.array.pods[rng.below(self.room)]
        else:
            newcomer = self._weights.draw(rng)
        if others == 0:  # a reserve, used only when no other has room
            return newcomer
        if rng.below(others + newcomers) < others:
            return None
        taken = float(rng.below(_CHANCE)) < self.ramp(newcomer, now_s) * float(_CHANCE)
        return newcomer if taken else None

    def _nearest(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        """The newcomer that the key will belong to, if it has taken that key over already."""
        circle = table.structure
        assert isinstance(circle, RoomCircle)
        newcomer = self._circle.nearest(key)
        assert newcomer is not None
        circle.nearest(key)
        if circle.distance <= self._circle.distance:
            return None
        turn = mix((key ^ newcomer.room_point) & MASK_32)
        return newcomer if float(turn) < self.ramp(newcomer, now_s) * float(MASK_32) else None

    def _any(self, key: i64, rng: Rng) -> PodTracker | None:
        if not self._by_key:
            return self._weights.draw(rng)
        if key != 0:
            return self._circle.nearest(key)
        return self._circle.array.pods[rng.below(self.room)]

    # Ages.

    def _stamp(self, now_s: float) -> None:
        """Begin the ages of those that came since the last pick: they are the last in order."""
        self._stamped = True
        if self._warm_from_s == -1.0:
            self._warm_from_s = now_s
        newcomer = self._oldest.room_prev
        for _ in range(self.cold):
            assert isinstance(newcomer, Newcomer)
            if newcomer.from_s >= 0.0:
                break
            newcomer.from_s = now_s
            newcomer = newcomer.room_prev
        self._look_at_oldest()

    def _look_at_oldest(self) -> None:
        if self.cold > 0 and self._oldest.from_s >= 0.0:
            self._ends_s = self._oldest.from_s + self.window_s
        else:
            self._ends_s = _NOT_YET_S

    def _graduate(self, table: PodTable) -> None:
        tracker = self._oldest.pod
        assert isinstance(tracker, PodTracker)
        if tracker.has_room:
            self.remove(tracker)
        self._forget(tracker)
        self.warm += 1
        if tracker.has_room:
            table.structure.insert(tracker)

    def _forget(self, tracker: PodTracker) -> None:
        newcomer = tracker.newcomer
        tracker.newcomer = NO_NEWCOMER
        tracker.warming = False
        self.cold -= 1
        if self.cold == 0:
            self._oldest = NO_NEWCOMER
        else:
            if self._oldest is newcomer:
                following = newcomer.room_next
                assert isinstance(following, Newcomer)
                self._oldest = following
            unlink(newcomer)
        stand_alone(newcomer)  # nothing keeps its neighbours alive
        self._look_at_oldest()


NO_WARM_UP: Final = WarmUp(0.0, 0)
