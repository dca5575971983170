"""Controlled delay: when waiting requests are rejected, and what clients with little patience get from it."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from activator.config.model.queueing import DISCIPLINES
from activator.config.specs import DisciplineSpec, QueueSpec
from activator.data_plane.throttle.leases import Lease
from activator.runtime.reasons import Reason
from lb.tracker import NOT_READY, READY
from tests.conftest import DEEP
from tests.data_plane.throttle.test_throttle_bounds import Asking, Room
from tests.data_plane.throttle.throttle_fakes import Request

TARGET_S = 1.0
INTERVAL_S = 5.0
CONTROLLED = QueueSpec(target_wait_s=TARGET_S, target_interval_s=INTERVAL_S)


def room_with_a_pod(limit: int = 1) -> Room:
    room = Room(queue=CONTROLLED)
    room.pod(limit=limit)
    return room


def test_nothing_is_rejected_before_the_queue_has_stood_for_the_interval() -> None:
    room = room_with_a_pod()
    current = room.ask()
    line = [room.ask() for _ in range(5)]
    room.clock.pass_time(INTERVAL_S - 0.1)
    current.release()
    assert [one.ends for one in line] == [["granted"], [], [], [], []]


def test_then_a_slot_goes_to_the_first_that_has_waited_for_less_than_the_target() -> None:
    room = room_with_a_pod()
    current = room.ask()
    late = [room.ask() for _ in range(3)]
    room.clock.pass_time(INTERVAL_S)
    timely = [room.ask() for _ in range(2)]
    room.clock.pass_time(TARGET_S)
    current.release()
    assert [one.ends for one in late] == [["queue_overloaded"]] * 3
    assert [one.ends for one in timely] == [["granted"], []], "the target itself is not too late"


def test_the_last_one_is_served_whatever_it_has_waited() -> None:
    room = room_with_a_pod()
    current = room.ask()
    line = [room.ask() for _ in range(4)]
    room.clock.pass_time(60.0)
    current.release()
    assert [one.ends for one in line] == [["queue_overloaded"]] * 3 + [["granted"]]
    assert room.table.room == 0


def test_a_queue_that_was_empty_once_has_the_whole_interval_again() -> None:
    room = room_with_a_pod()
    current = room.ask()
    following = room.ask()
    room.clock.pass_time(INTERVAL_S)
    current.release()
    line = [room.ask() for _ in range(3)]
    room.clock.pass_time(INTERVAL_S - 0.1)
    following.release()
    assert [one.ends for one in line] == [["granted"], [], []]


def test_the_time_of_a_start_does_not_count() -> None:
    room = Room(queue=CONTROLLED)
    line = [room.ask() for _ in range(4)]
    room.clock.pass_time(100.0)
    assert room.table.add("p1", "10.0.0.1:80", 1, READY) is not None
    room.throttler.queue.pod_ready()
    room.throttler.pump()
    room.clock.pass_time(INTERVAL_S - 0.1)
    line[0].release()
    assert [one.ends for one in line] == [["granted"], ["granted"], [], []]
    room.clock.pass_time(0.1)
    line[1].release()
    assert [one.ends for one in line[2:]] == [["queue_overloaded"], ["granted"]], "now they are late"


def test_the_time_without_a_pod_does_not_count() -> None:
    """The only pod dies and comes back, and no request arrives meanwhile."""
    room = room_with_a_pod()
    line = [room.ask() for _ in range(4)]
    tracker = room.table.find_identity("p1")
    assert tracker is not None
    room.table.set_state(tracker, NOT_READY)
    line[0].release()
    room.clock.pass_time(60.0)
    room.table.set_state(tracker, READY)
    room.throttler.queue.pod_ready(True)
    room.throttler.pump()
    assert [one.ends for one in line[1:]] == [["granted"], [], []]
    room.throttler.queue.pod_ready(False)  # another one, which does not end the overload
    room.clock.pass_time(INTERVAL_S)
    line[1].release()
    assert [one.ends for one in line[2:]] == [["queue_overloaded"], ["granted"]]


def test_a_waiter_that_only_starts_the_revision_takes_no_slot_from_a_request() -> None:
    room = room_with_a_pod()
    current = room.ask()
    late, start_request = room.ask(), room.ask()
    room.throttler.queue.start_observers.start_request = start_request
    room.clock.pass_time(60.0)
    current.release()
    assert (late.ends, start_request.ends) == (["granted"], [])
    room.ask()
    room.clock.pass_time(60.0)
    late.release()
    assert start_request.ends == ["granted"], "and it is not rejected itself"


def test_a_request_that_is_retried_is_not_rejected() -> None:
    room = room_with_a_pod(limit=2)
    first, second = room.ask(), room.ask()
    line = [room.ask() for _ in range(2)]
    room.clock.pass_time(60.0)
    lease = first.lease
    assert lease is not None
    first.lease = None
    first.ends.clear()
    assert room.throttler.requeue(first, lease, Reason.CONNECT_FAILED) is None
    room.throttler.release(lease, 0.0, False)
    assert (first.ends, [one.ends for one in line]) == (["granted"], [[], []])
    second.release()
    assert [one.ends for one in line] == [["queue_overloaded"], ["granted"]]


def test_rejections_of_one_turn_are_bounded_and_no_slot_stays_free() -> None:
    room = room_with_a_pod()
    current = room.ask()
    line = [room.ask() for _ in range(3_000)]
    room.clock.pass_time(60.0)
    current.release()
    assert 0 < sum(one.ends == ["queue_overloaded"] for one in line) <= 256
    for _ in range(100):
        room.clock.turn()
    assert [one.ends for one in line] == [["queue_overloaded"]] * 2_999 + [["granted"]]


def test_a_reload_begins_it_anew_and_ends_it() -> None:
    room = Room()
    room.pod()
    current = room.ask()
    line = [room.ask() for _ in range(3)]
    room.clock.pass_time(60.0)
    spec = room.throttler.spec
    room.throttler.reconfigure(type(spec)(key=spec.key, queue=CONTROLLED))
    current.release()
    assert [one.ends for one in line] == [["granted"], [], []], "the interval begins with the reload"
    room.clock.pass_time(60.0)
    room.throttler.reconfigure(spec)
    line[0].release()
    assert line[1].ends == ["granted"]


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "end", "leave", "wait"]), st.integers(0, 1 << 16)), max_size=200),
    st.sampled_from(DISCIPLINES),
)
@settings(max_examples=2_000 if DEEP else 100, deadline=None)
def test_no_slot_is_free_while_a_request_waits(steps: list[tuple[str, int]], discipline: str) -> None:
    shown = DisciplineSpec(discipline, "x", 10.0, key_header="y") if discipline != "fifo" else DisciplineSpec()
    room = Room(queue=QueueSpec(target_wait_s=TARGET_S, target_interval_s=INTERVAL_S, discipline=shown))
    room.pod(limit=2)
    asked: list[Asking] = []
    for what, number in steps:
        holders = [one for one in asked if one.lease is not None]
        waiting = [one for one in asked if one.is_queued]
        if what == "ask":
            asked.append(room.ask(x=str(number % 8), y=str(number % 3)))
        elif what == "end" and holders:
            holders[number % len(holders)].release()
        elif what == "leave" and waiting:
            waiting[number % len(waiting)].leave()
        elif what == "wait":
            room.clock.pass_time(number / (1 << 14))
        assert room.table.room == 0 or not any(one.is_queued for one in asked)
        assert all(len(one.ends) == 1 or (not one.ends and one.is_queued) for one in asked)


class Impatient(Request):
    """A request that ends 0.1 s after it was granted a slot, whether its client still wants the response or not."""

    def __init__(self, room: Room, patience_s: float, ending: deque[Impatient]) -> None:
        super().__init__(room.throttler)
        self.room = room
        self.wanted_s = room.clock.now() + patience_s
        self.ends_s = 0.0
        self.ending = ending

    def granted(self, lease: Lease) -> None:
        super().granted(lease)
        self.ends_s = self.room.clock.now() + 0.1
        self.ending.append(self)


def timely_share(queue: QueueSpec, factor: int, patience_s: float = 1.0) -> float:
    """Return the share of the slots' time that went to requests which ended within the patience of their clients.

    An open loop at `factor` times the capacity of four slots, for 30 s.
    """
    room = Room(queue=queue)
    room.pod(limit=4)
    per_s, until_s = 40.0, room.clock.now() + 30.0
    ending: deque[Impatient] = deque()
    due_s = room.clock.now()
    timely = 0
    while True:
        now_s = min(due_s, ending[0].ends_s if ending else due_s)
        if now_s > until_s:
            return timely / (per_s * 30.0)
        room.clock.pass_time(now_s - room.clock.now())
        if ending and ending[0].ends_s <= now_s:
            one = ending.popleft()
            timely += now_s <= one.wanted_s
            one.release()
        else:
            Impatient(room, patience_s, ending).ask(now_s)
            due_s += 1.0 / (per_s * factor)


@pytest.mark.parametrize("factor", [3, 10, 30])
def test_clients_with_little_patience_are_served_in_time_at_any_overload(factor: int) -> None:
    controlled = QueueSpec(target_wait_s=0.5, target_interval_s=1.0)
    assert timely_share(controlled, factor) >= 0.95
    assert timely_share(QueueSpec(), factor) < 0.1, "without it, all are served too late"
