"""One connection to a pod, turn by turn: when it ends, and what becomes of what was not sent."""

from __future__ import annotations

import gc
from typing import Any, cast

from activator.data_plane.proxy.attempt import Attempt
from activator.data_plane.proxy.retry_policy import RISKY_IDLE_S
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http1_connection import Http1PodConnection
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.pooled_connection import PooledConnection
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.transport import FLUSH_S, Transport
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head
from tests.written_transport import WrittenTransport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\n\r\nhello"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chaos\r\n\r\n"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"


def turn_of(world: World) -> WriteBatcher:
    return WriteBatcher(world.clock.defer, world.errors.append)


class Owner(Http1Pool):
    """Writes down what it is told; nothing of the real one is used."""

    def __init__(self) -> None:
        self.kept: list[bool] = []
        self.gone = 0
        self.left: list[Transport] = []

    def opened(self, connection: PooledConnection) -> None:
        pass

    def answered(self, connection: PooledConnection) -> None:
        pass

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        self.kept.append(reusable)
        if not reusable:
            connection.close()

    def pod_closed(self, connection: PooledConnection) -> None:
        pass

    def closed(self, connection: PooledConnection) -> None:
        self.gone += 1

    def limit_close(self, transport: Transport) -> None:
        self.left.append(transport)


class FillingTransport(WrittenTransport):
    """Says at once when a write is not taken whole, as uvloop's does."""

    connection: Http1PodConnection

    def write(self, data: bytes) -> None:
        super().write(data)
        if len(self.buffer) > 100:
            self.connection.pause_writing()


class Call:
    """One request on one connection."""

    def __init__(self, length: int = -1, half_closes: bool = True, held: int = 0, asks: str = "") -> None:
        self.world = World(upgrades=("chaos",))
        self.pool = self.world.pod(connects=False)
        self.owner = Owner()
        self.transport = FillingTransport(half_closes)
        self.connection = self.transport.connection = Http1PodConnection(
            self.owner, self.world.clock.now, turn_of(self.world)
        )
        self.connection.connection_made(cast("Transport", self.transport))
        head = request_head("PUT" if length >= 0 else "GET", length=length)
        head.upgrade = asks.encode()
        self.exchange, self.client = self.world.begin(head)
        if held:
            self.exchange.request_body(b"u" * held)
            self.transport.takes = False
        self.pool.stop_waiting(at_pod(self.exchange))
        at_pod(self.exchange).connected(self.connection.serve(at_pod(self.exchange)))
        self.world.clock.turn()


def test_an_early_answer_ends_the_connection_at_once() -> None:
    """An orderly close would wait for a pod that reads no more, and would go on giving it what nobody answers for."""
    call = Call(length=1000)
    call.transport.takes = False
    call.exchange.request_body(b"u" * 10)
    call.connection.data_received(ANSWER)
    assert call.client.body == b"hello" and call.client.has_ended()
    assert call.transport.is_aborted() and call.owner.gone == 1
    call.world.check_idle()


def test_a_connection_with_much_to_send_is_not_kept() -> None:
    call = Call(length=10)
    call.transport.takes = False
    call.exchange.request_body(b"u" * 10)
    call.exchange.request_end([])
    call.connection.pause_writing()
    call.connection.data_received(ANSWER)
    assert call.client.has_ended() and call.transport.is_aborted() and call.owner.kept == []
    call.world.check_idle()


def test_the_end_of_a_pod_is_heard_though_it_has_not_taken_the_request() -> None:
    for answer, whole in ((UNTIL_EOF, True), (CUT, False), (b"", False)):
        call = Call(length=1000)
        call.transport.takes = False
        call.exchange.request_body(b"u" * 10)
        call.connection.data_received(answer)
        assert not call.connection.eof_received()
        assert call.client.has_ended() == (whole or not answer)
        assert call.client.is_aborted() == (bool(answer) and not whole)
        assert call.transport.is_aborted()
        call.world.check_idle()


class UndialledPool(Http1Pool):
    """Gets its connections from the test."""

    def __init__(self, world: World) -> None:
        context = DialContext(cast("Any", None), world.wheel, cast("Any", None), turn_of(world))
        super().__init__(context, world.clock.now, PodAddress("10.0.0.1", 80), 5.0)
        self.window.dialled()  # the one dial that will have succeeded
        tracker = world.table.add("p1", "10.0.0.1:80", 2, READY)
        assert tracker is not None
        tracker.attachment = self

    def _dial_for_waiting(self) -> None:
        pass


def test_a_pod_that_takes_nothing_more_is_not_waited_for_for_ever() -> None:
    world = World()
    pool = UndialledPool(world)
    transport = WrittenTransport()
    connection = Http1PodConnection(pool, world.clock.now, turn_of(world))
    connection.connection_made(transport)
    transport.buffer = b"of the last request"
    connection.close()
    assert transport.is_closed() and not transport.is_aborted()
    world.clock.pass_time(FLUSH_S + 1.0)
    assert transport.is_aborted()


def test_who_is_handed_a_kept_connection_may_be_repeated_when_it_closes() -> None:
    world = World()
    pool = UndialledPool(world)
    first, first_client = world.begin()
    second, second_client = world.begin()
    connection = Http1PodConnection(pool, world.clock.now, turn_of(world))
    connection.connection_made(WrittenTransport())
    connection.data_received(ANSWER)
    assert first_client.has_ended() and first.over
    connection.connection_lost(None)
    assert second_client.silent() and not second.over and pool.statistics()["waiting"] == 1
    second.client_gone()
    pool.close()
    world.check_idle()


def test_who_wants_a_fresh_connection_is_handed_no_kept_one() -> None:
    world = World()
    pool = UndialledPool(world)
    first, _ = world.begin()
    connection = Http1PodConnection(pool, world.clock.now, turn_of(world))
    connection.connection_made(WrittenTransport())
    second, second_client = world.begin()
    pool.stop_waiting(at_pod(second))
    pool.checkout(at_pod(second), 0.0, world.clock.now())
    connection.data_received(ANSWER)
    assert first.over and pool.statistics()["waiting"] == 1 and pool.statistics()["idle"] == 1
    totals = [10, 20, 30, 40]
    pool.count_into(totals)
    shown = pool.statistics()
    assert totals == [10 + shown["open"], 20 + shown["idle"], 30 + shown["dialling"], 40 + shown["waiting"]]
    assert shown["open"] == shown["idle"] == shown["waiting"] == 1
    dialled = Http1PodConnection(pool, world.clock.now, turn_of(world))
    dialled.connection_made(WrittenTransport())
    dialled.data_received(ANSWER)
    assert second.over and second_client.has_ended()
    pool.close()
    world.check_idle()


def test_what_is_not_idempotent_goes_out_on_no_connection_that_was_idle_for_long() -> None:
    world = World()
    pool = UndialledPool(world)
    first, _ = world.begin()
    connection = Http1PodConnection(pool, world.clock.now, turn_of(world))
    connection.connection_made(WrittenTransport())
    connection.data_received(ANSWER)
    assert first.over and pool.statistics()["idle"] == 1
    world.clock.pass_time(RISKY_IDLE_S + 0.1)
    risky, _ = world.begin(request_head("POST", length=0))
    assert pool.statistics()["idle"] == 1 and pool.statistics()["waiting"] == 1
    safe, _ = world.begin()
    assert pool.statistics()["idle"] == 0, "it may be repeated"
    for one in (risky, safe):
        one.client_gone()
    pool.close()
    world.check_idle()


def test_a_pod_that_is_full_at_once_is_not_fed_on() -> None:
    """What was held is more than its transport takes: nobody would say so a second time."""
    call = Call(length=1000, held=200)
    assert call.client.is_paused() and call.transport.buffer
    call.connection.resume_writing()
    assert not call.client.is_paused()
    call.exchange.client_gone()
    call.world.check_idle()


def test_over_tls_a_tunnel_ends_with_its_first_end() -> None:
    for first in ("client", "pod"):
        call = Call(half_closes=False, asks="chaos")
        call.connection.data_received(SWITCH)
        if first == "client":
            call.exchange.request_end([])
        else:
            assert not call.connection.eof_received()
            assert call.client.has_ended()
        assert call.transport.is_closed() and not call.transport.is_aborted()
        call.world.check_idle()


def test_what_a_pod_said_before_its_end_is_not_lost_when_its_connection_breaks() -> None:
    call = Call(asks="chaos")
    call.connection.data_received(SWITCH + b"last words")
    assert call.connection.eof_received()
    call.client.ended = False  # of its direction
    call.connection.connection_lost(ConnectionResetError())
    assert call.client.has_ended() and not call.client.is_aborted()
    call.world.check_idle()


def test_a_connection_that_is_gone_needs_no_collector() -> None:
    def connections() -> int:
        return sum(isinstance(one, Http1PodConnection) for one in gc.get_objects())

    world = World()
    pool = UndialledPool(world)
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for data, error in ((ANSWER, None), (CUT, None), (UNTIL_EOF, None), (b"HTT", OSError()), (b"garbage", None)):
            world.begin()
            connection = Http1PodConnection(pool, world.clock.now, turn_of(world))
            pool.window.dialled()
            connection.connection_made(WrittenTransport())
            connection.data_received(data)
            connection.connection_lost(error)
            del connection
            pool._new_connections.clear()
            for attempt in list(pool._waiting):
                cast("Attempt", attempt).exchange.client_gone()
            for _ in range(10):
                world.clock.turn()
            assert connections() == before, data
    finally:
        gc.enable()
    pool.close()
