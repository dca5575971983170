"""Who is limited with whom, and that refused requests are no load."""

from __future__ import annotations

from typing import Any

import pytest

from activator.config.specs import FallbackSpec, FiltersSpec, RateLimitSpec
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.filters.rate_limit import NO_ADDRESS, RateLimit, network_of
from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, World, request_head

ONE = RateLimitSpec(1, 60.0, 1)


def world_of(limit: RateLimitSpec = ONE, **more: Any) -> World:
    return World(filters=FiltersSpec(rate_limit=limit, **more))


def ask(world: World, ip: str = "192.0.2.1", is_local: bool = False, **fields: Any) -> Client:
    return world.begin(request_head(**fields), ip, is_local)[1]


@pytest.mark.parametrize(
    ("ip", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8::1", "20010db800000000"),
        ("2001:DB8:0:0:ffff::1", "20010db800000000"),
        ("2001:db8:0:1::1", "20010db800000001"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("", NO_ADDRESS),
        ("unknown", NO_ADDRESS),
        ("_hidden", NO_ADDRESS),
        ("a:b", NO_ADDRESS),
    ],
)
def test_what_an_address_counts_as(ip: str, network: str) -> None:
    assert network_of(ip) == network


def test_a_refused_request_starts_nothing_and_is_no_load() -> None:
    world = world_of()
    assert ask(world).silent()
    assert world.heard.events == [("activated",), ("queue_formed",)]
    client = ask(world)
    assert (client.status, client.reason, client.retry_after) == (429, "rate_limited", "60")
    assert client.body == b"the client's address has sent too many requests\n"
    assert world.throttler.counters.failed_totals == {Reason.RATE_LIMITED: 1}
    load = load_of(world.throttler, world.clock.now())
    assert (load.requests_total, load.queued) == (1, 1)
    world.clock.pass_time(59.5)
    assert ask(world).retry_after == "1"
    world.clock.pass_time(0.6)
    assert ask(world).silent()


def test_others_are_not_affected() -> None:
    world = world_of()
    for ip in ("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"):
        assert ask(world, ip).silent()
    for ip in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::2"):
        assert ask(world, ip).status == 429


def test_clients_of_a_unix_socket_are_exempt_unless_their_proxy_names_an_address() -> None:
    world = world_of()
    assert all(ask(world, "", True).silent() for _ in range(3))
    assert ask(world, "192.0.2.1", True).silent()
    assert ask(world, "192.0.2.1", True).status == 429
    assert ask(world, "", False).silent()
    assert ask(world, "", False).status == 429, "a connection without an address is not one of a Unix socket"


def test_a_burst_of_its_own() -> None:
    world = world_of(RateLimitSpec(60, 60.0, 3))
    assert [ask(world).status for _ in range(4)] == [0, 0, 0, 429]
    world.clock.pass_time(1.1)
    assert [ask(world).status for _ in range(2)] == [0, 429]


def test_a_reload_keeps_what_has_been_used_unless_the_limit_changes() -> None:
    world = world_of()
    catalogue = world.catalogue()
    for limit, status in ((ONE, 0), (ONE, 429), (RateLimitSpec(2, 60.0, 1), 0), (None, 0), (ONE, 0), (ONE, 429)):
        world.throttler.filters = catalogue.chain_of("ns/app", FiltersSpec(rate_limit=limit))
        assert ask(world).status == status
    catalogue.revision_dropped("ns/app")
    world.throttler.filters = catalogue.chain_of("ns/app", FiltersSpec(rate_limit=ONE))
    assert ask(world).status == 0
    assert catalogue.chain_of("ns/other", FiltersSpec()) is None


def test_it_is_not_replaced_by_a_fallback_and_comes_after_allow() -> None:
    world = world_of(fallback=FallbackSpec(body="sorry"), allow=("192.0.2.0/24",))
    chain = world.throttler.filters
    assert isinstance(chain, FilterChain)
    limit = chain.filters[1]
    assert isinstance(limit, RateLimit)
    assert [ask(world, f"198.51.100.{number % 4}").status for number in range(8)] == [403] * 8
    assert limit._rates.size() == 0, "clients that are not allowed cannot crowd out those that are"
    assert ask(world).silent()
    client = ask(world)
    assert (client.status, client.body) == (429, b"the client's address has sent too many requests\n")


def test_a_grpc_client_gets_a_status() -> None:
    world = world_of()
    head = request_head("POST", length=0, Content_Type="application/grpc", TE="trailers")
    head.takes_trailers = True
    assert ask(world).silent()
    client = world.begin(head)[1]
    assert client.status == 200 and client.fields["grpc-status"] == "8"
