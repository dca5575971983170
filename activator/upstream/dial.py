"""Opening one connection to a pod, with a deadline and without anything to cancel.

The socket is connected by hand (non-blocking, the loop says when it is writable), so that giving up is closing it; only
a connected socket is handed to the loop to be wrapped in a transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from activator.clock import Deadline, TimingWheel
from activator.config import TLS_HANDSHAKE_TIMEOUT_S, TLS_SHUTDOWN_TIMEOUT_S
from activator.errors import Reason
from activator.outlet import WriteTurn
from activator.upstream.pod_connection import PodConnection

log = logging.getLogger("activator.upstream")

# What says that nobody listens there, as against faults of this machine (descriptors, ports) or silence.
_DEAD: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ECONNRESET})


class PodAddress:
    """Where a pod is, and how it is spoken to: in the clear, or over TLS with this context and server name."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str = "") -> None:
        self.host = host  # an IP address; names are resolved by discovery
        self.port = port
        self.tls = tls
        self.server_name = server_name or host
        self.told: bool = False  # why TLS fails, since it last went well

    def tell(self, error: OSError) -> None:
        """One line, not one for each request."""
        if not self.told:
            self.told = True
            log.warning("no TLS with the pod at %s:%d: %s", self.host, self.port, error)


class DialContext:
    """What all dials of a worker need: the loop, the wheel, an owner for the one short task of each, and the turn's end
    for what the connections write.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wheel: TimingWheel,
        start_task: Callable[[str, Coroutine[Any, Any, Any]], object],
        turn: WriteTurn,
    ) -> None:
        self.loop = loop
        self.turn = turn
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
        self._address: PodAddress | None = None

    def start(self, address: PodAddress, timeout_s: float, now_s: float) -> None:
        """May fail before it returns."""
        self.started_s = now_s
        self._address = address
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._fail(error.errno or 0)
            return
        self._socket = sock
        sock.setblocking(False)
        code = sock.connect_ex((address.host, address.port))
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
        address = self._address
        if sock is None or address is None or self._over:
            return
        # From here on the socket is the transport's: were it closed by us, its descriptor could be another connection's
        # by the time the transport uses it. What is left takes a turn or two; a handshake has a time limit of its own.
        self._unwatch()
        self._socket = None
        self._context.wheel.cancel(self)
        loop = self._context.loop
        try:
            if address.tls is None:
                await loop.create_connection(self._protocol, sock=sock)
            else:
                await loop.create_connection(
                    self._protocol,
                    sock=sock,
                    ssl=address.tls,
                    server_hostname=address.server_name,
                    ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S,
                )
        except OSError as error:
            sock.close()  # harmless where the transport has done so
            if address.tls is None:
                self._fail(error.errno or 0)
            else:
                address.tell(error)
                self._fail_with(Reason.TLS_FAILED)
            return
        except Exception:
            self._fail(0)
            raise
        address.told = False
        self._over = True

    def _protocol(self) -> Any:
        return self.connection

    def _fail(self, code: int) -> None:
        self._fail_with(Reason.CONNECT_FAILED if code in _DEAD else Reason.INTERNAL)

    def _fail_with(self, reason: Reason) -> None:
        if not self._over:
            self._give_up()
            self._on_failed(self, reason)

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
