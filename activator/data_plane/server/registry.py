"""The registry of one worker's client connections: it decides which are admitted, shed or evicted.

Shed connections are answered with the reason "overloaded" and closed.

Rules
  1. A connection counts from its acceptance, over TLS from the beginning of its handshake, until the loop has closed
     it. Shed and evicted connections do not count.
  2. `admit` evicts before it sheds: it closes lingering connections that have had their time, the oldest first.
  3. At most SHED_MAX shed connections linger, and at most a share of all connections is in a handshake. Above these
     bounds the oldest is closed.
  4. The registry counts; the connection itself closes, aborts or responds.
"""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from activator.codec.http1.request import RequestLimits, RequestParser, RequestSink
from activator.codec.http2.frames import code_name
from activator.data_plane.connection import Connection
from activator.data_plane.headers.forwarding import Origins
from activator.data_plane.proxy.proxy import Proxy
from activator.data_plane.proxy.routing import entry_of
from activator.data_plane.server.closing import LINGER_SCARCE_S
from activator.messages import Http2Statistics
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.transport import Transport

STREAMS_MAX: Final = 128  # streams that a client may have open on one HTTP/2 connection
SHED_MAX: Final = 32  # shed connections that linger; then the oldest is closed
TCP_CLOSE: Final = 7  # the kernel's state of a socket that can send nothing any more
PARSERS_KEPT_MAX: Final = 64  # kept from closed connections; each holds a head of at most LAST_HEAD_BYTES_MAX
HANDSHAKES_SHARE: Final = 0.5  # share of limits.connections that may be in a handshake; then the oldest is closed


class OpeningConnection(Protocol):
    """An accepted connection before its first request, during TLS or the PROXY protocol."""

    def abort(self) -> None:
        """Close it at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RegisteredConnection(Connection):
    """The interface of a client connection for the registry and the listener."""

    def drain(self) -> None:
        """Close now if no request is being answered; otherwise the current response is the last."""
        raise NotImplementedError

    def abort(self, cut_body: bool) -> None:
        """Close at once. `cut_body`: an orderly end would make a response look complete."""
        raise NotImplementedError

    def is_tunnel(self) -> bool:
        raise NotImplementedError

    def cut(self) -> None:
        """End the tunnel at its time limit."""
        raise NotImplementedError

    def refuse_unsent(self) -> int:
        """Refuse, at the end of a drain, the requests that have no pod and are not queued; return their number."""
        raise NotImplementedError

    def try_evict(self) -> bool:
        """End the connection and return True; return False if a complete response is not sent yet."""
        raise NotImplementedError

    def force_evict(self) -> None:
        """End the connection regardless of unsent data; it no longer counts."""
        raise NotImplementedError

    def socket_state(self) -> int:
        """Return the kernel's TCP state (7: closed, 8: the peer has sent FIN), or 0 if it is unavailable."""
        raise NotImplementedError

    def peer_has_ended(self, closed: bool) -> None:
        """Handle a state found by the sweep: the peer has closed its side, or nothing can be sent (`closed`)."""
        raise NotImplementedError


class ConnectionRegistry:
    """The state that all client connections of one worker share."""

    def __init__(
        self,
        proxy: Proxy,
        wheel: TimingWheel,
        now: Now,
        limits: RequestLimits,
        connections_max: int,
        origins: Origins,
        body_rate: int,
        batcher: WriteBatcher,
        idle_s: float,
        abort_on_half_close: bool = False,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.proxy = proxy
        self.wheel = wheel
        self.now = now
        self.limits = limits
        self.origins = origins
        self.batcher = batcher
        self.idle_s = idle_s  # idle timeout of a connection without a request
        self.body_rate = body_rate  # minimum rate of a request body, in bytes per second
        self.abort_on_half_close = abort_on_half_close  # an end of file means that the client has disconnected
        self.streams_max = streams_max  # limit of one HTTP/2 connection
        self.draining: bool = False
        self.idle_until_s: float = 0.0  # until then a drain leaves idle connections of HTTP/1.1 open
        # Steps against an overload (data_plane/overload.py):
        self.closes_kept: bool = False  # connections of HTTP/1.1 close after their current response
        self.refuses_new: bool = False  # new connections are shed
        self.connections: dict[RegisteredConnection, None] = {}
        self.handshakes: dict[OpeningConnection, None] = {}  # accepted, before the first request; the oldest first
        self.connections_max: int = 0
        self.handshakes_max: int = 0
        self.limit_connections(connections_max)
        self._parsers: list[RequestParser] = []  # kept from closed connections
        # Subsets of `connections`:
        self.shed: dict[RegisteredConnection, None] = {}  # above the limit, refused as "overloaded"; the oldest first
        self.paused: dict[RegisteredConnection, None] = {}  # reading is paused
        self.lingering: dict[RegisteredConnection, float] = {}  # have sent their last response; value: when
        self.given_up: int = 0  # evicted, and not closed by the loop yet
        # Since the start of the program:
        self.accepted_total: int = 0
        self.shed_total: int = 0
        self.handshakes_closed_total: int = 0
        # Dedicated ports, each of one revision:
        self.entry_first: int = 0  # the lowest and the highest of them; 0: none
        self.entry_last: int = 0
        self.leaving: set[bytes] = set()  # dedicated ports whose clients should connect elsewhere
        self.entered: dict[RegisteredConnection, bytes] = {}  # HTTP/2 connections of dedicated ports
        # HTTP/2:
        self.http2_connections: int = 0  # open
        self.streams: int = 0  # open
        self.http2_total: int = 0
        self.http2_requests_total: int = 0
        self.streams_reset_total: int = 0  # by clients
        self.streams_failed_total: int = 0  # by this side, because of malformed data
        self.streams_refused_total: int = 0  # above `streams_max`
        self.http2_errors: dict[str, int] = {}  # connections that ended because of a client's error, by error code

    def closes_idle(self) -> bool:
        """Return True if a drain closes idle connections of HTTP/1.1 now."""
        return self.now() >= self.idle_until_s

    def limit_connections(self, connections_max: int) -> None:
        """Set the limit. Connections above a lower limit stay; new ones are shed until their number is below it."""
        self.connections_max = connections_max
        self.handshakes_max = max(int(connections_max * HANDSHAKES_SHARE), 1)

    # --- parsers ---

    def parser_for(self, sink: RequestSink) -> RequestParser:
        """Return a parser for an HTTP/1.1 connection, reused from a closed connection if there is one."""
        parsers = self._parsers
        while parsers:
            parser = parsers.pop()
            if parser.limits is self.limits:  # a reload has not changed them
                parser.begin(sink)
                return parser
        return RequestParser(sink, self.limits)

    def retire_parser(self, parser: RequestParser) -> None:
        """Retire the parser of a closed connection, and keep it for another one if there is room."""
        parser.retire()
        if parser.is_reusable() and len(self._parsers) < PARSERS_KEPT_MAX:
            self._parsers.append(parser)

    # --- handshakes ---

    def handshake_begins(self, handshake: OpeningConnection) -> None:
        """Count an accepted connection of a listener with TLS or the PROXY protocol.

        Closes the oldest handshake if there are too many: a normal client needs milliseconds for one.
        """
        self.handshakes[handshake] = None
        if len(self.handshakes) > self.handshakes_max:
            self._close_oldest_handshake()

    def tls_begins(self, handshake: OpeningConnection) -> None:
        """Count an accepted connection of a listener with TLS; refuse it before its handshake in an overload."""
        if not self.refuses_new:
            self.handshake_begins(handshake)
            return
        self.accepted_total += 1
        self.shed_total += 1
        handshake.abort()

    def handshake_ended(self, handshake: OpeningConnection) -> None:
        self.handshakes.pop(handshake, None)

    def _close_oldest_handshake(self) -> None:
        oldest = next(iter(self.handshakes))
        del self.handshakes[oldest]
        self.handshakes_closed_total += 1
        oldest.abort()

    # --- HTTP/2 ---

    def replace(self, connection: RegisteredConnection, other: RegisteredConnection) -> None:
        """Replace a connection by `other`, which continues it in another protocol."""
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.connections[other] = None

    def count_http2_error(self, code: int) -> None:
        """Count a connection that ends because of an error of the client."""
        name = code_name(code)
        self.http2_errors[name] = self.http2_errors.get(name, 0) + 1

    def count_stream_reset(self, by_client: bool) -> None:
        """Count a stream that was reset."""
        if by_client:
            self.streams_reset_total += 1
        else:
            self.streams_failed_total += 1

    # --- connections ---

    def count(self) -> int:
        """Return the number of descriptors that clients hold, without shed and evicted connections."""
        return len(self.connections) + len(self.handshakes) - self.given_up - len(self.shed)

    def is_full(self) -> bool:
        """Return True if there are more connections than allowed."""
        return self.refuses_new or self.count() > self.connections_max

    def admit(self, connection: RegisteredConnection) -> bool:
        """Count an accepted connection; return False if it is above the limit even after `evict`, and is shed."""
        self.accepted_total += 1
        self.connections[connection] = None
        if self.is_full():
            self.evict()
        if not self.is_full():
            return True
        self.shed_total += 1
        if len(self.shed) >= SHED_MAX:
            next(iter(self.shed)).force_evict()
        self.shed[connection] = None
        return False

    def evict(self) -> None:
        """Close lingering connections that have had their time, until their number is within the limit."""
        oldest_s = self.now() - LINGER_SCARCE_S
        while self.lingering and self.is_full():
            connection = next(iter(self.lingering))
            if self.lingering[connection] > oldest_s:
                break
            del self.lingering[connection]
            connection.try_evict()

    def is_scarce_for(self, connection: RegisteredConnection) -> bool:
        """Return True if this connection gets less time to close: the limit is reached, or the program drains."""
        return self.draining or connection in self.shed or self.is_full()

    def note_paused(self, connection: RegisteredConnection, is_paused: bool) -> None:
        """Record if the connection is not read at the moment, so that its end would go unnoticed."""
        if is_paused:
            self.paused[connection] = None
        else:
            self.paused.pop(connection, None)

    def note_lingering(self, connection: RegisteredConnection, since_s: float) -> None:
        """Record that the connection has sent its last response."""
        self.lingering[connection] = since_s

    def note_given_up(self, connection: RegisteredConnection) -> None:
        """Record that the connection was evicted and no longer counts."""
        self.shed.pop(connection, None)
        self.given_up += 1

    def http2_statistics(self) -> Http2Statistics:
        return Http2Statistics(
            connections=self.http2_connections,
            streams=self.streams,
            connections_total=self.http2_total,
            requests_total=self.http2_requests_total,
            reset_total=self.streams_reset_total,
            failed_total=self.streams_failed_total,
            refused_total=self.streams_refused_total,
            errors=dict(self.http2_errors),
        )

    # --- dedicated ports ---

    def entry_at(self, transport: Transport) -> bytes:
        """Return the dedicated port of an accepted connection; empty if each request determines its revision."""
        if self.entry_last == 0:
            return b""
        name = transport.get_extra_info("sockname")
        if not isinstance(name, tuple):  # a Unix socket's is a string
            return b""
        port = int(name[1])
        return entry_of(port) if self.entry_first <= port <= self.entry_last else b""

    def is_left(self, entry: bytes) -> bool:
        """Return True if connections of this port must end after the current response."""
        return self.draining or (len(entry) > 0 and entry in self.leaving)

    def forget(self, connection: RegisteredConnection, was_given_up: bool) -> None:
        """Remove a connection that the loop has closed."""
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.lingering.pop(connection, None)
        self.shed.pop(connection, None)
        self.entered.pop(connection, None)
        if was_given_up:
            self.given_up -= 1
