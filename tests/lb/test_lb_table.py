"""The table's promises, one story each."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable

import pytest

from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.serving_table import DRAINED, LATE, RELEASED
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, READY, RECOVERING, UNLIMITED, PodTracker
from tests.lb.lb_oracles import HearingPolicy, ScanningPolicy
from tests.lb.lb_tables import add, enter, fill, leave, make_table

# Identity, address, generation.


def test_late_release_is_counted_and_changes_nothing() -> None:
    table = make_table()
    tracker = add(table, 1)
    table.reserve(tracker)
    generation = tracker.generation
    table.free(tracker)
    assert table.in_flight == 0
    again = add(table, 2)
    assert again is tracker
    table.reserve(again)
    assert table.release(tracker, generation, 0.0) == LATE
    assert (again.in_flight, table.in_flight, table.late_releases) == (1, 1, 1)
    assert table.release(again, again.generation, 0.0) == RELEASED


def test_no_generation_is_used_twice_even_by_slots_made_anew() -> None:
    table = make_table(threshold=0.0)
    seen: set[tuple[int, int]] = set()
    for _ in range(3):
        pods = fill(table, 100)
        now = {(tracker.slot, tracker.generation) for tracker in pods}
        assert not now & seen
        seen |= now
        for tracker in reversed(pods):
            table.free(tracker)
        assert table.capacity_slots == 64


def test_a_table_that_replaces_another_goes_on_from_its_generation() -> None:
    old = make_table()
    fill(old, 3)
    new = TrackerTable(create("random", Rng(1)), first_generation=old.generation)
    assert add(new, 1).generation > max(tracker.generation for tracker in old.slots)


def test_flapping_pod_keeps_its_ledger() -> None:
    table = make_table()
    tracker = add(table, 1, limit=1)
    table.reserve(tracker)
    generation = tracker.generation
    assert not table.drain(tracker)
    back = add(table, 1, limit=1)
    assert back is tracker
    assert (back.generation, back.in_flight, back.state) == (generation, 1, READY)
    assert table.pick(0, 0.0) is None
    assert table.release(back, generation, 0.0) == RELEASED
    assert table.pick(0, 0.0) is back


def test_address_used_again_gets_a_clean_slot_beside_the_draining_one() -> None:
    table = make_table()
    old = enter(table, "old", "10.0.0.1:8012")
    leave(table, old)
    new = enter(table, "new", "10.0.0.1:8012")
    assert new is not old
    assert new.in_flight == 0
    assert table.find("10.0.0.1:8012") is new
    assert table.release(old, old.generation, 0.0) == DRAINED
    assert table.drain(old)
    assert table.find("10.0.0.1:8012") is new
    table.free(new)
    assert table.find("10.0.0.1:8012") is None


def test_older_holder_shows_again_when_the_newer_is_gone() -> None:
    table = make_table()
    old = enter(table, "old", "10.0.0.1:8012")
    leave(table, old)
    new = enter(table, "new", "10.0.0.1:8012")
    table.free(new)
    assert table.find("10.0.0.1:8012") is old
    assert table.add("old", "10.0.0.1:8012", 1, READY) is old
    table.check_invariants()


def test_what_is_in_flight_in_older_slots_at_an_address_counts_for_the_limit_of_the_newest() -> None:
    table = make_table()
    old = enter(table, "old", "10.0.0.1:80", 3)
    table.reserve(old)
    leave(table, old)
    new = enter(table, "new", "10.0.0.1:80", 3)
    other = enter(table, "other", "10.0.0.2:80", 3)
    assert (new.limit, new.own_limit, other.limit, table.capacity) == (1, 3, 3, 4)
    table.reserve(new)
    assert (new.has_room, other.has_room) == (False, True)
    assert table.release(old, old.generation, 0.0) == RELEASED
    assert (new.limit, new.has_room, table.capacity) == (2, True, 5)
    leave(table, new)
    assert (new.in_flight, old.in_flight) == (2, 1)
    newer = enter(table, "newer", "10.0.0.1:80", 4)
    assert newer.limit == 1, "of 4: one in the oldest, two in the one after it"
    table.set_limit(newer, 2)
    assert (newer.limit, newer.has_room) == (0, False)
    table.set_state(newer, NOT_READY)
    table.set_state(newer, READY)
    assert (newer.limit, newer.own_limit) == (0, 2), "it is its own limit that is kept"
    table.free(new)
    assert (newer.limit, table.capacity) == (1, 4), "whatever was in flight there has been given up"
    assert table.release(old, old.generation, 0.0) == DRAINED
    assert newer.limit == 2
    assert table.drain(old)
    table.check_invariants()


def test_a_pod_that_comes_back_to_its_address_counts_what_the_one_after_it_has_in_flight() -> None:
    table = make_table()
    first = enter(table, "first", "10.0.0.1:80", 2)
    leave(table, first)
    second = enter(table, "second", "10.0.0.1:80", 2)
    leave(table, second)
    assert enter(table, "first", "10.0.0.1:80", 2) is first
    assert (first.in_flight, first.limit, first.has_room) == (1, 1, False)
    assert table.release(second, second.generation, 0.0) == DRAINED
    assert (first.limit, first.has_room) == (2, True)
    table.check_invariants()


def test_a_pod_without_a_limit_has_none_beside_others_at_its_address() -> None:
    table = make_table()
    leave(table, enter(table, "old", "10.0.0.1:80", UNLIMITED))
    new = enter(table, "new", "10.0.0.1:80", UNLIMITED)
    assert new.limit == table.capacity == UNLIMITED


def test_no_pod_is_added_where_another_one_is() -> None:
    table = make_table()
    old = enter(table, "old", "10.0.0.1:80")
    for state in (READY, NOT_READY):
        table.set_state(old, state)
        with pytest.raises(AssertionError, match="has the address"):
            table.add("new", "10.0.0.1:80", 1, PENDING)
    assert table.find("10.0.0.1:80") is old
    table.check_invariants()


def test_a_slot_for_requests_of_a_pod_that_has_left_is_never_picked() -> None:
    table = make_table()
    leaving = table.add_leaving("old", "10.0.0.1:80")
    new = enter(table, "new", "10.0.0.1:80", 2)
    assert leaving is not None and table.pick(0, 0.0) is new
    table.reserve(leaving)
    assert not table.drain(leaving)
    assert (new.limit, table.capacity) == (1, 1)
    table.check_invariants()
    assert table.release(leaving, leaving.generation, 0.0) == DRAINED
    assert table.drain(leaving)
    assert (new.limit, table.used) == (2, 1)
    table.check_invariants()


def test_a_slot_for_a_pod_that_has_left_hides_nobody_who_has_its_names_now() -> None:
    table = make_table()
    moved = enter(table, "pod", "10.0.0.2:80", 3)
    new = enter(table, "new", "10.0.0.1:80", 3)
    leaving = [table.add_leaving(identity, "10.0.0.1:80") for identity in ("pod", "other", "third")]
    for tracker in leaving:
        assert tracker is not None
        table.reserve(tracker)
        assert not table.drain(tracker)
    assert table.find_identity("pod") is moved and table.find("10.0.0.1:80") is new
    assert [table.find_pod(name, "10.0.0.1:80") for name in ("pod", "other", "third")] == leaving
    assert table.find_pod("pod", "10.0.0.2:80") is moved and table.find_pod("new", "10.0.0.2:80") is None
    assert (new.limit, moved.limit) == (0, 3)
    table.check_invariants()
    for tracker in leaving:
        assert tracker is not None and table.release(tracker, tracker.generation, 0.0) == DRAINED
        assert table.drain(tracker)
        table.check_invariants()
    assert (new.limit, table.find_identity("other")) == (3, None)


def test_many_pods_on_one_ip() -> None:
    table = make_table()
    pods = [table.add(f"pod-{port}", f"[fd00::1]:{port}", 1, READY) for port in range(9000, 9010)]
    assert [table.find(f"[fd00::1]:{port}") for port in range(9000, 9010)] == pods


def test_identity_that_moves_leads_to_its_newest_slot() -> None:
    table = make_table()
    here = enter(table, "pod", "10.0.0.1:1")
    there = enter(table, "pod", "10.0.0.2:1")
    assert table.find_identity("pod") is there
    table.free(there)
    assert table.find_identity("pod") is here


def test_identity_that_moves_back_leads_to_the_slot_that_it_is_in_again() -> None:
    table = make_table()
    here = enter(table, "pod", "10.0.0.1:1", 2)
    leave(table, here)
    there = enter(table, "pod", "10.0.0.2:1", 2)
    leave(table, there)
    assert table.add("pod", "10.0.0.1:1", 2, READY) is here
    assert table.find_identity("pod") is here, "what is said of the pod is said of this slot"
    table.check_invariants()
    table.free(there)
    table.free(here)
    assert table.find_identity("pod") is None
    table.check_invariants()


def test_repeated_add_is_no_second_pod() -> None:
    policy = HearingPolicy(Rng(1))
    table = TrackerTable(policy)
    first = add(table, 1, limit=2)
    assert add(table, 1, limit=5, state=NOT_READY) is first
    assert (first.limit, first.state, table.used) == (5, NOT_READY, 1)
    assert policy.heard == [("add", "pod-1", 0.0)]


# Limits and states.


def test_limit_lowered_below_what_is_in_flight_drains_down() -> None:
    table = make_table()
    tracker = add(table, 1, limit=3)
    for _ in range(3):
        table.reserve(tracker)
    table.set_limit(tracker, 1)
    assert table.capacity == 1
    for _ in range(2):
        table.release(tracker, tracker.generation, 0.0)
        assert table.pick(0, 0.0) is None
    table.release(tracker, tracker.generation, 0.0)
    assert table.pick(0, 0.0) is tracker


def test_only_ready_and_recovering_pods_are_picked_and_counted() -> None:
    table = make_table()
    tracker = add(table, 1, limit=4, state=PENDING)
    assert (table.pick(0, 0.0), table.room, table.capacity) == (None, 0, 0)
    for state, capacity in ((READY, 4), (RECOVERING, 1)):
        table.set_state(tracker, state)
        assert (table.pick(0, 0.0), table.room, table.capacity) == (tracker, 1, capacity)
    table.set_state(tracker, NOT_READY)
    assert (table.pick(0, 0.0), table.room, table.capacity) == (None, 0, 0)


def test_a_trial_bars_others_until_it_ends_and_what_was_there_before_does_not() -> None:
    table = make_table()
    tracker = add(table, 1, limit=4)
    table.reserve(tracker)
    table.set_state(tracker, RECOVERING)
    assert table.pick(0, 0.0) is tracker
    table.reserve(tracker)
    table.begin_trial(tracker)
    assert table.pick(0, 0.0) is None
    table.check_invariants()
    table.release(tracker, tracker.generation, 0.0)  # of the one from before
    assert table.pick(0, 0.0) is None
    table.end_trial(tracker, tracker.generation)
    table.end_trial(tracker, tracker.generation)
    assert table.pick(0, 0.0) is tracker and tracker.trials == 0
    table.reserve(tracker)
    table.begin_trial(tracker)
    generation = tracker.generation
    table.free(tracker)
    again = add(table, 2, limit=4, state=RECOVERING)
    assert again is tracker and again.trials == 0
    table.reserve(again)
    table.begin_trial(again)
    table.end_trial(again, generation)
    assert table.pick(0, 0.0) is None, "the end of a trial of the slot's former pod"
    table.check_invariants()


def test_unlimited_pods() -> None:
    table = make_table(policy="choice-of-2")
    add(table, 1, limit=UNLIMITED)
    tracker = table.pick(0, 0.0)
    assert tracker is not None
    table.reserve(tracker)
    assert table.capacity == UNLIMITED
    assert "unlimited" in repr(tracker)


def test_suspicion_takes_a_pod_out_until_its_state_is_set() -> None:
    table = make_table()
    tracker = add(table, 1)
    table.suspect(tracker, 12.5)
    assert (table.pick(0, 0.0), table.room, table.capacity) == (None, 0, 2)
    assert "suspect until 12.500 s" in repr(tracker)
    table.set_state(tracker, READY)
    assert tracker.suspect_until_s == 0.0
    assert table.pick(0, 0.0) is tracker


# Leaving.


def test_drain_of_an_idle_pod_frees_at_once() -> None:
    table = make_table()
    tracker = add(table, 1)
    tracker.attachment = object()
    assert table.drain(tracker)
    assert (tracker.state, tracker.attachment, tracker.identity) == (EMPTY, None, "")


def test_draining_pod_is_freed_by_the_worker_after_its_last_release() -> None:
    table = make_table()
    tracker = add(table, 1)
    table.reserve(tracker)
    table.reserve(tracker)
    assert not table.drain(tracker)
    assert table.pick(0, 0.0) is None
    assert table.release(tracker, tracker.generation, 0.0) == RELEASED
    assert table.release(tracker, tracker.generation, 0.0) == DRAINED
    assert tracker.state == DRAINING
    assert table.drain(tracker)
    assert tracker.state == EMPTY


class Attached:
    """Something of the data path's that can be watched going."""


def test_an_abandoned_table_leaves_nothing_behind() -> None:
    table = make_table(policy="least-connections")
    leases = []
    watched = []
    for tracker in fill(table, 5):
        tracker.attachment = Attached()
        watched.append(weakref.ref(tracker.attachment))
        table.reserve(tracker)
        leases.append((tracker, tracker.generation))
        table.drain(tracker)
    del tracker
    assert table.used == 5
    with pytest.raises(AssertionError, match="in use"):
        table.dispose(1)
    table.abandon()
    assert [table.dispose(count) for count in (3, 60, 1)] == [True, True, False]
    assert [one() for one in watched] == [None] * 5, "kept alive, and not only by a cycle"
    assert [table.release(tracker, generation, 0.0) for tracker, generation in leases] == [LATE] * 5
    assert all(tracker.state == EMPTY and tracker.attachment is None for tracker, _ in leases)
    with pytest.raises(AssertionError, match="abandoned"):
        add(table, 9)
    gc.collect()
    before = sum(isinstance(one, PodTracker) for one in gc.get_objects())
    del table, leases
    gc.collect()
    assert sum(isinstance(one, PodTracker) for one in gc.get_objects()) <= before - 5


# At zero.


@pytest.mark.parametrize("slow_start_s", [0.0, 30.0])
@pytest.mark.parametrize("max_scale", [0, 1_000])
@pytest.mark.parametrize("policy", list(BUILT_IN))
def test_a_table_at_zero_gives_all_of_its_memory_back(policy: str, max_scale: int, slow_start_s: float) -> None:
    """What it takes then is what it took before its first pod, whatever it carried in between."""

    def made() -> TrackerTable:
        table = make_table(policy=policy, max_scale=max_scale)
        table.set_slow_start(slow_start_s)
        return table

    def lived() -> TrackerTable:
        table = made()
        pods = [add(table, number, limit=UNLIMITED) for number in range(200)]
        for number in range(3_000):
            tracker = table.pick(number + 1 if table.policy.wants_key else 0, 1.0)
            assert tracker is not None
            table.reserve(tracker)
            if number % 3:
                table.release(tracker, tracker.generation, 0.01)
        for tracker in pods:
            table.free(tracker)
        return table

    def size(make: Callable[[], TrackerTable]) -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        table = make()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
        assert table.used == 0
        return taken

    def dropped() -> TrackerTable:
        table = lived()
        assert table.drop_slots() and not table.drop_slots()
        table.check_invariants()
        return table

    gc.collect()
    gc.freeze()  # a collection looks at nothing that the tests before have left
    tracemalloc.start()
    try:
        size(dropped)  # what is made once in a process, which has all of its lines run
        fresh, empty, given_back = size(made), size(lived), size(dropped)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert empty > fresh + 10_000
    assert given_back < fresh + 500, f"{fresh} bytes before, {empty} at zero, {given_back} given back"


def test_a_table_that_gave_its_slots_back_goes_on_from_its_generation() -> None:
    table = make_table(max_scale=10)
    tracker = add(table, 1)
    table.reserve(tracker)
    generation = tracker.generation
    table.free(tracker)
    assert table.drop_slots()
    assert (table.capacity_slots, table.length, table.used) == (0, 0, 0)
    again = add(table, 1)
    assert again is not tracker and again.generation > generation
    assert table.capacity_slots == 20
    assert table.release(tracker, generation, 0.0) == LATE
    assert table.in_flight == 0
    table.check_invariants()
    assert table.pick(0, 0.0) is again


def test_slots_are_not_given_back_while_a_pod_holds_one_or_where_the_mark_is_kept_for_good() -> None:
    table = make_table()
    assert not table.drop_slots(), "none are made yet"
    tracker = add(table, 1)
    table.reserve(tracker)
    table.drain(tracker)
    assert not table.drop_slots(), "it drains"
    table.free(tracker)
    table.set_threshold(1.0)
    assert not table.drop_slots()
    table.set_threshold(0.5)
    assert table.drop_slots()


# Programmers' mistakes.


def test_mistakes_are_refused_before_anything_changes() -> None:
    table = make_table()
    tracker = add(table, 1)
    with pytest.raises(AssertionError, match="released twice"):
        table.release(tracker, tracker.generation, 0.0)
    with pytest.raises(AssertionError, match="no state"):
        table.set_state(tracker, DRAINING)
    with pytest.raises(AssertionError, match="a limit is"):
        table.set_limit(tracker, -1)
    for limit, state in ((-1, READY), (UNLIMITED + 1, READY), (1, EMPTY), (1, DRAINING), (1, 99)):
        with pytest.raises(AssertionError, match=r"a limit is|no state"):
            table.add("new", "10.0.0.2:8012", limit, state)
    assert table.used == 1
    table.check_invariants()
    table.free(tracker)
    with pytest.raises(AssertionError, match="freed twice"):
        table.free(tracker)
    with pytest.raises(AssertionError, match="empty slot"):
        table.reserve(tracker)
    table.check_invariants()


def test_check_invariants_finds_a_ledger_that_was_tampered_with() -> None:
    table = make_table()
    tracker = add(table, 1)
    tracker.in_flight = 1
    with pytest.raises(AssertionError, match="1 requests are in flight, the table counts 0"):
        table.check_invariants()
    tracker.in_flight = 0
    tracker.has_room = False
    with pytest.raises(AssertionError, match="has_room is False"):
        table.check_invariants()


# What there is to see.


def test_repr() -> None:
    table = make_table(max_scale=4)
    pods = fill(table, 4)
    table.reserve(pods[0])
    table.free(pods[1])
    expected = (
        "<TrackerTable round-robin: 3 used, 5 free, high-water 4 (1 holes, 0 trailing), 3 with room, 1 in flight>"
    )
    assert repr(table) == expected
    assert repr(pods[0]) == "<PodTracker 0.1 pod-0 at 10.0.0.0:8012 ready, 1 of 2 in flight>"
    assert repr(pods[1]) == "<PodTracker 1 empty>"


# Policies plugged in.


def test_hooks_are_called_once_each_and_in_order() -> None:
    policy = HearingPolicy(Rng(1))
    table = TrackerTable(policy)
    tracker = add(table, 1)
    table.reserve(tracker)
    table.drain(tracker)
    add(table, 1)
    table.drain(tracker)
    table.release(tracker, tracker.generation, 0.25)
    table.drain(tracker)
    assert [event[0] for event in policy.heard] == ["add", "reserve", "remove", "add", "remove", "release"]
    assert policy.heard[-1] == ("release", "pod-1", 0.25)


def test_policy_changes_live() -> None:
    table = make_table(max_scale=4)
    pods = fill(table, 4)
    table.reserve(pods[0])
    table.drain(pods[0])
    for name in ("first-available", "least-connections", "random", "choice-of-2", "round-robin"):
        table.set_policy(create(name, Rng(1)))
        table.check_invariants()
        assert table.pick(0, 0.0) in pods[1:]
    scanning = ScanningPolicy(Rng(1))
    table.set_policy(scanning)
    assert table.pick(0, 0.0) is pods[1]
