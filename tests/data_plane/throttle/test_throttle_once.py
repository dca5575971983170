"""Pods that take one request in their life: no way leads to a second one."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from msgspec.structs import replace

from activator.config.specs import RevisionSpec, RuleSpec
from activator.data_plane.ownership.lending import Lending, LentSlots
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.reasons import Reason
from lb.table import TrackerTable
from lb.tracker import FOREVER, NOT_READY, READY
from tests.data_plane.throttle.throttle_fakes import Heard, Request, asking, make
from tests.manual_clock import ManualClock


def once(policy: str = "round-robin", copies: int = 1) -> tuple[RevisionThrottler, TrackerTable, Heard, ManualClock]:
    throttler, table, heard, clock = make(policy)
    throttler.reconfigure(replace(throttler.spec, is_once=True, container_concurrency=1))
    for number in range(copies):
        table.add(f"p{number}", f"10.0.0.{number}:80", 1, READY)
    return throttler, table, heard, clock


def taken(heard: Heard) -> list[tuple[str, ...]]:
    return [event[1:] for event in heard.events if event[0] == "taken"]


def test_the_next_in_line_does_not_get_the_slot_that_comes_free() -> None:
    throttler, table, heard, clock = once()
    first, second = asking(throttler, clock.now()), asking(throttler, clock.now())
    assert (first.ends, second.ends) == (["granted"], [])
    first.release()
    assert second.ends == []
    assert taken(heard) == [("p0", "begun"), ("p0", "over")]
    clock.pass_time(100.0 * SUSPECT_S)
    throttler.pump()
    assert second.ends == []
    table.add("p1", "10.0.0.9:80", 1, READY)
    throttler.pump()
    assert second.ends == ["granted"]
    table.check_invariants()


def test_whatever_the_state_worker_says_of_it_in_between() -> None:
    throttler, table, _, clock = once()
    asking(throttler, clock.now()).release()
    tracker = table.find_identity("p0")
    assert tracker is not None
    for state in (NOT_READY, READY):
        table.set_state(tracker, state)
    table.set_limit(tracker, 1)
    assert asking(throttler, clock.now()).ends == []
    table.drain(tracker)
    again = table.add("p0", "10.0.0.0:80", 1, READY)
    assert again is not None and again.suspect_until_s == 0.0, "the next one in the slot is another copy"
    throttler.pump()
    assert throttler.queue.waiting() == 0
    table.check_invariants()


def test_what_fails_is_told_and_nothing_else_is_decided() -> None:
    """A strike or a quarantine would be about a copy that is gone in any case."""
    throttler, _, heard, clock = once()
    request = asking(throttler, clock.now())
    assert request.lease is not None
    throttler.pod_failed(request.lease, Reason.POD_CLOSED)
    request.release(False)
    assert taken(heard) == [("p0", "begun"), ("p0", "pod_closed"), ("p0", "over")]
    assert not [event for event in heard.events if event[0] == "refused"]


def test_a_rule_that_exempts_finds_no_second_use_of_it_either() -> None:
    throttler, table, _, clock = once()
    throttler.reconfigure(replace(throttler.spec, queue=replace(throttler.spec.queue, rules=(RuleSpec(exempt=True),))))
    asking(throttler, clock.now()).release()
    assert asking(throttler, clock.now()).ends == [], "it waits as all others do"
    table.check_invariants()


def test_a_slot_that_another_member_gives_back_unused_is_as_it_was() -> None:
    throttler, _, heard, clock = once()
    waiter = Waiter()
    waiter.is_remote = True
    lease = throttler.try_acquire(waiter, clock.now())
    assert lease is not None and taken(heard) == [], "it is for that member to say that it uses it"
    second = asking(throttler, clock.now())
    throttler.release_unused(lease)
    assert second.ends == ["granted"]
    assert taken(heard) == [("p0", "begun")]


def test_a_slot_that_a_member_has_from_a_former_owner_is_used_up() -> None:
    throttler, table, _, clock = once()
    tracker = table.find_identity("p0")
    assert tracker is not None
    lease = throttler.adopt_slot(Request(throttler), tracker)
    throttler.release(lease, 0.0, True)
    assert asking(throttler, clock.now()).ends == []
    assert tracker.suspect_until_s == FOREVER


POLICIES = ["round-robin", "random", "choice-of-2", "least-connections", "first-available", "consistent-hash"]


@given(st.sampled_from(POLICIES), st.lists(st.sampled_from(["ask", "end", "fail", "leave", "copy"]), max_size=60))
def test_no_copy_is_used_twice_whatever_happens(policy: str, steps: list[str]) -> None:
    throttler, table, heard, clock = once(policy, copies=2)
    requests: list[Request] = []
    copies = 2
    for step in steps:
        held = [one for one in requests if one.lease is not None]
        waiting = [one for one in requests if one.is_queued]
        if step == "ask":
            requests.append(asking(throttler, clock.now(), len(requests)))
        elif step == "copy" and copies < 20:
            table.add(f"p{copies}", f"10.0.0.{copies}:80", 1, READY)
            copies += 1
            throttler.pump()
        elif step == "leave" and waiting:
            waiting[0].leave()
        elif step in {"end", "fail"} and held:
            lease = held[0].lease
            assert lease is not None
            if step == "fail":
                throttler.pod_failed(lease, Reason.CONNECT_FAILED)
            held[0].release(step == "end")
        table.check_invariants()
    used = [event[0] for event in taken(heard) if event[1] == "begun"]
    assert len(used) == len(set(used)) <= copies
    assert len(used) == sum("granted" in one.ends for one in requests)


def test_others_are_as_they_were() -> None:
    throttler, _, heard, clock = make()
    throttler.table.add("p0", "10.0.0.0:80", 1, READY)
    first, second = asking(throttler, clock.now()), asking(throttler, clock.now())
    first.release()
    assert second.ends == ["granted"] and taken(heard) == []
    assert RevisionSpec(key="a/b").is_once is False


def test_a_member_may_not_keep_a_slot_that_it_has_used() -> None:
    """The owner lends slots that others use again and again; a copy that has served one request is none."""
    for is_once in (False, True):
        throttler, _, _, clock = once(copies=4)
        throttler.reconfigure(replace(throttler.spec, is_once=is_once))
        lending = Lending(throttler, LentSlots(1), lambda member, message: None, clock.now)
        assert lending._may_lend() is not is_once
