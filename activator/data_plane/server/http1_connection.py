"""One HTTP/1.1 connection of a client: bytes in, requests one after the other, answers in the same order.

Rules
  1. One request at a time: with the end of a request the parser pauses until the answer is complete. What a client
     sends ahead waits unparsed, at most one read of it, since reading pauses too. A single read can hold ten thousand
     requests: REQUESTS_PER_TURN_MAX of them are begun in one turn, and none while the client has much to take yet.
  2. A client that ends its side behind a whole request is answered, as by HAProxy: `nc -N` and socat do that. A client
     that has closed its socket looks the same until something is sent to it: then its kernel resets the connection. So
     it is sent something without a meaning (`Http1Stream.probe`), and what a client that has gone asked for is dropped.
     With `abort_on_half_close` (nginx's default), behind half a request, and over TLS, an end of file means that the
     client has gone. While reading is paused no end of file arrives, so the listener looks at the socket's state once
     a second.
  3. An answer that begins before its request has ended closes the connection after it; what the client still sends is
     read and thrown away for a moment, so that the answer is not destroyed by a reset.
  4. After a 101 the connection is a tunnel: what is read is the request's body, whatever it is, and an end of file ends
     that direction only, except over TLS.
  5. A request begins when its client has taken enough of the answers before it. A connection that closes does not wait
     for a client that takes nothing of what is left.
  6. A connection is in one phase of its life, along the table in closing.py: OPEN, then one of the ways to end.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http1.request import RequestParser, RequestSink
from activator.codec.http1.serialise import plain_response
from activator.codec.http2.frames import PREFACE
from activator.codec.message import Headers, RequestHead
from activator.data_plane.refusals import refusal_text
from activator.data_plane.server.closing import LINGERING, OPEN
from activator.data_plane.server.http1_stream import Http1Stream, StreamOwner
from activator.data_plane.server.http2_connection import Http2ClientConnection
from activator.data_plane.server.registry import TCP_CLOSE, ConnectionRegistry
from activator.runtime.clock import NEVER
from activator.runtime.errors import WireError
from activator.runtime.last_reads import last_reads
from activator.runtime.reading import SLOW_READER, UNPARSED
from activator.runtime.reasons import Reason
from activator.runtime.transport import Transport

REQUESTS_PER_TURN_MAX: Final = 16  # the loop is given a turn after so many of one connection
HEAD_TIMEOUT_S: Final = 60.0  # first byte of a request head to its last
FIRST_REQUEST_GRACE_S: Final = 1.0  # from accept, in which a drain does not close a connection without a byte
BODY_RATE_GRACE_S: Final = 5.0  # the rate of a request body is the mean over so long
# A half-closed client is probed when its request has taken so long: one that is answered sooner sees nothing of it.
HALF_CLOSE_PROBE_S: Final = 0.1
HALF_CLOSE_PROBE_AGAIN_S: Final = 10.0  # between two probes
HALF_CLOSE_FIRST_LOOK_S: Final = 0.02  # from a probe to the look whether a reset has answered it: a round trip
HALF_CLOSE_LOOK_S: Final = 1.0  # between two looks, since a round trip may be long


class Http1Connection(StreamOwner):
    """A client's connection; it becomes an HTTP/2 one where the first bytes are that protocol's."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(registry)
        self._parser = RequestParser(_Sink(self), registry.limits)
        self._is_first: bool = True  # no byte has been given to the parser yet
        self._first_bytes: bytes = b""  # those so far, which may be the beginning of HTTP/2's preface
        self._writing_paused: bool = False  # the client has much to take yet
        # of the requests on it, each from its head to the end of its answer
        self._current: Http1Stream | None = None  # being answered
        self._next: Http1Stream | None = None  # its head has just come
        self._parsing: Http1Stream | None = None  # its request has begun to arrive and has not ended
        self._tunnel: Http1Stream | None = None
        self._refusal: WireError | None = None  # to be answered when the current request is
        self._beginning: bool = False
        # of the request that is arriving
        self._body_read: int = 0  # bytes of its body, since their rate is measured
        # behind its last request
        self._half_closed: bool = False  # the client has ended its side behind a whole request
        self._eof_read: bool = False  # the end of file was read, behind all other bytes
        self._probe_due_s: float = 0.0  # when a client that has ended its side is sent something

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._start(transport)
        registry = self._registry
        if not registry.admit(self):
            registry.proxy.count_refused(Reason.OVERLOADED)
            self._answer_and_close(Reason.OVERLOADED, "")
            return
        self._arm(self._quiet_since_s)

    def data_received(self, data: bytes) -> None:
        self._reading.took(len(data))
        if self._phase != OPEN:
            if self._phase == LINGERING:
                self._quiet_since_s = self._registry.now()
            return
        if self._tunnel is not None:
            self._tunnel.exchange.request_body(data)
            return
        if self._is_first:
            data = self._first_bytes + data
            if PREFACE.startswith(data[: len(PREFACE)]):
                self._may_be_http2(data)
                return
            self._is_first = False
            self._first_bytes = b""
        error = self._parser.feed(data)
        if error is not None:
            self._parse_failed(error)
        self._go_on(len(data))

    def _may_be_http2(self, data: bytes) -> None:
        """Hand the connection over to HTTP/2 once its preface is complete; no request of HTTP/1.1 begins like that."""
        if len(data) < len(PREFACE):
            self._first_bytes = data
            return
        transport = self._transport
        assert transport is not None
        registry = self._registry
        connection = Http2ClientConnection(registry)
        registry.replace(self, connection)
        self._release()
        transport.set_protocol(connection)
        connection.endpoints = self.endpoints
        connection.take_over(transport, self._origin, data)

    def eof_received(self) -> bool | None:
        tunnel = self._tunnel
        if tunnel is not None and self._phase == OPEN:
            tunnel.request_ended = True
            tunnel.exchange.request_end([])
            if not tunnel.exchange.over:
                return True  # the other direction stays open until it ends too
        if self._awaits_answers():
            self._eof_read = True
            self._half_close(self._registry.now())
            return True
        return super().eof_received()

    def _read_last(self) -> None:
        tunnel = self._tunnel
        if tunnel is not None and self._phase == OPEN:
            has_data = False
            for data in last_reads(self._transport if self.half_closes() else None):
                has_data = True
                tunnel.exchange.request_body(data)
            if has_data:
                tunnel.exchange.request_end([])

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
            return  # a request has been answered at once, within the loop that began it
        self._beginning = True
        begun = 0
        while self._current is None and not self._writing_paused and self._phase == OPEN:
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
        if self._refusal is not None and self._current is None and self._phase == OPEN:
            self._registry.proxy.count_refused(self._refusal.reason)
            self._answer_and_close(self._refusal.reason, self._refusal.detail)

    def _go_on(self, count: int) -> None:
        """Another `count` bytes have been parsed, or an answer has ended: see to what comes next."""
        self._begin_next()
        if self._phase != OPEN:
            return
        if self._parser.in_message:
            self._watch(count)
        else:
            self._deadlines.head_s = self._deadlines.body_s = NEVER
        if self._parser.needs_turn:
            self._reading.wait_for_turn()
        if self._parser.has_unparsed() or self._reading.is_paused():
            self._update_reading()
        if self._half_closed and self._is_idle():
            self._close_in_order(False, False, True)

    def _turn_came(self) -> None:
        if self._phase != OPEN or self._tunnel is not None:
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
        deadlines = self._deadlines
        if self._parser.in_head:
            deadlines.body_s = NEVER
            if deadlines.head_s == NEVER:
                now_s = self._registry.now()
                deadlines.head_s = now_s + HEAD_TIMEOUT_S
                self._arm(now_s)
            return
        deadlines.head_s = NEVER
        self._body_read += count
        if deadlines.body_s == NEVER and self._registry.body_rate > 0:
            now_s = self._registry.now()
            self._measure_body(now_s)
            self._arm(now_s)

    def _measure_body(self, now_s: float) -> None:
        self._deadlines.body_s = now_s + BODY_RATE_GRACE_S
        self._body_read = 0

    def _body_due(self, now_s: float) -> None:
        """Slower than the least rate is too slow, unless we do not wait for the client.

        That is so while we do not read, after the answer has begun (then it depends on the pod, too), and before a
        100 (Continue) that was asked for.
        """
        stream = self._parsing
        took_s = BODY_RATE_GRACE_S + now_s - self._deadlines.body_s
        self._deadlines.body_s = NEVER
        if stream is None:
            return
        is_fast = self._body_read >= self._registry.body_rate * took_s
        if is_fast or self._reading.is_paused() or stream.answered or stream.awaits_continue():
            self._measure_body(now_s)
        else:
            self._parsing = None
            if stream is self._next:
                self._next = None
                self._current = stream
            stream.exchange.request_failed(Reason.REQUEST_TIMEOUT, "")

    def _head_late(self) -> None:
        self._refusal = WireError(Reason.REQUEST_TIMEOUT, "")
        self._begin_next()

    def _update_reading(self) -> None:
        """Read no more than can be parsed; of a connection that is being closed everything, to throw it away."""
        if self._transport is None or self._phase > LINGERING:
            return
        reading = self._reading
        if self._phase == LINGERING:
            reading.resume(SLOW_READER | UNPARSED)
        else:
            reading.set(UNPARSED, self._parser.has_unparsed())
        self._registry.note_paused(self, reading.is_paused_by(SLOW_READER | UNPARSED))

    # --- what the stream being answered asks for ---

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
            self._close_in_order(not stream.request_ended or self._reading.is_paused(), stream.until_close, True)
            return
        self._quiet_since_s = stream.exchange.done_s
        self._go_on(0)

    def stream_cut(self, stream: Http1Stream) -> None:
        if self._current is not stream:
            return
        if stream.until_close or stream is self._tunnel:
            self.abort(stream.until_close)
            return
        if stream.exchange.is_shed:
            self.abort(True)  # its memory is needed now
            return
        # An orderly end lets the answers before it through, and by its framing the client sees that this one is cut.
        self._current = None
        self._drop_next()
        self._close_in_order(True, True, False)

    def begin_tunnel(self, stream: Http1Stream) -> None:
        self._tunnel = stream
        self._drop_next()
        data = self._parser.take_unparsed()
        if data:
            stream.exchange.request_body(data)
        self._update_reading()
        if not self.half_closes():
            self._reading.keep_last_reads()
        if self._eof_read:  # before the pod agreed: that was the end of the client's direction
            self._half_closed = False
            self._deadlines.half_close_s = NEVER
            stream.request_ended = True
            stream.exchange.request_end([])

    def end_tunnel(self, stream: Http1Stream) -> None:
        writer = self._writer
        if writer is None or self._phase != OPEN:
            return
        if stream.exchange.over:
            self._current = None
            self._close_in_order(not stream.request_ended, True, True)
        else:
            writer.write_eof()  # the connection closes when the client has ended its own side too

    # --- the listener's side ---

    def drain(self) -> None:
        if self._phase != OPEN:
            self._drain_closing()
        elif not self._parser.in_message and self._is_idle() and not self._is_fresh():
            self._close_in_order(False, False, True)

    def _is_fresh(self) -> bool:
        """True if it was accepted a moment ago, so that its first request may be on its way."""
        return self._is_first and self._registry.now() - self._quiet_since_s < FIRST_REQUEST_GRACE_S

    def is_tunnel(self) -> bool:
        return self._tunnel is not None

    def cut(self) -> None:
        tunnel = self._tunnel
        if tunnel is not None and not tunnel.exchange.over:
            tunnel.exchange.request_failed(Reason.DRAINING, "")
        else:
            self.abort(False)

    def refuse_unsent(self) -> int:
        current = self._current
        return int(current is not None and current.exchange.refuse_unsent())

    def peer_has_ended(self, closed: bool) -> None:
        if not closed and self._phase == OPEN and self._can_half_close():
            self._half_close(self._registry.now())
        else:
            super().peer_has_ended(closed)

    # --- within ---

    def _is_idle(self) -> bool:
        """Nothing is being answered, and nothing that has come is left to be parsed."""
        return (
            self._current is None
            and self._next is None
            and not self._parser.has_unparsed()  # else the next one is answered, as the last, within a turn
        )

    def _can_half_close(self) -> bool:
        """An end of file need not mean that the client has gone."""
        return self._tunnel is None and self.half_closes() and not self._registry.abort_on_half_close

    def _awaits_answers(self) -> bool:
        """The client has ended its side, but may still read: what it asked for has come whole."""
        first = self._next if self._current is None else self._current
        return self._phase == OPEN and self._can_half_close() and first is not None and first.request_ended

    def _half_close(self, now_s: float) -> None:
        if self._half_closed:
            return
        self._half_closed = True
        self._deadlines.head_s = self._deadlines.body_s = NEVER
        self._deadlines.half_close_s = self._probe_due_s = now_s + HALF_CLOSE_PROBE_S
        self._arm(now_s)

    def _half_close_due(self, now_s: float) -> None:
        """Send something, which the kernel of a client that has gone answers with a reset.

        No event reports the reset, since all has been read: the socket's state shows it.
        """
        if self.socket_state() == TCP_CLOSE:
            self.peer_has_ended(True)
            return
        current = self._current
        look_s = HALF_CLOSE_LOOK_S
        if now_s >= self._probe_due_s:
            self._probe_due_s = now_s + HALF_CLOSE_PROBE_AGAIN_S
            look_s = HALF_CLOSE_FIRST_LOOK_S
            if current is not None:
                current.probe()
        self._deadlines.half_close_s = now_s + look_s

    def _is_busy(self) -> bool:
        return self._current is not None

    def _answer_and_close(self, reason: Reason, detail: str) -> None:
        body = refusal_text(reason, detail)
        headers: Headers = [(b"Activator-Reason", reason.value.encode())]
        if reason is Reason.OVERLOADED:
            headers.append((b"Retry-After", b"1"))  # connections come free all the time
        self.write(plain_response(reason.status, body, headers, True, False, False))
        self._close_in_order(True, True, True)  # over TLS at once: the client sees the end, and may take it

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

    def _release(self) -> None:
        super()._release()
        self._parsing = None
        self._tunnel = None
        self._parser.retire()

    def is_draining(self) -> bool:
        return self._registry.is_left(self._entry)


class _Sink(RequestSink):
    """Passes what the parser finds to the connection and the exchange of its stream."""

    def __init__(self, connection: Http1Connection) -> None:
        self._connection = connection

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        connection = self._connection
        if connection._phase != OPEN:
            connection._parsing = None
            return
        connection._who().stamp(head)
        head.entry = connection._entry
        stream = Http1Stream(connection, keep_alive, http_1_0, not head.has_body)
        stream.exchange = connection._registry.proxy.open_request(head, stream)
        connection._parsing = stream
        connection._next = stream

    def request_body(self, data: bytes) -> None:
        stream = self._connection._parsing
        if stream is not None:
            stream.exchange.request_body(data)

    def request_end(self, trailers: Headers) -> None:
        connection = self._connection
        stream = connection._parsing
        if stream is not None:
            connection._parsing = None
            connection._parser.pause()
            connection._reading.resume(SLOW_READER)  # the pause was for the request's body, which is complete
            stream.request_ended = True
            stream.exchange.request_end(trailers)
