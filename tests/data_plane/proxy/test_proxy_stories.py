"""The life of one request, turn by turn."""

from __future__ import annotations

import pytest

from activator.config.specs import QueueSpec, RuleSpec, TimeoutsSpec
from activator.data_plane.headers.affinity import Affinity
from activator.runtime.reasons import Reason
from lb.hashing import hash_bytes
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.tracker import READY, PodTracker
from tests.data_plane.proxy.proxy_fakes import (
    Client,
    Pool,
    World,
    at_pod,
    check_back_pressure,
    holder_of,
    request_head,
    response_head,
)
from tests.lb.lb_oracles import HearingPolicy, order_of


def test_the_warm_path_has_the_request_on_its_way_at_once() -> None:
    world = World()
    pool = world.pod()
    exchange, client = world.begin()
    assert pool.pods[0].head is exchange.head
    assert exchange.arrived_s == exchange.granted_s == exchange.connected_s
    world.answer(exchange)
    assert (client.status, client.body, client.ended) == (200, b"hello", True)
    world.check_idle()


def test_a_held_request_goes_out_when_a_pod_comes() -> None:
    world = World()
    exchange, client = world.begin()
    assert world.heard.events[-1] == ("queue_formed",)
    world.clock.pass_time(100.0)
    assert client.silent()
    pool = world.pod()
    assert pool.pods[0].head is exchange.head
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_an_unknown_host_is_told_so() -> None:
    world = World()
    _, client = world.begin(request_head(host="other.test"))
    assert (client.status, client.reason) == (404, "no_route")
    assert client.body == b"no route matches the request: other.test\n"
    world.check_idle()


def test_a_full_line_is_refused_with_retry_after() -> None:
    world = World(queue=QueueSpec(depth=1))
    first, _ = world.begin()
    _, client = world.begin()
    assert (client.status, client.reason, client.retry_after) == (503, "queue_full", "1")
    first.client_gone()
    world.check_idle()


def test_the_queue_timeout_is_a_504() -> None:
    world = World(queue=QueueSpec(timeout_s=5.0))
    _, client = world.begin()
    world.clock.pass_time(4.9)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.reason) == (504, "queue_timeout")
    world.check_idle()


def test_a_deadline_of_the_requests_own_is_the_same_504() -> None:
    world = World(queue=QueueSpec(timeout_s=60.0, request_timeout=True))
    _, client = world.begin(request_head(Activator_Deadline="1.5"))
    world.clock.pass_time(1.4)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.reason) == (504, "queue_timeout")
    world.check_idle()


def test_a_deadline_that_is_none_is_told_in_one_line() -> None:
    world = World(queue=QueueSpec(request_timeout=True))
    _, client = world.begin(request_head(Activator_Queue_Timeout="1 minute"))
    assert (client.status, client.reason) == (400, "bad_request")
    assert client.body.decode() == (
        "the request is malformed: Activator-Queue-Timeout: found '1 minute', "
        "expected seconds or a duration such as 300ms, 5s or 2m\n"
    )
    world.check_idle()


def test_a_thousand_that_run_out_of_time_together_are_told_in_slices() -> None:
    world = World(queue=QueueSpec(timeout_s=5.0))
    clients = [world.begin()[1] for _ in range(1_000)]
    world.clock.pass_time(5.1)
    assert 0 < sum(client.ended for client in clients) <= 256
    assert world.throttler.queue.waiters.length == 0
    clients[-1].has_left = True
    while world.clock.turn():
        pass
    assert {(client.status, client.reason, client.ended) for client in clients} == {(504, "queue_timeout", True)}
    assert world.throttler.counters.failed_totals[Reason.QUEUE_TIMEOUT] == 1_000
    world.check_idle()


def test_an_exempted_request_is_on_its_way_at_once_when_all_is_full() -> None:
    world = World(queue=QueueSpec(depth=0, rules=(RuleSpec("/", ("HEAD",), exempt=True),)))
    pool = world.pod()
    working, _ = world.begin()
    assert world.begin()[1].reason == "queue_full"
    health, client = world.begin(request_head("HEAD"))
    assert pool.pods[1].head is health.head
    world.answer(health)
    assert client.status == 200
    world.answer(working)
    world.check_idle()


def test_a_refused_connection_goes_to_another_pod_and_keeps_its_place() -> None:
    world = World()
    bad = world.pod("p1", connects=False)
    first, first_client = world.begin()
    _, second_client = world.begin()
    at_pod(first).connect_failed(Reason.CONNECT_FAILED)
    assert bad.pods == []
    assert first.place.is_queued
    good = world.pod("p2")
    assert good.pods[0].head is first.head
    world.answer(first)
    assert first_client.status == 200
    assert ("refused", "p1", "True") in world.heard.events
    assert world.heard.reasons == ["connect_failed"]
    world.answer(world.throttler_holder())
    assert second_client.status == 200
    world.check_idle()


def test_after_three_pods_that_refuse_the_request_is_a_502() -> None:
    world = World()
    for number in (1, 2, 3, 4):
        world.pod(f"p{number}", connects=False)
    exchange, client = world.begin()
    for _ in range(3):
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    assert (client.status, client.reason) == (502, "connect_failed")
    world.check_idle()


def test_a_kept_connection_that_closes_untouched_is_tried_afresh_once_per_attempt() -> None:
    world = World()
    pool = world.pod()
    exchange, client = world.begin()
    pool.connects = False
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert pool.asked == [(at_pod(exchange), True)]
    pool.connect(at_pod(exchange))
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_what_is_not_idempotent_is_not_sent_twice(method: str) -> None:
    world = World()
    world.pod()
    exchange, client = world.begin(request_head(method))
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert (client.status, client.reason) == (502, "pod_closed")
    world.check_idle()


def test_a_failure_after_the_answer_began_cuts_it_short() -> None:
    world = World()
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(200, 10))
    at_pod(exchange).response_body(b"half")
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert client.is_aborted()
    assert client.body == b"half"
    world.check_idle()


def test_a_client_that_leaves_frees_its_place_or_slot_at_once() -> None:
    world = World()
    pool = world.pod()
    working, _ = world.begin()
    waiting, _ = world.begin()
    waiting.client_gone()
    assert world.throttler.queue.waiters.length == 0
    working.client_gone()
    assert pool.pods[0].aborted
    assert world.throttler.counters.client_gone_total == 2
    world.check_idle()


def test_a_client_that_leaves_while_connecting_frees_its_slot() -> None:
    world = World()
    pool = world.pod(connects=False)
    exchange, _ = world.begin()
    exchange.client_gone()
    assert pool.asked == []
    world.check_idle()


def test_the_body_is_held_until_there_is_a_pod_and_reading_pauses_at_the_limit() -> None:
    world = World(held_body_bytes=10)
    exchange, client = world.begin(request_head("POST", length=30))
    exchange.request_body(b"12345")
    assert not client.is_paused()
    exchange.request_body(b"6789012")
    assert client.is_paused()
    assert world.held.held_bytes == 12
    pool = world.pod()
    assert not client.is_paused()
    assert pool.pods[0].body == b"123456789012"
    exchange.request_body(b"x" * 18)
    exchange.request_end([])
    assert pool.pods[0].ended
    world.answer(exchange)
    assert len(pool.pods[0].body) == 30
    world.check_idle()


def test_the_process_holds_only_so_many_bytes() -> None:
    world = World(held_bytes=20, held_body_bytes=100)
    first, _ = world.begin(request_head("POST", length=30))
    first.request_body(b"x" * 15)
    second, client = world.begin(request_head("POST", length=30))
    second.request_body(b"x" * 15)
    assert (client.status, client.reason) == (503, "held_bytes_full")
    first.client_gone()
    world.check_idle()


def test_a_revision_holds_only_so_many_bytes() -> None:
    world = World(held_bytes=1000, held_body_bytes=100, queue=QueueSpec(bytes=20))
    first, _ = world.begin(request_head("POST", length=30))
    first.request_body(b"x" * 15)
    second, client = world.begin(request_head("POST", length=30))
    second.request_body(b"x" * 15)
    assert (client.status, client.reason, client.retry_after) == (503, "held_bytes_full", "1")
    assert client.body.endswith(b": for this revision\n")
    pool = world.pod()
    assert pool.pods[0].body == b"x" * 15
    assert world.throttler.held.held_bytes == 0
    first.client_gone()
    world.check_idle()


def test_a_body_that_came_before_its_revision_was_known_counts_too() -> None:
    world = World(held_bytes=1000, held_body_bytes=100, queue=QueueSpec(bytes=20))
    early, client = Client(), Client()
    ahead = [world.proxy.open(request_head("POST", length=30), one) for one in (early, client)]
    for exchange in ahead:
        exchange.request_body(b"x" * 15)
    assert (world.held.held_bytes, world.throttler.held.held_bytes) == (30, 0)
    for exchange in ahead:
        exchange.begin()
    assert early.silent()
    assert client.reason == "held_bytes_full"
    assert (world.held.held_bytes, world.throttler.held.held_bytes) == (15, 15)
    ahead[0].client_gone()
    world.check_idle()


def test_back_pressure_goes_both_ways() -> None:
    world = World()
    pool = world.pod()
    exchange, client = world.begin(request_head("POST", length=30))
    check_back_pressure(exchange, client, pool.pods[0])
    exchange.client_gone()
    world.check_idle()


def test_an_early_answer_ends_the_exchange_and_the_pod_hears_no_more() -> None:
    world = World()
    pool = world.pod()
    exchange, client = world.begin(request_head("POST", length=30))
    exchange.request_body(b"some")
    world.answer(exchange, 413)
    assert client.status == 413
    assert pool.pods[0].aborted
    exchange.request_body(b"more")
    exchange.request_end([])
    world.check_idle()


@pytest.mark.parametrize(
    ("timeouts", "after_s", "reason"),
    [
        (TimeoutsSpec(total_s=3.0), 3.0, "total_timeout"),
        (TimeoutsSpec(first_byte_s=2.0), 2.0, "first_byte_timeout"),
        (TimeoutsSpec(idle_s=1.0), 1.0, "idle_timeout"),
    ],
)
def test_each_time_limit_has_a_reason_of_its_own(timeouts: TimeoutsSpec, after_s: float, reason: str) -> None:
    world = World(timeouts=timeouts)
    pool = world.pod()
    _, client = world.begin()
    world.clock.pass_time(after_s - 0.1)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.reason) == (504, reason)
    assert pool.pods[0].aborted
    world.check_idle()


def test_a_response_that_keeps_moving_outlives_the_idle_limit_but_not_the_total() -> None:
    world = World(timeouts=TimeoutsSpec(idle_s=1.0, total_s=5.0, first_byte_s=1.0))
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(200, 1000))
    at_pod(exchange).response_flush()
    for _ in range(6):
        world.clock.pass_time(0.75)
        at_pod(exchange).response_body(b"x")
        at_pod(exchange).response_flush()
    assert not client.is_aborted()
    world.clock.pass_time(0.75)
    assert client.is_aborted(), "the total limit"
    world.check_idle()


def test_time_limits_begin_at_the_pod_not_in_line() -> None:
    world = World(timeouts=TimeoutsSpec(total_s=3.0))
    exchange, client = world.begin()
    world.clock.pass_time(60.0)
    world.pod()
    world.clock.pass_time(2.5)
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_bad_body_is_answered_if_nothing_has_been_said_yet() -> None:
    world = World()
    pool = world.pod()
    exchange, client = world.begin(request_head("POST", chunked=True))
    exchange.request_failed(Reason.BAD_REQUEST, "a bad chunk size")
    assert (client.status, client.reason) == (400, "bad_request")
    assert pool.pods[0].aborted
    world.check_idle()


def test_a_head_request_gets_a_refusal_without_a_body() -> None:
    world = World()
    _, client = world.begin(request_head("HEAD", host="nobody.test"))
    assert client.status == 404
    assert client.body == b""
    assert client.ended


def test_interim_answers_pass() -> None:
    world = World()
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_interim(response_head(103, 0))
    world.answer(exchange)
    assert client.interim == [103]
    world.check_idle()


def test_a_revoked_lease_ends_the_request() -> None:
    world = World()
    pool = world.pod()
    _, client = world.begin()
    (lease,) = world.throttler.leases
    world.throttler.revoke(lease, Reason.POD_REMOVED, "")
    assert (client.status, client.reason) == (502, "pod_removed")
    assert pool.pods[0].aborted
    world.check_idle()


def test_whatever_comes_after_the_end_is_harmless() -> None:
    world = World()
    world.pod()
    exchange, client = world.begin()
    world.answer(exchange)
    at_pod(exchange).response_head(response_head())
    at_pod(exchange).response_body(b"x")
    at_pod(exchange).response_flush()
    at_pod(exchange).response_end([])
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    exchange.client_gone()
    exchange.client_blocked()
    exchange.client_drained()
    at_pod(exchange).pod_blocked()
    at_pod(exchange).pod_drained()
    exchange.fail(Reason.QUEUE_TIMEOUT, "")
    exchange.expired(world.clock.now())
    assert client.body == b"hello"
    world.check_idle()


def test_a_request_keeps_its_key_while_it_waits() -> None:
    """Each of two users, in line, is given the pod that is theirs, whichever comes free first."""
    world = World()
    world.table.set_policy(create("consistent-hash", Rng(1)))
    world.throttler.affinity = Affinity("header:X-User")
    users = {}
    for user in ("ann", "bob", "eve"):
        head = request_head()
        head.headers = head.headers.with_line(b"X-User", user.encode())
        users[user], _ = world.begin(head)
    assert {exchange.place.pick_key for exchange in users.values()} == {hash_bytes(user.encode()) for user in users}
    world.throttler.queue.failure = "not yet"  # all pods come before anybody is served
    trackers = []
    for number in range(1, 9):
        tracker = world.table.add(f"p{number}", f"10.0.0.{number}:80", 5, READY)
        assert tracker is not None
        tracker.attachment = Pool()
        trackers.append(tracker)
    world.throttler.recover()
    for user, exchange in users.items():
        own = order_of(hash_bytes(user.encode()), trackers)[0]
        assert [lease.address for lease in world.throttler.leases if holder_of(lease) is exchange] == [own.address]
        world.answer(exchange)
    world.check_idle()


def test_a_client_is_known_by_its_address() -> None:
    world = World()
    world.throttler.affinity = Affinity("client_ip")
    exchange, client = world.begin()
    assert exchange.place.pick_key == hash_bytes(client.client_ip().encode()) != 0
    world.pod()
    world.answer(exchange)
    world.check_idle()


def test_what_the_policy_is_told_of_how_long_a_request_took() -> None:
    """An answer's time, a failure's as a negative one, and nothing where it would say nothing of the pod."""
    world = World()
    policy = HearingPolicy(Rng(1))
    world.table.set_policy(policy)
    pool = world.pod(limit=5)
    exchange, _ = world.begin()
    world.clock.pass_time(0.25)
    world.answer(exchange)
    exchange, _ = world.begin()
    world.clock.pass_time(0.5)
    exchange.client_gone()
    pool.connects = False
    exchange, _ = world.begin()
    at_pod(exchange).connect_failed(Reason.CONNECT_TIMEOUT)
    exchange.client_gone()
    heard = [latency_s for what, _, latency_s in policy.heard if what == "release"]
    assert heard == [pytest.approx(0.25), pytest.approx(-0.5), 0.0]


class Raising(Policy):
    """A policy of somebody's own, with a defect."""

    name = "raising"

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        raise ZeroDivisionError("a defect")


def test_a_policy_that_raises_ends_the_one_request_it_was_asked_for() -> None:
    world = World()
    world.pod()
    good = world.table.policy
    world.table.set_policy(Raising(Rng(1)))
    _, client = world.begin()
    assert (client.status, client.reason, client.ended) == (500, "internal", True)
    assert [type(error) for error in world.errors] == [ZeroDivisionError]
    world.errors.clear()
    world.table.set_policy(good)
    exchange, client = world.begin()
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_slot_is_in_use_from_the_grant_to_the_end() -> None:
    world = World()
    pool = world.pod(connects=False)
    exchange, _ = world.begin()
    (lease,) = world.throttler.leases
    first = at_pod(exchange)
    assert first.is_served(lease), "it waits for a connection"
    pool.connect(first)
    assert first.is_served(lease)
    world.pod("p2")
    other, _ = world.begin()
    assert other.last_lease is not None
    assert not first.is_served(other.last_lease) and not at_pod(other).is_served(lease), "each has its own"
    world.answer(exchange)
    assert not first.is_served(lease)
    world.answer(other)
    world.check_idle()


def test_a_slow_client_is_no_silence_of_the_pod() -> None:
    """A reader of 99 KB/s was cut off at `idle: 2s`: while it took what was there, its pod was not read."""
    world = World(timeouts=TimeoutsSpec(idle_s=2.0))
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=1000))
    at_pod(exchange).response_body(b"x" * 10)
    at_pod(exchange).response_flush()
    for _ in range(5):
        exchange.client_blocked()
        world.clock.pass_time(10.0)
        assert not client.is_aborted()
        exchange.client_drained()
        world.clock.pass_time(1.5)
        at_pod(exchange).response_body(b"x" * 10)
        at_pod(exchange).response_flush()
    world.clock.pass_time(1.9)
    assert not client.is_aborted()
    world.clock.pass_time(0.3)
    assert client.is_aborted() and exchange.reason is Reason.IDLE_TIMEOUT, "now it is the pod that is silent"
    world.check_idle()


def test_a_client_that_takes_nothing_is_bounded_by_the_total_time() -> None:
    world = World(timeouts=TimeoutsSpec(idle_s=2.0, total_s=20.0))
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=1000))
    exchange.client_blocked()
    world.clock.pass_time(19.0)
    assert not client.is_aborted()
    world.clock.pass_time(1.2)
    assert client.is_aborted() and exchange.reason is Reason.TOTAL_TIMEOUT
    world.check_idle()
