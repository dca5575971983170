"""The request path of a table: the pick of the pod for the next request, and the counts of the requests in flight.

Rules
  1. These methods are called for each request, for a pod on trial (`begin_trial`, `end_trial`) and for a suspected one.
     They add and remove no pod; `TrackerTable` (lb/table.py), which does, is the only class derived from this one.
  2. A pod is in a room structure if and only if `may_take_one()` is true; `has_room` has the same value. A near pod is
     in `structure` or, while it is warming, in the one of lb/warming.py; a far pod is in `far`.
  3. A far pod is picked only if no near pod has room. The policy then picks a second time, and for that time `far` is
     the table's `structure`; so a policy that picks from the structure need not know zones, and ranks within a zone. A
     policy that scans ranks far pods itself. A table without far pods has one shared, empty `far`.
  4. An exception in a hook of the policy is counted and passed to `on_hook_error`; the operation completes. An
     exception in `pick` is propagated to the caller, and the table does not change.

Cost: each method is O(1), except for a pick that replaces an invalid one of a third-party policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from lb.addresses import limit_at_address
from lb.pod_table import PodTable
from lb.policy import Policy, is_own, overrides
from lb.slot_indexes import SlotIndexes
from lb.slots import SlotArray
from lb.structures import make_structure
from lb.tracker import DRAINING, EMPTY, PodTracker
from lb.warming import NO_WARM_UP, WarmUp

# Results of `release`.
RELEASED: Final = 0
LATE: Final = 1  # the slot has since been freed or given to another pod
DRAINED: Final = 2  # the last release of a draining slot, which the state worker should free


class ServingTable(PodTable):
    """The slots of one revision, as requests use them."""

    def __init__(self, policy: Policy, array: SlotArray) -> None:
        super().__init__(array, make_structure(policy.needs, array.slots))
        self._indexes: SlotIndexes = SlotIndexes()
        self.hook_errors: i64 = 0  # since the table was made
        self.on_hook_error: Callable[[Exception], None] | None = None
        # The policy, and which of its hooks it defines.
        self.policy: Policy = policy
        self.warm_up: WarmUp = NO_WARM_UP  # the table's own object while slow start is on
        self.slow_starts: bool = False
        self._trusts_policy: bool = is_own(policy)
        self._counts_load: bool = self.structure.counts_load
        self._calls_on_reserve: bool = overrides(policy, "on_reserve")
        self._calls_on_release: bool = overrides(policy, "on_release")

    def pick(self, key: i64, now_s: float) -> PodTracker | None:
        """Return the pod that the policy picks for the next request; None if no pod has room.

        An invalid pick of a third-party policy is replaced: a pod without room is never returned, and neither is None
        while a pod has room.
        """
        if self.slow_starts:
            tracker = self.warm_up.pick(self, self.policy, key, now_s)
        else:
            tracker = self.policy.pick(self, key, now_s)
        if tracker is None:
            return None if self.room == 0 else self._pick_far(key, now_s)
        if tracker.has_room and (self._trusts_policy or self._is_in_table(tracker)):
            return tracker
        return self._replace_bad_pick()

    def pick_other(self, avoided: PodTracker, key: i64, now_s: float) -> PodTracker | None:
        """Pick as `pick` does, but return the avoided pod only if no other has room."""
        if not avoided.has_room or self.room == 1:
            return self.pick(key, now_s)
        self._remove_from_room(avoided)
        try:
            return self.pick(key, now_s)
        finally:
            self._update_room(avoided)

    def reserve(self, tracker: PodTracker) -> None:
        """Count one more request in the pod. The caller may exceed the limit (a request exempted by rule).

        If the pod drains, the caller must then call `drain`, which updates the limit of the newer pod at its address.
        """
        assert tracker.state != EMPTY, "a request was given to an empty slot"
        in_flight = tracker.in_flight + 1
        tracker.in_flight = in_flight
        self.in_flight += 1
        if tracker.has_room:
            if in_flight >= tracker.limit:
                tracker.has_room = False
                self.room -= 1
                self._remove_from_structure(tracker)
            elif self._counts_load and not tracker.warming:
                if tracker.is_far:
                    self.far.load_rose(tracker)
                else:
                    self.structure.load_rose(tracker)
        if self._calls_on_reserve:
            self._notify_reserve(tracker)

    def release(self, tracker: PodTracker, generation: i64, latency_s: float) -> int:
        """Count one request less in the pod that had `generation`. Return RELEASED, LATE or DRAINED.

        `latency_s` is the pod's response time, negative if the request ended after this time without a response, 0.0 if
        unknown.
        """
        if generation != tracker.generation:
            self.late_releases += 1
            return LATE
        in_flight = tracker.in_flight - 1
        assert in_flight >= 0, "a lease was released twice"
        tracker.in_flight = in_flight
        self.in_flight -= 1
        if tracker.has_room:
            if self._counts_load and not tracker.warming:
                if tracker.is_far:
                    self.far.load_fell(tracker)
                else:
                    self.structure.load_fell(tracker)
        elif tracker.may_take_one():
            tracker.has_room = True
            self.room += 1
            self._insert_into_structure(tracker)
        if self._calls_on_release:
            self._notify_release(tracker, latency_s)
        if tracker.state == DRAINING:
            self._update_newest_limit(tracker.address)
            if in_flight == 0:
                return DRAINED
        return RELEASED

    def begin_trial(self, tracker: PodTracker) -> None:
        """Mark the last reserved request as the trial of a recovering pod, which gets no other before `end_trial`.

        The pod's requests from before its quarantine do not delay the trial, but they count towards its limit.
        """
        assert i64(tracker.trials) < tracker.in_flight, "a trial is one of the requests in flight"
        tracker.trials += 1
        self._update_room(tracker)

    def end_trial(self, tracker: PodTracker, generation: i64) -> None:
        """End the trial, so that the pod may get other requests. Called once per trial, before its release."""
        if generation == tracker.generation and tracker.trials > 0:
            tracker.trials -= 1
            self._update_room(tracker)

    def suspect(self, tracker: PodTracker, until_s: float) -> None:
        """Do not pick the pod until the state worker decides about it; with FOREVER, until `end_suspicion`."""
        assert until_s > 0.0, "0.0 means not suspected"
        assert tracker.state != EMPTY, "an empty slot cannot be suspected"
        tracker.suspect_until_s = until_s
        self._update_room(tracker)

    def end_suspicion(self, tracker: PodTracker, generation: i64, now_s: float) -> bool:
        """End a suspicion whose time has passed without a decision. Return True if the pod can be picked again."""
        if tracker.generation != generation or not 0.0 < tracker.suspect_until_s <= now_s:
            return False
        tracker.suspect_until_s = 0.0
        self._update_room(tracker)
        return tracker.has_room

    def _is_in_table(self, tracker: PodTracker) -> bool:
        """Return True if the object is a slot of this table."""
        slot = tracker.slot
        return 0 <= slot < self.length and self.slots[slot] is tracker

    def _pick_far(self, key: i64, now_s: float) -> PodTracker | None:
        """Return the policy's pick among the far pods, after it has returned None for the near ones."""
        if self.far_room != self.room or self.far.size() < 0:
            return self._replace_bad_pick()
        near = self.structure
        self.structure = self.far
        try:
            tracker = self.policy.pick(self, key, now_s)
        finally:
            self.structure = near
        if tracker is not None and tracker.has_room and (self._trusts_policy or self._is_in_table(tracker)):
            return tracker
        return self._replace_bad_pick()

    def _replace_bad_pick(self) -> PodTracker | None:
        """Count a bad pick. Return the first pod with room, a near one if there is one, by a scan of the slots."""
        self.bad_picks += 1
        first: PodTracker | None = None
        for tracker in self.slots[: self.length]:
            if tracker.has_room and not tracker.is_far:
                return tracker
            if tracker.has_room and first is None:
                first = tracker
        return first

    # Used by the writers of the structure, too.

    def _update_room(self, tracker: PodTracker) -> None:
        """Update `has_room` and the structures after a change of the pod's state, limit, trials or suspicion."""
        if not tracker.may_take_one():
            self._remove_from_room(tracker)
        elif not tracker.has_room:
            tracker.has_room = True
            self.room += 1
            self._insert_into_structure(tracker)

    def _remove_from_room(self, tracker: PodTracker) -> None:
        """Remove the pod from those with room, if it is one of them, whether it may take a request or not."""
        if tracker.has_room:
            tracker.has_room = False
            self.room -= 1
            self._remove_from_structure(tracker)

    def _insert_into_structure(self, tracker: PodTracker) -> None:
        """Insert a pod that has got room into its structure."""
        if tracker.warming:
            self.warm_up.insert(tracker)
        elif tracker.is_far:
            self.far_room += 1
            self.far.insert(tracker)
        else:
            self.structure.insert(tracker)

    def _remove_from_structure(self, tracker: PodTracker) -> None:
        """Remove a pod that has lost its room from its structure."""
        if tracker.warming:
            self.warm_up.remove(tracker)
        elif tracker.is_far:
            self.far_room -= 1
            self.far.remove(tracker)
        else:
            self.structure.remove(tracker)

    def _update_newest_limit(self, address: str) -> None:
        """Update the limit of the newest slot, because the requests of older slots at the address may have changed."""
        newest = self._indexes.at(address)
        if newest is not None and newest.older_at_address is not None:
            self._update_limit(newest)

    def _update_limit(self, tracker: PodTracker) -> None:
        """Compute the pod's limit from its own and the older slots at its address."""
        before = tracker.capacity()
        tracker.limit = limit_at_address(tracker)
        self.capacity += tracker.capacity() - before
        self._update_room(tracker)

    # Separate from `reserve` and `release`, which are faster without an exception handler.

    def _notify_reserve(self, tracker: PodTracker) -> None:
        try:
            self.policy.on_reserve(tracker)
        except Exception as error:
            self._hook_raised(error)

    def _notify_release(self, tracker: PodTracker, latency_s: float) -> None:
        try:
            self.policy.on_release(tracker, latency_s)
        except Exception as error:
            self._hook_raised(error)

    def _hook_raised(self, error: Exception) -> None:
        """Count and report an exception that a hook of the policy raised."""
        self.hook_errors += 1
        if self.on_hook_error is not None:
            self.on_hook_error(error)
