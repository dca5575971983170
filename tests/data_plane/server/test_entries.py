"""Connections that came to a port which leads to one revision: what they are for, and how they end when it is left."""

from __future__ import annotations

from typing import Any

from activator.data_plane.proxy.routing import entry_of
from activator.data_plane.server.entry_sweep import ENTRY_SWEEP_S, EntrySweep
from activator.data_plane.server.http1_connection import Http1Connection
from tests.data_plane.http2_peers import Http2World, request_fields
from tests.data_plane.server.test_http1_connection import GET, Visit
from tests.written_transport import WrittenTransport

PORT = 20_001


class EnteredTransport(WrittenTransport):
    """Of a connection that came to this port."""

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.9", PORT) if name == "sockname" else super().get_extra_info(name)


def entered() -> Visit:
    visit = Visit()
    visit.connection.connection_lost(None)
    visit.registry.entry_first, visit.registry.entry_last = 20_000, 29_999
    visit.transport = EnteredTransport()
    visit.connection = Http1Connection(visit.registry)
    visit.connection.connection_made(visit.transport)
    return visit


def test_a_port_is_known_within_the_range_alone() -> None:
    visit = Visit()
    transport = EnteredTransport()
    assert visit.registry.entry_at(transport) == b"", "without a range nobody asks"
    visit.registry.entry_first, visit.registry.entry_last = 20_002, 29_999
    assert visit.registry.entry_at(transport) == b""
    visit.registry.entry_first = 20_001
    assert visit.registry.entry_at(transport) == b"port 20001"
    assert visit.registry.entry_at(WrittenTransport()) == b"", "it has no address"
    visit.end()


def test_a_port_that_leads_nowhere_is_not_answered_by_the_host() -> None:
    visit = entered()
    visit.connection.data_received(GET)
    visit.turn.end()
    assert visit.begun == 0
    assert b" 404 " in visit.transport.sent
    visit.end()


def test_an_answer_asks_the_client_of_a_port_that_is_left_to_connect_anew() -> None:
    for is_left in (False, True):
        visit = entered()
        throttler = visit.world.throttler
        visit.world.router._hosts[entry_of(PORT)] = [throttler]
        if is_left:
            visit.registry.leaving.add(entry_of(PORT))
        visit.connection.data_received(GET)
        assert visit.begun == 1
        visit.answer()
        assert (b"connection: close" in visit.transport.sent.lower()) is is_left
        visit.end()


def test_http_2_connections_of_a_port_that_is_left_end_in_order() -> None:
    it = Http2World()
    sweep = EntrySweep(it.registry)
    sweep.arm()
    staying, going = it.client(), it.client()
    for line, port in ((staying, 20_002), (going, 20_003)):
        it.registry.entered[line.connection] = entry_of(port)
    _, heard = it.request(going, request_fields(b"POST"), b"x")
    it.registry.leaving.add(entry_of(20_003))
    it.world.clock.pass_time(ENTRY_SWEEP_S)
    it.run()
    it.answer(it.open_pod() if not it.pool.lines else it.pool.lines[0], 1)
    assert heard.status == 200, "what is under way is answered"
    for _ in range(8):
        it.world.clock.pass_time(ENTRY_SWEEP_S)
        it.run()
    assert going.transport.is_closing() and not staying.transport.is_closing()
    it.world.wheel.cancel(sweep)
    it.end()
