"""The disciplines beside the plainest form of each, step by step; and what each promises."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from activator.config.model.queueing import DISCIPLINES
from activator.config.specs import DisciplineSpec, QueueSpec
from activator.data_plane.throttle.disciplines import (
    FairQueue,
    FifoQueue,
    PriorityQueue,
    make_queue,
)
from activator.data_plane.throttle.waiters import Heap, Waiter, WaiterQueue
from bench.queue_models import FairModel, FifoModel, PriorityFairModel, PriorityModel, QueueModel
from tests.conftest import DEEP

WEIGHTS = {b"a": 3, b"b": 2}
CHARGE_MAX = 5
KEYS_MAX = 4


def levels_of_tenants(weights: dict[bytes, int], charge_max: int = 1, keys_max: int = 1024) -> PriorityQueue:
    return PriorityQueue(8, 10.0, partial(FairQueue, weights, charge_max, keys_max))


def both(discipline: str) -> tuple[WaiterQueue, QueueModel]:
    if discipline == "fifo":
        return FifoQueue(), FifoModel()
    if discipline == "priority":
        return PriorityQueue(8, 10.0, FifoQueue), PriorityModel(10.0)
    if discipline == "priority-fair":
        return levels_of_tenants(WEIGHTS, CHARGE_MAX, KEYS_MAX), PriorityFairModel(10.0, WEIGHTS, CHARGE_MAX, KEYS_MAX)
    return FairQueue(WEIGHTS, CHARGE_MAX, KEYS_MAX), FairModel(WEIGHTS, CHARGE_MAX, KEYS_MAX)


class Queues(RuleBasedStateMachine):
    @initialize(discipline=st.sampled_from(DISCIPLINES))
    def begin(self, discipline: str) -> None:
        self.queue, self.model = both(discipline)
        self.arrivals = 0
        self.now_s = 0.0
        self.taken: list[Waiter] = []
        self.gone: list[Waiter] = []

    @rule(
        level=st.integers(0, 7),
        share=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b""]),
        charge=st.integers(1, CHARGE_MAX),
        later_s=st.sampled_from([0.0, 1.0, 10.0, 33.0]),
    )
    def arrive(self, level: int, share: bytes, charge: int, later_s: float) -> None:
        self.now_s += later_s
        self.arrivals += 1
        waiter = Waiter()
        waiter.arrival, waiter.asked_s = self.arrivals, self.now_s
        waiter.level, waiter.share, waiter.charge = level, share, charge
        self.queue.join(waiter)
        self.model.join(waiter)

    @rule()
    def take_the_first(self) -> None:
        waiter = self.queue.first()
        assert waiter is self.model.first()
        if waiter is not None:
            self.queue.take(waiter)
            self.model.take(waiter)
            assert not waiter.is_queued
            self.taken.append(waiter)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.model.waiting))
        self.queue.leave(waiter)
        self.model.leave(waiter)
        assert not waiter.is_queued
        self.gone.append(waiter)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        waiter = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.queue.rejoin(waiter)
        self.model.rejoin(waiter)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def register_again(self, data: st.DataObject) -> None:
        waiter = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        self.queue.insert(waiter)
        self.model.insert(waiter)

    @invariant()
    def they_agree(self) -> None:
        assert self.queue.length == len(self.model.waiting)
        assert self.queue.first() is self.model.first()
        assert self.queue.first() is self.model.first(), "asking changes nothing"
        assert self.queue.by_arrival() == sorted(self.model.waiting, key=lambda waiter: waiter.arrival)
        assert all(waiter.is_queued for waiter in self.model.waiting)


Queues.TestCase.settings = settings(
    max_examples=3_000 if DEEP else 150, stateful_step_count=100 if DEEP else 50, deadline=None
)
TestQueues = Queues.TestCase


def waiter(arrival: int, asked_s: float = 0.0, level: int = 0, share: bytes = b"", charge: int = 1) -> Waiter:
    made = Waiter()
    made.arrival, made.asked_s, made.level, made.share, made.charge = arrival, asked_s, level, share, charge
    return made


def served(queue: WaiterQueue, count: int) -> list[Waiter]:
    """Take so many, one after the other."""
    found = []
    for _ in range(count):
        first = queue.first()
        assert first is not None
        queue.take(first)
        found.append(first)
    return found


def test_nobody_is_overtaken_by_who_arrives_later_than_the_bound() -> None:
    """The lowest level under a stream of the highest, one of which comes for each slot that is given."""
    ageing_s = 10.0
    queue = PriorityQueue(8, ageing_s, FifoQueue)
    lowest = waiter(1, 0.0, 0)
    queue.join(lowest)
    now_s, arrival = 0.0, 1
    while True:
        now_s += 1.0
        arrival += 1
        queue.join(waiter(arrival, now_s, 7))
        (first,) = served(queue, 1)
        if first is lowest:
            break
        assert first.asked_s <= 7 * ageing_s
    assert 7 * ageing_s <= now_s <= 7 * ageing_s + 1.0


@pytest.mark.parametrize(("level", "ahead"), [(0, 6), (3, 3), (7, 0)])
def test_ahead_counts_only_those_who_are_certain_to_go_first(level: int, ahead: int) -> None:
    queue = PriorityQueue(8, 10.0, FifoQueue)
    for arrival in range(3):
        queue.join(waiter(arrival + 1, 0.0, 0))
        queue.join(waiter(arrival + 4, 0.0, 5))
    assert queue.ahead_of(waiter(7, 0.0, level)) == ahead


def test_a_share_follows_the_weight_however_many_wait() -> None:
    queue = FairQueue({b"a": 3}, 1, 1024)
    for number in range(1, 4_001):
        queue.join(waiter(number, share=b"a" if number % 10 == 0 else b"flood"))
    counts = {b"a": 0, b"flood": 0}
    for one in served(queue, 400):
        counts[one.share] += 1
    assert counts == {b"a": 300, b"flood": 100}


def test_a_charge_makes_the_next_wait_longer() -> None:
    queue = FairQueue({}, 5, 1024)
    for number in range(1, 201):
        queue.join(waiter(number, share=b"heavy", charge=5))
        queue.join(waiter(number + 200, share=b"light"))
    counts = {b"heavy": 0, b"light": 0}
    for one in served(queue, 120):
        counts[one.share] += 1
    assert counts == {b"heavy": 20, b"light": 100}


def test_tenants_share_a_level_and_a_higher_level_goes_first() -> None:
    queue = levels_of_tenants({b"paying": 3})
    for number in range(1, 41):
        queue.join(waiter(number, level=2, share=b"paying" if number % 2 else b"flood"))
    for number in range(41, 45):
        queue.join(waiter(number, 5.0, level=5, share=b"flood" if number < 44 else b"paying"))
    urgent, usual = served(queue, 4), served(queue, 8)
    assert [one.arrival for one in urgent] == [41, 44, 42, 43], "in turns, although flood came first"
    assert [one.share for one in usual].count(b"paying") == 6
    assert queue.length == 32
    assert [queue.ahead_of(waiter(45, 5.0, level, b"new")) for level in (0, 2, 3)] == [32, 0, 0]


def test_a_lower_level_is_served_after_its_ageing_however_many_tenants_come_above_it() -> None:
    queue = levels_of_tenants({})
    lowest = waiter(1, 0.0, 0, b"a")
    queue.join(lowest)
    now_s = 0.0
    for number in range(2, 200):
        now_s += 1.0
        queue.join(waiter(number, now_s, 7, b"tenant-%d" % number))
        (first,) = served(queue, 1)
        if first is lowest:
            break
    assert 7 * 10.0 <= now_s <= 7 * 10.0 + 1.0


def test_the_keys_are_bounded_and_nobody_is_lost() -> None:
    queue = FairQueue({b"paid": 2}, 1, 8)
    for number in range(1, 101):
        queue.join(waiter(number, share=b"key-%d" % number))
    queue.join(waiter(101, share=b"paid"))
    assert queue.keys == 9, "seven, the weighted one, and the one that all others share"
    assert sorted(one.arrival for one in served(queue, 101)) == list(range(1, 102))
    assert (queue.keys, queue.length) == (0, 0)


@pytest.mark.parametrize("discipline", ["fair", "priority-fair"])
def test_a_changed_weight_of_a_user_counts_from_the_next_grant_on(discipline: str) -> None:
    queue = make_queue(QueueSpec(discipline=DisciplineSpec(discipline, weights={"b": 1})), {b"a": 3, b"b": 9})
    for number in range(1, 401):
        queue.join(waiter(number, share=b"a" if number % 2 else b"b"))
    assert [one.share for one in served(queue, 8)] == [b"a", b"a", b"a", b"b"] * 2, "that of the revision precedes"
    queue.weigh_users({b"a": 2})
    assert [one.share for one in served(queue, 6)] == [b"a", b"a", b"b"] * 2
    queue.weigh_users({b"a": 100})
    assert [one.share for one in served(queue, 51)] == [b"a"] * 51
    queue.weigh_users({})
    assert [one.share for one in served(queue, 6)] == [b"a", b"b"] * 3, "the rest of a long turn is dropped"


def test_a_share_in_a_header_has_no_weight_of_a_user() -> None:
    discipline = DisciplineSpec("fair", key_header="X-Tenant")
    queue = make_queue(QueueSpec(discipline=discipline), {b"a": 3})
    queue.weigh_users({b"a": 5})
    for number in range(1, 41):
        queue.join(waiter(number, share=b"a" if number % 2 else b"b"))
    assert [one.share for one in served(queue, 4)] == [b"a", b"b"] * 2


def test_users_with_a_weight_have_a_place_and_leave_none_behind() -> None:
    queue = FairQueue({}, 1, 3, None, {b"paid": 2})
    for number, share in enumerate([b"x", b"y", b"z", b"more", b"paid"], 1):
        queue.join(waiter(number, share=share))
    assert queue.keys == 5
    queue.weigh_users({b"x": 2, b"new": 2})  # keys that wait keep their places
    queue.join(waiter(6, share=b"new"))
    assert queue.keys == 6
    assert len(served(queue, 6)) == 6
    for number, share in enumerate([b"a", b"b", b"c", b"d", b"x"], 10):
        queue.join(waiter(number, share=share))
    assert queue.keys == 5, "three, the weighted one, and the shared one"


def test_a_crowd_that_comes_back_walks_past_nobody() -> None:
    """In order of arrival, or against it: each finds its place at an end of those who came back before."""
    queue = FifoQueue()
    crowd = [waiter(number) for number in range(1, 1_001)]
    for one in crowd:
        queue.join(one)
    assert served(queue, 1_000) == crowd
    for one in crowd[::2]:
        queue.rejoin(one)
    for one in reversed(crowd[1::2]):
        queue.rejoin(one)
    assert served(queue, 1_000) == crowd


@given(st.lists(st.tuples(st.sampled_from([False, False, True]), st.integers(0, 1 << 30)), min_size=50, max_size=400))
def test_many_that_come_back_in_any_order_stand_in_order_of_arrival(steps: list[tuple[bool, int]]) -> None:
    heap = Heap()
    waiting: list[Waiter] = []
    for leaves, number in steps:
        if leaves and waiting:
            heap.remove(waiting.pop(number % len(waiting)))
        elif all(one.arrival != number for one in waiting):
            waiting.append(waiter(number))
            heap.add(waiting[-1])
        assert heap.first() is min(waiting, key=lambda one: one.arrival, default=None)
        assert all(heap.waiters[one.heap_index] is one and one.is_queued for one in waiting)
    in_order = []
    while (first := heap.first()) is not None:
        heap.remove(first)
        in_order.append(first)
    assert in_order == sorted(waiting, key=lambda one: one.arrival)
    assert not any(one.is_queued for one in in_order)


def test_a_retried_request_keeps_the_next_turn_when_another_one_of_its_tenant_returns() -> None:
    queue = FairQueue({}, 1, 1024)
    for number, share in enumerate([b"a", b"b", b"b"], 1):
        queue.join(waiter(number, share=share))
    other = waiter(4, share=b"c")
    queue.join(other)
    queue.leave(other)
    retried = waiter(6, share=b"c")  # was served, and its pod has failed
    queue.rejoin(retried)
    queue.insert(other)
    assert [one.share for one in served(queue, 3)] == [b"c", b"a", b"b"]
