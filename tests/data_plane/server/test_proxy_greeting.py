"""A listener with the PROXY protocol: who is believed, how long a header may take, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.proxy_greeting import PROXY_HEADER_TIMEOUT_S, ProxyHeaderReader, TrustedProxies
from tests.data_plane.server.test_http1_connection import GET, Visit
from tests.written_transport import WrittenTransport

LINE = b"PROXY TCP4 203.0.113.7 198.51.100.1 4000 443\r\n"


class PeerTransport(WrittenTransport):
    """Of a connection from this address."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer = peer
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> Any:
        if name == "peername":
            return self.peer
        return super().get_extra_info(name)


class Guest:
    """One connection, and what it was introduced as."""

    def __init__(self, peer: Any = ("10.0.0.5", 1), trusted: str = "10.0.0.0/8", required: bool = False) -> None:
        self.visit = Visit()
        self.transport = PeerTransport(peer)
        self.told: list[tuple[Endpoints | None, bytes]] = []
        self.greeting = ProxyHeaderReader(
            self.visit.registry,
            TrustedProxies([trusted], required),
            lambda transport, endpoints, rest: self.told.append((endpoints, rest)),
        )
        self.greeting.connection_made(self.transport)

    def pass_time(self, seconds: float) -> None:
        self.visit.world.clock.pass_time(seconds)


def test_the_header_may_come_in_any_pieces() -> None:
    for cut in range(len(LINE)):
        guest = Guest()
        assert len(guest.visit.registry.handshakes) == 1, "it counts as long as it has not said who it is"
        for piece in (LINE[:cut], LINE[cut:] + GET):
            if piece:
                guest.greeting.data_received(piece)
        assert guest.told == [(Endpoints("203.0.113.7", 4000, "198.51.100.1", 443), GET)]
        assert not guest.visit.registry.handshakes


def test_who_trickles_has_so_long_and_no_longer() -> None:
    guest = Guest()
    for byte in LINE[:-1]:
        guest.greeting.data_received(bytes([byte]))
        guest.pass_time(PROXY_HEADER_TIMEOUT_S / len(LINE))
    assert not guest.transport.aborted
    guest.pass_time(PROXY_HEADER_TIMEOUT_S)
    assert guest.transport.is_aborted() and not guest.visit.registry.handshakes and guest.told == []
    guest.greeting.data_received(LINE[-1:])
    assert guest.told == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PROXY TCP4 1.2.3.4\r\n"])
def test_a_trusted_proxy_that_says_nothing_of_the_kind_is_closed_without_an_answer(data: bytes) -> None:
    guest = Guest()
    guest.greeting.data_received(data)
    assert guest.transport.is_aborted() and guest.transport.sent == b"" and guest.told == []
    assert not guest.visit.registry.handshakes


def test_who_is_not_trusted_is_served_as_itself_or_not_at_all() -> None:
    guest = Guest(("192.0.2.1", 1))
    assert guest.told == [(None, b"")]
    guest = Guest(("192.0.2.1", 1), required=True)
    assert guest.told == [] and guest.transport.is_aborted()
    assert not guest.visit.registry.handshakes


def test_what_such_a_client_sends_in_the_place_of_a_request_is_refused() -> None:
    for header in (LINE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)):
        visit = Visit()
        visit.connection.data_received(header + GET)
        visit.turn.end()
        assert b" 400 " in visit.transport.sent and visit.begun == 0
        visit.end()


@pytest.mark.parametrize(
    ("peer", "trusted", "believed"),
    [
        (("::ffff:10.1.2.3", 1, 0, 0), "10.0.0.0/8", True),
        (("fe80::1%eth0", 1, 0, 0), "fe80::/10", True),
        (("2001:db8::1", 1, 0, 0), "10.0.0.0/8", False),
        ("", "10.0.0.0/8", False),
        (None, "unix", False),  # gone already, and nobody knows what it was
    ],
)
def test_networks(peer: Any, trusted: str, believed: bool) -> None:
    guest = Guest(peer, trusted)
    assert (guest.told == []) is believed


def test_of_too_many_that_say_nothing_the_oldest_is_closed() -> None:
    first = Guest()
    registry = first.visit.registry
    registry.handshakes_max = 2
    others = [
        ProxyHeaderReader(registry, TrustedProxies(["10.0.0.0/8"], False), lambda *_: None),
        ProxyHeaderReader(registry, TrustedProxies(["10.0.0.0/8"], False), lambda *_: None),
    ]
    for one in others:
        one.connection_made(PeerTransport(("10.0.0.6", 1)))
    assert first.transport.is_aborted()
    assert list(registry.handshakes) == others and registry.handshakes_closed_total == 1


def test_the_client_is_whom_the_proxy_says_in_all_that_is_told_of_it() -> None:
    visit = Visit()
    visit.connection.connection_lost(None)
    transport = PeerTransport(("10.0.0.5", 1))
    connection = Http1Connection(visit.registry)
    connection.endpoints = Endpoints("203.0.113.7", 4000, "198.51.100.1", 443)
    visit.transport, visit.connection = transport, connection
    connection.connection_made(transport)
    connection.data_received(GET)
    assert connection._origin_of_client().peer_ip == "203.0.113.7"
    visit.end()
