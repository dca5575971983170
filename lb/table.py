"""The table of one revision: its pods, and the slots that hold them. Requests use it by lb/serving_table.py.

Rules
  1. The structure has a single writer: only the state worker calls the methods of this module, except `set_elsewhere`,
     which is for load reports of other members, and the lookups.
  2. Pods never move (lb/slots.py), so a reference to a slot stays valid; the generation identifies the pod.
  3. `free` frees a slot, and so does `drain` when nothing is in flight. `release` returns DRAINED and frees nothing.
  4. A release with an old generation is counted and changes nothing.
  5. Each call updates `in_flight`, `capacity`, `room` and `draining`; only `check_invariants` computes them from the
     slots.
  6. At most one pod that does not drain has an address: before another is added, the first must drain. Both may be
     names of one process, so the requests in flight in older slots at the address reduce the limit of the newest.
  7. The requests of other members (`elsewhere`) only affect the ranking of pods: limits, capacity, drains and totals
     count the requests of this table.

Cost: set_elsewhere, find, set_state, set_limit and set_far are O(1); add and free are amortised O(1), including growth
and trims, and O(slots at the address) if slots share one. set_policy, drop_slots, abandon and check_invariants are
O(slots), and so is the set_far of the first far pod.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from lb.addresses import check_addresses, check_limit, limit_at_address
from lb.invariants import check_pod, check_room, check_table, check_totals
from lb.policy import Policy, is_own, overrides
from lb.rooms import NO_ROOMS, RoomStructure
from lb.serving_table import ServingTable
from lb.sizing import SLOTS_MAX
from lb.slot_indexes import SlotIndexes
from lb.slots import SlotArray, Trim
from lb.structures import make_structure
from lb.tracker import DRAINING, EMPTY, FOREVER, UNLIMITED, PodTracker
from lb.warming import NO_WARM_UP, WarmUp
from lb.weights import WEIGHT_MAX


@final
class TrackerTable(ServingTable):
    """The slots of one revision, with the room structures that its policy picks from.

    A table that replaces another one takes that table's `generation` as `first_generation`, so that no
    (slot, generation) of a request in flight can identify a pod of the new table.
    """

    def __init__(
        self,
        policy: Policy,
        max_scale: int = 0,
        trailing_fragmentation_threshold: float = 0.5,
        slots_max: int = SLOTS_MAX,
        first_generation: int = 0,
    ) -> None:
        array = SlotArray(max_scale, trailing_fragmentation_threshold, slots_max, first_generation)
        super().__init__(policy, array)
        self.abandoned: bool = False

    # Structure, written by the state worker.

    def add(self, identity: str, address: str, limit: int, state: int) -> PodTracker | None:
        """Give the pod a slot. Return None only if all of `slots_max` slots are held.

        A pod that already has a slot at this address, draining or not, keeps it with its requests in flight.
        """
        assert not self.abandoned, "a pod was added to an abandoned table"
        _assert_settable(state)
        _assert_limit(limit)
        tracker = self._indexes.holder(identity, address)
        newest = self._indexes.at(address)
        assert newest is None or newest is tracker or newest.state == DRAINING, f"{newest!r} has the address"
        is_added = tracker is None or tracker.state == DRAINING
        if tracker is None:
            tracker = self._enrol_slot(identity, address)
            if tracker is None:
                return None
        elif is_added:
            self._indexes.make_newest(tracker)
        self._set_state_and_limit(tracker, state, limit)
        if is_added:
            self._notify_add(tracker)
        return tracker

    def add_leaving(self, identity: str, address: str) -> PodTracker | None:
        """Give a slot to a removed pod that has requests in flight: `reserve` them, then `drain` it.

        The slot is never picked, and lookups prefer any other slot with its names. Return None if the table is full.
        """
        tracker = self._claim_slot(identity, address)
        if tracker is not None:
            self._indexes.enrol_behind(tracker)
            tracker.state = DRAINING
            self.draining += 1
        return tracker

    def find_pod(self, identity: str, address: str) -> PodTracker | None:
        """Return the slot of this pod at this address, which may be draining."""
        return self._indexes.holder(identity, address)

    def find(self, address: str) -> PodTracker | None:
        """Return the newest slot at the address, which may be draining."""
        return self._indexes.at(address)

    def find_identity(self, identity: str) -> PodTracker | None:
        """Return the newest slot of the identity, which may be draining."""
        return self._indexes.of(identity)

    def set_state(self, tracker: PodTracker, state: int) -> None:
        """Set any state but EMPTY and DRAINING, which `free` and `drain` set. Ends a suspicion, unless FOREVER."""
        assert tracker.state != EMPTY, "an empty slot has no state to set"
        assert tracker.state != DRAINING, f"only `add` can restore {tracker!r}"
        self._set_state_and_limit(tracker, state, tracker.own_limit)

    def set_limit(self, tracker: PodTracker, limit: int) -> None:
        """Set the limit, possibly below the requests in flight, which then fall to it as they end."""
        assert tracker.state != EMPTY, "an empty slot has no limit"
        _assert_limit(limit)
        tracker.own_limit = limit
        self._update_limit(tracker)

    def set_weight(self, tracker: PodTracker, weight: int) -> None:
        """Set the pod's weight for policies that use weights; 0 means only when no other has room."""
        assert tracker.state != EMPTY, "an empty slot has no weight"
        assert 0 <= weight <= WEIGHT_MAX, f"a weight is 0 … {WEIGHT_MAX}, not {weight}"
        if tracker.weight != weight:
            self._remove_from_room(tracker)
            tracker.weight = weight
            self._update_room(tracker)

    def set_far(self, tracker: PodTracker, is_far: bool) -> None:
        """Set whether the pod is in another zone, and gets requests only if no near pod has room."""
        assert tracker.state != EMPTY, "an empty slot has no zone"
        if tracker.is_far == is_far:
            return
        self._remove_from_room(tracker)
        warms = self.slow_starts and tracker.is_routable()  # slow start only knows near pods
        if is_far:
            if self.far is NO_ROOMS:
                self._make_far_structure()
            if warms:
                self.warm_up.remove_pod(self, tracker)
        tracker.is_far = is_far
        if warms and not is_far:
            self.warm_up.add_pod(tracker)
        self._update_room(tracker)

    def set_elsewhere(self, tracker: PodTracker, count: int) -> None:
        """Set the number of requests that other members have in flight at the pod."""
        assert tracker.state != EMPTY, "an empty slot has no requests"
        assert count >= 0, f"{count} requests cannot be in flight"
        if tracker.elsewhere == count:
            return
        if self._counts_load and tracker.has_room and not tracker.warming:
            structure = self.far if tracker.is_far else self.structure
            structure.remove(tracker)
            tracker.elsewhere = count
            structure.insert(tracker)
        else:
            tracker.elsewhere = count

    def drain(self, tracker: PodTracker) -> bool:
        """Give the pod no more requests. Return True if none was in flight, so that the slot is already free."""
        assert tracker.state != EMPTY, "an empty slot cannot drain"
        if tracker.state != DRAINING:
            self._begin_drain(tracker)
        if tracker.in_flight > 0:
            self._update_newest_limit(tracker.address)
            return False
        self._vacate(tracker)
        return True

    def free(self, tracker: PodTracker) -> None:
        """Free the slot even if requests are in flight; their releases will be late."""
        assert tracker.state != EMPTY, "a slot was freed twice"
        if tracker.state != DRAINING:
            self._begin_drain(tracker)
        self._vacate(tracker)

    def drop_slots(self) -> bool:
        """Release all slots of a table without pods; the next pod allocates new ones. Return False if nothing was done.

        A table that always keeps its high-water mark (threshold 1) also keeps its slots.
        """
        if self.used != 0 or not self.slots or self._array.threshold == 1.0:
            return False
        self._array.drop()
        self._indexes = SlotIndexes()
        self.structure = make_structure(self.policy.needs, self.slots)
        self.far = NO_ROOMS
        if self.slow_starts:
            self.warm_up.set_needs(self.policy.needs, 0)
        return True

    def abandon(self) -> None:
        """Abandon an inconsistent table, so that every later release is late. Relies on no state but the slots."""
        self.abandoned = True
        for tracker in self.slots:
            tracker.generation += 1

    def dispose(self, count: int) -> bool:
        """Release `count` slots of an abandoned table with their references. Return False when none is left."""
        assert self.abandoned, "slots of a table that is in use were dropped"
        self._indexes = SlotIndexes()
        self.structure = RoomStructure()
        self.far = NO_ROOMS
        self.warm_up = NO_WARM_UP
        slots = self.slots
        for tracker in slots[-count:]:
            tracker.vacate(tracker.generation)
        del slots[-count:]
        return len(slots) != 0

    def set_max_scale(self, max_scale: int) -> None:
        """Set the scale. The table grows to it at once, or releases the slots that it does not need."""
        self._array.set_max_scale(max_scale)
        self._resize_structures()

    def set_threshold(self, trailing_fragmentation_threshold: float) -> None:
        """Set the threshold, and trim at once if fragmentation exceeds it."""
        self._array.set_threshold(trailing_fragmentation_threshold)
        self._resize_structures()

    def set_slow_start(self, window_s: float) -> None:
        """Set the window over which a new pod's share grows (lb/warming.py); 0.0 disables slow start."""
        assert window_s >= 0.0, f"a window cannot be {window_s} s"
        if window_s > 0.0 and not self.slow_starts:
            self.slow_starts = True
            self.warm_up = WarmUp(window_s, len([t for t in self._array.pods() if t.is_routable() and not t.is_far]))
            self.warm_up.set_needs(self.policy.needs, len(self.slots))
        elif window_s > 0.0:
            self.warm_up.set_window(window_s)
        elif self.slow_starts:
            self.warm_up.graduate_all(self)
            self.slow_starts = False
            self.warm_up = NO_WARM_UP

    def set_policy(self, policy: Policy) -> None:
        """Set the policy: build its structure from the slots, and call `on_add` for the pods that do not drain."""
        for tracker in self._array.pods():
            self._remove_from_room(tracker)
            tracker.forget_room()
        self.policy = policy
        self._trusts_policy = is_own(policy)
        self.structure = make_structure(policy.needs, self.slots)
        if self.slow_starts:
            self.warm_up.set_needs(policy.needs, len(self.slots))
        self.structure.resize(len(self.slots))
        self.far = NO_ROOMS
        if len([tracker for tracker in self._array.pods() if tracker.is_far]) > 0:
            self._make_far_structure()
        self._counts_load = self.structure.counts_load
        self._calls_on_reserve = overrides(policy, "on_reserve")
        self._calls_on_release = overrides(policy, "on_release")
        for tracker in self._array.pods():
            self._update_room(tracker)
        for tracker in self._array.pods():
            if tracker.state != DRAINING:
                self._notify_add(tracker)

    # Inspection.

    @property
    def on_trim(self) -> Callable[[Trim], None] | None:
        """The function that is called after each trim, for its log line."""
        return self._array.on_trim

    @on_trim.setter
    def on_trim(self, hook: Callable[[Trim], None] | None) -> None:
        self._array.on_trim = hook

    def __repr__(self) -> str:
        return (
            f"<TrackerTable {self.policy.name}: {self.used} used, {self.capacity_slots - self.used} free, high-water "
            f"{self.length} ({self.holes} holes, {self.trailing} trailing), {self.room} with room, "
            f"{self.in_flight} in flight>"
        )

    def check_room(self) -> None:
        """Raise AssertionError if `room` differs from the counts of the room structures. Reads no slot."""
        check_room(self, self.warm_up if self.slow_starts else None)

    def check_totals(self, held: int, capacity: int, draining: int) -> None:
        """Raise AssertionError if the table's totals differ from these, which the caller has counted."""
        check_totals(self, held, capacity, draining)

    def check_slot(self, slot: int) -> None:
        """Raise AssertionError if one slot below `length` is inconsistent.

        Unlike `check_invariants`, it does not read the whole table in one turn; the table may change between calls.
        """
        self._array.check_slot(slot)
        tracker = self.slots[slot]
        if tracker.state != EMPTY:
            self._indexes.check_pod(tracker)
            check_limit(tracker)
        check_pod(self, tracker, self.warm_up if self.slow_starts else None)

    def check_invariants(self) -> None:
        """Raise AssertionError if any sum, index or structure differs from its value computed from the slots."""
        self._array.check_invariants()
        self._indexes.check_invariants(self._array.pods())
        check_addresses(self._array.pods())
        check_table(self, self._array.pods(), self.warm_up if self.slow_starts else None)

    # Steps of the public writers.

    def _enrol_slot(self, identity: str, address: str) -> PodTracker | None:
        """Give the pod the lowest empty slot, the newest of its names. Return None if the table is full."""
        tracker = self._claim_slot(identity, address)
        if tracker is not None:
            self._indexes.enrol(tracker)
        return tracker

    def _claim_slot(self, identity: str, address: str) -> PodTracker | None:
        """Give the pod the lowest empty slot, in no index yet. Return None if the table is full."""
        slots_before = len(self.slots)
        tracker = self._array.claim_lowest()
        if tracker is None:
            self.times_full += 1
            return None
        if len(self.slots) != slots_before:
            self._resize_structures()
        tracker.identity = identity
        tracker.address = address
        return tracker

    def _set_state_and_limit(self, tracker: PodTracker, state: int, limit: int) -> None:
        """Set the pod's state and own limit, with all that depends on them. Ends a suspicion, unless FOREVER."""
        _assert_settable(state)
        _assert_limit(limit)
        before = tracker.capacity()
        was_routable = tracker.is_routable()
        if tracker.state == DRAINING:
            self.draining -= 1
        tracker.state = state
        tracker.own_limit = limit
        tracker.limit = limit_at_address(tracker)
        if tracker.suspect_until_s != FOREVER:
            tracker.suspect_until_s = 0.0
        self.capacity += tracker.capacity() - before
        warms = self.slow_starts and not tracker.is_far
        if warms and tracker.is_routable() and not was_routable:
            self.warm_up.add_pod(tracker)
        self._update_room(tracker)
        if warms and was_routable and not tracker.is_routable():
            self.warm_up.remove_pod(self, tracker)

    def _begin_drain(self, tracker: PodTracker) -> None:
        """Make the pod drain: it gets no more requests, and the policy is notified."""
        self.capacity -= tracker.capacity()
        was_routable = tracker.is_routable()
        tracker.state = DRAINING
        self.draining += 1
        self._update_room(tracker)
        if self.slow_starts and was_routable and not tracker.is_far:
            self.warm_up.remove_pod(self, tracker)
        try:
            self.policy.on_remove(tracker)
        except Exception as error:
            self._hook_raised(error)

    def _notify_add(self, tracker: PodTracker) -> None:
        try:
            self.policy.on_add(tracker)
        except Exception as error:
            self._hook_raised(error)

    def _vacate(self, tracker: PodTracker) -> None:
        """Empty a draining slot, and update the limit of the newest slot at its address."""
        self.in_flight -= tracker.in_flight
        self.draining -= 1
        newest = self._indexes.at(tracker.address)
        self._indexes.strike(tracker)
        if newest is not None and newest is not tracker:
            self._update_limit(newest)
        slots_before = len(self.slots)
        self._array.free_slot(tracker)
        if len(self.slots) != slots_before:
            self._resize_structures()

    def _make_far_structure(self) -> None:
        self.far = make_structure(self.policy.needs, self.slots)
        self.far.resize(len(self.slots))

    def _resize_structures(self) -> None:
        """Adapt the room structures to the number of slots."""
        self.structure.resize(len(self.slots))
        self.far.resize(len(self.slots))
        if self.slow_starts:
            self.warm_up.resize(len(self.slots))


# Checked before anything changes, because an incomplete change would leave a slot that is never freed.


def _assert_settable(state: int) -> None:
    assert EMPTY < state < DRAINING, f"{state} is no state that `set_state` accepts"


def _assert_limit(limit: int) -> None:
    assert 0 <= limit <= UNLIMITED, f"a limit is 0 … {UNLIMITED}, not {limit}"
