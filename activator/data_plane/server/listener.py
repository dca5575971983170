"""The listening sockets of one worker, and the drain of its client connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from activator.codec.proxy_protocol import Endpoints
from activator.config.model.listeners import Listener, Redirect, address_of_listener
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.filters.https_redirect import HTTPS_PORT, HttpsRedirect
from activator.data_plane.server.client_connection import ClientConnection, KeyExemption
from activator.data_plane.server.half_close_sweep import HalfCloseSweep
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.http2_connection import Http2ClientConnection
from activator.data_plane.server.proxy_greeting import ProxyHeaderReader, TrustedProxies
from activator.data_plane.server.registry import ConnectionRegistry
from activator.data_plane.server.turn_accepting import TurnAccepting
from activator.runtime.certificates import ServerCertificate
from activator.runtime.errors import StartError
from activator.runtime.handshake import Handshake
from activator.runtime.sockets import LISTEN_BACKLOG, address_of, bind
from activator.runtime.tasks import pause
from activator.runtime.transport import FLUSH_S, Transport
from activator.runtime.unix_sockets import SocketAccess, remove_file, set_access

REFUSING_S: Final = 1.0  # how long clients may take the refusals of queued requests, at the end of a drain
ACCEPTED_TURNS: Final = 3  # turns of the loop from an accept to the connection (turn_accepting.py has a task between)

log = logging.getLogger("activator")


class ListeningSocket:
    """A bound socket, the address or listener that the configuration has for it, and its certificate if it serves TLS.

    `is_shared`: other workers accept from the same queue.
    """

    def __init__(
        self,
        sock: socket.socket,
        wanted: str | Listener,
        certificate: ServerCertificate | None,
        is_shared: bool = False,
    ) -> None:
        self.is_shared = is_shared
        self.socket = sock
        self.wanted = wanted
        self.certificate = certificate
        self.address = address_of(sock)  # the bound one


def open_socket(wanted: str | Listener, leaving: Iterable[ListeningSocket] = ()) -> ListeningSocket:
    """Bind one listener of the configuration. Raises StartError.

    If a listener that is being closed has the same address, its socket is duplicated: no queued client is refused.
    """
    address = address_of_listener(wanted)
    certificate = ServerCertificate(wanted) if isinstance(wanted, Listener) and wanted.is_secure() else None
    for other in leaving:
        if address_of_listener(other.wanted) == address:
            return ListeningSocket(other.socket.dup(), wanted, certificate)
    access = wanted.access() if isinstance(wanted, Listener) else None
    return ListeningSocket(bind(address, access=access), wanted, certificate)


def apply_access(wanted: str | Listener) -> None:
    """Apply the permissions of a reload or upgrade; if that fails, log it and keep the socket as it is."""
    address = address_of_listener(wanted)
    try:
        set_access(address, wanted.access() if isinstance(wanted, Listener) else SocketAccess())
    except StartError as error:
        log.error("%s: %s", address, error)


class _Accepting:
    """The accepted connections of one listener before their first request: PROXY protocol first, then TLS.

    They are accepted as plain connections, so that each counts at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: ConnectionRegistry,
        certificate: ServerCertificate | None,
        proxies: TrustedProxies | None,
        redirect: FilterChain | None,
        key_exemption: KeyExemption | None,
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._certificate = certificate
        self._proxies = proxies
        self._redirect = redirect
        self._key_exemption = key_exemption

    def accepted(self) -> ProxyHeaderReader | Handshake | Http1Connection:
        """Return the protocol of a new connection; the factory of `loop.create_server`."""
        if self._proxies is not None:
            return ProxyHeaderReader(self._registry, self._proxies, self._header_received)
        return self._http1_connection(None) if self._certificate is None else self._handshake(None)

    def _header_received(self, transport: Transport, endpoints: Endpoints | None, rest: bytes) -> None:
        """Continue after the PROXY protocol header with the client's addresses; `rest` is the data after the header."""
        if self._certificate is not None:
            handshake = self._handshake(endpoints, rest)
            transport.set_protocol(handshake)
            handshake.connection_made(transport)
            return
        connection = self._http1_connection(endpoints)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if rest:
            connection.data_received(rest)

    def _http1_connection(self, endpoints: Endpoints | None) -> Http1Connection:
        """Return the protocol of a plain connection."""
        connection = Http1Connection(self._registry)
        connection.endpoints = endpoints
        connection.redirect = self._redirect
        connection.key_exemption = self._key_exemption
        return connection

    def _handshake(self, endpoints: Endpoints | None, early: bytes = b"") -> Handshake:
        """Return the protocol of a TLS handshake; `early`: the data that has arrived."""
        assert self._certificate is not None, "a listener without TLS"
        return Handshake(
            self._loop,
            self._certificate.context,
            None,
            FLUSH_S,  # data that the client has not taken yet is sent within this time, too
            partial(self._handshake_ended, endpoints),
            self._registry.tls_begins,
            early,
        )

    def _handshake_ended(
        self, endpoints: Endpoints | None, handshake: Handshake, transport: Transport | None, error: Exception | None
    ) -> None:
        """Continue with the protocol that the client has negotiated."""
        self._registry.handshake_ended(handshake)
        if transport is not None:
            ssl_object = transport.get_extra_info("ssl_object")
            is_http2 = ssl_object is not None and ssl_object.selected_alpn_protocol() == "h2"
            connection: ClientConnection = (
                Http2ClientConnection(self._registry) if is_http2 else Http1Connection(self._registry)
            )
            transport.set_protocol(connection)
            connection.endpoints = endpoints
            connection.key_exemption = self._key_exemption
            connection.bare = handshake.bare
            connection.connection_made(transport)


def _proxies_of(wanted: str | Listener) -> TrustedProxies | None:
    """Return the proxies that may send a PROXY protocol header on this listener; None if it takes no header."""
    setting = None if isinstance(wanted, str) else wanted.proxy_protocol
    if setting is None:
        return None
    return (
        TrustedProxies(setting, False)
        if isinstance(setting, list)
        else TrustedProxies(setting.trusted, setting.required)
    )


def _redirect_of(wanted: str | Listener, registry: ConnectionRegistry) -> FilterChain | None:
    """Return the filters of a listener that redirects to https; None if it does not."""
    redirect = None if isinstance(wanted, str) else wanted.redirect
    if not isinstance(redirect, Redirect):
        return None
    on_redirect = registry.proxy.count_https_redirect
    return FilterChain((HttpsRedirect(redirect.port or HTTPS_PORT, redirect.status, on_redirect),))


class Server:
    """The server of one worker: it accepts on bound sockets until it drains; listeners may change while it serves.

    `start_task` is required for shared sockets.
    """

    def __init__(
        self, registry: ConnectionRegistry, start_task: Callable[[str, Coroutine[Any, Any, Any]], Any] | None = None
    ) -> None:
        self._registry = registry
        self._start_task = start_task
        self._servers: dict[ListeningSocket, asyncio.Server | TurnAccepting] = {}
        self._exemptions: dict[str, KeyExemption] = {}  # by the address of the listener
        self._closed = False
        self._sweep = HalfCloseSweep(registry)
        self._sweep.arm()

    @property
    def sockets(self) -> list[ListeningSocket]:
        return list(self._servers)

    async def open(self, listener: ListeningSocket) -> None:
        """Accept on this listener, too; after the beginning of a drain, close it instead."""
        if self._closed:
            listener.socket.close()
            return
        loop = asyncio.get_running_loop()
        factory: Any = partial(Http1Connection, self._registry)
        proxies = _proxies_of(listener.wanted)
        redirect = _redirect_of(listener.wanted, self._registry)
        exemption = self._exempt(listener)
        if listener.certificate is not None or proxies is not None or redirect is not None or exemption is not None:
            factory = _Accepting(loop, self._registry, listener.certificate, proxies, redirect, exemption).accepted
        if listener.is_shared:
            assert self._start_task is not None, "for a shared socket"
            self._servers[listener] = TurnAccepting(loop, listener.socket, factory, self._start_task)
            return
        is_unix = listener.socket.family == socket.AF_UNIX
        create: Any = loop.create_unix_server if is_unix else loop.create_server
        self._servers[listener] = await create(factory, sock=listener.socket, backlog=LISTEN_BACKLOG)

    def _exempt(self, listener: ListeningSocket) -> KeyExemption | None:
        """Return the exemption of a new listener from keys; an earlier one with the same address may have begun it."""
        exemption = self._exemptions.get(listener.address)
        if isinstance(listener.wanted, str) or listener.wanted.keys:
            self.end_exemption(listener.address)
            return None
        if exemption is None or not exemption.holds:
            exemption = self._exemptions[listener.address] = KeyExemption()
        return exemption

    def end_exemption(self, address: str) -> None:
        """Require keys at this address from now on, also of connections that were accepted there."""
        exemption = self._exemptions.pop(address, None)
        if exemption is not None:
            exemption.holds = False

    def close(self, listener: ListeningSocket, is_unused: bool = False) -> None:
        """Stop accepting; accepted connections continue. `is_unused`: no other listener has its address."""
        if is_unused:
            remove_file(listener.address)
        server = self._servers.pop(listener, None)
        if server is not None:  # otherwise a drain has closed it
            server.close()

    def leave(self) -> None:
        """Stop accepting on all listeners, which other processes continue to serve."""
        self._closed = True
        for listener in self.sockets:
            self.close(listener, False)

    def certificate_expiries(self) -> dict[str, float]:
        """Return when the first certificate of each listener expires, in Unix seconds, by its address."""
        secure = [(listener.address, listener.certificate) for listener in self._servers]
        return {
            address: certificate.expires_unix_s
            for address, certificate in secure
            if certificate is not None and certificate.expires_unix_s
        }

    def check_certificates(self) -> None:
        """Reload certificate files at once instead of at the next periodic check."""
        for listener in self._servers:
            if listener.certificate is not None:
                listener.certificate.check()

    async def drain(self, timeout_s: float, tunnels_timeout_s: float, refuse_queued: Callable[[], int]) -> bool:
        """Stop accepting and wait for responses in progress; return False if some were cut at the timeout.

        `refuse_queued` refuses the requests that are still queued at the timeout, and returns their number.
        """
        registry = self._registry
        self._closed = registry.draining = True
        for listener in self.sockets:
            self.close(listener, True)
        for _ in range(ACCEPTED_TURNS):  # an accepted socket becomes a connection some turns later
            await pause(0.0)
        for connection in list(registry.connections):
            connection.drain()
        finished = await self._wait_for_connections(timeout_s, tunnels_timeout_s)
        if not finished and refuse_queued() > 0:
            await self._wait_for_connections(REFUSING_S, 0.0)
        for handshake in list(registry.handshakes):
            handshake.abort()
        for connection in list(registry.connections):
            connection.abort(True)
        self._sweep.stop()
        return finished

    async def _wait_for_connections(self, timeout_s: float, tunnels_timeout_s: float) -> bool:
        """Drain repeatedly until no connection is left; return False if some were cut or are left."""
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
