"""The opening of one connection to a pod, with a deadline.

Rules
  1. The loop opens the socket and alone owns it from then on (runtime/handshake.py, rule 1). A socket that was
     connected directly and then passed to the loop had two owners for one turn: if the pod reset it in that turn, its
     descriptor was closed twice, the second time after its number had been reused.
  2. A dial ends exactly once: in `opened`, in one call of `on_failed`, or in `abandon`.
  3. Giving up cancels the loop's attempt, which closes the socket, but only in a later turn; a connection established
     before then is aborted. After `opened` the connection belongs to the pool, and nothing is cancelled.
  4. The connect deadline ends when the connection is established; a TLS handshake has its own time limit.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Deadline, TimingWheel
from activator.runtime.handshake import Handshake
from activator.runtime.last_reads import keep_last_reads
from activator.runtime.reasons import Reason
from activator.runtime.sockets import join_address
from activator.runtime.tasks import pause
from activator.runtime.transport import Transport

TLS_SHUTDOWN_TIMEOUT_S: Final = 5.0

log = logging.getLogger("activator.upstream")

NO_LIMIT: Final = 1 << 30
_POOLS_TRIED_MAX: Final = 1_000

FULL_QUEUE_STEP_S: Final = 0.001  # after an attempt at a Unix socket with a full queue; doubled each time
FULL_QUEUE_STEP_MAX_S: Final = 0.02  # upper bound of that delay

# No process listens at the address. Other errors are faults of this machine or timeouts.
_DEAD: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ECONNRESET})
# This machine has no more descriptors, ports or memory: it can serve the request later.
_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)
# The Unix socket does not exist, or cannot be used.
_DEAD_FILE: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENOTSOCK, errno.EACCES, errno.EPERM, errno.EPROTOTYPE}
)


class PodAddress:
    """The address of a pod and how to connect to it: in plain text, or over TLS with this context and server name.

    `lenient`: accept response heads of old servers (codec/http1/lenient.py). `alpn`: the protocol that must be
    negotiated over TLS; empty: any. `http1`: the settings for HTTP/1.1, which the pod may negotiate instead.
    `proxy_protocol`: the version of the header that begins each connection; empty: none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        lenient: bool = False,
        alpn: str = "",
        http1: PodAddress | None = None,
        proxy_protocol: str = "",
    ) -> None:
        # An IP address (discovery resolves the names of pods), the name of an authoriser, or the path of a Unix socket,
        # with port 0.
        self.host = host
        self.port = port
        self.tls = tls
        self.is_unix: bool = host.startswith("/")
        self.server_name = server_name or ("localhost" if self.is_unix else host)
        self.lenient = lenient
        self.alpn = alpn
        self.http1 = http1
        self.proxy_protocol = proxy_protocol
        self.shown: str = join_address(host, port)  # for log lines
        self.authority: bytes = b"localhost" if self.is_unix else self.shown.encode()
        self.is_failure_logged: bool = False  # a TLS failure has been logged since the last successful handshake

    def log_tls_failure(self, error: Exception) -> None:
        """Log a TLS failure, once until a handshake succeeds."""
        if not self.is_failure_logged:
            self.is_failure_logged = True
            log.warning("TLS handshake with the pod at %s failed: %s", self.shown, error)


class DialContext:
    """The resources that all dials of a worker share: loop, timing wheel, task owner and write batcher."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wheel: TimingWheel,
        start_task: Callable[[str, Coroutine[Any, Any, Any]], Any],
        batcher: WriteBatcher,
        connections_max: int = NO_LIMIT,
    ) -> None:
        self.connections_max = connections_max  # to all pods; above it idle ones are closed
        self.connections: int = 0  # open, or being opened
        self.pools: dict[ConnectionOwner, None] = {}  # all open pools, in the order of `close_idle_if_full`
        self.loop = loop
        self.batcher = batcher
        self.wheel = wheel
        self.start_task = start_task

    def close_idle_if_full(self) -> None:
        """Close an idle connection of any pod if the number of connections is at its limit before a dial.

        An idle one exists, because requests in flight are never more than clients. A bounded number of pools is tried.
        """
        if self.connections < self.connections_max:
            return
        for pool in list(itertools.islice(self.pools, _POOLS_TRIED_MAX)):
            self.pools[pool] = self.pools.pop(pool)  # the next call starts with other pools
            if pool.close_idle_one():
                return


class Dial(Deadline):
    """One connection attempt; an asyncio protocol by its methods, until the connection replaces it.

    The caller of `start` calls `opened` after the `connection_made` of the connection.
    """

    def __init__(
        self,
        context: DialContext,
        connection: PooledConnection,
        on_failed: Callable[[Dial, Reason], None],
    ) -> None:
        super().__init__()
        self._context = context
        self.connection = connection
        self._on_failed = on_failed
        self.started_s: float = 0.0
        self._address: PodAddress | None = None
        self._attempt: Any = None  # the task that opens the socket
        self._handshake: Handshake | None = None
        self._over: bool = False
        self.http1: Transport | None = None  # set if the handshake failed because the pod negotiated HTTP/1.1
        self.bare: Transport | None = None  # its plain transport; `on_failed` takes both over

    def start(self, address: PodAddress, timeout_s: float, now_s: float) -> None:
        """Begin to connect; no callback is called before this returns."""
        self.started_s = now_s
        self._address = address
        self._context.wheel.arm(self, now_s + timeout_s)
        self._attempt = self._context.start_task("dial", self._connect(address))

    def opened(self) -> None:
        """End the dial successfully: the pool owns the connection now."""
        self._over = True
        self._context.wheel.cancel(self)

    def abandon(self) -> None:
        """End the dial, because the connection is no longer needed."""
        if not self._over:
            self._give_up()

    def expired(self, now_s: float) -> None:
        if not self._over:
            self._give_up()
            self._on_failed(self, Reason.CONNECT_TIMEOUT)

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        address = self._address
        if self._over or address is None:
            transport.abort()
        elif address.tls is None:
            transport.set_protocol(self.connection)
            self.connection.connection_made(transport)
        else:
            handshake = self._handshake = Handshake(
                self._context.loop,
                address.tls,
                address.server_name,
                TLS_SHUTDOWN_TIMEOUT_S,
                self._handshake_ended,
                self._connected,
            )
            transport.set_protocol(handshake)
            handshake.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        pass  # only after an abort in `connection_made`

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass

    # --- within ---

    def _protocol(self) -> Any:
        """Return the protocol of a new connection: the dial itself."""
        return self

    async def _connect(self, address: PodAddress) -> None:
        """Open the socket, and report a failure."""
        try:
            if address.is_unix:
                await self._connect_to_file(address.host)
            else:
                await self._context.loop.create_connection(self._protocol, address.host, address.port)
        except OSError as error:
            self._fail(error)
        except Exception:
            self._fail_with(Reason.INTERNAL)
            raise

    async def _connect_to_file(self, path: str) -> None:
        """Connect to a Unix socket, and retry until the deadline while its queue is full. Raises OSError.

        Unlike a SYN, an attempt that finds the queue full is not repeated by the kernel.
        """
        wait_s = FULL_QUEUE_STEP_S
        while True:
            try:
                await self._context.loop.create_unix_connection(self._protocol, path)
                return
            except BlockingIOError:
                await pause(wait_s)
                wait_s = min(wait_s * 2.0, FULL_QUEUE_STEP_MAX_S)

    def _connected(self, handshake: Handshake) -> None:
        """End the connect deadline: the connection is established, and the TLS handshake has its own time limit."""
        self._context.wheel.cancel(self)

    def _handshake_ended(self, handshake: Handshake, transport: Transport | None, error: Exception | None) -> None:
        """Hand the secured transport to the connection, or report a failure."""
        self._handshake = None  # the handshake refers to the dial: avoid a reference cycle
        address = self._address
        assert address is not None
        if transport is not None and not self._over and not _has_negotiated(transport, address.alpn):
            if address.http1 is not None:
                self.http1 = transport
                self.bare = handshake.bare
                self._fail_with(Reason.TLS_FAILED)
                return
            error = ConnectionError(f"the pod did not negotiate {address.alpn} (ALPN)")
            transport.abort()
            transport = None
        if self._over:
            if transport is not None:
                transport.abort()  # given up just before the handshake ended
        elif transport is None:
            if error is not None:
                address.log_tls_failure(error)
            self._fail_with(Reason.TLS_FAILED)
        else:
            address.is_failure_logged = False
            transport.set_protocol(self.connection)
            keep_last_reads(handshake.bare)
            self.connection.bare = handshake.bare
            self.connection.connection_made(transport)

    def _fail(self, error: OSError) -> None:
        """Report a failed attempt, with a reason that states if the pod or this machine is the cause."""
        if (
            error.errno in _DEAD
            or isinstance(error, socket.gaierror)
            or (self._is_file() and error.errno in _DEAD_FILE)
        ):
            self._fail_with(Reason.CONNECT_FAILED)
            return
        if not self._over:
            log.error("cannot open connections to pods: %s", error)  # the logger limits the rate of repeated lines
        self._fail_with(Reason.OVERLOADED if error.errno in _EXHAUSTED else Reason.INTERNAL)

    def _is_file(self) -> bool:
        return self._address is not None and self._address.is_unix

    def _fail_with(self, reason: Reason) -> None:
        if not self._over:
            self._give_up()
            self._on_failed(self, reason)

    def _give_up(self) -> None:
        """Cancel the attempt or the handshake, and the deadline."""
        self._over = True
        self._context.wheel.cancel(self)
        if self._handshake is not None and self._handshake.is_under_way():
            self._handshake.abort()
        elif self._attempt is not None:
            self._attempt.cancel()  # no effect after its end


def _has_negotiated(transport: Transport, alpn: str) -> bool:
    """Return True if the pod has negotiated this protocol."""
    return not alpn or transport.get_extra_info("ssl_object").selected_alpn_protocol() == alpn
