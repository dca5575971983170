"""A listening socket shared by several workers, from which each accepts one connection per turn of its loop.

An event loop accepts all waiting connections as fast as it can. With a shared socket, the worker that wakes first would
get all connections of a burst. With one accept per turn, the other workers get some in between, and a busy worker with
long turns gets fewer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

ACCEPT_RETRY_S: Final = 0.1  # after an accept that failed for lack of descriptors or memory

log = logging.getLogger("activator")


class TurnAccepting:
    """The acceptor of one shared socket, which `close` closes. `start_task` runs the second half of each accept."""

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
        self._listen()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept one connection."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has disconnected
        except OSError as error:
            log.error("accept failed: %s; next attempt in %g s", error.strerror, ACCEPT_RETRY_S)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(ACCEPT_RETRY_S, self._listen)
            return
        connection.setblocking(False)
        self._start_task("accept", self._loop.connect_accepted_socket(self._factory, connection))
