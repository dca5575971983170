"""Connections that begin with a PROXY protocol header, for pods that need the address of the client.

Rules
  1. The header is sent with the first request. A dialled connection may therefore serve any exchange, and an unused
     one sends no header.
  2. A connection carries one request: the header applies to the whole connection, and the next request may come from
     another client.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from activator.codec.message import RequestHead
from activator.codec.proxy_protocol import header
from activator.data_plane.upstream.http1_connection import Http1PodConnection, Http1PodStream
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now

_SENT: Final = ""  # replaces the version after the header was sent


class ProxyProtocolConnection(Http1PodConnection):
    """A connection that sends a header of this `version`."""

    def __init__(
        self, owner: ConnectionOwner, now: Now, batcher: WriteBatcher, authority: bytes, lenient: bool, version: str
    ) -> None:
        super().__init__(owner, now, batcher, authority, lenient)
        self._stream = _ProxyProtocolStream(self, version)


class _ProxyProtocolStream(Http1PodStream):
    """The only request of a connection, which sends the header before it."""

    def __init__(self, connection: Http1PodConnection, version: str) -> None:
        super().__init__(connection)
        self._version = version

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        exchange = self._connection.exchange
        writer = self._connection._writer
        assert exchange is not None and writer is not None
        assert self._version != _SENT, "a connection carries one request"
        writer.write(header(self._version, exchange.endpoints()))
        self._version = _SENT
        super().send_request(head, body)


@mypyc_attr(allow_interpreted_subclasses=True)
class ProxyProtocolPool(Http1Pool):
    """The pool of a pod that accepts HTTP/1.1 after such a header."""

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        super().finished(connection, False)

    def _new_connection(self) -> PooledConnection:
        address = self._address
        return ProxyProtocolConnection(
            self, self._now, self._context.batcher, address.authority, address.lenient, address.proxy_protocol
        )
