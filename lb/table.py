"""The pods of one revision, their load, and the pick of the pod for the next request.

Rules
  1. Structure has one writer: `add`, `drain`, `free`, `drop_slots` and every `set_…` are called by the state worker
     alone. The request path calls `pick`, `reserve` and `release`, of a pod on trial `begin_trial` and `end_trial`,
     and, as its one exception, `suspect`. `set_elsewhere` is for who hears of others that serve the same pods.
  2. No live pod ever moves (lb/slots.py), so a reference to a slot stays good; its generation says which pod it means.
  3. A slot is freed by `free`, or by `drain` when nothing is in flight. `release` says DRAINED and frees nothing.
  4. A release under a generation that has passed is counted and changes nothing.
  5. A pod stands in the room structure exactly while `may_take_one()`; `has_room` says so on the pod. With slow start,
     a newcomer stands among those of lb/warming.py instead.
  6. A hook of the policy that raises changes nothing: it is counted, and `on_hook_error` is called. An
     exception of `pick` goes to the caller; it leaves the table as it was.
  7. `in_flight`, `capacity`, `room` and `draining` are updated by each call; only `check_invariants` counts them anew.
  8. An address has one pod: before another one is added there, the one that has it must drain. Both may be names of one
     process, so what is still in flight in older slots at the address counts for the limit of the newest.
  9. What others have in flight (`elsewhere`) ranks pods, and does nothing else: limits, capacity, drains and totals
     are of what is in flight here.

Cost: pick, reserve, release, suspect, set_elsewhere, find, set_state, set_limit are O(1); add and free are amortised
O(1), with growth and trims; where slots share an address, O(slots there). set_policy, drop_slots, abandon and
check_invariants walk the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from lb.addresses import check_addresses, check_limit, limit_at_address
from lb.invariants import check_pod, check_room, check_table, check_totals
from lb.pod_table import PodTable
from lb.policy import Policy, is_own, overrides
from lb.rooms import RoomStructure
from lb.roster import Roster
from lb.sizing import SLOTS_MAX
from lb.slots import SlotArray, Trim
from lb.structures import make_structure
from lb.tracker import DRAINING, EMPTY, FOREVER, UNLIMITED, PodTracker
from lb.warming import NO_WARM_UP, WarmUp
from lb.weights import WEIGHT_MAX

# What `release` answers.
RELEASED: Final = 0
LATE: Final = 1  # the slot has since been freed or given to another pod
DRAINED: Final = 2  # the last release of a draining slot: ask the state worker to free it


@final
class TrackerTable(PodTable):
    """One revision's slots, with the room structure that its policy picks from.

    `first_generation`: a table that replaces another goes on from that one's `generation`, so that no
    (slot, generation) still under way can name a pod of the new one.
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
        super().__init__(array, make_structure(policy.needs, array.slots))
        self._roster: Roster = Roster()
        self.abandoned: bool = False
        self.hook_errors: i64 = 0  # since the table was made
        self.on_hook_error: Callable[[Exception], None] | None = None
        # The policy, and which of its hooks do anything.
        self.policy: Policy = policy
        self.warm_up: WarmUp = NO_WARM_UP  # this table's own while slow start is on
        self.slow_starts: bool = False
        self._trusts_policy: bool = is_own(policy)
        self._counts_load: bool = self.structure.counts_load
        self._policy_sees_reserve: bool = overrides(policy, "on_reserve")
        self._policy_sees_release: bool = overrides(policy, "on_release")

    # The request path.

    def pick(self, key: i64, now_s: float) -> PodTracker | None:
        """The pod the policy gives the next request to; None when no pod has room.

        What the policy returns is checked: a pod that may not be picked is not picked, whatever a policy from elsewhere
        says, and a request does not wait while a pod has room.
        """
        if self.slow_starts:
            tracker = self.warm_up.pick(self, self.policy, key, now_s)
        else:
            tracker = self.policy.pick(self, key, now_s)
        if tracker is None:
            return None if self.room == 0 else self._in_place_of_bad_pick()
        if tracker.has_room and (self._trusts_policy or self._is_mine(tracker)):
            return tracker
        return self._in_place_of_bad_pick()

    def pick_other(self, avoided: PodTracker, key: i64, now_s: float) -> PodTracker | None:
        """As `pick`, but the avoided pod only where no other has room."""
        if not avoided.has_room or self.room == 1:
            return self.pick(key, now_s)
        self._leave_room(avoided)
        try:
            return self.pick(key, now_s)
        finally:
            self._settle(avoided)

    def reserve(self, tracker: PodTracker) -> None:
        """One request more in the pod. The caller may go beyond its limit (a request exempted by rule).

        Of a pod that drains, `drain` must follow: what is in flight there counts for the newer pod at its address.
        """
        assert tracker.state != EMPTY, "a request was given to an empty slot"
        in_flight = tracker.in_flight + 1
        tracker.in_flight = in_flight
        self.in_flight += 1
        if tracker.has_room:
            if in_flight >= tracker.limit:
                tracker.has_room = False
                self.room -= 1
                self._take_out(tracker)
            elif self._counts_load and not tracker.warming:
                self.structure.load_rose(tracker)
        if self._policy_sees_reserve:
            self._notify_reserve(tracker)

    def release(self, tracker: PodTracker, generation: i64, latency_s: float) -> int:
        """One request less in the pod that held the slot under `generation`: RELEASED, LATE or DRAINED.

        `latency_s`: how long the pod took; negative if it ended after so long without an answer; 0.0: unknown.
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
                self.structure.load_fell(tracker)
        elif tracker.may_take_one():
            tracker.has_room = True
            self.room += 1
            self._put_in(tracker)
        if self._policy_sees_release:
            self._notify_release(tracker, latency_s)
        if tracker.state == DRAINING:
            self._limit_newest(tracker.address)
            if in_flight == 0:
                return DRAINED
        return RELEASED

    def begin_trial(self, tracker: PodTracker) -> None:
        """What was reserved last is the trial of a recovering pod: it gets no other request before `end_trial`.

        Its other requests in flight, from before its quarantine, do not delay the trial, but they count for its limit.
        """
        assert i64(tracker.trials) < tracker.in_flight, "a trial is one of the requests in flight"
        tracker.trials += 1
        self._settle(tracker)

    def end_trial(self, tracker: PodTracker, generation: i64) -> None:
        """The trial no longer keeps other requests from the pod; called once, before its release."""
        if generation == tracker.generation and tracker.trials > 0:
            tracker.trials -= 1
            self._settle(tracker)

    def suspect(self, tracker: PodTracker, until_s: float) -> None:
        """Do not pick the pod from this turn on, until the state worker has decided about it; FOREVER: until it leaves,
        or `end_suspicion`.
        """
        assert until_s > 0.0, "0.0 means not suspected"
        assert tracker.state != EMPTY, "nobody is in the slot to be suspected"
        tracker.suspect_until_s = until_s
        self._settle(tracker)

    def end_suspicion(self, tracker: PodTracker, generation: i64, now_s: float) -> bool:
        """The time of a suspicion may be over, and nobody has decided about the pod; whether it can be picked again."""
        if tracker.generation != generation or not 0.0 < tracker.suspect_until_s <= now_s:
            return False
        tracker.suspect_until_s = 0.0
        self._settle(tracker)
        return tracker.has_room

    def _is_mine(self, tracker: PodTracker) -> bool:
        slot = tracker.slot
        return 0 <= slot < self.length and self.slots[slot] is tracker

    def _in_place_of_bad_pick(self) -> PodTracker | None:
        """The first pod that has room; walks the slots, since only a defect of a policy leads here."""
        self.bad_picks += 1
        for tracker in self.slots[: self.length]:
            if tracker.has_room:
                return tracker
        return None

    # Structure: the state worker's.

    def add(self, identity: str, address: str, limit: int, state: int) -> PodTracker | None:
        """Give the pod a slot; None only when all of `slots_max` slots are held.

        A pod that still holds a slot at this address, draining or not, keeps it with its requests in flight.
        """
        assert not self.abandoned, "a pod was added to an abandoned table"
        _assert_settable(state)
        _assert_possible(limit)
        tracker = self._roster.holder(identity, address)
        newest = self._roster.at(address)
        assert newest is None or newest is tracker or newest.state == DRAINING, f"{newest!r} has the address"
        is_news = tracker is None or tracker.state == DRAINING
        if tracker is None:
            tracker = self._take_slot(identity, address)
            if tracker is None:
                return None
        elif is_news:
            self._roster.renew(tracker)
        self._write(tracker, state, limit)
        if is_news:
            self._notify_policy(tracker)
        return tracker

    def add_leaving(self, identity: str, address: str) -> PodTracker | None:
        """A slot for requests in flight at a pod that has left, for `reserve`; then `drain` it. It is never picked, and
        whoever has the pod's names now is found first.
        """
        tracker = self._take_empty(identity, address)
        if tracker is not None:
            self._roster.enrol_behind(tracker)
            tracker.state = DRAINING
            self.draining += 1
        return tracker

    def find_pod(self, identity: str, address: str) -> PodTracker | None:
        """The slot of this pod at this address, also one that drains."""
        return self._roster.holder(identity, address)

    def find(self, address: str) -> PodTracker | None:
        """The newest slot at the address, also one that drains."""
        return self._roster.at(address)

    def find_identity(self, identity: str) -> PodTracker | None:
        """The newest slot of the identity, also one that drains."""
        return self._roster.of(identity)

    def set_state(self, tracker: PodTracker, state: int) -> None:
        """Any state but EMPTY and DRAINING, which `free` and `drain` bring about; suspicion ends."""
        assert tracker.state != EMPTY, "an empty slot has no state to set"
        assert tracker.state != DRAINING, f"only an add brings back {tracker!r}"
        self._write(tracker, state, tracker.own_limit)

    def set_limit(self, tracker: PodTracker, limit: int) -> None:
        """A new limit, also below what is in flight: running work then drains down."""
        assert tracker.state != EMPTY, "an empty slot has no limit"
        _assert_possible(limit)
        tracker.own_limit = limit
        self._limit(tracker)

    def set_weight(self, tracker: PodTracker, weight: int) -> None:
        """The share the pod should have where the policy looks at weights; 0: only when no other has room."""
        assert tracker.state != EMPTY, "an empty slot has no weight"
        assert 0 <= weight <= WEIGHT_MAX, f"a weight is 0 … {WEIGHT_MAX}, not {weight}"
        if tracker.weight != weight:
            self._leave_room(tracker)
            tracker.weight = weight
            self._settle(tracker)

    def set_elsewhere(self, tracker: PodTracker, count: int) -> None:
        """Others have so many requests in flight at the pod."""
        assert tracker.state != EMPTY, "nobody has requests at an empty slot"
        assert count >= 0, f"nobody can have {count} requests in flight"
        if tracker.elsewhere == count:
            return
        if self._counts_load and tracker.has_room and not tracker.warming:
            self.structure.remove(tracker)
            tracker.elsewhere = count
            self.structure.insert(tracker)
        else:
            tracker.elsewhere = count

    def drain(self, tracker: PodTracker) -> bool:
        """Give the pod no more requests; True if nothing was in flight and the slot is free already."""
        assert tracker.state != EMPTY, "an empty slot cannot drain"
        if tracker.state != DRAINING:
            self._retire(tracker)
        if tracker.in_flight > 0:
            self._limit_newest(tracker.address)
            return False
        self._vacate(tracker)
        return True

    def free(self, tracker: PodTracker) -> None:
        """Take the slot back whatever is in flight; releases that still come are late."""
        assert tracker.state != EMPTY, "a slot was freed twice"
        if tracker.state != DRAINING:
            self._retire(tracker)
        self._vacate(tracker)

    def drop_slots(self) -> bool:
        """Give back the memory of a table without pods: the next pod makes slots anew. False: there is nothing to give.

        A table that keeps its high-water mark for good (threshold 1) keeps its slots, too.
        """
        if self.used != 0 or not self.slots or self._array.threshold == 1.0:
            return False
        self._array.drop()
        self._roster = Roster()
        self.structure = make_structure(self.policy.needs, self.slots)
        if self.slow_starts:
            self.warm_up.set_needs(self.policy.needs, 0)
        return True

    def abandon(self) -> None:
        """Give up a table that is not to be trusted: every release that still comes is late. It counts on nothing."""
        self.abandoned = True
        for tracker in self.slots:
            tracker.generation += 1

    def dispose(self, count: int) -> bool:
        """Drop so many slots of an abandoned table, with all that they refer to; False when none is left."""
        assert self.abandoned, "slots of a table that is in use were dropped"
        self._roster = Roster()
        self.structure = RoomStructure()
        self.warm_up = NO_WARM_UP
        slots = self.slots
        for tracker in slots[-count:]:
            tracker.vacate(tracker.generation)
        del slots[-count:]
        return len(slots) != 0

    def set_max_scale(self, max_scale: int) -> None:
        """Another scale: the table grows to it at once, or gives back what it no longer asks for."""
        self._array.set_max_scale(max_scale)
        self._resize()

    def set_threshold(self, trailing_fragmentation_threshold: float) -> None:
        """Another threshold, acted upon at once."""
        self._array.set_threshold(trailing_fragmentation_threshold)
        self._resize()

    def set_slow_start(self, window_s: float) -> None:
        """How long the share of a newcomer grows (lb/warming.py); 0.0: not at all."""
        assert window_s >= 0.0, f"no pod can be new for {window_s} s"
        if window_s > 0.0 and not self.slow_starts:
            self.slow_starts = True
            self.warm_up = WarmUp(window_s, len([t for t in self._array.pods() if t.is_routable()]))
            self.warm_up.set_needs(self.policy.needs, len(self.slots))
        elif window_s > 0.0:
            self.warm_up.set_window(window_s)
        elif self.slow_starts:
            self.warm_up.graduate_all(self)
            self.slow_starts = False
            self.warm_up = NO_WARM_UP

    def set_policy(self, policy: Policy) -> None:
        """Another policy: its structure is built from the slots as they are; pods that do not drain are added."""
        for tracker in self._array.pods():
            self._leave_room(tracker)
            tracker.forget_room()
        self.policy = policy
        self._trusts_policy = is_own(policy)
        self.structure = make_structure(policy.needs, self.slots)
        if self.slow_starts:
            self.warm_up.set_needs(policy.needs, len(self.slots))
        self.structure.resize(len(self.slots))
        self._counts_load = self.structure.counts_load
        self._policy_sees_reserve = overrides(policy, "on_reserve")
        self._policy_sees_release = overrides(policy, "on_release")
        for tracker in self._array.pods():
            self._settle(tracker)
        for tracker in self._array.pods():
            if tracker.state != DRAINING:
                self._notify_policy(tracker)

    # Inspection.

    @property
    def on_trim(self) -> Callable[[Trim], None] | None:
        """Called with each trim once the array has made it: the place for the one log line."""
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
        """AssertionError with a sentence if `room` is not what the room structure counts; no slot is looked at."""
        check_room(self, self.warm_up if self.slow_starts else None)

    def check_totals(self, held: int, capacity: int, draining: int) -> None:
        """AssertionError with a sentence if these, counted by the caller, are not what the table says."""
        check_totals(self, held, capacity, draining)

    def check_slot(self, slot: int) -> None:
        """All that can be said of one slot below `length`: AssertionError with a sentence if it does not hold.

        For who cannot walk a whole table in one turn, as `check_invariants` does: it may change between two calls.
        """
        self._array.check_slot(slot)
        tracker = self.slots[slot]
        if tracker.state != EMPTY:
            self._roster.check_pod(tracker)
            check_limit(tracker)
        check_pod(self, tracker, self.warm_up if self.slow_starts else None)

    def check_invariants(self) -> None:
        """Count everything anew; AssertionError with a sentence if anything differs from what is kept."""
        self._array.check_invariants()
        self._roster.check_invariants(self._array.pods())
        check_addresses(self._array.pods())
        check_table(self, self._array.pods(), self.warm_up if self.slow_starts else None)

    # One step of structure each; every public writer above is made of them.

    def _take_slot(self, identity: str, address: str) -> PodTracker | None:
        tracker = self._take_empty(identity, address)
        if tracker is not None:
            self._roster.enrol(tracker)
        return tracker

    def _take_empty(self, identity: str, address: str) -> PodTracker | None:
        slots_before = len(self.slots)
        tracker = self._array.take()
        if tracker is None:
            self.tables_full += 1
            return None
        if len(self.slots) != slots_before:
            self._resize()
        tracker.identity = identity
        tracker.address = address
        return tracker

    def _write(self, tracker: PodTracker, state: int, limit: int) -> None:
        _assert_settable(state)
        _assert_possible(limit)
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
        if self.slow_starts and tracker.is_routable() and not was_routable:
            self.warm_up.arrive(tracker)
        self._settle(tracker)
        if self.slow_starts and was_routable and not tracker.is_routable():
            self.warm_up.leave(self, tracker)

    def _retire(self, tracker: PodTracker) -> None:
        self.capacity -= tracker.capacity()
        was_routable = tracker.is_routable()
        tracker.state = DRAINING
        self.draining += 1
        self._settle(tracker)
        if self.slow_starts and was_routable:
            self.warm_up.leave(self, tracker)
        try:
            self.policy.on_remove(tracker)
        except Exception as error:
            self._hook_raised(error)

    def _notify_policy(self, tracker: PodTracker) -> None:
        try:
            self.policy.on_add(tracker)
        except Exception as error:
            self._hook_raised(error)

    # Apart from `reserve` and `release`, which are quicker without a handler of exceptions in them.

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
        self.hook_errors += 1
        if self.on_hook_error is not None:
            self.on_hook_error(error)

    def _limit_newest(self, address: str) -> None:
        """Less or more may be in flight in older slots at the address."""
        newest = self._roster.at(address)
        if newest is not None and newest.older_at_address is not None:
            self._limit(newest)

    def _limit(self, tracker: PodTracker) -> None:
        before = tracker.capacity()
        tracker.limit = limit_at_address(tracker)
        self.capacity += tracker.capacity() - before
        self._settle(tracker)

    def _vacate(self, tracker: PodTracker) -> None:
        self.in_flight -= tracker.in_flight
        self.draining -= 1
        newest = self._roster.at(tracker.address)
        self._roster.strike(tracker)
        if newest is not None and newest is not tracker:
            self._limit(newest)
        slots_before = len(self.slots)
        self._array.give_back(tracker)
        if len(self.slots) != slots_before:
            self._resize()

    def _settle(self, tracker: PodTracker) -> None:
        # After any change of state, limit or suspicion: has_room follows, and the structure with it.
        if not tracker.may_take_one():
            self._leave_room(tracker)
        elif not tracker.has_room:
            tracker.has_room = True
            self.room += 1
            self._put_in(tracker)

    def _leave_room(self, tracker: PodTracker) -> None:
        if tracker.has_room:
            tracker.has_room = False
            self.room -= 1
            self._take_out(tracker)

    def _put_in(self, tracker: PodTracker) -> None:
        if tracker.warming:
            self.warm_up.insert(tracker)
        else:
            self.structure.insert(tracker)

    def _take_out(self, tracker: PodTracker) -> None:
        if tracker.warming:
            self.warm_up.remove(tracker)
        else:
            self.structure.remove(tracker)

    def _resize(self) -> None:
        self.structure.resize(len(self.slots))
        if self.slow_starts:
            self.warm_up.resize(len(self.slots))


# Asserted before anything changes: a change half done would leave a slot that is never freed.


def _assert_settable(state: int) -> None:
    assert EMPTY < state < DRAINING, f"{state} is no state that can be set"


def _assert_possible(limit: int) -> None:
    assert 0 <= limit <= UNLIMITED, f"a limit is 0 … {UNLIMITED}, not {limit}"
