"""The HTTP/1.1 connections of one pod identity; each carries one exchange at a time.

Rules
  1. The most recently used idle connection is used next, so that the others can expire: after POD_IDLE_S, or one second
     before the pod would close them if it announces that (`Keep-Alive: timeout=`).
  2. Exchanges that need a new connection do not get a kept one.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http1_connection import Http1PodConnection
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.pooled_connection import PooledConnection
from activator.runtime.clock import Now
from activator.runtime.last_reads import keep_last_reads
from activator.runtime.transport import Transport

POD_IDLE_S: Final = 4.0  # idle limit of a pooled connection; below the 5 s of common servers

_CLOSING_S: Final = 1.0  # a request sent within this time before the pod closes may cross its FIN


@mypyc_attr(allow_interpreted_subclasses=True)
class Http1Pool(PodPool):
    """The pool of a pod that speaks HTTP/1.1."""

    def __init__(
        self,
        context: DialContext,
        now: Now,
        address: PodAddress,
        connect_timeout_s: float,
        expected_identity: ExpectedIdentity | None = None,
    ) -> None:
        super().__init__(context, now, address, connect_timeout_s, expected_identity)
        self._idle: list[Http1PodConnection] = []  # the longest idle first
        self._idle_max_s: float = POD_IDLE_S  # lower if the pod announces that it closes connections sooner

    def checkout(self, exchange: PodUser, idle_max_s: float, now_s: float) -> PodStream | None:
        assert not self._closed, "a connection to a pod that has left"
        needs_new = idle_max_s == 0.0
        idle_max_s = min(idle_max_s, self._idle_max_s)
        if idle_max_s > 0.0:
            while self._idle:
                connection = self._idle[-1]
                if now_s - connection.last_read_s >= idle_max_s:
                    break  # the other connections have been idle for longer
                self._idle.pop()
                if connection.is_usable():
                    connection.reused = True
                    return connection.serve(exchange)
                connection.close()
        self._waiting[exchange] = needs_new
        self._dial_for_waiting()
        return None

    def adopt(self, transport: Transport, bare: Transport | None) -> None:
        """Add an unused TLS connection that another pool has dialled."""
        self._context.connections += 1
        self.window.dialled()
        connection = self._new_connection()
        transport.set_protocol(connection)
        keep_last_reads(bare)
        connection.bare = bare
        connection.connection_made(transport)

    def close_idle_one(self) -> bool:
        if not self._idle:
            return False
        self._idle[0].close()
        return True

    # --- what connections report ---

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        if self._identifying and connection in self._identifying:
            self._finish_identity_check(connection, reusable)
            return
        assert isinstance(connection, Http1PodConnection)
        if connection.keep_alive_s >= 0.0:
            self._idle_max_s = min(POD_IDLE_S, connection.keep_alive_s - _CLOSING_S)
        if reusable and not self._closed and (self._idle_max_s > 0.0 or self._waiting):
            connection.reused = True  # it counts as kept for waiting exchanges, too
            self._offer(connection)
        else:
            connection.close()

    def pod_closed(self, connection: PooledConnection) -> None:
        """Close the idle connections after one was cut during a request; the pod may have closed them, too."""
        self._close_idle()

    # --- within ---

    def _new_connection(self) -> PooledConnection:
        address = self._address
        return Http1PodConnection(self, self._now, self._context.batcher, address.authority, address.lenient)

    def _offer(self, connection: PooledConnection) -> None:
        """Give the connection to the exchange that has waited longest, or keep it idle."""
        assert isinstance(connection, Http1PodConnection)
        for exchange, needs_new in self._waiting.items():
            if needs_new and connection.reused:
                continue
            del self._waiting[exchange]
            exchange.connected(connection.serve(exchange))
            return
        if self._closed or self._idle_max_s <= 0.0:
            connection.close()
            return
        if connection.is_new:
            connection.is_new = False  # no response is pending on it
            self.window.answered()
        self._idle.append(connection)
        if len(self._idle) == 1:
            self._context.wheel.arm(self._sweep, connection.last_read_s + self._idle_max_s)

    def _room_being_opened(self) -> int:
        return len(self._dials) + len(self._identifying)

    def _idle_count(self) -> int:
        return len(self._idle)

    def _close_idle(self) -> None:
        idle = self._idle
        self._idle = []
        for connection in idle:
            connection.close()

    def _close_old(self, now_s: float) -> None:
        while self._idle and self._idle[0].last_read_s + self._idle_max_s <= now_s:
            self._idle[0].close()
        if self._idle:
            self._context.wheel.arm(self._sweep, self._idle[0].last_read_s + self._idle_max_s)

    def _remove_from_available(self, connection: PooledConnection) -> None:
        assert isinstance(connection, Http1PodConnection)
        if connection in self._idle:
            self._idle.remove(connection)
