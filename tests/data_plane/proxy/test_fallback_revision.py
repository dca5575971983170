"""A second revision takes what the first one fails: what is handed on, what never is, and who counts it."""

from __future__ import annotations

from typing import Any

import pytest

from activator.config.specs import BuffersSpec, FallbackSpec, FiltersSpec, QueueSpec, RevisionSpec, TimeoutsSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.phases import CONNECTING, GATHERING, ROUTING, SCANNING, WAITING
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.retry_policy import FALLBACKS_MAX, may_fall_back
from activator.data_plane.tables.apply import load_of
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, Pool, World, at_pod, request_head, response_head
from tests.data_plane.throttle.throttle_fakes import Heard


class Two(World):
    """The world's revision, and one that takes what it fails."""

    def __init__(self, second: dict[str, Any] | None = None, while_starting: bool = False, **first: Any) -> None:
        super().__init__(
            filters=FiltersSpec(fallback=FallbackSpec(revision="ns/second", while_starting=while_starting)), **first
        )
        self.second_heard = Heard()
        self.second = self._revision(**{"key": "ns/second", **(second or {})})

    def _revision(self, **spec: Any) -> RevisionThrottler:
        made = RevisionSpec(**spec)
        table = TrackerTable(create("first-available", Rng(1)), 8, 0.5)
        throttler = RevisionThrottler(made, table, self.clock.now, self.clock.defer, self.second_heard, 256, self.held)
        self.filter(throttler)
        self.router.set(throttler)
        return throttler

    def second_pod(self, limit: int = 1, connects: bool = True) -> Pool:
        tracker = self.second.table.add("s1", "10.1.0.1:80", limit, READY)
        assert tracker is not None
        tracker.attachment = pool = Pool(connects)
        self.second.pump()
        return pool

    def check_idle(self) -> None:
        super().check_idle()
        assert self.second.table.in_flight == 0 and not self.second.leases and self.second.queue.waiters.length == 0
        assert self.second.held.held_bytes == 0 and self.second.gathering == 0
        for throttler in (self.throttler, self.second):
            if throttler.counters.has_traffic():
                assert throttler.counters.traffic.concurrency == 0
            assert throttler.counters.quiet == 0


def finished(world: World, exchange: ProxiedExchange, client: Client) -> None:
    world.answer(exchange)
    assert (client.status, client.body) == (200, b"hello")
    assert client.fields["activator-fallback"] == "ns/second"
    world.check_idle()


def test_a_line_that_is_full() -> None:
    world = Two(queue=QueueSpec(depth=1))
    waiting, _ = world.begin()
    pool = world.second_pod()
    exchange, client = world.begin()
    assert pool.pods[0].head is exchange.head
    assert exchange.revision_key() == "ns/second" and exchange.first_throttler is world.throttler
    assert world.throttler.counters.failed_totals == {Reason.QUEUE_FULL: 1}
    assert world.throttler.counters.fallbacks == {"ns/second": 1}
    assert (world.throttler.counters.requests_total, world.second.counters.requests_total) == (2, 1)
    assert load_of(world.throttler, world.clock.now()).concurrency == 1
    assert load_of(world.second, world.clock.now()).concurrency == 1
    waiting.client_gone()
    finished(world, exchange, client)


def test_a_revision_that_cannot_start_and_a_second_from_zero() -> None:
    world = Two()
    exchange, client = world.begin()
    world.throttler.queue.fail("no model")
    world.clock.turn()
    assert client.silent() and world.second.queue.waiters.length == 1
    assert ("queue_formed",) in world.second_heard.events
    world.second_pod()
    finished(world, exchange, client)
    exchange, client = world.begin()
    finished(world, exchange, client)


def test_a_wait_that_is_too_long_begins_anew_in_the_second_line() -> None:
    world = Two(queue=QueueSpec(timeout_s=5.0), second={"queue": QueueSpec(timeout_s=7.0)})
    exchange, client = world.begin()
    world.clock.pass_time(5.1)
    world.clock.turn()
    assert client.silent() and exchange.place.is_queued
    world.clock.pass_time(6.5)
    assert client.silent()
    world.clock.pass_time(0.6)
    world.clock.turn()
    assert (client.status, client.reason) == (504, "queue_timeout")
    assert world.throttler.counters.failed_totals == world.second.counters.failed_totals == {Reason.QUEUE_TIMEOUT: 1}
    world.check_idle()


def test_no_pod_takes_the_connection_and_the_body_goes_to_the_second() -> None:
    world = Two()
    world.second_pod()
    pools = [world.pod(f"p{number}", connects=False) for number in (1, 2, 3)]
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=8), client)
    exchange.begin()
    exchange.request_body(b"half")
    for pool in pools:
        assert pool.asked
        pool.stop_waiting(at_pod(exchange))
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
        world.clock.turn()
    assert exchange.revision_key() == "ns/second"
    exchange.request_body(b"more")
    exchange.request_end([])
    second = world.second.table.find_identity("s1")
    assert second is not None and isinstance(second.attachment, Pool)
    assert second.attachment.pods[0].body == b"halfmore" and second.attachment.pods[0].ended
    finished(world, exchange, client)


def test_a_pod_that_fails_before_it_answers_only_where_that_may_be_repeated() -> None:
    for method, falls_back in (("GET", True), ("DELETE", True), ("POST", False)):
        world = Two()
        world.second_pod()
        pool = world.pod()
        exchange, client = world.begin(request_head(method))
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
        assert pool.pods
        assert client.silent() == falls_back
        if falls_back:
            finished(world, exchange, client)
        else:
            assert (client.status, client.reason) == (502, "pod_closed")
            world.check_idle()


def test_a_body_that_has_gone_to_a_pod_is_never_sent_again_in_part() -> None:
    world = Two()
    world.second_pod()
    world.pod()
    client = Client()
    exchange = world.proxy.open(request_head("PUT", length=500), client)
    exchange.begin()
    exchange.request_body(b"x" * 300)
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert (client.status, client.reason) == (502, "pod_closed")
    exchange.request_body(b"x" * 200)
    world.check_idle()


def test_an_answer_that_has_begun_is_cut() -> None:
    world = Two()
    world.second_pod()
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(200, 5))
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert client.aborted and world.second.counters.requests_total == 0
    world.check_idle()


def test_the_mistakes_of_clients_are_theirs() -> None:
    world = Two(queue=QueueSpec(request_timeout=True))
    world.second_pod()
    _, client = world.begin(request_head(Activator_Deadline="soon"))
    assert client.reason == "bad_request"
    world.check_idle()


def test_a_client_that_leaves_while_it_waits_in_the_second_line() -> None:
    world = Two(queue=QueueSpec(depth=0))
    exchange, _ = world.begin()
    assert world.second.queue.waiters.length == 1
    exchange.client_gone()
    assert world.second.counters.client_gone_total == 1 and world.throttler.counters.client_gone_total == 0
    world.check_idle()


def test_bodies_count_against_the_second_and_may_be_too_much_for_it() -> None:
    for allowed, status in ((100, 0), (10, 503)):
        world = Two(queue=QueueSpec(depth=0), second={"queue": QueueSpec(bytes=allowed)})
        client = Client()
        head = request_head("POST", length=40)
        exchange = world.proxy.open(head, client)
        exchange.request_body(b"y" * 40)
        exchange.request_end([])
        exchange.begin()
        assert client.status == status
        if status:
            assert client.reason == "held_bytes_full"
        else:
            assert world.second.held.held_bytes == 40 and world.throttler.held.held_bytes == 0
            pool = world.second_pod()
            assert pool.pods[0].body == b"y" * 40
            world.answer(exchange)
        world.check_idle()


def test_a_total_time_that_is_up_at_the_first() -> None:
    world = Two(timeouts=TimeoutsSpec(total_s=3.0))
    world.second_pod()
    pool = world.pod()
    exchange, client = world.begin()
    world.clock.pass_time(3.1)
    assert pool.pods[0].aborted and client.silent()
    finished(world, exchange, client)


def test_while_the_first_starts_the_second_serves() -> None:
    world = Two(while_starting=True)
    world.second_pod(limit=5)
    for _ in range(3):
        exchange, client = world.begin()
        assert world.throttler.queue.waiters.length == 1, "one start request"
        world.answer(exchange)
        assert client.fields["activator-fallback"] == "ns/second"
    assert world.heard.events == [("activated",), ("queue_formed",)]
    assert world.throttler.counters.failed_totals == {} and world.throttler.counters.fallbacks == {"ns/second": 3}
    world.clock.pass_time(60.0)
    assert world.throttler.queue.waiters.length == 1, "a start may take minutes"
    pool = world.pod(limit=2)
    exchange, client = world.begin()
    assert pool.pods[0].head is exchange.head
    world.answer(exchange)
    assert "activator-fallback" not in client.fields
    world.check_idle()


def test_while_the_first_starts_and_there_is_no_second() -> None:
    world = Two(while_starting=True)
    world.router.drop("ns/second")
    exchange, client = world.begin()
    assert client.silent() and exchange.place.is_queued
    world.pod()
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_the_start_is_given_up_when_nobody_would_wait_any_longer() -> None:
    world = Two(while_starting=True, queue=QueueSpec(startup_timeout_s=20.0))
    world.second_pod()
    exchange, _ = world.begin()
    world.answer(exchange)
    world.clock.pass_time(26.0)
    world.check_idle()


@pytest.mark.parametrize("phase", [ROUTING, SCANNING, GATHERING, WAITING, CONNECTING])
def test_before_a_pod_has_it_a_request_may_always_fall_back(phase: int) -> None:
    """Also one whose revision depended on its body, if that came a turn later."""
    world = Two()
    record = Exchange(request_head("POST", length=10), Client(), 1.0)
    record.phase = phase
    assert may_fall_back(record, None, Reason.QUEUE_FULL)
    assert may_fall_back(record, None, Reason.STARTING)
    assert not may_fall_back(record, None, Reason.BAD_REQUEST)
    world.check_idle()


def test_a_circle_that_a_reload_has_closed_ends() -> None:
    world = Two(
        queue=QueueSpec(depth=0),
        second={"queue": QueueSpec(depth=0), "filters": FiltersSpec(fallback=FallbackSpec(revision="ns/app"))},
    )
    exchange, client = world.begin()
    assert (client.status, client.reason) == (503, "queue_full")
    assert exchange.fallbacks == FALLBACKS_MAX
    world.check_idle()


@pytest.mark.parametrize("phase", ["gathering", "waiting", "connecting"])
def test_a_revision_that_is_removed_hands_on_what_it_has(phase: str) -> None:
    world = Two(buffers=BuffersSpec(request_bytes=100))
    second = world.second_pod()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=10), client)
    pool = world.pod(connects=False) if phase == "connecting" else None
    exchange.begin()
    exchange.request_body(b"12345")
    if phase != "gathering":
        exchange.request_body(b"67890")
        exchange.request_end([])
        world.clock.turn()
    if pool is not None:
        (lease,) = world.throttler.leases
        world.throttler.revoke(lease, Reason.POD_REMOVED, "")
        assert not pool.asked
    elif phase == "waiting":
        world.throttler.remove()
        world.clock.turn()
    else:
        world.throttler.queue.fail("no")
        exchange.request_body(b"67890")
        exchange.request_end([])
        world.clock.turn()
    assert second.pods[0].body == b"1234567890" and second.pods[0].ended
    finished(world, exchange, client)
