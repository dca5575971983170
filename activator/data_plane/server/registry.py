"""The client connections of one worker, counted: which are admitted, which are answered "overloaded", which are
evicted.

Rules
  1. A connection counts from its acceptance, over TLS from the beginning of its handshake, until the loop has closed
     it; except those that were shed (answered "overloaded"), and those that were evicted.
  2. `admit` evicts before it sheds: lingering connections that have had their time are closed first, the oldest before
     the others.
  3. Of the connections that were shed at most SHED_MAX linger; of all connections, at most a share is in a handshake.
     Beyond that the oldest is closed.
  4. The registry counts; the connection itself closes, aborts or answers.
"""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from activator.codec.http1.request import RequestLimits
from activator.codec.http2.frames import code_name
from activator.data_plane.connection import Connection
from activator.data_plane.headers.forwarding import Origins
from activator.data_plane.proxy.proxy import Proxy
from activator.data_plane.proxy.routing import entry_of
from activator.data_plane.server.closing import LINGER_SCARCE_S
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.transport import Transport

STREAMS_MAX: Final = 128  # that a client may have open on one HTTP/2 connection
SHED_MAX: Final = 32  # connections over the limit that were answered so and linger; then the oldest is closed
TCP_CLOSE: Final = 7  # a state of the kernel's: nothing can be sent any more
HANDSHAKES_SHARE: Final = 0.5  # of limits.connections that may be in a handshake; then the oldest is closed


class OpeningConnection(Protocol):
    """Accepted, and no request can come on it yet: TLS, or the PROXY protocol, comes first."""

    def abort(self) -> None:
        """Close it at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RegisteredConnection(Connection):
    """A client connection, as the registry and the listener see it."""

    def drain(self) -> None:
        """Close now if nothing is being answered; otherwise the answer in progress is the last."""
        raise NotImplementedError

    def abort(self, cut_body: bool) -> None:
        """Close at once. `cut_body`: an end in order would make an answer look whole."""
        raise NotImplementedError

    def is_tunnel(self) -> bool:
        raise NotImplementedError

    def cut(self) -> None:
        """The time of the tunnel is over."""
        raise NotImplementedError

    def refuse_unsent(self) -> int:
        """Refuse the requests whose bodies are still being received; return how many there are."""
        raise NotImplementedError

    def gives_up(self) -> bool:
        """Evict it, unless there is a whole answer that the client has not taken yet."""
        raise NotImplementedError

    def end_now(self) -> None:
        """End it whatever is left to be taken; from now on it does not count any more."""
        raise NotImplementedError

    def socket_state(self) -> int:
        """The kernel's TCP state (7: closed, 8: the peer has sent FIN), or 0 where it cannot be asked."""
        raise NotImplementedError

    def peer_has_ended(self, closed: bool) -> None:
        """Seen by looking at the socket: the peer has ended its side, or nothing can be sent any more (`closed`)."""
        raise NotImplementedError


class ConnectionRegistry:
    """What all client connections of one worker share; `listener.py` looks after it."""

    def __init__(
        self,
        proxy: Proxy,
        wheel: TimingWheel,
        now: Now,
        limits: RequestLimits,
        connections_max: int,
        origins: Origins,
        body_rate: int,
        turn: WriteBatcher,
        idle_s: float,
        abort_on_half_close: bool = False,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.proxy = proxy
        self.wheel = wheel
        self.now = now
        self.limits = limits
        self.origins = origins
        self.turn = turn
        self.idle_s = idle_s  # idle timeout of a connection without a request
        self.body_rate = body_rate  # bytes of a request body per second, at least
        self.abort_on_half_close = abort_on_half_close  # an end of file means that the client has gone
        self.streams_max = streams_max  # of one HTTP/2 connection
        self.draining: bool = False
        self.connections: dict[RegisteredConnection, None] = {}
        self.handshakes: dict[OpeningConnection, None] = {}  # accepted, and no request can come yet, oldest first
        self.connections_max: int = 0
        self.handshakes_max: int = 0
        self.limit_connections(connections_max)
        # Of `connections`:
        self.shed: dict[RegisteredConnection, None] = {}  # over the limit, answered "overloaded", oldest first
        self.paused: dict[RegisteredConnection, None] = {}  # whose reading is paused
        self.lingering: dict[RegisteredConnection, float] = {}  # answered for the last time, and since when
        self.given_up: int = 0  # evicted, and not closed by the loop yet
        # Since the program began:
        self.accepted_total: int = 0
        self.shed_total: int = 0
        self.handshakes_closed_total: int = 0
        # Of ports that lead to one revision each:
        self.entry_first: int = 0  # the first and the last of them; 0: there are none
        self.entry_last: int = 0
        self.leaving: set[bytes] = set()  # those whose clients do better without this program
        self.entered: dict[RegisteredConnection, bytes] = {}  # HTTP/2 connections that came to one of them
        # Of HTTP/2:
        self.http2_connections: int = 0  # open
        self.streams: int = 0  # open
        self.http2_total: int = 0
        self.http2_requests_total: int = 0
        self.streams_reset_total: int = 0  # by clients …
        self.streams_failed_total: int = 0  # … and by us, since what came on them was malformed
        self.streams_refused_total: int = 0  # beyond `streams_max`
        self.http2_errors: dict[str, int] = {}  # connections that ended for an error of the client's, by its code

    def limit_connections(self, connections_max: int) -> None:
        """How many there may be from now on. Those above a lower number stay; new ones are shed until it is kept."""
        self.connections_max = connections_max
        self.handshakes_max = max(int(connections_max * HANDSHAKES_SHARE), 1)

    # --- handshakes ---

    def handshake_begins(self, handshake: OpeningConnection) -> None:
        """A connection of a listener with TLS or the PROXY protocol was accepted. It counts from now on.

        Of too many the oldest is closed: an honest client needs milliseconds for its handshake.
        """
        self.handshakes[handshake] = None
        if len(self.handshakes) > self.handshakes_max:
            self._close_oldest_handshake()

    def handshake_ended(self, handshake: OpeningConnection) -> None:
        self.handshakes.pop(handshake, None)

    def _close_oldest_handshake(self) -> None:
        oldest = next(iter(self.handshakes))
        del self.handshakes[oldest]
        self.handshakes_closed_total += 1
        oldest.abort()

    # --- HTTP/2 ---

    def replace(self, connection: RegisteredConnection, other: RegisteredConnection) -> None:
        """The same connection goes on as `other`, in another protocol."""
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.connections[other] = None

    def count_http2_error(self, code: int) -> None:
        """A connection ends for what the client did."""
        name = code_name(code)
        self.http2_errors[name] = self.http2_errors.get(name, 0) + 1

    def count_stream_reset(self, by_client: bool) -> None:
        """A stream is over before its end."""
        if by_client:
            self.streams_reset_total += 1
        else:
            self.streams_failed_total += 1

    # --- connections ---

    def count(self) -> int:
        """Descriptors that clients hold, except those of connections that were shed or evicted."""
        return len(self.connections) + len(self.handshakes) - self.given_up - len(self.shed)

    def is_full(self) -> bool:
        """There are more than there may be."""
        return self.count() > self.connections_max

    def admit(self, connection: RegisteredConnection) -> bool:
        """Count a connection that was accepted. False: it is over the limit, also after `evict`, and is shed."""
        self.accepted_total += 1
        self.connections[connection] = None
        if self.is_full():
            self.evict()
        if not self.is_full():
            return True
        self.shed_total += 1
        if len(self.shed) >= SHED_MAX:
            next(iter(self.shed)).end_now()
        self.shed[connection] = None
        return False

    def evict(self) -> None:
        """Close lingering connections that have had their time, until the limit is kept."""
        oldest_s = self.now() - LINGER_SCARCE_S
        while self.lingering and self.is_full():
            connection = next(iter(self.lingering))
            if self.lingering[connection] > oldest_s:
                break
            del self.lingering[connection]
            connection.gives_up()

    def is_scarce_for(self, connection: RegisteredConnection) -> bool:
        """Connections are at their limit, or the program drains: this one gets less time to close."""
        return self.draining or connection in self.shed or self.is_full()

    def note_paused(self, connection: RegisteredConnection, is_paused: bool) -> None:
        """It is not read at the moment, so that its end would go unnoticed; or it is read again."""
        if is_paused:
            self.paused[connection] = None
        else:
            self.paused.pop(connection, None)

    def note_lingering(self, connection: RegisteredConnection, since_s: float) -> None:
        """It has been answered for the last time."""
        self.lingering[connection] = since_s

    def note_given_up(self, connection: RegisteredConnection) -> None:
        """It was evicted, and does not count any more."""
        self.shed.pop(connection, None)
        self.given_up += 1

    # --- ports of their own ---

    def entry_at(self, transport: Transport) -> bytes:
        """What says the revision of a connection that was accepted: its port. Empty: each request says it."""
        if self.entry_last == 0:
            return b""
        name = transport.get_extra_info("sockname")
        if not isinstance(name, tuple):  # a Unix socket's is a string
            return b""
        port = int(name[1])
        return entry_of(port) if self.entry_first <= port <= self.entry_last else b""

    def is_left(self, entry: bytes) -> bool:
        """Whether connections that came in this way are to end after the answer in progress."""
        return self.draining or (len(entry) > 0 and entry in self.leaving)

    def forget(self, connection: RegisteredConnection, was_given_up: bool) -> None:
        """The loop has closed it."""
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.lingering.pop(connection, None)
        self.shed.pop(connection, None)
        self.entered.pop(connection, None)
        if was_given_up:
            self.given_up -= 1
