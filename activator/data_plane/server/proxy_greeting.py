"""A connection of a listener with the PROXY protocol, until its header has arrived (codec/proxy_protocol.py).

Rules
  1. Only trusted peers may send a header, and they must: the presence of a header is never guessed (section 2 of the
     specification). A client that is not trusted is served under its own address, and its data is parsed as a request:
     a header is refused like any malformed request. With `required` its connection is closed at once.
  2. The header has a bounded size and must arrive within PROXY_HEADER_TIMEOUT_S. Until then the connection counts as
     one in a handshake: if there are too many, the oldest is closed.
  3. Invalid headers close the connection without a response, because the protocol of the peer is unknown.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Final

from activator.codec.proxy_protocol import Endpoints, ProxyHeaderError, parse
from activator.data_plane.server.registry import ConnectionRegistry
from activator.runtime.clock import Deadline
from activator.runtime.networks import Network, is_within
from activator.runtime.transport import Transport, is_unix_socket

PROXY_HEADER_TIMEOUT_S: Final = 5.0  # from the connection to the last byte of its PROXY protocol header
UNIX_PEERS: Final = "unix"  # among trusted networks: all peers of a Unix socket

log = logging.getLogger("activator")


class TrustedProxies:
    """The peers that may send a header on one listener."""

    def __init__(self, networks: Sequence[str], required: bool) -> None:
        self.required = required
        self._trusts_unix = UNIX_PEERS in networks
        self._networks: list[Network] = [ipaddress.ip_network(network) for network in networks if network != UNIX_PEERS]

    def trusts(self, transport: Transport) -> bool:
        """Return True if the connection comes from a trusted peer."""
        peer = transport.get_extra_info("peername")
        if not isinstance(peer, tuple):  # the peer of a Unix socket is a string; a closed connection has none
            return self._trusts_unix and is_unix_socket(transport)
        return is_within(str(peer[0]), self._networks)


class ProxyHeaderReader(Deadline):
    """The asyncio protocol of a connection until its header has arrived.

    `on_header(transport, endpoints, rest)`: endpoints are the client's addresses, if a header contains them; `rest`
    is the data after the header.
    """

    def __init__(
        self,
        registry: ConnectionRegistry,
        proxies: TrustedProxies,
        on_header: Callable[[Transport, Endpoints | None, bytes], None],
    ) -> None:
        super().__init__()
        self._registry = registry
        self._proxies = proxies
        self._on_header = on_header
        self._transport: Transport | None = None
        self._data = b""

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def expired(self, now_s: float) -> None:
        self._refuse(f"no header within {PROXY_HEADER_TIMEOUT_S:g} s")

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._transport = transport
        if self._proxies.trusts(transport):
            self._registry.handshake_begins(self)
            self._registry.wheel.arm(self, self._registry.now() + PROXY_HEADER_TIMEOUT_S)
        elif self._proxies.required:
            self._refuse("the peer is not in `proxy_protocol.trusted`")
        else:
            self._on_header(transport, None, b"")

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        self._data += data
        try:
            header = parse(self._data)
        except ProxyHeaderError as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        rest = self._data[header.size :]
        self._end()
        self._on_header(transport, header.endpoints, rest)

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    # --- within ---

    def _refuse(self, problem: str) -> None:
        transport = self._transport
        if transport is not None:
            log.warning("connection from %s closed: PROXY protocol: %s", _peer_of(transport), problem)
        self.abort()

    def _end(self) -> None:
        self._transport = None
        self._data = b""
        self._registry.handshake_ended(self)
        self._registry.wheel.cancel(self)


def _peer_of(transport: Transport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "a Unix socket"
