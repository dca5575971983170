"""One HTTP/1.1 connection of a client: bytes in, requests one after the other, answers in the same order.

Rules
  1. One request at a time: with the end of a request the parser pauses until the answer is complete. What a client
     sends ahead waits unparsed, at most one read of it, since reading pauses too (a single read can hold ten
     thousand requests).
  2. An end of file from the client means that it has gone (as HAProxy and nginx read it by default): what it asked
     for is dropped within the same turn. While reading is paused no end of file arrives, so the listener looks at
     the socket's state once a second.
  3. An answer that begins before its request has ended closes the connection after it; what the client still sends is
     read and thrown away for a moment, so that the answer is not destroyed by a reset.
"""

from __future__ import annotations

from activator.clock import Deadline, Now, TimingWheel
from activator.config import (
    HEAD_TIMEOUT_S,
    KEEP_ALIVE_IDLE_S,
    LINGER_S,
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
)
from activator.errors import Reason, WireError, status_of
from activator.exchange import ClientStream, Exchange
from activator.message import Headers, RequestHead, ResponseHead
from activator.proxy import Proxy
from activator.refusals import refusal_text
from activator.transport import Transport, reset
from activator.wire.request import RequestLimits, RequestParser, RequestSink
from activator.wire.serialise import chunk, interim_bytes, last_chunk, plain_response, response_bytes


class Listening:
    """What all client connections of one worker share; `listener.py` looks after it."""

    def __init__(self, proxy: Proxy, wheel: TimingWheel, now: Now, limits: RequestLimits, connections_max: int) -> None:
        self.proxy = proxy
        self.wheel = wheel
        self.now = now
        self.limits = limits
        self.connections_max = connections_max
        self.connections: dict[ClientConnection, None] = {}
        self.paused: dict[ClientConnection, None] = {}  # whose reading is paused
        self.draining: bool = False
        self.accepted_total: int = 0
        self.shed_total: int = 0

    def connection(self) -> ClientConnection:
        """The protocol factory of `loop.create_server`."""
        return ClientConnection(self)


class ClientConnection:
    """An asyncio protocol by its methods (a native class cannot derive from asyncio.Protocol)."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._transport: Transport | None = None
        self._parser = RequestParser(_Sink(self), listening.limits)
        self._timer = _ConnectionTimer(self)
        self._current: Http1Stream | None = None  # being answered
        self._next: Http1Stream | None = None  # its head has just come
        self._parsing: Http1Stream | None = None  # its request has begun to arrive and has not ended
        self._refusal: WireError | None = None  # to be answered when the current request is
        self._beginning: bool = False
        self._request_paused: bool = False
        self._reading_paused: bool = False
        self._discarding: bool = False
        self._closed: bool = False
        self._head_since_s: float = 0.0
        self._quiet_since_s: float = 0.0
        self._peer_ip: str = ""

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        listening = self._listening
        self._transport = transport
        listening.accepted_total += 1
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        listening.connections[self] = None
        self._quiet_since_s = listening.now()
        if len(listening.connections) > listening.connections_max:
            listening.shed_total += 1
            listening.proxy.count_refused(Reason.OVERLOADED)
            self._answer_and_close(Reason.OVERLOADED, "")
            return
        listening.wheel.arm(self._timer, self._quiet_since_s + HEAD_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        if self._discarding or self._closed:
            return
        error = self._parser.feed(data)
        if error is not None:
            self._parse_failed(error)
        self._begin_next()
        if self._parser.in_head:
            self._watch_head()
        else:
            self._head_since_s = 0.0
        if self._parser.unparsed or self._reading_paused:
            self._update_reading()

    def eof_received(self) -> bool | None:
        self._client_gone()
        return None  # the transport closes, and `connection_lost` follows

    def connection_lost(self, error: Exception | None) -> None:
        self._client_gone()
        self._forget()

    def pause_writing(self) -> None:
        if self._current is not None:
            self._current.exchange.client_blocked()

    def resume_writing(self) -> None:
        if self._current is not None:
            self._current.exchange.client_drained()

    # --- reading ---

    def _begin_next(self) -> None:
        """Begin the request that has come, and those behind it as long as each is answered at once."""
        if self._beginning:
            return  # a request has been answered at once; the loop that began it goes on
        self._beginning = True
        while self._current is None and not self._closed and not self._discarding:
            if self._next is None and self._parser.paused:
                error = self._parser.resume()
                if error is not None:
                    self._parse_failed(error)
            stream = self._next
            if stream is None:
                break
            self._next = None
            self._current = stream
            stream.exchange.begin()
        self._beginning = False
        if self._refusal is not None and self._current is None and not self._closed and not self._discarding:
            self._listening.proxy.count_refused(self._refusal.reason)
            self._answer_and_close(self._refusal.reason, self._refusal.detail)

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

    def _watch_head(self) -> None:
        if self._head_since_s == 0.0:
            self._head_since_s = self._listening.now()
            self._listening.wheel.arm(self._timer, self._head_since_s + HEAD_TIMEOUT_S)

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._closed:
            return
        pause = not self._discarding and (self._request_paused or len(self._parser.unparsed) > 0)
        if pause == self._reading_paused:
            return
        self._reading_paused = pause
        if pause:
            transport.pause_reading()
            self._listening.paused[self] = None
        else:
            transport.resume_reading()
            self._listening.paused.pop(self, None)

    # --- what the stream being answered asks for ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closed:
            self._transport.write(data)

    def pause_request(self, pause: bool) -> None:
        self._request_paused = pause
        self._update_reading()

    def stream_ended(self, stream: Http1Stream) -> None:
        """The answer is complete."""
        if self._current is not stream:
            return
        self._current = None
        if stream.close:
            self._drop_next()
            self._close_in_order(not stream.request_ended)
            return
        self._quiet_since_s = stream.exchange.done_s
        self._begin_next()
        if self._reading_paused:
            self._update_reading()

    def abort(self, cut_body: bool) -> None:
        """Close so that the client notices that the answer was cut short.

        `cut_body`: where only the end of the connection ends the body, an orderly end would make it look whole.
        """
        self._drop_next()
        self._current = None
        if self._transport is not None and not self._closed:
            self._closed = True
            if cut_body:
                reset(self._transport)
            else:
                self._transport.abort()

    def peer_ip(self) -> str:
        """Asked of the kernel once, and only if somebody wants to know."""
        if not self._peer_ip and self._transport is not None:
            peer = self._transport.get_extra_info("peername")
            if isinstance(peer, tuple):  # a Unix socket's is a string
                self._peer_ip = str(peer[0])
        return self._peer_ip

    # --- the listener's side ---

    def drain(self) -> None:
        """Close now if nothing is being answered; otherwise the answer in progress is the last."""
        if self._current is None and self._next is None and not self._parser.in_message:
            self._close_in_order(False)

    def peer_has_gone(self) -> None:
        """Seen by looking at the socket while reading was paused."""
        self._client_gone()
        if self._transport is not None and not self._closed:
            self._closed = True
            self._transport.abort()

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
            return
        if self._discarding:
            self.abort(False)
        elif self._head_since_s > 0.0 and now_s - self._head_since_s >= HEAD_TIMEOUT_S:
            self._refusal = WireError(Reason.REQUEST_TIMEOUT, "")
            self._begin_next()
        elif self._current is None:
            idle_s = KEEP_ALIVE_IDLE_S
            if now_s - self._quiet_since_s >= idle_s:
                self._close_in_order(False)
            else:
                self._listening.wheel.arm(self._timer, self._quiet_since_s + idle_s)
        else:
            self._listening.wheel.arm(self._timer, now_s + KEEP_ALIVE_IDLE_S)

    def _answer_and_close(self, reason: Reason, detail: str) -> None:
        body = refusal_text(reason, detail)
        headers: Headers = [(b"Activator-Reason", reason.value.encode())]
        self.write(plain_response(status_of(reason), body, headers, True, False, False))
        self._close_in_order(True)

    def _close_in_order(self, linger: bool) -> None:
        """Let what was written reach the client; `linger` where it may still be sending."""
        transport = self._transport
        if transport is None or self._closed or self._discarding:
            return
        if linger and transport.can_write_eof():
            self._discarding = True
            transport.write_eof()
            self._update_reading()
            self._listening.wheel.arm(self._timer, self._listening.now() + LINGER_S)
        else:
            self._closed = True
            transport.close()

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
        self._parsing = None
        listening = self._listening
        listening.wheel.cancel(self._timer)
        listening.connections.pop(self, None)
        listening.paused.pop(self, None)

    # --- from the parser ---

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        if self._closed or self._discarding:
            self._parsing = None
            return
        stream = Http1Stream(self, keep_alive, http_1_0, not head.has_body)
        stream.exchange = self._listening.proxy.open(head, stream)
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
            stream.request_ended = True
            stream.exchange.request_end(trailers)

    def is_draining(self) -> bool:
        return self._listening.draining


class Http1Stream(ClientStream):
    """One request's half of a client connection."""

    exchange: Exchange

    def __init__(self, connection: ClientConnection, keep_alive: bool, http_1_0: bool, request_ended: bool) -> None:
        self._connection = connection
        self._http_1_0 = http_1_0
        self.close: bool = not keep_alive
        self.request_ended = request_ended
        self._chunked: bool = False
        self._until_close: bool = False  # nothing but the end of the connection ends the body
        self._out: list[bytes] = []

    def send_interim(self, head: ResponseHead) -> None:
        if not self._http_1_0:
            self._connection.write(interim_bytes(head))

    def send_head(self, head: ResponseHead) -> None:
        unknown = head.has_body and head.content_length < 0
        self._chunked = unknown and not self._http_1_0
        self._until_close = unknown and self._http_1_0
        if not self.request_ended or self._until_close or self._connection.is_draining():
            self.close = True
        self._out.append(response_bytes(head, self._http_1_0, self.close))

    def send_body(self, data: bytes) -> None:
        self._out.append(chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        if self._chunked:
            self._out.append(last_chunk(trailers))
        self.flush()
        self._connection.stream_ended(self)

    def flush(self) -> None:
        out = self._out
        if out:
            self._out = []
            self._connection.write(out[0] if len(out) == 1 else b"".join(out))

    def abort(self) -> None:
        self._connection.abort(self._until_close)

    def pause_request(self) -> None:
        self._connection.pause_request(True)

    def resume_request(self) -> None:
        self._connection.pause_request(False)

    def peer_ip(self) -> str:
        return self._connection.peer_ip()


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
        self._connection = connection

    def expired(self, now_s: float) -> None:
        self._connection.timer_expired(now_s)
