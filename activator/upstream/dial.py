"""Opening one connection to a pod, with a deadline and without anything to cancel.

The socket is connected by hand (non-blocking, the loop says when it is writable), so that giving up is closing it; only
a connected socket is handed to the loop to be wrapped in a transport.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from activator.clock import Deadline, TimingWheel
from activator.errors import Reason
from activator.upstream.pod_connection import PodConnection

# What says that nobody listens there, as against faults of this machine (descriptors, ports) or silence.
_DEAD: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ECONNRESET})


class DialContext:
    """What all dials of a worker need: the loop, the wheel, and an owner for the one short task of each dial."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wheel: TimingWheel,
        start_task: Callable[[str, Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.loop = loop
        self.wheel = wheel
        self.start_task = start_task


class Dial(Deadline):
    """Ends in `connection.connection_made`, or in one call of `on_failed(dial, reason)`."""

    def __init__(
        self,
        context: DialContext,
        connection: PodConnection,
        on_failed: Callable[[Dial, Reason], None],
    ) -> None:
        super().__init__()
        self._context = context
        self.connection = connection
        self._on_failed = on_failed
        self.started_s: float = 0.0
        self._socket: socket.socket | None = None
        self._watched: bool = False  # the loop tells when the socket is writable
        self._over: bool = False

    def start(self, host: str, port: int, timeout_s: float, now_s: float) -> None:
        """`host` is an IP address; names are resolved by discovery. May fail before it returns."""
        self.started_s = now_s
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._fail(error.errno or 0)
            return
        self._socket = sock
        sock.setblocking(False)
        code = sock.connect_ex((host, port))
        if code == 0:
            self._wrap()
        elif code == errno.EINPROGRESS:
            self._context.wheel.arm(self, now_s + timeout_s)
            self._context.loop.add_writer(sock.fileno(), self._writable)
            self._watched = True
        else:
            self._fail(code)

    def abandon(self) -> None:
        """Nobody wants this connection any more."""
        if not self._over:
            self._give_up()

    def expired(self, now_s: float) -> None:
        if not self._over:
            self._give_up()
            self._on_failed(self, Reason.CONNECT_TIMEOUT)

    def _writable(self) -> None:
        sock = self._socket
        if sock is None or self._over:
            return
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self._unwatch()
            self._wrap()
        else:
            self._fail(code)

    def _wrap(self) -> None:
        self._context.start_task("dial", self._to_transport())

    async def _to_transport(self) -> None:
        sock = self._socket
        if sock is None or self._over:
            return
        try:
            await self._context.loop.create_connection(self._protocol, sock=sock)
        except OSError as error:
            self._fail(error.errno or 0)
            return
        except Exception:
            self._fail(0)
            raise
        self._socket = None  # the transport's now
        self._over = True
        self._context.wheel.cancel(self)

    def _protocol(self) -> Any:
        return self.connection

    def _fail(self, code: int) -> None:
        if not self._over:
            self._give_up()
            self._on_failed(self, Reason.CONNECT_FAILED if code in _DEAD else Reason.INTERNAL)

    def _give_up(self) -> None:
        self._over = True
        self._context.wheel.cancel(self)
        self._unwatch()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _unwatch(self) -> None:
        if self._watched and self._socket is not None:
            self._context.loop.remove_writer(self._socket.fileno())
            self._watched = False
