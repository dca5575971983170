"""A listening socket that several workers share, from which each of them accepts one connection in a turn of its loop.

An event loop accepts all that waits, as fast as it can. Of a socket of its own that is right; of a shared one the
worker that wakes first would have all connections of a burst, and the others none. With one in a turn the others get
theirs meanwhile, and a worker that is busy, whose turns are long, gets fewer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

ACCEPT_RETRY_S: Final = 0.1  # after an accept that failed for want of descriptors or memory

log = logging.getLogger("activator")


class TurnAccepting:
    """From its making until `close`, which closes the socket. `start_task` owns the end of each accept."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: Callable[[], Any],
        start_task: Callable[[str, Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._factory = factory
        self._start_task = start_task
        self._closed = False
        sock.setblocking(False)
        self._go_on()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone
        except OSError as error:
            log.error("a connection cannot be accepted, tried again in %g s: %s", ACCEPT_RETRY_S, error.strerror)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(ACCEPT_RETRY_S, self._go_on)
            return
        connection.setblocking(False)
        self._start_task("accept", self._loop.connect_accepted_socket(self._factory, connection))
