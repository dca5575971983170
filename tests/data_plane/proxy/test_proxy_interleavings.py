"""Any order of arrivals, connects, failures, answers, departures and time: nothing leaks, every client gets one end.

The model is what must hold after each step, not what should have happened: no pod above its limit; nobody waits while a
pod that may be picked has room; every open lease belongs to exactly one exchange that is not over.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.config.specs import BuffersSpec, QueueSpec, TimeoutsSpec
from activator.data_plane.phases import ANSWERING, CONNECTING, DELIVERING, GATHERING, SENT
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.throttle.held_bodies import READ_MAX_BYTES, BodyBuffer
from activator.runtime.reasons import Reason
from lb.tracker import DRAINING, READY
from tests.data_plane.proxy.proxy_fakes import (
    Client,
    Pod,
    World,
    at_pod,
    holder_of,
    pool_of,
    request_head,
    response_head,
)

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"


def kept_of(exchange: ProxiedExchange) -> BodyBuffer | None:
    """What is kept of the response."""
    return None if exchange.delivery is None else exchange.delivery._buffer


def held_by(exchange: ProxiedExchange) -> int:
    """What the budget counts for one request."""
    body = exchange.upload
    held = None if body is None else body._held
    buffers = [one for one in (kept_of(exchange), None if body is None else body._overflow) if one is not None]
    return (0 if held is None else held.size) + sum(one._memory_reserved for one in buffers)


class Taking(Client):
    """Fills up under what is written to it, sooner or later, and is not written to after that."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.room = 3  # pieces that it takes before it is full
        self.exchange: ProxiedExchange | None = None
        self.pieces = 0

    def becomes_full(self, exchange: ProxiedExchange) -> None:
        self.full = True
        exchange.client_blocked()

    def takes(self, exchange: ProxiedExchange) -> None:
        self.full = False
        self.pieces = 0
        exchange.client_drained()

    def send_body(self, data: bytes) -> None:
        assert not self.full or self.exchange is None or self.exchange.over or not data, "it is full"
        super().send_body(data)
        self.pieces += 1

    def flush(self) -> None:
        super().flush()
        exchange = self.exchange
        if exchange is not None and not self.full and self.pieces >= self.room:
            self.becomes_full(exchange)


class Filling(Pod):
    """Full with every third piece of a body, within the call."""

    exchange: ProxiedExchange | None = None
    full = False
    pieces = 0

    def send_body(self, data: bytes) -> None:
        assert not self.full or not data, "it is full"
        super().send_body(data)
        self.pieces += 1
        exchange = self.exchange
        if exchange is not None and self.pieces % 3 == 0:
            self.full = True
            at_pod(exchange).pod_blocked()


def pod_of(exchange: ProxiedExchange) -> Filling:
    pod = exchange.pod
    assert isinstance(pod, Filling)
    pod.exchange = exchange
    return pod


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            held_bytes=4 * READ_MAX_BYTES,
            file_bytes=2 * READ_MAX_BYTES,
            queue=QueueSpec(depth=6, timeout_s=5.0),
            timeouts=TimeoutsSpec(total_s=20.0, first_byte_s=7.0, idle_s=6.0),
            buffers=BuffersSpec(request_bytes=120, response_bytes=4, file_bytes=READ_MAX_BYTES + 6),
        )
        self.live: list[tuple[ProxiedExchange, Taking]] = []

    # --- what may happen ---

    @rule(body=st.booleans())
    def arrive(self, body: bool) -> None:
        head = request_head("POST", length=50) if body else request_head()
        client = Taking()
        exchange = self.world.proxy.open(head, client)
        client.exchange = exchange
        self.live.append((exchange, client))
        if not body:
            exchange.request_end([])
        exchange.begin()

    @rule(number=st.integers(1, 4), limit=st.integers(1, 3), connects=st.booleans())
    def pod_comes(self, number: int, limit: int, connects: bool) -> None:
        tracker = self.world.table.find_identity(f"p{number}")
        if tracker is None:
            self.world.pod(f"p{number}", limit, connects, makes=Filling)

    @rule(number=st.integers(1, 4))
    def pod_drains(self, number: int) -> None:
        tracker = self.world.table.find_identity(f"p{number}")
        if tracker is not None and tracker.state != DRAINING:
            self.world.table.drain(tracker)

    @rule()
    def drained_slots_are_freed(self) -> None:
        table = self.world.table
        for tracker in list(table.slots[: table.length]):
            if tracker.state == DRAINING and tracker.in_flight == 0:
                table.free(tracker)

    @rule(number=st.integers(1, 4))
    def suspicion_ends(self, number: int) -> None:
        tracker = self.world.table.find_identity(f"p{number}")
        if tracker is not None and tracker.state != DRAINING:
            self.world.table.set_state(tracker, READY)
            self.world.throttler.pump()

    @rule(number=st.integers(1, 4), limit=st.integers(1, 3))
    def limit_changes(self, number: int, limit: int) -> None:
        tracker = self.world.table.find_identity(f"p{number}")
        if tracker is not None and tracker.state != DRAINING:
            self.world.table.set_limit(tracker, limit)
            self.world.throttler.pump()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def something_happens_to_one(self, data: st.DataObject) -> None:
        exchange, client = data.draw(st.sampled_from(self.live))
        step = data.draw(
            st.sampled_from(["connect", "refuse", "stale", "head", "body", "end", "break", "leave", "send", "sent"])
        )
        connecting = exchange.phase == CONNECTING
        flowing = exchange.pod is not None
        if step == "leave":
            client.has_left = True
            exchange.client_gone()
        elif step == "send" and exchange.head.has_body and not exchange.request_done:
            if not client.paused:
                exchange.request_body(b"x" * 10)
        elif step == "sent" and exchange.head.has_body and not exchange.request_done:
            exchange.request_end([])
        elif step == "connect" and connecting:
            lease = exchange.lease
            assert lease is not None
            pool_of(lease).connect(at_pod(exchange))
        elif step == "refuse" and connecting:
            at_pod(exchange).connect_failed(data.draw(st.sampled_from([Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT])))
        elif step == "stale" and flowing and exchange.phase == SENT:
            at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
        elif step == "head" and flowing and exchange.phase == SENT:
            at_pod(exchange).response_head(response_head(200, 100))
        elif step == "body" and flowing and exchange.phase == ANSWERING:
            if not pod_of(exchange).paused:
                at_pod(exchange).response_body(b"y")
                at_pod(exchange).response_flush()
        elif step == "end" and flowing and exchange.phase == ANSWERING:
            at_pod(exchange).response_end(data.draw(st.sampled_from([[], [(b"T", b"1")]])))
        elif step == "break" and flowing:
            at_pod(exchange).pod_failed(Reason.BAD_RESPONSE, "", False)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_side_of_one_stops_or_goes_on(self, data: st.DataObject) -> None:
        exchange, client = data.draw(st.sampled_from(self.live))
        flowing = exchange.pod is not None
        step = data.draw(st.sampled_from(["full", "takes", "pod full", "pod takes", "interim", "revoked", "bad"]))
        if step == "full" and not client.full:
            client.becomes_full(exchange)
        elif step == "takes" and client.full:
            client.takes(exchange)
        elif step == "pod full" and flowing and not pod_of(exchange).full:
            pod_of(exchange).full = True
            at_pod(exchange).pod_blocked()
        elif step == "pod takes" and flowing and pod_of(exchange).full:
            pod_of(exchange).full = False
            at_pod(exchange).pod_drained()
        elif step == "interim" and flowing and exchange.phase == SENT:
            at_pod(exchange).response_interim(response_head(103, 0))
        elif step == "revoked" and exchange.lease is not None:
            exchange.revoked(Reason.DRAINING, "")
        elif step == "bad" and exchange.head.has_body and not exchange.request_done:
            exchange.request_failed(Reason.BAD_REQUEST, "")

    @rule(seconds=st.floats(0.0, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.pass_time(seconds)
        self.world.clock.turn()

    # --- what must hold ---

    @invariant()
    def nothing_is_lost(self) -> None:
        world = self.world
        over = [pair for pair in self.live if pair[0].over]
        self.live = [pair for pair in self.live if not pair[0].over]
        for _, client in over:
            assert client.has_left or client.ended != client.aborted, "exactly one end"
            assert not (client.has_left and (client.ended or client.aborted)), "nobody is there to be told"
        holders = {id(holder_of(lease)) for lease in world.throttler.leases}
        assert len(holders) == len(world.throttler.leases)
        assert holders <= {id(exchange) for exchange, _ in self.live}
        assert world.proxy.active == len(self.live)
        assert world.table.in_flight == len(world.throttler.leases)
        assert world.throttler.unserved_leases() == [], (
            "each lease's request is at a pod, or waits for a connection to it"
        )
        assert world.held.held_requests == world.throttler.queue.waiters.length
        assert world.held.held_bytes == world.throttler.held.held_bytes
        assert world.held.held_bytes == sum(held_by(exchange) for exchange, _ in self.live)
        phases = [exchange.phase for exchange, _ in self.live]
        assert world.throttler.gathering == phases.count(GATHERING)
        assert world.throttler.delivering == phases.count(DELIVERING)
        for exchange, client in self.live:
            assert exchange.phase != DELIVERING or exchange.lease is None, "its slot is free"
            if client.paused and not exchange.request_done and exchange.phase != DELIVERING:
                body = exchange.upload
                assert body is not None
                waits = exchange.pod is None or pod_of(exchange).full or body._overflow is not None
                assert waits, "paused for nothing: nobody will resume it"
            if exchange.pod is not None and pod_of(exchange).paused:
                assert client.full or exchange._is_continuing, "likewise"
            buffer = kept_of(exchange)
            if buffer is not None and buffer.size:
                assert client.full or exchange._is_continuing, "likewise"
            if exchange.phase in {ANSWERING, DELIVERING} and not client.has_left:
                kept = 0 if buffer is None else buffer.size
                assert len(client.body) + kept == exchange.response_bytes, "nothing is lost, and nothing is sent twice"

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        assert self.world.throttler.queue.waiters.length == 0 or self.world.table.room == 0

    @invariant()
    def the_line_is_bounded_and_made_of_the_living(self) -> None:
        line = [exchange for exchange, _ in self.live if exchange.place.is_queued]
        assert len(line) == self.world.throttler.queue.waiters.length
        self.world.table.check_invariants()

    def teardown(self) -> None:
        for exchange, _ in self.live:
            exchange.client_gone()
        self.live = []
        self.world.check_idle()


Interleavings.TestCase.settings = settings(
    max_examples=2_000 if DEEP else 40, stateful_step_count=200 if DEEP else 60, deadline=None
)
TestInterleavings = Interleavings.TestCase
