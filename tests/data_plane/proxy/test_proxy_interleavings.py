"""Any order of arrivals, connects, failures, answers, departures and time: nothing leaks, every client gets one end.

The model is what must hold after each step, not what should have happened: no pod above its limit; nobody waits while a
pod that may be picked has room; every open lease belongs to exactly one exchange that is not over.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.data_plane.proxy.phases import ANSWERING, CONNECTING, SENT
from activator.data_plane.proxy.proxy import ProxiedExchange
from activator.runtime.errors import Reason
from lb.tracker import DRAINING, READY
from tests.data_plane.proxy.proxy_fakes import Client, World, pool_of, request_head, response_head

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            queue_depth=6, queue_timeout_s=5.0, total_timeout_s=20.0, first_byte_timeout_s=7.0, idle_timeout_s=6.0
        )
        self.live: list[tuple[ProxiedExchange, Client]] = []

    # --- what may happen ---

    @rule(body=st.booleans())
    def arrive(self, body: bool) -> None:
        head = request_head("POST", length=50) if body else request_head()
        self.live.append(self.world.begin(head))

    @rule(number=st.integers(1, 4), limit=st.integers(1, 3), connects=st.booleans())
    def pod_comes(self, number: int, limit: int, connects: bool) -> None:
        tracker = self.world.table.find_identity(f"p{number}")
        if tracker is None:
            self.world.pod(f"p{number}", limit, connects)

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
            st.sampled_from(["connect", "refuse", "stale", "head", "body", "end", "break", "leave", "send"])
        )
        connecting = exchange.phase == CONNECTING
        flowing = exchange.pod is not None
        if step == "leave":
            client.has_left = True
            exchange.client_gone()
        elif step == "send" and exchange.head.has_body:
            exchange.request_body(b"x" * 10)
        elif step == "connect" and connecting:
            lease = exchange.lease
            assert lease is not None
            pool_of(lease).connect(exchange)
        elif step == "refuse" and connecting:
            exchange.connect_failed(data.draw(st.sampled_from([Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT])))
        elif step == "stale" and flowing and exchange.phase == SENT:
            exchange.pod_failed(Reason.POD_CLOSED, "", True)
        elif step == "head" and flowing and exchange.phase == SENT:
            exchange.response_head(response_head(200, 100))
        elif step == "body" and flowing and exchange.phase == ANSWERING:
            exchange.response_body(b"y")
            exchange.response_flush()
        elif step == "end" and flowing and exchange.phase == ANSWERING:
            exchange.response_end([])
        elif step == "break" and flowing:
            exchange.pod_failed(Reason.BAD_RESPONSE, "", False)

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
        holders = set(map(id, world.throttler.leases.values()))
        assert len(holders) == len(world.throttler.leases)
        assert holders <= {id(exchange) for exchange, _ in self.live}
        assert world.proxy.active == len(self.live)
        assert world.table.in_flight == len(world.throttler.leases)
        assert world.throttler.forsaken() == [], "each lease's request is at a pod, or waits for a connection to it"
        assert world.held.held_requests == world.throttler.line.length
        assert world.held.held_bytes == world.throttler.held.held_bytes
        assert world.held.held_bytes == sum(held.size for exchange, _ in self.live if (held := exchange._held))

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        assert self.world.throttler.line.length == 0 or self.world.table.room == 0

    @invariant()
    def the_line_is_bounded_and_made_of_the_living(self) -> None:
        line = [exchange for exchange, _ in self.live if exchange.in_line]
        assert len(line) == self.world.throttler.line.length
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
