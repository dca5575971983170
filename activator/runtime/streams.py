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
    """Open a connection. Raises OSError."""
    host, port = split_address(address)
    if is_unix(address):
        return await asyncio.open_unix_connection(host, ssl=context, server_hostname=server_name)
    return await asyncio.open_connection(host, port, ssl=context, server_hostname=server_name)


def authority_of(address: str) -> str:
    """Return the `Host` of a request to the address; for a Unix socket, `localhost`."""
    return "localhost" if is_unix(address) else address
