"""The listening sockets of all workers: for each address one for each place, between which the kernel distributes.

Rules
  1. The parent keeps each of them open. So connections that wait in the queue of a worker that has ended are not lost:
     whoever serves its place next has them.
  2. A change that cannot be made whole is not begun: `plan` raises, and nothing is open that was not before.
  3. A Unix socket cannot be shared by its address: there is one, and each place has a descriptor of it. All workers
     accept from one queue, so nothing in it belongs to the worker that ends.
  4. A certificate is tried out here, and its files are watched here; the workers are told when to read them.
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
from activator.runtime.sockets import address_of, bind, join_address
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_sockets import SocketAccess, remove_file


class PlacedSocket(NamedTuple):
    """`number`: given to no other one, ever."""

    number: int
    wanted: str | Listener
    socket: socket.socket


class SharedListener:
    """One listener of the configuration: `sockets[place]`."""

    def __init__(
        self, wanted: str | Listener, sockets: list[PlacedSocket], certificate: ServerCertificate | None
    ) -> None:
        self.wanted = wanted
        self.sockets = sockets
        self.certificate = certificate
        self.address = address_of(sockets[0].socket)  # as bound

    def close(self, is_left: bool = True) -> None:
        """`is_left`: no other one listens at its address."""
        if is_left:
            remove_file(self.address)
        for one in self.sockets:
            one.socket.close()


class SocketChange(NamedTuple):
    """What is to be served on from now on, and what no more."""

    opened: list[SharedListener]
    leaving: list[SharedListener]

    def discard(self) -> None:
        """The change is not to be made: close what `plan` has opened."""
        stays = {listener.address for listener in self.leaving}
        for listener in self.opened:
            listener.close(listener.address not in stays)


class SharedSockets:
    """Of `places` workers."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._numbers = count(1)
        self._listeners: list[SharedListener] = []

    @property
    def addresses(self) -> list[str]:
        """As bound, so that port 0 shows what it became."""
        return [listener.address for listener in self._listeners]

    def plan(self, wanted: list[str | Listener]) -> SocketChange:
        """Open what is new; `change` or `discard` the outcome before the loop turns. Raises StartError."""
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
        """Make it so. Who serves on a socket that leaves has a descriptor of its own."""
        self._listeners = [*(one for one in self._listeners if one not in change.leaving), *change.opened]
        stays = {listener.address for listener in self._listeners}
        for listener in change.opened:
            apply_access(listener.wanted)
        for listener in change.leaving:
            listener.close(listener.address not in stays)

    def of_places(self, places: Iterable[int]) -> list[PlacedSocket]:
        """All sockets of these places."""
        return [listener.sockets[place] for place in places for listener in self._listeners]

    def close(self) -> None:
        """Connections that nobody has accepted are refused, once the workers have closed theirs, too."""
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def look_at_certificates(self) -> bool:
        """Whether one of them was replaced, by a good one."""
        replaced = False
        for listener in self._listeners:
            certificate = listener.certificate
            if certificate is not None:
                before = certificate.reloads_total
                certificate.look()
                replaced = replaced or certificate.reloads_total != before
        return replaced

    def _open(self, wanted: str | Listener, leaving: list[SharedListener]) -> SharedListener:
        address = address_of_listener(wanted)
        certificate = ServerCertificate(wanted) if isinstance(wanted, Listener) and wanted.is_secure() else None
        for other in leaving:
            if address_of_listener(other.wanted) == address:
                sockets = [one.socket.dup() for one in other.sockets]
                return SharedListener(wanted, self._placed(wanted, sockets), certificate)
        access = wanted.access() if isinstance(wanted, Listener) else SocketAccess()
        return SharedListener(wanted, self._placed(wanted, self._bind(address, access)), certificate)

    def _bind(self, address: str, access: SocketAccess) -> list[socket.socket]:
        # Sockets that share a port would share it with another program of the same user just as well: whether the
        # address is free shows only with a socket that does not share.
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

    def _placed(self, wanted: str | Listener, sockets: list[socket.socket]) -> list[PlacedSocket]:
        return [PlacedSocket(next(self._numbers), wanted, sock) for sock in sockets]
