"""The socket of the admin port.

Its server, and aiohttp with it, is imported when the first client connects: 9 MB and 0.1 s that a program without
such clients does not need. A thread imports them, so that requests to revisions are not delayed by all of that time.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
from threading import Thread
from typing import TYPE_CHECKING, Final

from activator.admin.token import AdminToken
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.memory import calm_the_collector
from activator.runtime.sockets import address_of, bind, inherited
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.unix_sockets import SocketAccess, remove_file

if TYPE_CHECKING:
    from activator.admin.server import AdminServer, Inside

ADMIN: Final = "admin"  # the name of its socket among those of a former process (runtime/sockets.py)
SERVER: Final = "activator.admin.server"


class AdminPort:
    """The listening socket of the admin port, and its server once a client has connected."""

    def __init__(self, inside: Inside, now: Now, tasks: TaskGroupOwner, token: AdminToken | None = None) -> None:
        """Make a port; requests must have `token` unless it is None."""
        self._inside = inside
        self._now = now
        self._tasks = tasks
        self._token = token or AdminToken("")
        self._socket: socket.socket | None = None
        self._address = ""
        self._serving: asyncio.Task[None] | None = None  # from the first connection on
        self._server: AdminServer | None = None

    def bind(self, address: str, access: SocketAccess | None = None) -> None:
        """Bind; connections wait until `start`. Raises StartError."""
        found = inherited(ADMIN)
        try:
            self._socket = found[0] if found else bind(address, access=access)
        except StartError as error:
            raise StartError(f"admin port: {error} (`admin:` in the file, --admin, or ACTIVATOR_ADMIN)") from error

    def start(self) -> str:
        """Serve from now on. Return the bound address."""
        asyncio.get_running_loop().add_reader(self.socket.fileno(), self._connected)
        self._address = address_of(self.socket)
        return self._address

    @property
    def socket(self) -> socket.socket:
        """The listening socket."""
        assert self._socket is not None, "it is bound"
        return self._socket

    async def close(self) -> None:
        """Stop serving, and close the socket."""
        remove_file(self._address)
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        elif self._address:
            asyncio.get_running_loop().remove_reader(self.socket.fileno())
        if self._server is not None:
            await self._server.close()
        if self._socket is not None:
            self._socket.close()

    def _connected(self) -> None:
        """Handle the first connection, which waits to be accepted."""
        asyncio.get_running_loop().remove_reader(self.socket.fileno())
        self._serving = self._tasks.start("admin port", self._serve())

    async def _serve(self) -> None:
        if SERVER not in sys.modules:
            try:
                await _import_server()
            except Exception:
                self.socket.close()  # clients see that nothing serves them
                raise
            calm_the_collector()
        from activator.admin.server import AdminServer

        self._server = AdminServer(self._inside, self._now, self._token)
        await self._server.serve(self.socket)


async def _import_server() -> None:
    """Import the server in a thread of its own. Raises what the import raises."""
    loop = asyncio.get_running_loop()
    imported: asyncio.Future[None] = loop.create_future()

    def finish(error: Exception | None) -> None:
        if imported.done():  # cancelled
            return
        if error is None:
            imported.set_result(None)
        else:
            imported.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            importlib.import_module(SERVER)
        except Exception as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, error)

    Thread(target=run, name="import of the admin port", daemon=True).start()
    await imported
