"""Who may use a revision by address, and that the others are no load."""

from __future__ import annotations

import pytest

from activator.config.specs import FiltersSpec
from activator.data_plane.filters.allow import KEPT_MAX, Allow
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, World, request_head


def asked(world: World, ip: str) -> Client:
    return world.begin(request_head(), ip)[1]


@pytest.mark.parametrize(
    ("networks", "ip", "allowed"),
    [
        (("10.0.0.0/8",), "10.255.0.1", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("192.0.2.7", "2001:db8::/32"), "192.0.2.7", True),
        (("192.0.2.7", "2001:db8::/32"), "2001:db8::1", True),
        (("0.0.0.0/0",), "2001:db8::1", False),
        (("0.0.0.0/0", "::/0"), "a-name-of-a-proxy", False),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8",), "::ffff:a01:203", True),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("0.0.0.0/0",), "", False),
    ],
)
def test_who_may_use_a_revision(networks: tuple[str, ...], ip: str, allowed: bool) -> None:
    world = World(filters=FiltersSpec(allow=networks))
    client = asked(world, ip)
    if allowed:
        assert client.status == 0 and world.heard.events == [("activated",), ("queue_formed",)]
        return
    assert (client.status, client.reason) == (403, "address_not_allowed")
    assert world.heard.events == [] and load_of(world.throttler, 0.0).requests_total == 0
    assert world.throttler.counters.failed_totals == {Reason.ADDRESS_NOT_ALLOWED: 1}
    assert world.throttler.counters.quiet == 0


@pytest.mark.parametrize(("is_local", "status"), [(True, 0), (False, 403)])
def test_who_has_no_address_is_a_client_of_a_unix_socket_or_nobody(is_local: bool, status: int) -> None:
    """A connection that was reset before it was accepted has no address, either."""
    world = World(filters=FiltersSpec(allow=("unix",)))
    _, client = world.begin(request_head(), "", is_local)
    assert client.status == status


def test_what_is_known_of_addresses_has_a_bound() -> None:
    world = World(filters=FiltersSpec(allow=("10.0.0.0/8",)))
    chain = world.throttler.filters
    assert isinstance(chain, FilterChain)
    (allow,) = chain.filters
    assert isinstance(allow, Allow)
    for number in range(KEPT_MAX + 10):
        asked(world, f"192.0.{number >> 8}.{number & 255}")
    assert len(allow._cached) <= KEPT_MAX
