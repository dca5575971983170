"""The roster: the seats of a group and the addresses of their holders. The base of all ways to find them."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import final

from activator.members.mesh import split
from activator.runtime.errors import StartError

Changed = Callable[[Mapping[int, str]], None]


class ForbiddenError(StartError):
    """The program has no right to do what finding the members needs."""


class MemberDirectory(ABC):
    """The roster of one replica. `pod`: the UID of its pod in a cluster, else empty."""

    pod: str = ""

    @abstractmethod
    async def join(self, address: str) -> int:
        """Take a seat for a replica that is reachable at `address`, and return the seat. Raises StartError."""

    @abstractmethod
    def watch(self, changed: Changed) -> None:
        """Call `changed(addresses)` with the address of each seat, the own one included, now and at each change."""

    @abstractmethod
    async def is_gone(self, seat: int, address: str) -> bool:
        """Return True if it is proven that the holder of this seat with this address has ended and cannot return.

        In a cluster, the seat of such a holder is then removed, too.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Give up the seat, when this replica has ended all its work."""


@final
class StaticDirectory(MemberDirectory):
    """The peers of the configuration, this replica among them.

    Seats are in the order of the addresses as text, so that their order in the file does not matter.
    """

    def __init__(self, peers: list[str], listen: str, address: str) -> None:
        """Find this replica among the peers. Raises StartError if that is ambiguous."""
        self.addresses = dict(enumerate(sorted(peers)))
        self._own = _own_seat(self.addresses, listen, address)

    @property
    def own_address(self) -> str:
        return self.addresses[self._own]

    async def join(self, address: str) -> int:
        return self._own

    def watch(self, changed: Changed) -> None:
        changed(self.addresses)

    async def is_gone(self, seat: int, address: str) -> bool:
        return False  # a fixed list proves nothing

    async def leave(self) -> None:
        pass


def _own_seat(addresses: Mapping[int, str], listen: str, address: str) -> int:
    """Return the seat of this replica: the one of `address`, or of an address of this machine with its port."""
    wanted = address or listen
    named = [seat for seat, one in addresses.items() if one == wanted]
    port = split(wanted)[1]
    found = named or [seat for seat, one in addresses.items() if split(one)[1] == port and _is_here(split(one)[0])]
    if len(found) == 1:
        return found[0]
    peers = ", ".join(addresses.values())
    if not found:
        raise StartError(
            f"members.peers does not have this replica: none of {peers} is an address of this machine with port "
            f"{port}; add it, or set members.address to the one that is meant"
        )
    raise StartError(f"members.peers has several addresses of this machine with port {port}: set members.address")


def _is_here(host: str) -> bool:
    """Return True if this machine has this address."""
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(sockaddr)
    except OSError:
        return False
    return True
