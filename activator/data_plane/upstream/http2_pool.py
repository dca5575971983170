"""The HTTP/2 connections of one pod identity; each carries as many exchanges as the pod allows.

Rules
  1. The connection that had room most recently is used until it is full; only then the next one is dialled. This keeps
     their number low, and connections that are no longer needed become idle and are closed after HTTP2_POD_IDLE_S.
  2. A pod announces its limit of streams after a connection opens. Until then the first connection carries one
     request, later ones as many as the previous one allowed. If the pod is silent for SETTINGS_PATIENCE_S, another
     connection is dialled.
  3. A connection after GOAWAY, or one that is no longer needed, ends with its last stream; waiting exchanges use
     another connection.
"""

from __future__ import annotations

import logging
from typing import Final

from mypy_extensions import mypyc_attr

from activator.codec.http2.control import STREAMS_BEFORE_SETTINGS
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http2_connection import Http2PodConnection
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.pooled_connection import PooledConnection
from activator.runtime.clock import NEVER, Now

HTTP2_POD_IDLE_S: Final = 30.0  # a connection without streams; a server announces its close with GOAWAY

SETTINGS_PATIENCE_S: Final = 1.0  # after this time without SETTINGS another connection is dialled

log = logging.getLogger("activator.upstream")


@mypyc_attr(allow_interpreted_subclasses=True)
class Http2Pool(PodPool):
    """The pool of a pod that speaks HTTP/2."""

    def __init__(
        self,
        context: DialContext,
        now: Now,
        address: PodAddress,
        connect_timeout_s: float,
        expected_identity: ExpectedIdentity | None = None,
    ) -> None:
        super().__init__(context, now, address, connect_timeout_s, expected_identity)
        self._ready: list[Http2PodConnection] = []  # connections with room
        self._streams_expected: int = STREAMS_BEFORE_SETTINGS  # the assumed limit of a connection that is being opened
        self._is_limit_known: bool = False  # the pod has announced its limit
        self._before_settings: dict[Http2PodConnection, None] = {}  # open connections without SETTINGS of the pod
        self._sweep_due_s: float = NEVER
        self._is_protocol_logged: bool = False  # the wrong protocol of the pod has been logged

    def checkout(self, exchange: PodUser, idle_max_s: float, now_s: float) -> PodStream | None:
        assert not self._closed, "a connection to a pod that has left"
        ready = self._ready
        while ready:
            connection = ready[-1]
            room = connection.room()
            if room <= 1:
                ready.pop()
                connection.is_ready = False
            if room > 0:
                return connection.serve(exchange)
        self._waiting[exchange] = False
        self._dial_for_waiting()
        return None

    def close_idle_one(self) -> bool:
        for connection in self._open:
            assert isinstance(connection, Http2PodConnection)
            if connection.is_idle():
                connection.close()
                return True
        return False

    def statistics(self) -> dict[str, int]:
        streams = sum(
            len(connection.codec.streams) for connection in self._open if isinstance(connection, Http2PodConnection)
        )
        return {**super().statistics(), "streams": streams}

    # --- what connections report ---

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        if self._identifying and connection in self._identifying:
            self._finish_identity_check(connection, reusable)
            return
        assert isinstance(connection, Http2PodConnection)
        if reusable:
            self._offer(connection)
        else:
            self._remove_from_available(connection)
            if connection.is_idle():
                connection.close()
            elif self._waiting:
                self._dial_for_waiting()

    def room_changed(self, connection: PooledConnection) -> None:
        if connection in self._open and connection not in self._identifying:
            self._offer(connection)

    def wrong_protocol(self, connection: PooledConnection, words: str) -> None:
        if not self._is_protocol_logged:
            self._is_protocol_logged = True
            log.warning("the pod at %s: %s", self._address.shown, words)

    def pod_closed(self, connection: PooledConnection) -> None:
        pass  # the other connections report their own end

    # --- within ---

    def _new_connection(self) -> PooledConnection:
        address = self._address
        connection = Http2PodConnection(
            self, self._now, self._context.batcher, address.authority, address.tls is not None
        )
        if self._is_limit_known:
            connection.streams_before_settings = self._streams_expected
        return connection

    def _offer(self, connection: PooledConnection) -> None:
        """Give the connection to as many waiting exchanges as it has room for, or keep it idle."""
        assert isinstance(connection, Http2PodConnection)
        if not connection.codec.is_settled():
            self._before_settings[connection] = None
            self._sweep_at(connection.last_read_s + SETTINGS_PATIENCE_S)
        else:
            if self._before_settings:
                self._before_settings.pop(connection, None)
            self._is_limit_known = True
            self._is_protocol_logged = False
            self._streams_expected = max(int(connection.codec.peer_streams_max), 1)
        room = connection.room()
        while room > 0 and self._waiting:
            exchange = next(iter(self._waiting))
            del self._waiting[exchange]
            exchange.connected(connection.serve(exchange))
            room = connection.room()
        if connection.is_closed:
            return
        if connection.is_idle():
            if self._closed or connection.retiring or connection.codec.going_away:
                connection.close()
                return
            connection.idle_since_s = self._now()
            self._sweep_at(connection.idle_since_s + HTTP2_POD_IDLE_S)
        if room > 0 and not connection.is_ready:
            connection.is_ready = True
            self._ready.append(connection)

    def _room_being_opened(self) -> int:
        opening = self._under_way()
        if self._before_settings:
            now_s = self._now()
            opening += sum(now_s - connection.last_read_s < SETTINGS_PATIENCE_S for connection in self._before_settings)
        return opening * self._streams_expected

    def _under_way(self) -> int:
        """Return the number of connections that are being opened."""
        return len(self._dials) + len(self._identifying)

    def _idle_count(self) -> int:
        return sum(isinstance(each, Http2PodConnection) and each.is_idle() for each in self._open)

    def _close_idle(self) -> None:
        for connection in list(self._open):
            assert isinstance(connection, Http2PodConnection)
            connection.retiring = True
            self._remove_from_available(connection)
            if connection.is_idle():
                connection.close()

    def _sweep_at(self, due_s: float) -> None:
        """Schedule `_close_old` for this time, unless it is scheduled earlier."""
        if due_s < self._sweep_due_s:
            self._sweep_due_s = due_s
            self._context.wheel.arm(self._sweep, due_s)

    def _close_old(self, now_s: float) -> None:
        """Close connections that were idle for too long; dial for requests that wait for a pod without SETTINGS."""
        self._sweep_due_s = NEVER
        for connection in list(self._open):
            assert isinstance(connection, Http2PodConnection)
            due_s = NEVER
            if connection.is_idle():
                due_s = connection.idle_since_s + HTTP2_POD_IDLE_S
                if due_s <= now_s:
                    connection.close()
            elif connection in self._before_settings:
                due_s = connection.last_read_s + SETTINGS_PATIENCE_S
            if due_s > now_s:
                self._sweep_at(due_s)
        self._dial_for_waiting()

    def _remove_from_available(self, connection: PooledConnection) -> None:
        assert isinstance(connection, Http2PodConnection)
        self._before_settings.pop(connection, None)
        if connection.is_ready:
            connection.is_ready = False
            self._ready.remove(connection)
