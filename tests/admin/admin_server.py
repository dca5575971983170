"""An admin server on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activator.admin.server import AdminServer
from activator.runtime.sockets import address_of, bind


@asynccontextmanager
async def served(server: AdminServer) -> AsyncIterator[str]:
    """Yield the address at which it serves."""
    sock = bind("127.0.0.1:0")
    await server.start(sock)
    try:
        yield address_of(sock)
    finally:
        await server.close()
