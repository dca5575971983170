"""Which of the peers in the file this replica is."""

from __future__ import annotations

import asyncio

import pytest

from activator.members.directory import StaticDirectory
from activator.runtime.errors import StartError

ELSEWHERE = "203.0.113.1:8015"  # TEST-NET-3 (RFC 5737)


def seat(peers: list[str], listen: str, address: str = "") -> int:
    roster = StaticDirectory(peers, listen, address)
    assert roster.addresses[asyncio.run(roster.join(""))] == roster.own_address
    return asyncio.run(roster.join(""))


def test_seats_do_not_depend_on_the_order_in_the_file() -> None:
    peers = ["10.0.0.3:8015", "127.0.0.1:8015", "10.0.0.2:8015"]
    assert seat(peers, "0.0.0.0:8015") == seat(peers[::-1], "0.0.0.0:8015") == 2


def test_it_is_the_one_with_its_own_port_on_this_machine() -> None:
    assert seat(["127.0.0.1:8015", "127.0.0.1:8016"], "127.0.0.1:8016") == 1
    assert seat(["127.0.0.1:8015", ELSEWHERE], "0.0.0.0:8015") == 0
    assert seat(["[::1]:8015", ELSEWHERE], "[::]:8015") == 1


def test_the_address_says_which_one() -> None:
    assert seat(["127.0.0.1:8015", "127.0.0.2:8015"], "0.0.0.0:8015", "127.0.0.2:8015") == 1


def test_not_to_be_among_them_or_twice_is_refused() -> None:
    with pytest.raises(StartError, match=r"does not have this replica: none of 203.0.113.1:8015 is .* with port 8015"):
        seat([ELSEWHERE], "0.0.0.0:8015")
    with pytest.raises(StartError, match=r"several addresses of this machine with port 8015: set members.address"):
        seat(["127.0.0.1:8015", "127.0.0.2:8015"], "0.0.0.0:8015")
