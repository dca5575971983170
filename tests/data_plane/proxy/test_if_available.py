"""`Prefer: if-available`: a request that would wait is rejected at once, and starts nothing."""

from __future__ import annotations

import pytest

from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, request_head
from tests.data_plane.proxy.test_fallback_revision import Two, finished

PREFER = {"Prefer": "if-available"}


def test_at_zero_it_starts_nothing() -> None:
    world = World()
    _, client = world.begin(request_head(**PREFER))
    assert (client.status, client.reason) == (412, "not_available")
    assert client.body == b"no slot is free now, and the request prefers not to wait\n"
    assert "retry-after" not in client.fields
    assert load_of(world.throttler, world.clock.now()).concurrency == 0 and not world.throttler.active
    assert world.throttler.counters.failed_totals == {Reason.NOT_AVAILABLE: 1}
    world.check_idle()


@pytest.mark.parametrize("prefer", ["if-available", 'x="y", IF-Available ; a=b', "respond-async,if-available"])
def test_it_is_served_or_rejected_and_never_waits(prefer: str) -> None:
    world = World()
    world.pod()
    first, served = world.begin(request_head(Prefer=prefer))
    assert world.table.in_flight == 1
    _, client = world.begin(request_head(Prefer=prefer))
    assert (client.status, client.reason) == (412, "not_available")
    second, waits = world.begin(request_head(Prefer="if-available-later"))
    assert waits.silent() and second.place.is_queued
    world.answer(first)
    world.clock.turn()
    world.answer(second)
    assert served.status == waits.status == 200
    world.check_idle()


def test_another_revision_may_serve_it() -> None:
    world = Two()
    world.second_pod()
    exchange, client = world.begin(request_head(**PREFER))
    assert exchange.revision_key() == "ns/second"
    finished(world, exchange, client)
