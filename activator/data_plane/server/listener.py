"""The listening sockets of one worker, and what has to be done for all client connections together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

from activator.config.model.listeners import Tls
from activator.data_plane.server.client_connection import ClientConnection
from activator.data_plane.server.half_close_sweep import HalfCloseSweep
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.http2_connection import Http2ClientConnection
from activator.data_plane.server.registry import ConnectionRegistry
from activator.runtime.certificates import ServerCertificate
from activator.runtime.handshake import Handshake
from activator.runtime.sockets import LISTEN_BACKLOG, address_of, bind
from activator.runtime.tasks import pause
from activator.runtime.transport import FLUSH_S, Transport


class ListeningSocket:
    """A socket that is bound, the address it was asked for with, and the certificate where it serves TLS."""

    def __init__(self, sock: socket.socket, wanted: str | Tls, certificate: ServerCertificate | None) -> None:
        self.socket = sock
        self.wanted = wanted
        self.certificate = certificate
        self.address = address_of(sock)  # as bound


def open_socket(wanted: str | Tls, leaving: Iterable[ListeningSocket] = ()) -> ListeningSocket:
    """Bind one listener of the configuration. Raises StartError.

    Where one that is leaving has the address already, its socket and queue are shared: no client is refused meanwhile.
    """
    address = wanted if isinstance(wanted, str) else wanted.address
    certificate = None if isinstance(wanted, str) else ServerCertificate(wanted)
    for other in leaving:
        if (other.wanted if isinstance(other.wanted, str) else other.wanted.address) == address:
            return ListeningSocket(other.socket.dup(), wanted, certificate)
    return ListeningSocket(bind(address), wanted, certificate)


class _TlsAccepting:
    """Connections of one TLS listener until TLS stands. They are accepted as bare ones, so that each counts at once."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, registry: ConnectionRegistry, certificate: ServerCertificate
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._certificate = certificate

    def accepted(self) -> Handshake:
        """The protocol factory of `loop.create_server`."""
        return Handshake(
            self._loop,
            self._certificate.context,
            None,
            FLUSH_S,  # what the client has not taken yet goes out in this time, too
            self._secured,
            self._registry.handshake_begins,
        )

    def _secured(self, handshake: Handshake, transport: Transport | None, error: Exception | None) -> None:
        self._registry.handshake_ended(handshake)
        if transport is not None:
            ssl_object = transport.get_extra_info("ssl_object")
            is_http2 = ssl_object is not None and ssl_object.selected_alpn_protocol() == "h2"
            connection: ClientConnection = (
                Http2ClientConnection(self._registry) if is_http2 else Http1Connection(self._registry)
            )
            transport.set_protocol(connection)
            connection.bare = handshake.bare
            connection.connection_made(transport)


class Server:
    """Accepts on sockets that are bound already, until it is drained; listeners come and go while it serves."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        self._registry = registry
        self._servers: dict[ListeningSocket, asyncio.Server] = {}
        self._closed = False
        self._sweep = HalfCloseSweep(registry)
        self._sweep.arm()

    @property
    def sockets(self) -> list[ListeningSocket]:
        return list(self._servers)

    async def open(self, listener: ListeningSocket) -> None:
        """Accept on this one too; nothing is accepted any more once it has begun to drain."""
        if self._closed:
            listener.socket.close()
            return
        loop = asyncio.get_running_loop()
        factory: Any = partial(Http1Connection, self._registry)
        if listener.certificate is not None:
            factory = _TlsAccepting(loop, self._registry, listener.certificate).accepted
        self._servers[listener] = await loop.create_server(factory, sock=listener.socket, backlog=LISTEN_BACKLOG)

    def close(self, listener: ListeningSocket) -> None:
        """Accept no more here; what was accepted goes on."""
        server = self._servers.pop(listener, None)
        if server is not None:  # else a drain has closed it
            server.close()

    def look_at_certificates(self) -> None:
        """Use new certificate files now rather than soon."""
        for listener in self._servers:
            if listener.certificate is not None:
                listener.certificate.look()

    async def drain(self, timeout_s: float, tunnels_timeout_s: float) -> bool:
        """Stop accepting, let answers in progress finish. False when the time was not enough and some were cut."""
        registry = self._registry
        self._closed = registry.draining = True
        for listener in self.sockets:
            self.close(listener)
        await pause(0.0)  # what has been accepted is a connection a turn later
        for connection in list(registry.connections):
            connection.drain()
        finished = await self._wait_for_connections(timeout_s, tunnels_timeout_s)
        for handshake in list(registry.handshakes):
            handshake.abort()
        for connection in list(registry.connections):
            connection.abort(True)
        self._sweep.stop()
        return finished

    async def _wait_for_connections(self, timeout_s: float, tunnels_timeout_s: float) -> bool:
        registry = self._registry
        began_s = registry.now()
        finished = True
        while registry.connections:
            waited_s = registry.now() - began_s
            if waited_s >= timeout_s:
                return False
            for connection in list(registry.connections):
                if connection.is_tunnel() and waited_s >= tunnels_timeout_s:
                    connection.cut()
                    finished = False
                else:
                    connection.drain()
            await pause(0.02)
        return finished
