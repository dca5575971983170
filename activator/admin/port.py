"""The admin port, whose server is loaded with its first connection: aiohttp takes 10 MB and a quarter of the start.

Rules
  1. Connections wait in the backlog of the socket until the server accepts them. In a cluster it is loaded at once,
     because a kubelet probes soon, and waits for one second only.
  2. The server is imported in a thread, so that requests and heartbeats continue meanwhile. If that fails, the next
     attempt follows after RETRY_S.
  3. Its modules are kept as they are at the start (runtime/kept_modules.py): the first connection may be that of
     `activator upgrade`, after their files were replaced.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import activator.admin
from activator.runtime.errors import StartError
from activator.runtime.kept_modules import keep
from activator.runtime.sockets import address_of, bind, inherited, is_bound_to
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.runtime.unix_sockets import SocketAccess, remove_file, set_access

if TYPE_CHECKING:
    from activator.admin.server import AdminServer

ADMIN: Final = "admin"  # the name of its socket among those of a former process (runtime/sockets.py)
RETRY_S: Final = 1.0
_ALSO_KEPT: Final = ("activator.telemetry.metrics.exposition", "activator.telemetry.metrics.sliced_response")

log = logging.getLogger("activator")


class AdminPort:
    """The listening socket of the admin port, and its server once there is one.

    `make` imports the server's modules and returns a server; it is called in a thread.
    """

    def __init__(self, make: Callable[[], AdminServer], tasks: TaskGroupOwner) -> None:
        self._make = make
        self._tasks = tasks
        self._socket: socket.socket | None = None
        self._address = ""
        self._access = SocketAccess()
        self._is_watching = False  # the loop calls `_connected` at the first connection
        self._loading: asyncio.Task[None] | None = None
        self.server: AdminServer | None = None

    def bind(self, address: str, access: SocketAccess | None = None) -> None:
        """Bind, or use the socket of a former process at this address; connections wait until `start`.

        Raises StartError.
        """
        keep(activator.admin, *_ALSO_KEPT)
        self._access = access or SocketAccess()
        for sock in inherited(ADMIN):
            if is_bound_to(sock, address):
                self._socket = sock
            else:
                sock.close()
        try:
            if self._socket is None:
                self._socket = bind(address, access=access)
        except StartError as error:
            raise StartError(f"admin port: {error} (`admin:` in the file, --admin, or ACTIVATOR_ADMIN)") from error

    def start(self, at_once: bool = False) -> str:
        """Load the server with the first connection, or `at_once`. Return the bound address."""
        self._address = address_of(self.socket)
        try:
            set_access(self._address, self._access)  # a former process may have set another one
        except StartError as error:
            log.error("admin port: %s: %s", self._address, error)
        if at_once:
            self._start_loading()
        else:
            self._watch()
        return self._address

    @property
    def socket(self) -> socket.socket:
        """The listening socket."""
        assert self._socket is not None, "`bind` comes first"
        return self._socket

    async def close(self) -> None:
        remove_file(self._address)
        self._unwatch()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})
        if self.server is not None:
            await self.server.close()
        elif self._socket is not None:
            self._socket.close()

    def _watch(self) -> None:
        self._is_watching = True
        asyncio.get_running_loop().add_reader(self.socket.fileno(), self._connected)

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            asyncio.get_running_loop().remove_reader(self.socket.fileno())

    def _connected(self) -> None:
        self._unwatch()
        self._start_loading()

    def _start_loading(self) -> None:
        self._loading = self._tasks.start("admin port", self._load())

    async def _load(self) -> None:
        try:
            await self._serve(await asyncio.to_thread(self._make))
        except Exception:
            log.exception("the admin port cannot be served; next attempt in %g s", RETRY_S)
            await pause(RETRY_S)
            self._watch()

    async def _serve(self, server: AdminServer) -> None:
        try:
            await server.start(self.socket)
        except BaseException:
            await server.close()
            raise
        self.server = server
