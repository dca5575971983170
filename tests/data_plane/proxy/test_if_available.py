"""`Prefer: if-available`: a request that would wait is rejected at once, and starts nothing."""

from __future__ import annotations

import pytest

from activator.config.specs import BuffersSpec
from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import Reason
from lb.tracker import QUARANTINED
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head
from tests.data_plane.proxy.test_fallback_revision import Two, finished

PREFER = "if-available"


def test_at_zero_it_starts_nothing() -> None:
    world = World()
    _, client = world.begin(request_head(Prefer=PREFER))
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


def test_a_late_body_is_not_gathered() -> None:
    world = World(buffers=BuffersSpec(request_bytes=100))
    head = request_head("POST", length=8, Prefer=PREFER)
    client = Client()
    world.proxy.open(head, client).begin()
    assert (client.status, client.reason) == (412, "not_available") and not world.throttler.active
    pool = world.pod()
    world.proxy.open(request_head("POST", length=8, Prefer=PREFER), Client()).begin()
    assert pool.pods[0].head is not None, "it does not wait for its body either"


def test_a_revision_that_cannot_start_says_why() -> None:
    world = World()
    world.throttler.queue.fail("image not found")
    _, client = world.begin(request_head(Prefer=PREFER))
    assert (client.status, client.reason) == (503, "revision_failed") and b"image not found" in client.body


def test_it_does_not_wait_for_another_pod_either() -> None:
    world = World()
    world.pod(connects=False)
    exchange, client = world.begin(request_head(Prefer=PREFER))
    world.table.set_state(world.tracker("p1"), QUARANTINED)
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    world.clock.turn()
    assert (client.status, client.reason) == (412, "not_available")
    world.check_idle()


def test_another_revision_may_serve_it() -> None:
    world = Two()
    world.second_pod()
    exchange, client = world.begin(request_head(Prefer=PREFER))
    assert exchange.revision_key() == "ns/second"
    finished(world, exchange, client)
