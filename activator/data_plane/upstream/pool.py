"""The pool of one pod identity: its connections, its dials, and the exchanges that wait for a connection.

Rules
  1. A pool belongs to an identity, not to an address. It is closed when the pod is removed; a later pod at the same
     address inherits no connection.
  2. The number of new connections at a time is bounded by the pod's dial window (window.py).
  3. The kernel repeats a lost SYN after one second. If connects are known to be faster, a dial that takes much longer
     is abandoned and repeated; requests fail only if nothing has connected for the whole connect timeout.
  4. An exchange with a lease waits for the next connection that can take it, first come first served, whichever
     exchange caused the dial. Dials belong to the pool, not to an exchange.
  5. If an identity is expected, a new connection carries requests only after the pod has stated it (identity_check.py).
     A wrong or missing identity counts as a refused connection: waiting requests go elsewhere.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from activator.data_plane.refusals import REFUSALS_PER_TURN_MAX
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.dial import Dial, DialContext, PodAddress
from activator.data_plane.upstream.identity_check import ExpectedIdentity, IdentityCheck
from activator.data_plane.upstream.pod_figures import PodFigures
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.data_plane.upstream.window import DialWindow
from activator.runtime.clock import NEVER, Deadline, Now
from activator.runtime.reasons import Reason
from activator.runtime.transport import FLUSH_S, Transport

DIAL_LOST_MIN_S: Final = 0.1  # a dial slower than this and than DIAL_LOST_RTTS x the fastest is repeated
DIAL_LOST_RTTS: Final = 8.0

log = logging.getLogger("activator.upstream")


@mypyc_attr(allow_interpreted_subclasses=True)
class PodPool(ConnectionOwner):
    """All connections of one identity, from the first dial to `close`; the base class of the protocols' pools."""

    def __init__(
        self,
        context: DialContext,
        now: Now,
        address: PodAddress,
        connect_timeout_s: float,
        expected_identity: ExpectedIdentity | None = None,
    ) -> None:
        self._context = context
        self._now = now
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._expected_identity = expected_identity
        self._identifying: dict[PooledConnection, IdentityCheck] = {}  # connections with a pending identity check
        self._is_mismatch_logged: bool = False  # the last identity check failed
        self._open: dict[PooledConnection, None] = {}
        self._dials: dict[PooledConnection, Dial] = {}  # by the future connection
        self._waiting: dict[PodUser, bool] = {}  # True: it needs a new connection
        self._refused: dict[PodUser, Reason] = {}  # exchanges to be rejected in the next turns
        self.window = DialWindow()
        self.figures = PodFigures()
        self._fastest_connect_s: float = NEVER
        self._silent_since_s: float = 0.0  # start of the first of the dials that were lost in a row; 0.0: none
        self._new_connections: deque[tuple[float, PooledConnection]] = deque()  # in the window; when each opened
        self._aging = _Aging(self)
        self._sweep = _Sweep(self)
        self._closed: bool = False
        self._successor: PodPool | None = None  # the pool that this one was handed over to
        context.pools[self] = None

    def change_address(self, address: PodAddress) -> None:
        """Use this address from now on; close idle connections at once, and busy ones after their exchanges.

        The new address may have other TLS settings, so no request may use an older connection.
        """
        self._address = address
        for connection in self._open:
            connection.retiring = True
        for dial in list(self._dials.values()):
            self._end_dial(dial)
            dial.abandon()
        for identity_check in list(self._identifying.values()):
            self._end_identity_check(identity_check)
        self._close_idle()
        self._dial_for_waiting()

    def hand_over(self, successor: PodPool) -> None:
        """Close the pool and move the waiting exchanges to `successor`, a pool of the same pod."""
        self._successor = successor
        successor.figures = self.figures
        waiting, self._waiting = self._waiting, {}
        refused, self._refused = self._refused, {}
        self.close()
        successor._reject_soon(refused)
        now_s = self._now()
        for exchange, needs_new in waiting.items():
            pod = successor.checkout(exchange, 0.0 if needs_new else NEVER, now_s)
            if pod is not None:
                exchange.connected(pod)

    def in_use(self) -> PodPool:
        """Return the pool that serves the pod now: this one, or its successor."""
        pool = self
        while pool._successor is not None:
            pool = pool._successor
        return pool

    def is_closed(self) -> bool:
        """Return True if the pod was removed, so that no connection is available."""
        return self._closed

    def checkout(self, exchange: PodUser, idle_max_s: float, now_s: float) -> PodStream | None:
        """Return a stream on a connection that was idle for less than `idle_max_s`; 0 means a new connection only.

        If there is none, return None; the exchange waits for one. Later, never before this returns, the pool calls its
        `connected` or `connect_failed`, unless the exchange stopped waiting. The pool must not be closed.
        """
        raise NotImplementedError

    def stop_waiting(self, exchange: PodUser) -> None:
        """Remove an exchange that no longer waits."""
        self._waiting.pop(exchange, None)
        self._refused.pop(exchange, None)
        if self._successor is not None:
            self._successor.stop_waiting(exchange)

    def close(self) -> None:
        """Close idle connections now and busy ones after their responses, because the pod was removed."""
        self._closed = True
        self._context.pools.pop(self, None)
        for deadline in (self._sweep, self._aging):
            self._context.wheel.cancel(deadline)
            deadline.pool = None  # avoid a reference cycle, which only a full garbage collection frees
        self._new_connections.clear()
        for dial in list(self._dials.values()):
            self._end_dial(dial)
            dial.abandon()
        for identity_check in list(self._identifying.values()):
            self._end_identity_check(identity_check)
        self._close_idle()
        waiting = [*self._refused, *self._waiting]
        for exchange in waiting:
            if exchange in self._waiting or exchange in self._refused:
                self.stop_waiting(exchange)
                exchange.connect_failed(Reason.CONNECT_FAILED)

    def watch(self) -> None:
        """Detect the connections whose pod has disappeared, because another pod has the address now."""
        for connection in list(self._open):
            connection.watch()

    def statistics(self) -> dict[str, int]:
        """Return the figures for /debug."""
        return {
            "open": len(self._open),
            "idle": self._idle_count(),
            "dialling": len(self._dials) + len(self._identifying),
            "waiting": len(self._waiting) + len(self._refused),
            "window": self.window.size,
        }

    def count_into(self, totals: list[int]) -> None:
        """Add the numbers of open, idle, dialling and waiting to `totals`; cheap, because there may be 20,000 pods."""
        totals[0] += len(self._open)
        totals[1] += self._idle_count()
        totals[2] += len(self._dials) + len(self._identifying)
        totals[3] += len(self._waiting) + len(self._refused)

    # --- implemented by subclasses ---

    def _new_connection(self) -> PooledConnection:
        """Return a connection to be dialled."""
        raise NotImplementedError

    def _offer(self, connection: PooledConnection) -> None:
        """Give a connection with room to waiting exchanges, or keep it idle."""
        raise NotImplementedError

    def _room_being_opened(self) -> int:
        """Return how many exchanges the connections that are being opened will take."""
        raise NotImplementedError

    def _idle_count(self) -> int:
        """Return the number of idle connections."""
        raise NotImplementedError

    def _close_idle(self) -> None:
        """Close idle connections now, and the others as soon as they are idle."""
        raise NotImplementedError

    def _close_old(self, now_s: float) -> None:
        """Close connections that have been idle for too long; called by the sweep."""
        raise NotImplementedError

    def _remove_from_available(self, connection: PooledConnection) -> None:
        """Remove a connection from those that exchanges may use."""
        raise NotImplementedError

    # --- what connections report ---

    def opened(self, connection: PooledConnection) -> None:
        now_s = connection.last_read_s
        dial = self._dials.pop(connection, None)
        if dial is not None:
            dial.opened()
            self._fastest_connect_s = min(self._fastest_connect_s, now_s - dial.started_s)
        self._silent_since_s = 0.0
        self._open[connection] = None
        self._new_connections.append((now_s, connection))
        if len(self._new_connections) == 1:
            self._context.wheel.arm(self._aging, now_s + self.window.age_s)
        if self._expected_identity is None:
            self._offer(connection)
        else:
            self._identify(connection, self._expected_identity)

    def answered(self, connection: PooledConnection) -> None:
        self.window.answered()
        if self._waiting:
            self._dial_for_waiting()

    def closed(self, connection: PooledConnection) -> None:
        if connection.is_new:
            connection.is_new = False
            self.window.new_ended()
        if connection in self._open:
            del self._open[connection]
            self._context.connections -= 1
        self._remove_from_available(connection)
        if self._waiting:
            self._dial_for_waiting()

    def limit_close(self, transport: Transport) -> None:
        self._context.wheel.arm(_CloseTimeout(transport), self._now() + FLUSH_S)

    # --- within ---

    def _dial_for_waiting(self) -> None:
        """Dial for waiting exchanges without a pending dial, as far as the window allows."""
        while not self._closed and len(self._waiting) > self._room_being_opened() and self.window.has_room():
            self._context.close_idle_if_full()
            self._context.connections += 1
            self.window.dialled()
            dial = Dial(
                self._context,
                self._new_connection(),
                self._dial_failed,
            )
            self._dials[dial.connection] = dial
            patience_s = max(DIAL_LOST_MIN_S, self._fastest_connect_s * DIAL_LOST_RTTS)
            dial.start(self._address, min(patience_s, self._connect_timeout_s), self._now())

    def _identify(self, connection: PooledConnection, expected_identity: ExpectedIdentity) -> None:
        identity_check = IdentityCheck(expected_identity, self._identity_check_failed)
        self._identifying[connection] = identity_check
        self._context.wheel.arm(identity_check, connection.last_read_s + self._connect_timeout_s)
        identity_check.connected(connection.serve(identity_check))

    def _finish_identity_check(self, connection: PooledConnection, reusable: bool) -> None:
        """Use a new connection whose identity check was answered, or close it."""
        identity_check = self._identifying.pop(connection)
        identity_check.over = True
        self._context.wheel.cancel(identity_check)
        if identity_check.matches() and reusable and not self._closed:
            self._is_mismatch_logged = False
            self._offer(connection)
            return
        connection.close()
        if not self._is_mismatch_logged and not self._closed:  # log once, not for each connection
            self._is_mismatch_logged = True
            outcome = "closes the connection after" if identity_check.matches() else "failed the identity check by"
            log.warning("the pod at %s %s stating the identity %r", self._address.shown, outcome, identity_check.stated)
        self._fail_waiting(Reason.CONNECT_FAILED)

    def _identity_check_failed(self, identity_check: IdentityCheck, reason: Reason) -> None:
        self._end_identity_check(identity_check)
        self._fail_waiting(reason)

    def _end_identity_check(self, identity_check: IdentityCheck) -> None:
        """Stop a pending identity check, and cut its connection."""
        identity_check.over = True
        self._context.wheel.cancel(identity_check)
        for connection, pending in self._identifying.items():
            if pending is identity_check:
                del self._identifying[connection]
                connection.cut()
                return

    def _end_dial(self, dial: Dial) -> None:
        if self._dials.pop(dial.connection, None) is not None:
            self._context.connections -= 1
            self.window.new_ended()

    def _dial_failed(self, dial: Dial, reason: Reason) -> None:
        self._end_dial(dial)
        if reason is Reason.CONNECT_TIMEOUT and self._record_lost(dial):
            self._dial_for_waiting()
            return
        self._fail_waiting(reason)

    def _fail_waiting(self, reason: Reason) -> None:
        """Fail waiting exchanges after a dial has failed for `reason`, and dial for those that still wait."""
        # A refusal concerns the pod, so all waiting exchanges fail; a timeout concerns one dial only.
        if reason in {Reason.CONNECT_FAILED, Reason.TLS_FAILED}:
            refused: dict[PodUser, Reason] = dict.fromkeys(self._waiting, reason)
            self._waiting.clear()
            self._reject_soon(refused)
        else:
            exchange = next(iter(self._waiting), None)
            if exchange is not None:
                del self._waiting[exchange]
                exchange.connect_failed(reason)
        self._dial_for_waiting()

    def _reject_soon(self, refused: dict[PodUser, Reason]) -> None:
        """Fail exchanges, each for its reason, within the next turns."""
        is_running = len(self._refused) > 0
        self._refused.update(refused)
        if not is_running:
            self._reject_refused()

    def _reject_refused(self) -> None:
        """Fail a bounded number of exchanges per turn: without a limit, thousands may wait for one pod."""
        for exchange in list(itertools.islice(self._refused, REFUSALS_PER_TURN_MAX)):
            reason = self._refused.pop(exchange, None)
            if reason is not None:  # otherwise it stopped waiting in the meantime
                exchange.connect_failed(reason)
        if self._refused:
            self._context.batcher.defer(self._reject_refused)

    def _record_lost(self, dial: Dial) -> bool:
        """Record a lost dial; return True if it may be repeated.

        It may not if the pod has been silent for the whole connect timeout.
        """
        self.window.lost()
        if self._silent_since_s == 0.0:
            self._silent_since_s = dial.started_s
        return self._now() - self._silent_since_s < self._connect_timeout_s

    def _pass_aged(self, now_s: float) -> None:
        """Let new connections that have been open for `age_s` pass the window."""
        new_connections = self._new_connections
        window = self.window
        age_s = window.age_s  # fixed for this call: a window that passes halves it
        while new_connections and (new_connections[0][0] + age_s <= now_s or not new_connections[0][1].is_new):
            connection = new_connections.popleft()[1]
            if connection.is_new:
                connection.is_new = False
                window.aged()
        if new_connections:
            self._context.wheel.arm(self._aging, new_connections[0][0] + window.age_s)
        self._dial_for_waiting()


class _PoolDeadline(Deadline):
    """A deadline of a pool; `pool` is None after the pool was closed."""

    def __init__(self, pool: PodPool) -> None:
        super().__init__()
        self.pool: PodPool | None = pool


class _Aging(_PoolDeadline):
    """The deadline that removes connections from the window after they have been open for a while."""

    def expired(self, now_s: float) -> None:
        if self.pool is not None:
            self.pool._pass_aged(now_s)


class _CloseTimeout(Deadline):
    """The time limit for a pod to take the data written to a connection that is being closed."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport

    def expired(self, now_s: float) -> None:
        self._transport.abort()


class _Sweep(_PoolDeadline):
    """The deadline that closes connections that have been idle for too long."""

    def expired(self, now_s: float) -> None:
        if self.pool is not None:
            self.pool._close_old(now_s)
