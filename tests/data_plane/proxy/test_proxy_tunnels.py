"""An upgraded connection, from the 101 to the end of both directions."""

from __future__ import annotations

import pytest

from activator.codec.message import RequestHead, ResponseHead
from activator.config.specs import TimeoutsSpec
from activator.data_plane.proxy.exchange import ProxiedExchange
from tests.data_plane.proxy.proxy_fakes import (
    Client,
    Pod,
    Pool,
    World,
    at_pod,
    check_back_pressure,
    request_head,
    response_head,
)


def asking(protocols: bytes = b"websocket") -> RequestHead:
    head = request_head()
    head.upgrade = protocols
    return head


def switched() -> ResponseHead:
    head = response_head(101, 0)
    head.upgrade = b"websocket"
    head.content_length = -1
    head.has_body = False
    return head


def sent_upgrade(pool: Pool) -> bytes:
    head = pool.pods[-1].head
    assert head is not None
    return head.upgrade


def begin(world: World) -> tuple[ProxiedExchange, Client, Pod]:
    pool = world.pod()
    exchange, client = world.begin(asking())
    at_pod(exchange).response_head(switched())
    return exchange, client, pool.pods[0]


def test_both_directions_flow_and_end_apart_the_clients_first() -> None:
    world = World()
    exchange, client, pod = begin(world)
    assert client.status == 101
    assert world.proxy.tunnels == 1
    exchange.request_body(b"ping")
    at_pod(exchange).response_body(b"pong")
    assert (pod.body, client.body) == (b"ping", b"pong")
    exchange.request_end([])
    assert pod.ended
    assert not client.has_ended()
    at_pod(exchange).response_body(b"more")
    assert world.table.in_flight == 1
    at_pod(exchange).response_end([])
    assert client.has_ended()
    assert pod.finished
    assert world.proxy.tunnels == 0
    world.check_idle()


def test_both_directions_flow_and_end_apart_the_pods_first() -> None:
    world = World()
    exchange, client, pod = begin(world)
    at_pod(exchange).response_end([])
    assert client.ended
    assert not pod.ended
    exchange.request_body(b"last words")
    assert pod.body == b"last words"
    assert world.table.in_flight == 1
    exchange.request_end([])
    assert pod.finished
    world.check_idle()


def test_a_tunnel_has_the_idle_limit_of_tunnels_and_no_other() -> None:
    world = World(timeouts=TimeoutsSpec(total_s=10.0, first_byte_s=1.0, idle_s=1.0, tunnel_idle_s=50.0))
    exchange, client, pod = begin(world)
    world.clock.pass_time(45.0)
    exchange.request_body(b"x")
    world.clock.pass_time(45.0)
    at_pod(exchange).response_body(b"y")
    at_pod(exchange).response_flush()
    world.clock.pass_time(45.0)
    assert not client.is_aborted()
    world.clock.pass_time(6.0)
    assert client.is_aborted()
    assert pod.aborted
    world.check_idle()


def test_no_idle_limit() -> None:
    world = World(timeouts=TimeoutsSpec(total_s=10.0, tunnel_idle_s=0.0))
    exchange, client, _ = begin(world)
    world.clock.pass_time(1_000_000.0)
    assert not client.is_aborted()
    exchange.client_gone()
    world.check_idle()


@pytest.mark.parametrize("after", ["client", "pod", "nobody"])
def test_a_client_that_vanishes_frees_the_slot(after: str) -> None:
    world = World()
    exchange, _, pod = begin(world)
    if after == "client":
        exchange.request_end([])
    if after == "pod":
        at_pod(exchange).response_end([])
    exchange.client_gone()
    assert pod.aborted
    world.check_idle()


def test_back_pressure_goes_both_ways() -> None:
    world = World()
    exchange, client, pod = begin(world)
    check_back_pressure(exchange, client, pod)
    exchange.client_gone()
    world.check_idle()


def test_a_revision_that_takes_no_upgrades() -> None:
    world = World(upgrades=())
    pool = world.pod()
    _, client = world.begin(asking())
    assert (client.status, client.reason) == (501, "upgrade_not_supported")
    exchange, client = world.begin(asking(b"h2c"))
    assert sent_upgrade(pool) == b"" == exchange.upgrade, "declined by saying nothing of it"
    assert exchange.head.upgrade == b"h2c"
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize(
    "offered",
    [b"h2c", b"H2C", b"HTTP/2", b"HTTP/2.0", b"HTTP/3", b"tls", b"TLS/1.3", b"h2", b"h2c-14", b"http2", b"HTTP / 2"],
)
def test_every_upgrade_is_none_to_http_or_tls(offered: bytes) -> None:
    world = World(upgrades=("*",))
    pool = world.pod()
    exchange, _ = world.begin(asking(offered + b", x-echo"))
    assert sent_upgrade(pool) == b"x-echo"
    world.answer(exchange, 200)
    world.check_idle()


def test_only_what_is_configured_is_offered_to_the_pod() -> None:
    world = World(upgrades=("websocket", "x-echo"))
    pool = world.pod()
    exchange, _ = world.begin(asking(b"h2c, x-echo, websocket"))
    assert sent_upgrade(pool) == b"x-echo, websocket"
    world.answer(exchange, 200)
    world.check_idle()
