"""Connections of the control plane to a pod: asyncio streams to `host:port` or to a Unix socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from activator.runtime.sockets import split_address
from activator.runtime.unix_address import is_unix

if TYPE_CHECKING:
    import ssl


async def open_stream(
    address: str, context: ssl.SSLContext | None = None, server_name: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection, with a TLS handshake if there is a context. Raises OSError.

    TLS starts on the open connection: if uvloop connects and shakes hands in one call, and that call is cancelled just
    when both have ended, the error of the handshake is logged as never retrieved.
    """
    host, port = split_address(address)
    reader, writer = await (
        asyncio.open_unix_connection(host) if is_unix(address) else asyncio.open_connection(host, port)
    )
    if context is not None:
        try:
            await writer.start_tls(context, server_hostname=server_name)
        except BaseException:
            writer.transport.abort()
            raise
    return reader, writer


def authority_of(address: str) -> str:
    """Return the `Host` of a request to the address; for a Unix socket, `localhost`."""
    return "localhost" if is_unix(address) else address
