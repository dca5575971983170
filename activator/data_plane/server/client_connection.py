"""The base of client connections, independent of the protocol: socket, origin, deadlines, and the ways to end.

Rules
  1. A connection is in one phase of its life, along the table in closing.py: OPEN, then one of the ways to end.
  2. Written data reaches a client that reads it: a connection that closes lingers while the client may still be
     sending, and is aborted if the client reads nothing of the rest.
  3. Every deadline has a name: head, body, half-close, idle, and, after the connection closes, write. They share one
     timer of the wheel, so that postponing one only writes a number.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import RequestHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.headers.forwarding import Origin, unmapped
from activator.data_plane.server.closing import (
    ABORTED,
    CLIENT_ENDED,
    CLOSING,
    GIVEN_UP,
    GONE,
    LINGER_SCARCE_S,
    LINGERING,
    OPEN,
    Closing,
    illegal,
    is_legal,
)
from activator.data_plane.server.registry import ConnectionRegistry, RegisteredConnection
from activator.data_plane.streams import ClientStream
from activator.runtime.clock import NEVER, Deadline
from activator.runtime.reading import SLOW_READER, UNPARSED
from activator.runtime.transport import (
    FLUSH_S,
    TLS_BUFFERS_BYTES,
    Transport,
    is_unix_socket,
    taken_bytes,
    unix_socket_state,
)


@final
class KeyExemption:
    """The exemption of the requests at one address from keys; a reload may end it while connections last."""

    def __init__(self) -> None:
        self.holds: bool = True


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientConnection(RegisteredConnection):
    """The base class of both protocols; an `Http1Connection` is replaced if the first bytes are those of HTTP/2."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(registry.batcher)
        # For the whole life of the connection:
        self._registry = registry
        self._deadlines = Deadlines(self)
        self._phase: i64 = OPEN  # closing.py
        self._quiet_since_s: float = 0.0  # when the last response, or the last discarded data, ended
        # While the socket exists:
        self._origin: Origin | None = None
        self.endpoints: Endpoints | None = None  # from a PROXY protocol header, or from the kernel
        self.redirect: FilterChain | None = None  # set if the listener redirects every request
        self.key_exemption: KeyExemption | None = None  # set if the listener requires no key
        self._entry: bytes = b""  # the dedicated port that the client connected to; empty: a shared port
        # From the last response on:
        self._closing: Closing | None = None

    # --- implemented by subclasses ---

    def _update_reading(self) -> None:
        """Pause or resume reading, as the state requires; a lingering connection reads and discards everything."""
        raise NotImplementedError

    def _client_gone(self) -> None:
        """Report the disconnected client to every exchange."""
        raise NotImplementedError

    def _http_version(self) -> bytes:
        """Return the version of HTTP for Via."""
        return b"1.1"

    def _is_busy(self) -> bool:
        """Return True if a request is being answered, so that the connection is not idle."""
        raise NotImplementedError

    def _head_late(self) -> None:
        """Refuse a request whose head is not complete in time."""

    def _body_due(self, now_s: float) -> None:
        """Check the rate of request bodies, and set the next time for that."""
        raise NotImplementedError

    def _half_close_due(self, now_s: float) -> None:
        """Check if a half-closed client still exists, and set the next time for that."""

    def _end_idle(self) -> None:
        """Close a connection that has had no request for the idle timeout."""
        self._close_in_order(False, False, True)

    # --- asyncio protocol ---

    def eof_received(self) -> bool | None:
        self._client_gone()
        self._client_ended()
        return None  # the transport closes, and `connection_lost` follows

    def _start(self, transport: Transport) -> None:
        super()._start(transport)
        self._entry = self._registry.entry_at(transport)
        self._quiet_since_s = self._registry.now()

    def _lost(self, error: Exception | None) -> None:
        self._client_gone()

    def _release(self) -> None:
        registry = self._registry
        registry.forget(self, self._phase == GIVEN_UP)
        registry.wheel.cancel(self._deadlines)
        self._enter(GONE)
        super()._release()
        self._deadlines.connection = None

    def open_request(self, head: RequestHead, client: ClientStream) -> Exchange:
        """Return the exchange of a request that has been read."""
        proxy = self._registry.proxy
        exemption = self.key_exemption
        if exemption is not None and exemption.holds:
            head.needs_key = False
        if self.redirect is not None:
            return proxy.open_redirected(head, client, self.redirect)
        return proxy.open_request(head, client)

    # --- socket ---

    def write(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None and self._phase <= LINGERING:
            writer.write(data)

    def taken_bytes(self) -> int:
        return 0 if self._transport is None else taken_bytes(self._transport)

    def unsent_bytes(self) -> int:
        transport = self._transport
        if transport is None:
            return 0
        unsent = transport.get_write_buffer_size()
        return unsent if transport.can_write_eof() else unsent + TLS_BUFFERS_BYTES

    def socket_state(self) -> int:
        if self._transport is None:
            return 0
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return 0
        try:
            info: bytes = sock.getsockopt(6, 11, 1)  # IPPROTO_TCP, TCP_INFO: the first byte is the state
        except OSError:
            return unix_socket_state(self._transport)
        return info[0]

    # --- origin ---

    def client_ip_of(self, head: RequestHead) -> str:
        return self._origin_of_client().client_ip(head)

    def is_local(self) -> bool:
        return self._origin_of_client().is_unix

    def secure(self) -> bool:
        return self._origin_of_client().secure

    def client_endpoints(self, head: RequestHead) -> Endpoints:
        """Return the addresses of a request for pods that receive them with each connection."""
        endpoints = self._known_endpoints()
        client_ip = self._origin_of_client().client_ip(head)
        if client_ip == endpoints.client_ip:
            return endpoints
        return Endpoints(client_ip, 0, endpoints.local_ip, endpoints.local_port)  # a proxy reports no port

    def _known_endpoints(self) -> Endpoints:
        """Return the addresses in the PROXY protocol header or, without one, those of the socket."""
        if self.endpoints is None:
            addresses = []
            for end in ("peername", "sockname"):
                name = None if self._transport is None else self._transport.get_extra_info(end)
                addresses.append((unmapped(str(name[0])), int(name[1])) if isinstance(name, tuple) else ("", 0))
            self.endpoints = Endpoints(addresses[0][0], addresses[0][1], addresses[1][0], addresses[1][1])
        return self.endpoints

    def _origin_of_client(self) -> Origin:
        """Return the origin of the client; its addresses are read from the kernel once."""
        origin = self._origin
        if origin is None:
            peer_ip = ""
            secure = False
            is_unix = False
            transport = self._transport
            if transport is not None:
                peer = transport.get_extra_info("peername")
                if isinstance(peer, tuple):
                    peer_ip = str(peer[0])
                else:  # the peer of a Unix socket is a string; a closed connection has none
                    is_unix = is_unix_socket(transport)
                secure = transport.get_extra_info("sslcontext") is not None
            if self.endpoints is not None and self.endpoints.client_ip:  # from a PROXY protocol header
                peer_ip = self.endpoints.client_ip
                is_unix = False
            origin = self._origin = self._registry.origins.of(peer_ip, secure, is_unix, self._http_version())
        return origin

    # --- deadlines ---

    def deadline_passed(self, now_s: float) -> None:
        """Handle the timer: a deadline may have passed."""
        if self._phase > LINGERING:
            self._abort_unless_taken(now_s)
        elif self._phase == LINGERING:
            self._end_lingering_if_due(now_s)
        else:
            self._check_deadlines(now_s)

    def loop_paused(self, pause_s: float) -> None:
        """Extend the idle time by a pause of the event loop, in which nothing from the client was processed."""
        self._quiet_since_s += pause_s

    def _check_deadlines(self, now_s: float) -> None:
        """Act on a deadline of an open connection that has passed; then close it if it is idle, or set the timer."""
        deadlines = self._deadlines
        if deadlines.body_s <= now_s:
            self._body_due(now_s)
        elif deadlines.head_s <= now_s:
            deadlines.head_s = NEVER
            self._head_late()
        elif deadlines.half_close_s <= now_s:
            self._half_close_due(now_s)
        if self._phase != OPEN:
            return
        is_idle = deadlines.earliest_s() == NEVER and not self._is_busy()
        if is_idle and now_s - self._quiet_since_s >= self._registry.idle_s:
            self._end_idle()
        else:
            self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        """Set the timer to the earliest deadline of an open connection."""
        registry = self._registry
        earliest_s = self._deadlines.earliest_s()
        idle_from_s = now_s if earliest_s != NEVER or self._is_busy() else self._quiet_since_s
        registry.wheel.arm(self._deadlines, min(earliest_s, idle_from_s + registry.idle_s))

    def _arm_closing(self, due_s: float) -> None:
        """Set the timer of a closing connection; by `due_s` the client must have taken some of the unsent bytes."""
        self._registry.wheel.arm(self._deadlines, due_s)

    # --- the end ---

    def _enter(self, phase: i64) -> bool:
        """Move to `phase`; abort the connection and return False if the table has no such step."""
        if is_legal(self._phase, phase):
            self._phase = phase
            return True
        self._registry.proxy.on_error(illegal(self._phase, phase))
        if self._phase < ABORTED:
            self._phase = ABORTED
        if self._transport is not None:
            self._transport.abort()
        return False

    def abort(self, cut_body: bool) -> None:
        writer = self._writer
        if writer is not None:
            if self._phase < ABORTED:
                self._enter(ABORTED)
            if cut_body:
                writer.reset()
            else:
                writer.abort()
        self._client_gone()

    def peer_has_ended(self, closed: bool) -> None:
        self._client_gone()
        writer = self._writer
        if writer is not None and self._phase <= LINGERING and self._enter(ABORTED):
            writer.abort()

    def try_evict(self) -> bool:
        transport = self._transport
        closing = self._closing
        if transport is None or closing is None or self._phase == GIVEN_UP:
            return False
        if closing.is_whole and transport.get_write_buffer_size() > 0:
            return False
        self.force_evict()
        return True

    def force_evict(self) -> None:
        transport = self._transport
        if transport is not None and self._phase != GIVEN_UP and self._enter(GIVEN_UP):
            self._registry.note_given_up(self)
            transport.abort()

    def _close_in_order(self, linger: bool, must_signal_eof: bool, is_whole: bool) -> None:
        """Close after all written data is sent; `linger` if the client may still be sending.

        Over TLS the end cannot be signalled while reading continues; with `must_signal_eof` the connection therefore
        does not linger. `is_whole` is False if the last response is cut short.
        """
        transport = self._transport
        writer = self._writer
        if transport is None or writer is None or self._phase != OPEN:
            return
        half_closes = transport.can_write_eof()
        if not linger or (must_signal_eof and not half_closes):
            self._close(is_whole)
        elif self._enter(LINGERING):
            if half_closes:
                writer.write_eof()
            self._update_reading()
            self._quiet_since_s = self._begin_closing(is_whole).since_s
            self._end_lingering_if_due(self._quiet_since_s)

    def _close(self, is_whole: bool) -> None:
        """Close now; written data is still sent."""
        # Over TLS the client's close_notify must be read; otherwise our own end takes until its timeout.
        self._reading.resume(SLOW_READER | UNPARSED)
        self._registry.note_paused(self, False)
        if self._enter(CLOSING) and self._writer is not None:
            self._writer.close()
            self._begin_closing(is_whole)
            self._arm_closing(self._registry.now() + FLUSH_S)

    def _begin_closing(self, is_whole: bool) -> Closing:
        """Record when the connection began to close, once, and return the state of its closing."""
        closing = self._closing
        registry = self._registry
        if closing is None or self not in registry.lingering:  # otherwise the time to close runs already
            now_s = registry.now()
            registry.note_lingering(self, now_s)
            if closing is None:
                closing = self._closing = Closing(now_s, is_whole)
            closing.since_s = now_s
        return closing

    def _end_lingering_if_due(self, now_s: float) -> None:
        """End a lingering connection whose time is over; until then keep reading.

        A reset could destroy a response that the client has not read yet.
        """
        closing = self._closing
        assert closing is not None
        until_s = closing.lingers_until_s(self._quiet_since_s, self._registry.is_scarce_for(self))
        if now_s < until_s:
            self._arm_closing(until_s)
        else:
            self._abort_unless_taken(now_s)

    def _abort_unless_taken(self, now_s: float) -> None:
        """Abort a closing connection, unless its client has taken some of the unsent bytes since the last check."""
        transport = self._transport
        if transport is None:
            return
        closing = self._closing
        unsent = transport.get_write_buffer_size()
        if closing is not None and closing.is_taken(unsent, taken_bytes(transport), now_s):
            self._arm_closing(now_s + closing.recheck_s())
        elif unsent == 0 and self._phase == LINGERING and not transport.can_write_eof():
            self._close(True)  # TLS ends by close_notify
        else:
            if self._phase < ABORTED:
                self._enter(ABORTED)
            transport.abort()

    def _drain_closing(self) -> None:
        """Shorten the remaining time of a connection that is already closing when the program drains."""
        now_s = self._registry.now()
        closing = self._closing
        if self._phase == CLOSING:  # over TLS the client has to end its side, too, and may not do so
            if closing is not None and now_s - closing.since_s >= LINGER_SCARCE_S:
                self.try_evict()
        elif self._phase == LINGERING and (
            closing is not None and not closing.has_been_checked()
        ):  # otherwise the client has been given time to take the response
            self._end_lingering_if_due(now_s)

    def _client_ended(self) -> None:
        """Handle a client that has closed its side with no request pending; written data is still sent."""
        now_s = self._registry.now()
        if self._phase == OPEN:
            self._closing = Closing(now_s, True)
            self._enter(CLIENT_ENDED)
        elif self._phase == LINGERING:
            self._enter(CLOSING)
        if self._writer is not None:
            self._writer.flush()  # a response may have ended in this turn
        self._arm_closing(now_s + FLUSH_S)


class Deadlines(Deadline):
    """The deadlines of one connection, in monotonic seconds; NEVER: not set.

    The timer expires at the earliest of them, or before: clearing one leaves it armed.
    """

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection: ClientConnection | None = connection  # None after its end, to avoid a reference cycle
        self.head_s: float = NEVER  # the current request head must be complete
        self.body_s: float = NEVER  # the rates of request bodies are checked
        self.half_close_s: float = NEVER  # a half-closed client is checked

    def earliest_s(self) -> float:
        """Return the earliest deadline; NEVER if there is none."""
        # Compared one by one: compiled, `min` takes 1,700 instructions for each new connection.
        earliest_s = self.head_s
        if self.body_s < earliest_s:
            earliest_s = self.body_s
        if self.half_close_s < earliest_s:
            earliest_s = self.half_close_s
        return earliest_s

    def expired(self, now_s: float) -> None:
        if self.connection is not None:
            self.connection.deadline_passed(now_s)

    def loop_paused(self, pause_s: float) -> None:
        self.head_s += pause_s
        self.body_s += pause_s
        self.half_close_s += pause_s
        if self.connection is not None:
            self.connection.loop_paused(pause_s)
