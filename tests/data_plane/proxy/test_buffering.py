"""Slow clients and slots: what is buffered, when a slot is taken and given back, and what every way to end leaves."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from activator.codec.message import Fields, ResponseHead
from activator.config.specs import BuffersSpec, QueueSpec, TimeoutsSpec
from activator.data_plane.buffering import is_request_streamed, is_response_streamed
from activator.data_plane.phases import DELIVERING, GATHERING, SENT, WAITING
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.request_body import SHARE_BYTES
from activator.data_plane.throttle.held_bodies import READ_MAX_BYTES
from activator.runtime.reasons import Reason
from activator.runtime.units import MIB
from lb.rng import Rng
from tests.data_plane.proxy.proxy_fakes import (
    SEND_TIMEOUT_S,
    Client,
    Pod,
    World,
    at_pod,
    pool_of,
    request_head,
    response_head,
)
from tests.data_plane.proxy.test_proxy_stories import Raising

BUFFERS = BuffersSpec(request_bytes=50, response_bytes=MIB)


def world_of(**settings: Any) -> World:
    return World(**{"held_bytes": 16 * MIB, "buffers": BUFFERS, **settings})


def post(world: World, length: int = 1000) -> tuple[ProxiedExchange, Client]:
    return world.begin(request_head("POST", length=length))


def slow_reader(world: World, body: bytes = b"x" * 1000) -> tuple[ProxiedExchange, Client]:
    """A request whose pod has answered in full, and whose client takes nothing."""
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=len(body)))
    exchange.client_blocked()
    at_pod(exchange).response_body(body)
    at_pod(exchange).response_flush()
    at_pod(exchange).response_end([])
    return exchange, client


# --- requests ---


def test_a_slow_upload_takes_no_slot_until_it_is_here() -> None:
    world = world_of()
    pool = world.pod()
    slow, slow_client = post(world, 40)
    slow.request_body(b"x" * 10)
    assert slow.phase == GATHERING and world.throttler.gathering == 1 and world.table.in_flight == 0
    fast, fast_client = world.begin()
    world.answer(fast)
    assert fast_client.status == 200
    slow.request_body(b"y" * 30)
    slow.request_end([])
    world.clock.turn()
    assert pool.pods[-1].body == b"x" * 10 + b"y" * 30 and pool.pods[-1].ended
    world.answer(slow)
    assert slow_client.status == 200
    world.check_idle()


def test_beyond_the_bound_it_takes_a_slot_and_the_rest_is_streamed() -> None:
    world = world_of()
    pool = world.pod()
    exchange, client = post(world)
    exchange.request_body(b"x" * 49)
    world.clock.turn()
    assert exchange.phase == GATHERING
    exchange.request_body(b"x" * 2)
    world.clock.turn()
    (pod,) = pool.pods
    assert pod.body == b"x" * 51 and not client.is_paused()
    exchange.request_body(b"y")
    assert pod.body.endswith(b"y")
    exchange.client_gone()
    world.check_idle()


def test_a_body_that_came_with_its_head_is_not_waited_for() -> None:
    world = world_of()
    pool = world.pod()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=5), client)
    exchange.request_body(b"hello")
    exchange.request_end([])
    exchange.begin()
    assert pool.pods[0].body == b"hello" and world.throttler.gathering == 0
    assert not client.asked_for_body
    world.answer(exchange)
    world.check_idle()


def test_a_client_that_awaits_a_100_is_asked_for_its_body() -> None:
    world = world_of()
    exchange, client = world.begin(request_head("POST", length=1000, Expect="100-continue"))
    assert client.asked_for_body and exchange.phase == GATHERING
    exchange.client_gone()
    world.check_idle()


def test_a_revision_at_zero_is_woken_while_the_body_comes() -> None:
    world = world_of()
    exchange, _ = post(world)
    assert ("activated",) in [event[:1] for event in world.heard.events]
    exchange.request_body(b"x" * 50)
    world.clock.turn()
    assert exchange.phase == WAITING and world.throttler.gathering == 0
    exchange.client_gone()
    world.check_idle()


def test_the_time_in_line_begins_when_the_body_is_here() -> None:
    world = world_of(queue=QueueSpec(timeout_s=5.0))
    exchange, client = post(world)
    world.clock.pass_time(20.0)
    exchange.request_body(b"x" * 50)
    world.clock.turn()
    world.clock.pass_time(4.9)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.reason) == (504, "queue_timeout")
    world.check_idle()


def test_a_body_that_does_not_come_is_a_408() -> None:
    world = world_of(timeouts=TimeoutsSpec(total_s=30.0))
    world.pod()
    exchange, client = post(world)
    world.clock.pass_time(29.0)
    assert client.silent()
    world.clock.pass_time(1.2)
    assert (client.status, client.reason) == (408, "request_timeout")
    assert exchange.over
    world.check_idle()


def test_budgets_that_are_half_used_end_the_wait_for_a_body() -> None:
    world = world_of(held_bytes=60)
    pool = world.pod()
    exchange, _ = post(world)
    exchange.request_body(b"x" * 31)
    world.clock.turn()
    assert pool.pods[0].body == b"x" * 31
    other, client = post(world)
    other.request_body(b"y" * 61)
    assert (client.status, client.reason) == (503, "held_bytes_full"), "it must wait, and has no place"
    exchange.client_gone()
    straight, _ = post(world)
    straight.request_body(b"z" * 61)
    assert pool.pods[-1].body == b"z" * 61, "a pod has room: it needs no place"
    straight.client_gone()
    world.check_idle()


def test_a_revisions_own_budget_counts_too() -> None:
    world = world_of(queue=QueueSpec(bytes=60))
    pool = world.pod()
    exchange, _ = post(world)
    exchange.request_body(b"x" * 31)
    world.clock.turn()
    assert pool.pods[0].body == b"x" * 31
    exchange.client_gone()
    world.check_idle()


def test_a_large_body_is_gathered_in_memory_and_in_a_file_and_sent_on_in_shares() -> None:
    world = world_of(buffers=replace(BUFFERS, request_bytes=2 * MIB, file_bytes=8 * MIB), file_bytes=8 * MIB)
    pool = world.pod(reused=True)
    total = 6 * MIB
    exchange, client = post(world, total)
    sent = b""
    while len(sent) < total:
        assert not client.is_paused()
        piece = (b"%d," % len(sent) * READ_MAX_BYTES)[: min(READ_MAX_BYTES, total - len(sent))]
        exchange.request_body(piece)
        sent += piece
        world.clock.turn()
        assert exchange.phase == GATHERING
    assert world.files.held_bytes > 2 * MIB
    exchange.edit().remove(frozenset([b"x-user"]))
    exchange.request_end([(b"X-User", b"root"), (b"X-Sum", b"1")])
    world.clock.turn()
    assert pool.idle_max_s == 1.0, "it cannot be sent twice: a connection that was idle for long is a risk"
    (pod,) = pool.pods
    while not pod.ended:
        before = len(pod.body)
        assert world.clock.turn() > 0
        assert len(pod.body) - before <= max(SHARE_BYTES, READ_MAX_BYTES)
        if len(pod.body) > MIB and not pod.is_paused():
            pod.paused = True
            at_pod(exchange).pod_blocked()
            world.clock.turn()
            there = len(pod.body)
            world.clock.turn()
            assert len(pod.body) == there, "a pod that reads slowly gets no more for now"
            at_pod(exchange).pod_drained()
    assert pod.body == sent and pod.trailers == [(b"X-Sum", b"1")]
    world.answer(exchange)
    world.check_idle()


def test_a_body_larger_than_memory_and_file_pauses_its_client_until_the_pod_takes_some() -> None:
    world = world_of(buffers=replace(BUFFERS, file_bytes=2 * READ_MAX_BYTES), file_bytes=MIB)
    world.pod(connects=False)
    exchange, client = post(world, 10 * MIB)
    count = 0
    while not client.is_paused():
        exchange.request_body(b"x" * READ_MAX_BYTES)
        count += READ_MAX_BYTES
        world.clock.turn()
    assert exchange.lease is not None and count <= 4 * READ_MAX_BYTES
    pod = pool_of(exchange.lease).connect(at_pod(exchange))
    while client.is_paused():
        assert world.clock.turn() > 0
    while len(pod.body) < count:
        assert world.clock.turn() > 0
    exchange.request_body(b"y")
    assert pod.body == b"x" * count + b"y"
    exchange.client_gone()
    world.check_idle()


@pytest.mark.parametrize("end", ["gone", "removed", "failed", "timeout", "bad"])
def test_every_end_of_a_request_whose_body_comes(end: str) -> None:
    world = world_of(timeouts=TimeoutsSpec(total_s=30.0), buffers=replace(BUFFERS, file_bytes=MIB), file_bytes=MIB)
    exchange, client = post(world, MIB)
    exchange.request_body(b"x" * 200)
    if end == "gone":
        exchange.client_gone()
    elif end == "removed":
        world.throttler.remove()
        exchange.request_end([])
        world.clock.turn()
        assert client.reason == "revision_removed"
    elif end == "failed":
        world.throttler.queue.fail("no image")
        exchange.request_end([])
        world.clock.turn()
        assert client.reason == "revision_failed"
    elif end == "timeout":
        world.clock.pass_time(31.0)
    else:
        exchange.request_failed(Reason.BAD_REQUEST, "")
    assert exchange.over
    world.clock.turn()
    world.check_idle()


def test_a_policy_that_raises_when_the_body_is_here_ends_that_request() -> None:
    world = world_of()
    world.pod()
    exchange, client = post(world)
    world.table.set_policy(Raising(Rng(1)))
    exchange.request_body(b"x" * 50)
    world.clock.turn()
    assert (client.status, client.reason) == (500, "internal")
    assert [str(error) for error in world.errors] == ["a defect"]
    world.errors.clear()
    world.check_idle()


# --- responses ---


def test_a_slow_reader_holds_no_slot_once_the_pod_has_finished() -> None:
    world = world_of()
    pool = world.pod()
    slow, slow_client = slow_reader(world)
    assert slow.phase == DELIVERING and slow.lease is None and world.table.in_flight == 0
    assert world.throttler.delivering == 1 and not slow_client.has_ended()
    fast, fast_client = world.begin()
    world.answer(fast)
    assert fast_client.status == 200 and not pool.pods[0].aborted
    slow.client_drained()
    assert slow_client.body == b"x" * 1000 and slow_client.has_ended()
    world.check_idle()


def test_the_wait_for_a_slow_reader_is_part_of_its_duration() -> None:
    world = world_of()
    world.pod()
    exchange, _ = world.begin()
    exchange.client_blocked()
    at_pod(exchange).read_s = world.clock.now()  # as a connection writes it when it has read from the pod
    world.answer(exchange, body=b"x" * 1000)
    assert exchange.phase == DELIVERING
    world.clock.pass_time(20.0)
    exchange.client_drained()
    world.clock.turn()
    assert exchange.done_s - exchange.arrived_s == 20.0
    world.check_idle()


def test_the_pod_is_read_as_long_as_there_is_room_and_then_paused() -> None:
    world = world_of()
    pool = world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=4 * MIB))
    exchange.client_blocked()
    (pod,) = pool.pods
    sent = 0
    while not pod.is_paused():
        at_pod(exchange).response_body(b"x" * 100_000)
        sent += 100_000
    assert MIB <= sent <= MIB + 100_000
    exchange.client_drained()
    while pod.is_paused():
        assert world.clock.turn() > 0
    at_pod(exchange).response_body(b"y")
    while len(client.body) < sent + 1:
        assert world.clock.turn() > 0
    at_pod(exchange).response_body(b"z")
    assert client.body[-2:] == b"yz", "from here on it is streamed again"
    at_pod(exchange).response_end([])
    world.check_idle()


def test_one_share_a_turn_and_none_while_the_client_is_full() -> None:
    world = world_of()
    world.pod()
    exchange, client = slow_reader(world, b"x" * (3 * SHARE_BYTES))
    at_pod(exchange).response_body(b"late")
    exchange.client_drained()
    assert len(client.body) <= 3 * SHARE_BYTES
    exchange.client_gone()
    world.clock.turn()
    world.check_idle()


def test_a_client_that_is_full_again_in_the_middle() -> None:
    world = world_of()
    world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=10 * 60_000))
    exchange.client_blocked()
    for _ in range(10):
        at_pod(exchange).response_body(b"x" * 60_000)
    at_pod(exchange).response_end([])
    for _ in range(9):
        exchange.client_drained()
        there = len(client.body)
        if exchange.over:
            break
        exchange.client_blocked()
        world.clock.turn()
        world.clock.turn()
        assert len(client.body) == there
    assert client.body == b"x" * 600_000 and client.has_ended()
    world.check_idle()


def test_a_client_that_takes_nothing_is_cut_and_one_that_takes_a_little_is_not() -> None:
    world = world_of(timeouts=TimeoutsSpec(total_s=20.0))
    world.pod()
    exchange, client = slow_reader(world)
    exchange.client_blocked()
    for _ in range(5):
        world.clock.pass_time(SEND_TIMEOUT_S - 1.0)
        client.taken += 10
        assert not client.is_aborted(), "longer than the total timeout, which is the pod's"
    world.clock.pass_time(2 * SEND_TIMEOUT_S + 1.0)
    assert client.is_aborted() and exchange.reason is Reason.SEND_TIMEOUT
    assert world.throttler.counters.failed_totals == {Reason.SEND_TIMEOUT: 1}
    world.check_idle()


def test_without_a_buffer_the_send_timeout_frees_the_slot() -> None:
    world = world_of(buffers=replace(BUFFERS, response_bytes=0))
    pool = world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=1000))
    exchange.client_blocked()
    assert pool.pods[0].is_paused()
    world.clock.pass_time(SEND_TIMEOUT_S + 0.1)
    assert client.is_aborted() and exchange.reason is Reason.SEND_TIMEOUT and pool.pods[0].aborted
    assert world.heard.reasons == [], "the pod is not at fault"
    world.check_idle()


def test_an_early_answer_is_delivered_and_the_rest_of_the_request_is_dropped() -> None:
    world = world_of(buffers=replace(BUFFERS, request_bytes=0))
    pool = world.pod()
    exchange, client = post(world, 1000)
    exchange.request_body(b"x" * 10)
    at_pod(exchange).response_head(response_head(413, 5))
    exchange.client_blocked()
    at_pod(exchange).response_body(b"large")
    at_pod(exchange).response_end([])
    assert pool.pods[0].aborted and exchange.phase == DELIVERING
    exchange.request_body(b"y" * 500)
    exchange.request_end([])
    assert world.held.held_bytes == 5
    exchange.client_drained()
    assert client.body == b"large" and client.has_ended()
    world.check_idle()


@pytest.mark.parametrize("why", ["pod", "time"])
def test_what_a_pod_had_sent_before_it_broke_is_delivered_and_then_the_answer_is_cut(why: str) -> None:
    world = world_of(timeouts=TimeoutsSpec(total_s=5.0))
    pool = world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=1000))
    exchange.client_blocked()
    at_pod(exchange).response_body(b"x" * 10)
    if why == "pod":
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
        assert world.throttler.counters.failed_totals == {Reason.POD_CLOSED: 1}
    else:
        world.clock.pass_time(5.1)
        assert pool.pods[0].aborted
        assert world.throttler.counters.failed_totals == {Reason.TOTAL_TIMEOUT: 1}
    assert exchange.phase == DELIVERING and world.table.in_flight == 0 and not client.is_aborted()
    exchange.client_drained()
    assert client.body == b"x" * 10 and client.is_aborted() and not client.has_ended()
    world.check_idle()


def test_a_file_takes_the_rest_of_a_large_answer() -> None:
    world = world_of(buffers=replace(BUFFERS, file_bytes=8 * MIB), file_bytes=8 * MIB)
    pool = world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(length=6 * MIB))
    exchange.client_blocked()
    sent = b""
    while len(sent) < 6 * MIB:
        piece = b"%07d" % len(sent) * 20_000
        at_pod(exchange).response_body(piece)
        sent += piece
    assert not pool.pods[0].is_paused() and world.files.held_bytes > 4 * MIB
    at_pod(exchange).response_end([])
    assert world.table.in_flight == 0
    exchange.client_drained()
    while not client.has_ended():
        assert world.clock.turn() > 0
    assert client.body == sent
    world.check_idle()


def test_tunnels_are_not_buffered() -> None:
    world = world_of()
    pool = world.pod()
    exchange, client = world.begin(request_head(Connection="upgrade", Upgrade="websocket"))
    head = response_head(101, 0)
    head.upgrade = b"websocket"
    at_pod(exchange).response_head(head)
    exchange.client_blocked()
    assert pool.pods[0].is_paused()
    exchange.client_drained()
    assert not pool.pods[0].is_paused()
    at_pod(exchange).pod_blocked()
    assert client.is_paused()
    at_pod(exchange).pod_drained()
    assert not client.is_paused()
    exchange.client_gone()
    world.check_idle()


# --- what is a stream ---


@pytest.mark.parametrize(
    ("field", "value", "streamed"),
    [
        (b"Content-Type", b"text/event-stream; charset=utf-8", True),
        (b"content-type", b"Text/Event-Stream", True),
        (b"Content-Type", b"application/grpc+proto", True),
        (b"Content-Type", b"multipart/x-mixed-replace;boundary=x", True),
        (b"X-Accel-Buffering", b"no", True),
        (b"X-Accel-Buffering", b"yes", False),
        (b"Content-Type", b"application/json", False),
        (b"Content-Type", b"text/html", False),
    ],
)
def test_streams_are_known_by_what_their_pods_say(field: bytes, value: bytes, streamed: bool) -> None:
    head = ResponseHead(200, b"OK", Fields.from_pairs([(field, value)]), -1, True)
    assert is_response_streamed(head) is streamed
    world = world_of()
    pool = world.pod()
    exchange, _ = world.begin()
    at_pod(exchange).response_head(head)
    exchange.client_blocked()
    assert pool.pods[0].is_paused() is streamed
    exchange.client_gone()
    world.check_idle()


def test_requests_that_are_streams_get_their_slot_at_once() -> None:
    world = world_of()
    pool = world.pod()
    head = request_head("POST", chunked=True, Content_Type="application/grpc")
    assert is_request_streamed(head)
    exchange, _ = world.begin(head)
    assert len(pool.pods) == 1
    exchange.client_gone()
    world.check_idle()


# --- clients and pods that stop in the middle of a call ---


class Filling(Client):
    """Full from the moment in which so many bytes have been written to it, until it `takes` them."""

    def __init__(self, full_at: int) -> None:
        super().__init__()
        self.full_at = full_at
        self.written = 0
        self.exchange: ProxiedExchange | None = None

    def send_body(self, data: bytes) -> None:
        super().send_body(data)
        self.written += len(data)

    def flush(self) -> None:
        super().flush()
        if self.exchange is not None and not self.exchange._client_full and self.written >= self.full_at:
            self.exchange.client_blocked()

    def takes(self) -> None:
        self.written = 0
        assert self.exchange is not None
        self.exchange.client_drained()


def filling(world: World, full_at: int, length: int) -> tuple[ProxiedExchange, Filling]:
    """A request whose answer has begun, and whose client is full."""
    client = Filling(full_at)
    exchange = client.exchange = world.proxy.open(request_head(), client)
    exchange.request_end([])
    exchange.begin()
    at_pod(exchange).response_head(response_head(length=length))
    exchange.client_blocked()
    return exchange, client


def test_a_client_that_the_last_share_makes_full_is_not_written_to() -> None:
    world = world_of()
    world.pod()
    exchange, client = filling(world, 500, 10 * MIB)
    at_pod(exchange).response_body(b"x" * 1000)
    client.takes()
    assert exchange._client_full and len(client.body) == 1000
    at_pod(exchange).response_body(b"y" * 1000)
    at_pod(exchange).response_flush()
    assert len(client.body) == 1000, "nobody would be told that it is more than full"
    client.takes()
    assert client.body == b"x" * 1000 + b"y" * 1000
    exchange.client_gone()
    world.check_idle()


def test_a_pod_goes_on_as_soon_as_the_buffer_has_room_though_the_client_is_full_again() -> None:
    world = world_of(buffers=replace(BUFFERS, response_bytes=2 * SHARE_BYTES))
    pool = world.pod()
    exchange, client = filling(world, SHARE_BYTES // 2, 10 * MIB)
    (pod,) = pool.pods
    while not pod.is_paused():
        at_pod(exchange).response_body(b"x" * SHARE_BYTES)
    client.takes()
    assert exchange._client_full and not pod.is_paused()
    exchange.client_gone()
    world.check_idle()


def test_a_pod_that_the_last_share_of_a_body_makes_full_pauses_the_client() -> None:
    world = world_of(buffers=replace(BUFFERS, request_bytes=200))
    world.pod(connects=False)
    exchange, client = post(world, 10 * MIB)
    for count in (60, 60, 90):
        exchange.request_body(b"x" * count)
    world.clock.turn()
    assert exchange.lease is not None and not client.is_paused()
    pool = pool_of(exchange.lease)

    class Full(Pod):
        def send_body(self, data: bytes) -> None:
            super().send_body(data)
            at_pod(exchange).pod_blocked()

    pool.makes = Full
    pod = pool.connect(at_pod(exchange))
    world.clock.turn()
    assert len(pod.body) == 210 and client.is_paused(), "what comes would be written to a pod that reads nothing"
    at_pod(exchange).pod_drained()
    assert not client.is_paused()
    exchange.client_gone()
    world.check_idle()


def test_a_decision_to_wait_no_longer_for_a_body_stands_though_a_budget_is_free_again() -> None:
    world = world_of(held_bytes=4 * READ_MAX_BYTES, buffers=replace(BUFFERS, request_bytes=MIB))
    pool = world.pod()
    world.held.take(2 * READ_MAX_BYTES)  # others hold so much
    exchange, client = post(world, 10 * MIB)
    exchange.request_body(b"x" * 150)
    world.held.give_back(2 * READ_MAX_BYTES)
    world.clock.turn()
    assert exchange.phase == SENT and pool.pods[0].body == b"x" * 150 and not client.is_paused()
    exchange.client_gone()
    world.check_idle()


def test_after_an_early_answer_a_client_that_sends_first_and_reads_then_is_read() -> None:
    world = world_of(buffers=replace(BUFFERS, request_bytes=0))
    world.pod()
    exchange, client = post(world, MIB)
    exchange.request_body(b"x" * 10)
    at_pod(exchange).pod_blocked()
    assert client.is_paused()
    at_pod(exchange).response_head(response_head(413, 5))
    exchange.client_blocked()
    at_pod(exchange).response_body(b"large")
    at_pod(exchange).response_end([])
    assert exchange.phase == DELIVERING and not client.is_paused(), "else both wait for each other"
    exchange.request_body(b"y" * 10)
    exchange.client_drained()
    assert client.has_ended()
    world.check_idle()


def test_a_client_that_is_full_before_its_request_has_a_pod() -> None:
    """It has yet to take the answers before, which went out when this request had begun."""
    world = world_of(buffers=replace(BUFFERS, response_bytes=0))
    exchange, client = world.begin()
    assert exchange.phase == WAITING
    exchange.client_blocked()
    world.clock.pass_time(1.0)
    assert client.silent(), "its time in line goes on"
    pool = world.pod()
    (pod,) = pool.pods
    at_pod(exchange).response_head(response_head(length=MIB))
    assert pod.is_paused(), "nobody else stops what the pod sends"
    exchange.client_drained()
    assert not pod.is_paused()
    exchange.client_gone()
    world.check_idle()


def test_a_client_that_is_full_before_the_answer_and_a_buffer() -> None:
    world = world_of()
    pool = world.pod(connects=False)
    exchange, client = world.begin()
    exchange.client_blocked()
    assert exchange.lease is not None
    pool.connect(at_pod(exchange))
    at_pod(exchange).response_head(response_head(length=5))
    at_pod(exchange).response_body(b"hello")
    at_pod(exchange).response_flush()
    at_pod(exchange).response_end([])
    assert client.body == b"" and exchange.phase == DELIVERING and world.table.in_flight == 0
    exchange.client_drained()
    assert client.body == b"hello" and client.has_ended()
    world.check_idle()


def test_both_directions_have_one_share_a_turn_between_them() -> None:
    world = world_of(buffers=replace(BUFFERS, request_bytes=MIB))
    pool = world.pod()
    exchange, _ = post(world, 10 * MIB)
    while exchange.phase == GATHERING:
        exchange.request_body(b"x" * 200_000)
        world.clock.turn()
    at_pod(exchange).response_head(response_head(length=100 * MIB))
    (pod,) = pool.pods
    for _ in range(3):
        exchange.client_blocked()
        at_pod(exchange).response_body(b"y")
        there = len(pod.body)
        exchange.client_drained()
        assert len(pod.body) == there, "a request's share comes with its turn"
    there = len(pod.body)
    world.clock.turn()
    assert len(pod.body) - there <= max(SHARE_BYTES, 200_000)
    exchange.client_gone()
    world.clock.turn()
    world.check_idle()


def test_a_revision_that_cannot_start_refuses_before_the_body_comes() -> None:
    world = world_of()
    world.throttler.queue.fail("no image")
    exchange, client = world.begin(request_head("POST", length=1000, Expect="100-continue"))
    assert client.reason == "revision_failed" and exchange.over and not client.asked_for_body
    world.check_idle()
