"""The listening sockets of all workers: each address has one for each place, and the kernel distributes connections.

Rules
  1. The parent keeps each of them open, so connections in the accept queue of a worker that has ended are not lost: the
     next worker of its place accepts them.
  2. A change is made as a whole or not at all: if `plan` raises, it has left nothing open.
  3. A Unix socket cannot be shared by its address: there is one, and each place has a descriptor of it. All workers
     accept from one queue, so no connection in it belongs to a worker that has ended.
  4. The parent loads each certificate first and watches its files; it notifies the workers when to read them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from activator.config.model.listeners import Listener, address_of_listener
from activator.data_plane.server.listener import apply_access
from activator.runtime.certificates import ServerCertificate
from activator.runtime.errors import StartError
from activator.runtime.sockets import address_of, bind, inherited, join_address
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_sockets import SocketAccess, remove_file


class PlacedSocket(NamedTuple):
    """The socket of one place. `number` is unique."""

    number: int
    wanted: str | Listener
    socket: socket.socket


class SharedListener:
    """One listener of the configuration, with a socket for each place."""

    def __init__(
        self, wanted: str | Listener, sockets: list[PlacedSocket], certificate: ServerCertificate | None
    ) -> None:
        self.wanted = wanted
        self.sockets = sockets
        self.certificate = certificate
        self.address = address_of(sockets[0].socket)  # as bound

    def close(self, is_left: bool = True) -> None:
        """Close the sockets. `is_left`: no other listener has the address, so the file of a Unix socket is removed."""
        if is_left:
            remove_file(self.address)
        for one in self.sockets:
            one.socket.close()


class SocketChange(NamedTuple):
    """A change of the listeners: those that were opened, and those that are to be closed."""

    opened: list[SharedListener]
    leaving: list[SharedListener]

    def discard(self) -> None:
        """Close the listeners that `plan` has opened, instead of making the change."""
        kept_addresses = {listener.address for listener in self.leaving}
        for listener in self.opened:
            listener.close(listener.address not in kept_addresses)


class SharedSockets:
    """The listeners of `places` workers."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._numbers = count(1)
        self._listeners: list[SharedListener] = []

    @property
    def addresses(self) -> list[str]:
        """The addresses as bound, where port 0 has been replaced."""
        return [listener.address for listener in self._listeners]

    def plan(self, wanted: list[str | Listener]) -> SocketChange:
        """Open the new listeners; `change` or `discard` the result before the loop turns. Raises StartError."""
        staying = [one.wanted for one in self._listeners if one.wanted in wanted]
        leaving = [one for one in self._listeners if one.wanted not in wanted]
        opened: list[SharedListener] = []
        try:
            opened.extend(self._open(one, leaving) for one in wanted if one not in staying)
        except StartError:
            SocketChange(opened, leaving).discard()
            raise
        return SocketChange(opened, leaving)

    def change(self, change: SocketChange) -> None:
        """Make a planned change. Workers keep their own descriptors of sockets that are closed here."""
        self._listeners = [*(one for one in self._listeners if one not in change.leaving), *change.opened]
        kept_addresses = {listener.address for listener in self._listeners}
        for listener in change.opened:
            apply_access(listener.wanted)
        for listener in change.leaving:
            listener.close(listener.address not in kept_addresses)

    def of_places(self, places: Iterable[int]) -> list[PlacedSocket]:
        """Return all sockets of these places."""
        return [listener.sockets[place] for place in places for listener in self._listeners]

    def close(self) -> None:
        """Close all sockets. Pending connections are refused once the workers have closed their descriptors, too."""
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def check_certificates(self) -> bool:
        """Check the files of the certificates; return True if one was replaced by a valid one."""
        replaced = False
        for listener in self._listeners:
            certificate = listener.certificate
            if certificate is not None:
                before = certificate.reloads_total
                certificate.check()
                replaced = replaced or certificate.reloads_total != before
        return replaced

    def _open(self, wanted: str | Listener, leaving: list[SharedListener]) -> SharedListener:
        """Open a listener, with the sockets of a leaving one of the same address if there is one. Raises StartError."""
        address = address_of_listener(wanted)
        certificate = ServerCertificate(wanted) if isinstance(wanted, Listener) and wanted.is_secure() else None
        for other in leaving:
            if address_of_listener(other.wanted) == address:
                sockets = [one.socket.dup() for one in other.sockets]
                return SharedListener(wanted, self._placed(wanted, sockets), certificate)
        access = wanted.access() if isinstance(wanted, Listener) else SocketAccess()
        return SharedListener(wanted, self._placed(wanted, self._bind(address, access)), certificate)

    def _bind(self, address: str, access: SocketAccess) -> list[socket.socket]:
        """Return a socket for each place, inherited or bound. Raises StartError."""
        given = inherited(address)
        if given:
            return self._for_places(address, given)
        # Sockets that share a port (SO_REUSEPORT) would also share it with another program of the same user. Only a
        # socket that does not share it shows whether the address is free.
        first = bind(address, access=access)
        if is_unix(address):
            return [first, *(first.dup() for _ in range(self._places - 1))]
        host, port = first.getsockname()[:2]
        first.close()
        opened: list[socket.socket] = []
        try:
            opened.extend(bind(join_address(host, port), shared=True) for _ in range(self._places))
        except StartError:
            for sock in opened:
                sock.close()
            raise
        return opened

    def _for_places(self, address: str, given: list[socket.socket]) -> list[socket.socket]:
        """Return one of the inherited sockets for each place. Raises StartError if their numbers differ."""
        if is_unix(address):
            for other in given[1:]:
                other.close()
            return [given[0], *(given[0].dup() for _ in range(self._places - 1))]
        if len(given) != self._places:
            for one in given:
                one.close()
            raise StartError(f"`workers` has changed from {len(given)} to {self._places}: restart the activator")
        return given

    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        """Return the configured address and the sockets of each listener."""
        return [
            (address_of_listener(listener.wanted), [one.socket for one in listener.sockets])
            for listener in self._listeners
        ]

    def _placed(self, wanted: str | Listener, sockets: list[socket.socket]) -> list[PlacedSocket]:
        return [PlacedSocket(next(self._numbers), wanted, sock) for sock in sockets]
