"""What every client connection has, whatever is spoken on it: its socket, its origin, and the ways in which it ends.

Rules
  1. A connection is in one phase of its life, along the table in closing.py: OPEN, then one of the ways to end.
  2. What was written reaches the client if it takes it: a connection that closes lingers, as long as the client may
     still be sending, and is cut off when it takes nothing of what is left.
  3. Every deadline has a name: head, body, half-close, idle, and write once the connection closes. They share one entry
     of the wheel, so that a later one only writes a number.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import RequestHead
from activator.codec.proxy_protocol import Endpoints
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


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientConnection(RegisteredConnection):
    """The base of both; `Http1Connection` becomes the other where the first bytes are that protocol's."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(registry.turn)
        # for as long as it lives
        self._registry = registry
        self._deadlines = Deadlines(self)
        self._phase: i64 = OPEN  # closing.py
        self._quiet_since_s: float = 0.0  # the last answer ended, or what is thrown away came last
        # while the socket is there
        self._origin: Origin | None = None
        self.endpoints: Endpoints | None = None  # its addresses, from a PROXY protocol header or from the kernel
        self._entry: bytes = b""  # the port of its own that it came to; empty: one of all revisions
        # from its last answer on
        self._closing: Closing | None = None

    # --- what a subclass does ---

    def _update_reading(self) -> None:
        """Read or not, as the connection's state has it; of one that lingers everything, to throw it away."""
        raise NotImplementedError

    def _client_gone(self) -> None:
        """Report to every exchange that its client has gone."""
        raise NotImplementedError

    def _is_busy(self) -> bool:
        """True if something is being answered: the connection is not idle."""
        raise NotImplementedError

    def _head_late(self) -> None:
        """The head of a request has not been completed in time."""

    def _body_due(self, now_s: float) -> None:
        """Judge how fast bodies come, and set the next time for that."""
        raise NotImplementedError

    def _half_close_due(self, now_s: float) -> None:
        """Look whether a client that has ended its side is still there, and set the next time for that."""

    def _end_idle(self) -> None:
        """No request has come for the idle timeout."""
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

    # --- its socket ---

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
            info: bytes = sock.getsockopt(6, 11, 1)  # IPPROTO_TCP, TCP_INFO: its first byte is the state
        except OSError:
            return unix_socket_state(self._transport)
        return info[0]

    # --- its origin ---

    def client_ip_of(self, head: RequestHead) -> str:
        return self._who().client_ip(head)

    def secure(self) -> bool:
        return self._who().secure

    def client_endpoints(self, head: RequestHead) -> Endpoints:
        """Whence the request came and where it arrived, for pods that are told so with each connection."""
        known = self._known_endpoints()
        client_ip = self._who().client_ip(head)
        if client_ip == known.client_ip:
            return known
        return Endpoints(client_ip, 0, known.local_ip, known.local_port)  # as a proxy says: it names no port

    def _known_endpoints(self) -> Endpoints:
        if self.endpoints is None:
            names = []
            for which in ("peername", "sockname"):
                found = None if self._transport is None else self._transport.get_extra_info(which)
                names.append((unmapped(str(found[0])), int(found[1])) if isinstance(found, tuple) else ("", 0))
            self.endpoints = Endpoints(names[0][0], names[0][1], names[1][0], names[1][1])
        return self.endpoints

    def _who(self) -> Origin:
        """The origin of the client; the kernel is asked once."""
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
                else:  # a Unix socket's is a string, and a connection that is gone has none
                    is_unix = is_unix_socket(transport)
                secure = transport.get_extra_info("sslcontext") is not None
            if self.endpoints is not None and self.endpoints.client_ip:  # a proxy has said it
                peer_ip = self.endpoints.client_ip
                is_unix = False
            origin = self._origin = self._registry.origins.of(peer_ip, secure, is_unix)
        return origin

    # --- its deadlines ---

    def deadline_passed(self, now_s: float) -> None:
        """One of them has, or might have."""
        if self._phase > LINGERING:
            self._closing_takes_long(now_s)
        elif self._phase == LINGERING:
            self._judge_lingering(now_s)
        else:
            self._check_deadlines(now_s)

    def loop_paused(self, pause_s: float) -> None:
        """The event loop did not run for so long: the client had no chance to do anything that was seen."""
        self._quiet_since_s += pause_s

    def _check_deadlines(self, now_s: float) -> None:
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
        """Arm the earliest deadline of an open connection."""
        registry = self._registry
        earliest_s = self._deadlines.earliest_s()
        idle_from_s = now_s if earliest_s != NEVER or self._is_busy() else self._quiet_since_s
        registry.wheel.arm(self._deadlines, min(earliest_s, idle_from_s + registry.idle_s))

    def _arm_write(self, due_s: float) -> None:
        """Arm the one deadline of a connection that closes: by then the client has taken some of the unsent bytes."""
        self._registry.wheel.arm(self._deadlines, due_s)

    # --- its end ---

    def _enter(self, phase: i64) -> bool:
        """Go on to `phase`. False: there is no such step from here, an error for which the connection is cut off."""
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

    def gives_up(self) -> bool:
        transport = self._transport
        closing = self._closing
        if transport is None or closing is None or self._phase == GIVEN_UP:
            return False
        if closing.is_whole and transport.get_write_buffer_size() > 0:
            return False
        self.end_now()
        return True

    def end_now(self) -> None:
        transport = self._transport
        if transport is not None and self._phase != GIVEN_UP and self._enter(GIVEN_UP):
            self._registry.note_given_up(self)
            transport.abort()

    def _close_in_order(self, linger: bool, eof_tells: bool, is_whole: bool) -> None:
        """Let what was written reach the client; `linger` where it may still be sending.

        Over TLS the end cannot be signalled while we read on: where it must be (`eof_tells`), there is no lingering.
        `is_whole` False: the last answer is cut short.
        """
        transport = self._transport
        writer = self._writer
        if transport is None or writer is None or self._phase != OPEN:
            return
        half_closes = transport.can_write_eof()
        if not linger or (eof_tells and not half_closes):
            self._close(is_whole)
        elif self._enter(LINGERING):
            if half_closes:
                writer.write_eof()
            self._update_reading()
            self._quiet_since_s = self._begin_closing(is_whole).since_s
            self._judge_lingering(self._quiet_since_s)

    def _close(self, is_whole: bool) -> None:
        # Over TLS the client's own end has to be read: otherwise our own takes until it times out.
        self._reading.resume(SLOW_READER | UNPARSED)
        self._registry.note_paused(self, False)
        if self._enter(CLOSING) and self._writer is not None:
            self._writer.close()
            self._begin_closing(is_whole)
            self._arm_write(self._registry.now() + FLUSH_S)

    def _begin_closing(self, is_whole: bool) -> Closing:
        closing = self._closing
        registry = self._registry
        if closing is None or self not in registry.lingering:  # else its time goes on
            now_s = registry.now()
            registry.note_lingering(self, now_s)
            if closing is None:
                closing = self._closing = Closing(now_s, is_whole)
            closing.since_s = now_s
        return closing

    def _judge_lingering(self, now_s: float) -> None:
        """As long as a client that has been answered goes on sending, it may not have seen the answer yet."""
        closing = self._closing
        assert closing is not None
        until_s = closing.lingers_until_s(self._quiet_since_s, self._registry.is_scarce_for(self))
        if now_s < until_s:
            self._arm_write(until_s)
        else:
            self._closing_takes_long(now_s)

    def _closing_takes_long(self, now_s: float) -> None:
        transport = self._transport
        if transport is None:
            return
        closing = self._closing
        unsent = transport.get_write_buffer_size()
        if closing is not None and closing.is_taken(unsent, taken_bytes(transport), now_s):
            self._arm_write(now_s + closing.look_again_s())
        elif unsent == 0 and self._phase == LINGERING and not transport.can_write_eof():
            self._close(True)  # TLS has its own way to end
        else:
            if self._phase < ABORTED:
                self._enter(ABORTED)
            transport.abort()

    def _drain_closing(self) -> None:
        """The program drains, and this connection is closing already: it gets less time."""
        now_s = self._registry.now()
        closing = self._closing
        if self._phase == CLOSING:  # over TLS the client has to end its side, too; perhaps it does not
            if closing is not None and now_s - closing.since_s >= LINGER_SCARCE_S:
                self.gives_up()
        elif self._phase == LINGERING and (
            closing is not None and not closing.has_been_looked_at()
        ):  # else it has been given time to take the answer
            self._judge_lingering(now_s)

    def _client_ended(self) -> None:
        """The client has closed its side, and nothing more is answered: what was written is on its way."""
        now_s = self._registry.now()
        if self._phase == OPEN:
            self._closing = Closing(now_s, True)
            self._enter(CLIENT_ENDED)
        elif self._phase == LINGERING:
            self._enter(CLOSING)
        if self._writer is not None:
            self._writer.flush()  # an answer that ended in this very turn
        self._arm_write(now_s + FLUSH_S)


class Deadlines(Deadline):
    """By when a client must have done what; NEVER: nothing of the kind is expected. Times are monotonic seconds.

    The entry of the wheel expires at the earliest of these times, or before: one that is cleared leaves it armed.
    """

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection: ClientConnection | None = connection  # None once it is gone: no cycle is left
        self.head_s: float = NEVER  # the head that has begun is complete
        self.body_s: float = NEVER  # enough of the bodies has come
        self.half_close_s: float = NEVER  # a client that has ended its side is looked at

    def earliest_s(self) -> float:
        return min(self.head_s, self.body_s, self.half_close_s)

    def expired(self, now_s: float) -> None:
        if self.connection is not None:
            self.connection.deadline_passed(now_s)

    def loop_paused(self, pause_s: float) -> None:
        self.head_s += pause_s
        self.body_s += pause_s
        self.half_close_s += pause_s
        if self.connection is not None:
            self.connection.loop_paused(pause_s)
