"""One HTTP/1.1 connection of a client: bytes in, requests one after the other, answers in the same order.

Rules
  1. One request at a time: with the end of a request the parser pauses until the answer is complete. What a client
     sends ahead waits unparsed, at most one read of it, since reading pauses too. A single read can hold ten thousand
     requests: REQUESTS_PER_TURN_MAX of them are begun in one turn, and none while the client has much to take yet.
  2. An end of file from the client means that it has gone (as HAProxy and nginx read it by default): what it asked
     for is dropped within the same turn. While reading is paused no end of file arrives, so the listener looks at
     the socket's state once a second.
  3. An answer that begins before its request has ended closes the connection after it; what the client still sends is
     read and thrown away for a moment, so that the answer is not destroyed by a reset.
  4. After a 101 the connection is a tunnel: what is read is the request's body, whatever it is, and an end of file ends
     that direction only, except over TLS.
  5. A request begins when its client has taken enough of the answers before it; whoever takes nothing of what is left
     on a connection that closes is not waited for.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http1.request import RequestLimits, RequestParser, RequestSink
from activator.codec.http1.serialise import plain_response
from activator.codec.message import Headers, RequestHead
from activator.data_plane.headers.forwarding import Origin, Origins
from activator.data_plane.proxy.proxy import Proxy
from activator.data_plane.refusals import refusal_text
from activator.data_plane.server.stream import Http1Stream, StreamOwner
from activator.runtime.buffered_writer import BufferedWriter, WriteBatcher
from activator.runtime.clock import Deadline, Now, TimingWheel
from activator.runtime.errors import Reason, WireError, status_of
from activator.runtime.handshake import Handshake
from activator.runtime.reading import SLOW_READER, UNPARSED, Reading
from activator.runtime.transport import FLUSH_S, WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES, Transport

REQUESTS_PER_TURN_MAX: Final = 16  # of one connection that are begun before the loop is given a turn
LINGER_S: Final = 30.0  # reading on after an early answer, so that a reset does not destroy it …
LINGER_SILENCE_S: Final = 5.0  # … while the client goes on sending: after such a pause it is taken to have ended
LINGER_SCARCE_S: Final = 2.0  # … and at the most where connections are too many, or the program is to end
SHED_MAX: Final = 32  # connections over the limit that have been told so and linger; then the oldest is closed
HANDSHAKES_SHARE: Final = 0.5  # of limits.connections that may be in a TLS handshake; then the oldest is closed
HEAD_TIMEOUT_S: Final = 60.0  # first byte of a request head to its last
BODY_RATE_GRACE_S: Final = 5.0  # of which a request body's rate is the mean

_NEVER_LOOKED: Final = 1 << 62  # more than there is


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
    ) -> None:
        self.proxy = proxy
        self.wheel = wheel
        self.now = now
        self.limits = limits
        self.connections_max = connections_max
        self.origins = origins
        self.turn = turn
        self.idle_s = idle_s  # of a connection without a request: then it is closed
        self.body_rate = body_rate  # bytes of a request body per second, at least
        self.connections: dict[ClientConnection, None] = {}
        self.handshakes: dict[Handshake, None] = {}  # accepted, and TLS does not stand yet, oldest first
        self.handshakes_max: int = max(int(connections_max * HANDSHAKES_SHARE), 1)
        self.shed: dict[ClientConnection, None] = {}  # of `connections`: one too many each, told so, oldest first
        self.paused: dict[ClientConnection, None] = {}  # whose reading is paused
        self.lingering: dict[ClientConnection, None] = {}  # that have been answered for the last time, oldest first
        self.given_up: int = 0  # of `connections`: that have been ended, as the loop will tell
        self.draining: bool = False
        self.accepted_total: int = 0
        self.shed_total: int = 0
        self.handshakes_closed_total: int = 0

    def connection(self) -> ClientConnection:
        """The protocol factory of `loop.create_server`."""
        return ClientConnection(self)

    def handshake_begins(self, handshake: Handshake) -> None:
        """A connection was accepted that is to speak TLS. It counts from now on.

        Of too many the oldest is closed: a client that means it is done within milliseconds.
        """
        self.handshakes[handshake] = None
        if len(self.handshakes) > self.handshakes_max:
            self._close_oldest_handshake()

    def handshake_ended(self, handshake: Handshake) -> None:
        self.handshakes.pop(handshake, None)

    def _close_oldest_handshake(self) -> None:
        oldest = next(iter(self.handshakes))
        del self.handshakes[oldest]
        self.handshakes_closed_total += 1
        oldest.abort()

    def count(self) -> int:
        """Descriptors that clients hold, but for those who have been told that they are one too many."""
        return len(self.connections) + len(self.handshakes) - self.given_up - len(self.shed)

    def shed_one(self, connection: ClientConnection) -> None:
        """It is one too many; only so many may linger that have been told so."""
        self.shed_total += 1
        if len(self.shed) >= SHED_MAX:
            next(iter(self.shed)).end_now()
        self.shed[connection] = None

    def is_full(self) -> bool:
        """There are too many, and that does not change by closing those that only linger, and have had their time."""
        over = self.count() - self.connections_max
        if over <= 0:
            return False
        oldest_s = self.now() - LINGER_SCARCE_S
        while over > 0 and self.lingering:
            connection = next(iter(self.lingering))
            if connection.lingers_since_s > oldest_s:
                break
            del self.lingering[connection]
            if connection.gives_up():
                over -= 1
        return over > 0


class ClientConnection(StreamOwner):
    """An asyncio protocol by its methods (a native class cannot derive from asyncio.Protocol)."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        self._registry = registry
        self.bare: Transport | None = None  # over TLS: the connection beneath it, until `connection_made`
        self._transport: Transport | None = None
        self._writer: BufferedWriter | None = None
        self._parser = RequestParser(_Sink(self), registry.limits)
        self._timer = _ConnectionTimer(self)
        self._reading = Reading(registry.turn.defer, self._turn)
        self._current: Http1Stream | None = None  # being answered
        self._next: Http1Stream | None = None  # its head has just come
        self._parsing: Http1Stream | None = None  # its request has begun to arrive and has not ended
        self._refusal: WireError | None = None  # to be answered when the current request is
        self._beginning: bool = False
        self._writing_paused: bool = False  # the client has much to take yet
        self._unsent: int = _NEVER_LOOKED  # of a connection that is being closed: what was left at the last look
        self._discarding: bool = False
        self.lingers_since_s: float = 0.0
        self._cut: bool = False  # the last answer is not whole: it is not waited for as long as others are
        self._given_up: bool = False
        self._closed: bool = False
        self._head_since_s: float = 0.0
        self._quiet_since_s: float = 0.0  # the last answer ended, or what is thrown away came last
        self._body_since_s: float = 0.0  # since when the rate of the body is measured …
        self._body_read: int = 0  # … and how much of it has come
        self._origin: Origin | None = None
        self._tunnel: Http1Stream | None = None

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        registry = self._registry
        self._transport = transport
        self._writer = BufferedWriter(registry.turn, transport)
        self._reading.start(transport if self.bare is None else self.bare)
        self.bare = None
        registry.accepted_total += 1
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        registry.connections[self] = None
        self._quiet_since_s = registry.now()
        if registry.is_full():
            registry.shed_one(self)
            registry.proxy.count_refused(Reason.OVERLOADED)
            self._answer_and_close(Reason.OVERLOADED, "")
            return
        registry.wheel.arm(self._timer, self._quiet_since_s + HEAD_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        self._reading.took(len(data))
        if self._closed:
            return
        if self._discarding:
            self._quiet_since_s = self._registry.now()
            return
        if self._tunnel is not None:
            self._tunnel.exchange.request_body(data)
            return
        error = self._parser.feed(data)
        if error is not None:
            self._parse_failed(error)
        self._go_on(len(data))

    def eof_received(self) -> bool | None:
        tunnel = self._tunnel
        if tunnel is not None and not self._closed:
            tunnel.request_ended = True
            tunnel.exchange.request_end([])
            if not tunnel.exchange.over:
                return True  # the other direction goes on until it ends too
        self._client_gone()
        self._closed = True
        if self._writer is not None:
            self._writer.flush()  # an answer that ended in this very turn
        self._registry.wheel.arm(self._timer, self._registry.now() + FLUSH_S)
        return None  # the transport closes, and `connection_lost` follows

    def connection_lost(self, error: Exception | None) -> None:
        self._client_gone()
        self._forget()

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._current is not None:
            self._current.exchange.client_blocked()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._current is not None:
            self._current.exchange.client_drained()
        else:
            self._go_on(0)

    # --- reading ---

    def _begin_next(self) -> None:
        """Begin the request that has come, and some of those behind it as long as each is answered at once."""
        if self._beginning:
            return  # a request has been answered at once; the loop that began it goes on
        self._beginning = True
        begun = 0
        while self._current is None and not self._writing_paused and not self._closed and not self._discarding:
            if begun == REQUESTS_PER_TURN_MAX:
                self._reading.wait_for_turn()
                break
            if self._next is None and self._parser.paused:
                error = self._parser.resume()
                if error is not None:
                    self._parse_failed(error)
            stream = self._next
            if stream is None:
                break
            self._next = None
            self._current = stream
            begun += 1
            stream.exchange.begin()
        self._beginning = False
        if self._refusal is not None and self._current is None and not self._closed and not self._discarding:
            self._registry.proxy.count_refused(self._refusal.reason)
            self._answer_and_close(self._refusal.reason, self._refusal.detail)

    def _go_on(self, count: int) -> None:
        """Another `count` bytes have been parsed, or an answer has ended: see to what comes next."""
        self._begin_next()
        if self._closed or self._discarding:
            return
        if self._parser.in_message:
            self._watch(count)
        else:
            self._head_since_s = self._body_since_s = 0.0
        if self._parser.needs_turn:
            self._reading.wait_for_turn()
        if self._parser.has_unparsed() or self._reading.is_paused():
            self._update_reading()

    def _turn(self) -> None:
        """The next turn has come: go on where the last one was used up."""
        if self._closed or self._discarding or self._tunnel is not None:
            return
        if self._parser.needs_turn and not self._reading.is_paused_by(SLOW_READER):
            error = self._parser.resume()
            if error is not None:
                self._parse_failed(error)
        self._go_on(0)

    def _parse_failed(self, error: WireError) -> None:
        stream = self._parsing
        self._parsing = None
        if stream is None:
            self._refusal = error
            return
        if stream is self._next:
            self._next = None
            self._current = stream
        stream.exchange.request_failed(error.reason, error.detail)

    def _watch(self, count: int) -> None:
        """A request is there in part, after another `count` bytes: it may take its time, but not all time."""
        registry = self._registry
        if self._parser.in_head:
            self._body_since_s = 0.0
            if self._head_since_s == 0.0:
                self._head_since_s = registry.now()
                registry.wheel.arm(self._timer, self._head_since_s + HEAD_TIMEOUT_S)
            return
        self._head_since_s = 0.0
        self._body_read += count
        if self._body_since_s == 0.0 and registry.body_rate > 0:
            self._measure_body()

    def _measure_body(self) -> None:
        registry = self._registry
        self._body_since_s = registry.now()
        self._body_read = 0
        registry.wheel.arm(self._timer, self._body_since_s + BODY_RATE_GRACE_S)

    def _judge_body_rate(self, now_s: float) -> None:
        """Slower than the least rate is too slow, unless it is not the client who is waited for.

        That is so while we do not read, after the answer has begun (then the pod has a say), and before a
        100 (Continue) that was asked for.
        """
        stream = self._parsing
        if stream is None:
            return
        least = self._registry.body_rate * (now_s - self._body_since_s)
        if self._body_read >= least or self._reading.is_paused() or stream.answered or stream.awaits_continue():
            self._measure_body()
        else:
            self._body_since_s = 0.0
            self._parsing = None
            if stream is self._next:
                self._next = None
                self._current = stream
            stream.exchange.request_failed(Reason.REQUEST_TIMEOUT, "")

    def _update_reading(self) -> None:
        """Read no more than can be parsed; of a connection that is being closed everything, to throw it away."""
        if self._transport is None or self._closed:
            return
        reading = self._reading
        if self._discarding:
            reading.resume(SLOW_READER | UNPARSED)
        else:
            reading.set(UNPARSED, self._parser.has_unparsed())
        if reading.is_paused_by(SLOW_READER | UNPARSED):
            self._registry.paused[self] = None
        else:
            self._registry.paused.pop(self, None)

    # --- what the stream being answered asks for ---

    def write(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None and not self._closed:
            writer.write(data)

    def pause_request(self, pause: bool) -> None:
        self._reading.set(SLOW_READER, pause)
        self._update_reading()
        if self._parser.needs_turn and not pause:
            self._reading.wait_for_turn()

    def stream_ended(self, stream: Http1Stream) -> None:
        if stream is self._next:
            self._next = None  # refused while its body was read, before its turn: it is not begun any more
        elif stream is self._current:
            self._current = None
        else:
            return
        if stream.close:
            self._drop_next()
            self._close_in_order(not stream.request_ended or self._reading.is_paused(), stream.until_close)
            return
        self._quiet_since_s = stream.exchange.done_s
        self._go_on(0)

    def stream_cut(self, stream: Http1Stream) -> None:
        if self._current is not stream:
            return
        if stream.until_close or stream is self._tunnel:
            self.abort(stream.until_close)
            return
        # An end in order is told from that of a whole answer by its framing, and lets the answers before it through.
        self._current = None
        self._cut = True
        self._drop_next()
        self._close_in_order(True, True)

    def begin_tunnel(self, stream: Http1Stream) -> None:
        self._tunnel = stream
        self._drop_next()
        data = self._parser.take_unparsed()
        if data:
            stream.exchange.request_body(data)
        self._update_reading()

    def end_tunnel(self, stream: Http1Stream) -> None:
        writer = self._writer
        if writer is None or self._closed:
            return
        if stream.exchange.over:
            self._current = None
            self._close_in_order(not stream.request_ended, True)
        else:
            writer.write_eof()  # the connection closes when the client has ended its own side too

    def half_closes(self) -> bool:
        return self._transport is not None and self._transport.can_write_eof()

    def client_ip_of(self, head: RequestHead) -> str:
        return self._who().client_ip(head)

    def secure(self) -> bool:
        return self._who().secure

    def _who(self) -> Origin:
        """Who is at the other end; the kernel is asked once."""
        origin = self._origin
        if origin is None:
            peer_ip = ""
            secure = False
            if self._transport is not None:
                peer = self._transport.get_extra_info("peername")
                if isinstance(peer, tuple):  # a Unix socket's is a string
                    peer_ip = str(peer[0])
                secure = self._transport.get_extra_info("sslcontext") is not None
            origin = self._origin = self._registry.origins.of(peer_ip, secure)
        return origin

    # --- the listener's side ---

    def drain(self) -> None:
        """Close now if nothing is being answered; otherwise the answer in progress is the last."""
        now_s = self._registry.now()
        if self._closed:  # over TLS a client has its own end to tell, and may not care to
            if self._discarding and now_s - self.lingers_since_s >= LINGER_SCARCE_S:
                self.gives_up()
        elif self._discarding:
            if self._unsent == _NEVER_LOOKED:  # else it has been given time to take the answer
                self._judge_lingering(now_s)
        elif (
            self._current is None
            and self._next is None
            and not self._parser.in_message
            and not self._parser.has_unparsed()  # else the next one is answered, as the last, within a turn
        ):
            self._close_in_order(False, False)

    def abort(self, cut_body: bool) -> None:
        """Close at once. `cut_body`: an end in order would make an answer look whole."""
        writer = self._writer
        if writer is not None:
            self._closed = True
            if cut_body:
                writer.reset()
            else:
                writer.abort()
        self._client_gone()

    def is_tunnel(self) -> bool:
        return self._tunnel is not None

    def cut(self) -> None:
        """The tunnel has had its time."""
        tunnel = self._tunnel
        if tunnel is not None and not tunnel.exchange.over:
            tunnel.exchange.request_failed(Reason.DRAINING, "")
        else:
            self.abort(False)

    def peer_has_gone(self) -> None:
        """Seen by looking at the socket while reading was paused."""
        self._client_gone()
        writer = self._writer
        if writer is not None and not self._closed:
            self._closed = True
            writer.abort()

    def socket_state(self) -> int:
        """The kernel's TCP state (7: closed, 8: the peer has sent FIN), or 0 where it cannot be asked."""
        if self._transport is None:
            return 0
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return 0
        try:
            info: bytes = sock.getsockopt(6, 11, 1)  # IPPROTO_TCP, TCP_INFO: its first byte is the state
        except OSError:
            return 0
        return info[0]

    # --- within ---

    def timer_expired(self, now_s: float) -> None:
        if self._closed:
            self._closing_takes_long(now_s)
        elif self._discarding:
            self._judge_lingering(now_s)
        elif self._body_since_s > 0.0 and now_s - self._body_since_s >= BODY_RATE_GRACE_S:
            self._judge_body_rate(now_s)
        elif self._head_since_s > 0.0 and now_s - self._head_since_s >= HEAD_TIMEOUT_S:
            self._refusal = WireError(Reason.REQUEST_TIMEOUT, "")
            self._begin_next()
        elif self._current is None:
            idle_s = self._registry.idle_s
            if now_s - self._quiet_since_s >= idle_s:
                self._close_in_order(False, False)
            else:
                self._registry.wheel.arm(self._timer, self._quiet_since_s + idle_s)
        else:
            self._registry.wheel.arm(self._timer, now_s + self._registry.idle_s)

    def _answer_and_close(self, reason: Reason, detail: str) -> None:
        body = refusal_text(reason, detail)
        headers: Headers = [(b"Activator-Reason", reason.value.encode())]
        self.write(plain_response(status_of(reason), body, headers, True, False, False))
        self._close_in_order(True, False)

    def _close_in_order(self, linger: bool, eof_tells: bool) -> None:
        """Let what was written reach the client; `linger` where it may still be sending.

        Over TLS the end cannot be told while we read on: where it must be (`eof_tells`), there is no lingering.
        """
        transport = self._transport
        writer = self._writer
        if transport is None or writer is None or self._closed or self._discarding:
            return
        half_closes = transport.can_write_eof()
        if linger and (half_closes or not eof_tells):
            self._discarding = True
            if half_closes:
                writer.write_eof()
            self._update_reading()
            self._begin_lingering()
            self._quiet_since_s = self.lingers_since_s
            self._judge_lingering(self._quiet_since_s)
        else:
            self._close()

    def _close(self) -> None:
        self._discarding = True
        self._update_reading()  # over TLS the client's own end has to be read: else ours takes until it times out
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._begin_lingering()
            self._registry.wheel.arm(self._timer, self._registry.now() + FLUSH_S)

    def _begin_lingering(self) -> None:
        lingering = self._registry.lingering
        if self not in lingering:
            lingering[self] = None
            self.lingers_since_s = self._registry.now()

    def _judge_lingering(self, now_s: float) -> None:
        """As long as a client that has been answered goes on sending, it may not have seen the answer yet."""
        registry = self._registry
        if registry.draining or self in registry.shed or registry.count() > registry.connections_max:
            until_s = self.lingers_since_s + LINGER_SCARCE_S  # nobody holds for longer what others wait for
        else:
            until_s = min(self._quiet_since_s + LINGER_SILENCE_S, self.lingers_since_s + LINGER_S)
        if now_s < until_s:
            registry.wheel.arm(self._timer, until_s)
        else:
            self._closing_takes_long(now_s)

    def gives_up(self) -> bool:
        """Nobody waits for it any more: end it, unless there is a whole answer for the client to take."""
        transport = self._transport
        if transport is None or self._given_up or (transport.get_write_buffer_size() > 0 and not self._cut):
            return False
        self.end_now()
        return True

    def end_now(self) -> None:
        """End it whatever is left to be taken; from now on it does not count any more."""
        transport = self._transport
        registry = self._registry
        if transport is not None and not self._given_up:
            registry.shed.pop(self, None)
            registry.given_up += 1
            self._closed = self._given_up = True
            transport.abort()

    def _closing_takes_long(self, now_s: float) -> None:
        transport = self._transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if 0 < unsent < self._unsent and not (self._cut and now_s - self.lingers_since_s >= FLUSH_S):
            self._unsent = unsent
            self._registry.wheel.arm(self._timer, now_s + (LINGER_SILENCE_S if self._cut else FLUSH_S))
        elif unsent == 0 and not self._closed and not transport.can_write_eof():
            self._close()  # TLS has its own way to end
        else:
            self._closed = True
            transport.abort()

    def _client_gone(self) -> None:
        current = self._current
        self._current = None
        if current is not None:
            current.exchange.client_gone()
        self._drop_next()

    def _drop_next(self) -> None:
        stream = self._next
        self._next = None
        if stream is not None:
            stream.exchange.client_gone()

    def _forget(self) -> None:
        self._closed = True
        self._transport = None
        self._writer = None
        self._parsing = None
        self._tunnel = None
        self._reading.stop()
        self._parser.retire()
        self._timer.connection = None
        registry = self._registry
        registry.wheel.cancel(self._timer)
        registry.connections.pop(self, None)
        registry.paused.pop(self, None)
        registry.lingering.pop(self, None)
        registry.shed.pop(self, None)
        if self._given_up:
            self._given_up = False
            registry.given_up -= 1

    # --- from the parser ---

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        if self._closed or self._discarding:
            self._parsing = None
            return
        self._who().stamp(head)
        stream = Http1Stream(self, keep_alive, http_1_0, not head.has_body)
        stream.exchange = self._registry.proxy.open(head, stream)
        self._parsing = stream
        self._next = stream

    def request_body(self, data: bytes) -> None:
        if self._parsing is not None:
            self._parsing.exchange.request_body(data)

    def request_end(self, trailers: Headers) -> None:
        stream = self._parsing
        if stream is not None:
            self._parsing = None
            self._parser.pause()
            self._reading.resume(SLOW_READER)  # whoever asked for it has all of the request
            stream.request_ended = True
            stream.exchange.request_end(trailers)

    def is_draining(self) -> bool:
        return self._registry.draining


class _Sink(RequestSink):
    """Hands what the parser finds to the connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        self._connection.request_head(head, keep_alive, http_1_0)

    def request_body(self, data: bytes) -> None:
        self._connection.request_body(data)

    def request_end(self, trailers: Headers) -> None:
        self._connection.request_end(trailers)


class _ConnectionTimer(Deadline):
    """The connection's own deadline: a head that does not end, a silence, a lingering close."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection: ClientConnection | None = connection  # None once it is gone: no cycle is left

    def expired(self, now_s: float) -> None:
        if self.connection is not None:
            self.connection.timer_expired(now_s)
