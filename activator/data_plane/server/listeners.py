"""The set of sockets that a worker serves on, by its configuration and by its cluster, across reloads.

Rules
  1. `plan` and then `change` replace the set at once; a task of the loop then serves and closes sockets, one change
     after another.
  2. A change is applied completely or not at all: if `plan` raises, nothing has changed.
  3. New sockets serve before old ones close, and an address that is removed and added again keeps its socket and queue,
     so that no client is refused at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import NamedTuple

from activator.config.model.listeners import Listener, address_of_listener
from activator.data_plane.server.listener import ListeningSocket, Server, apply_access, open_socket
from activator.runtime.certificates import CERTIFICATE_CHECK_S
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.unix_sockets import remove_file

log = logging.getLogger("activator")


class ListenerChange(NamedTuple):
    """The sockets to open and to close."""

    opened: list[ListeningSocket]
    leaving: list[ListeningSocket]

    def discard(self) -> None:
        """Close the sockets that `plan` has opened, because the change is not applied."""
        kept_addresses = {listener.address for listener in self.leaving}
        for listener in self.opened:
            if listener.address not in kept_addresses:
                remove_file(listener.address)
            listener.socket.close()


class Listeners:
    """The listeners of one worker; its server takes them over in `serve`."""

    def __init__(self, tasks: TaskGroupOwner) -> None:
        self._tasks = tasks
        self._server: Server | None = None
        self._wanted: list[ListeningSocket] = []
        self._leaving: list[ListeningSocket] = []  # no longer wanted, and not closed yet
        self._watches: dict[ListeningSocket, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()

    @property
    def addresses(self) -> list[str]:
        """The bound addresses, with the actual number for port 0."""
        return [listener.address for listener in self._wanted]

    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        """Return the configured address and the sockets of each listener."""
        return [(address_of_listener(listener.wanted), [listener.socket]) for listener in self._wanted]

    def plan(self, wanted: list[str | Listener]) -> ListenerChange:
        """Open new sockets; call `change` or `discard` before the loop turns. Raises StartError."""
        staying = [listener.wanted for listener in self._wanted if listener.wanted in wanted]
        leaving = [listener for listener in self._wanted if listener.wanted not in wanted]
        opened: list[ListeningSocket] = []
        try:
            new = [listener for listener in wanted if listener not in staying]
            opened.extend(open_socket(listener, [*leaving, *self._leaving]) for listener in new)
        except StartError:
            ListenerChange(opened, [*leaving, *self._leaving]).discard()
            raise
        return ListenerChange(opened, leaving)

    def change(self, change: ListenerChange) -> None:
        """Apply a change, and read certificates again: they may have been replaced."""
        self._wanted = [*(listener for listener in self._wanted if listener not in change.leaving), *change.opened]
        for listener in change.opened:
            apply_access(listener.wanted)
        server = self._server
        if server is None:
            for listener in change.leaving:
                if self._is_unused(listener):
                    remove_file(listener.address)
                listener.socket.close()
            return
        server.check_certificates()
        if change.opened or change.leaving:
            self._leaving.extend(change.leaving)
            self._tasks.start("listeners", self._apply_change(server, change))

    async def serve(self, server: Server) -> None:
        """Start to accept on the current sockets."""
        self._server = server
        await self._apply_change(server, ListenerChange(list(self._wanted), []))

    async def _apply_change(self, server: Server, change: ListenerChange) -> None:
        """Serve on the opened sockets, and then close the leaving ones."""
        async with self._lock:
            for listener in change.opened:
                await server.open(listener)
                if listener.certificate is not None:
                    check = listener.certificate.check
                    self._watches[listener] = self._tasks.repeat("certificate", CERTIFICATE_CHECK_S, check)
            for listener in change.leaving:
                is_unused = self._is_unused(listener)
                server.close(listener, is_unused)
                if is_unused:
                    server.end_exemption(listener.address)
                self._leaving.remove(listener)
                watch = self._watches.pop(listener, None)
                if watch is not None:
                    watch.cancel()
        if server.sockets:  # otherwise it has been drained
            log.info("serving on %s", ", ".join(self.addresses))

    def _is_unused(self, listener: ListeningSocket) -> bool:
        """Return True if no listener has the address of this one any longer."""
        return listener.address not in self.addresses
