"""One HTTP/1.1 connection of a client: requests are read one after another, and answered in the same order.

Rules
  1. One request at a time: the parser pauses at the end of a request until its response is complete. Pipelined requests
     stay unparsed, at most one read of them, because reading pauses, too. One read can contain ten thousand requests:
     at most REQUESTS_PER_TURN_MAX of them begin in one turn, and none while the client has a backlog.
  2. A client that closes its side after a whole request is answered, as by HAProxy: `nc -N` and socat do that. A client
     that has closed its socket looks the same until something is sent to it, which its kernel answers with a reset. It
     is therefore sent data without a meaning (`Http1Stream.probe`), and its requests are dropped after a reset. With
     `abort_on_half_close` (the default of nginx), after a partial request, and over TLS, an end of file means that the
     client has disconnected. While reading is paused no end of file arrives, so the sweep checks the socket's state
     once per second.
  3. A response that begins before its request has ended closes the connection after it; further data from the client is
     read and discarded for a moment, so that a reset does not destroy the response.
  4. After a 101 the connection is a tunnel: all data is the body of the request, and an end of file ends that direction
     only, except over TLS.
  5. A request begins when its client has taken enough of the responses before it. A connection that closes does not
     wait for a client that reads nothing of the rest.
  6. A connection is in one phase of its life, along the table in closing.py: OPEN, then one of the ways to end.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http1.request import RequestLimits, RequestParser, RequestSink
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

REQUESTS_PER_TURN_MAX: Final = 16  # requests of one connection that begin in one turn
HEAD_TIMEOUT_S: Final = 60.0  # from the first byte of a request head to its last
FIRST_REQUEST_GRACE_S: Final = 1.0  # after accept, a drain does not close a connection without data for this time
BODY_RATE_GRACE_S: Final = 5.0  # the rate of a request body is averaged over this time
# A half-closed client is probed after its request has taken this long; faster responses are not affected.
HALF_CLOSE_PROBE_S: Final = 0.1
HALF_CLOSE_PROBE_AGAIN_S: Final = 10.0  # between two probes
HALF_CLOSE_FIRST_CHECK_S: Final = 0.02  # from a probe to the check for a reset: about a round trip
HALF_CLOSE_CHECK_S: Final = 1.0  # between two checks, because a round trip may be long


class Http1Connection(StreamOwner):
    """A client's connection; it is replaced by an HTTP/2 connection if the first bytes are the preface of HTTP/2."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(registry)
        self._parser = registry.parser_for(_Sink(self))
        self._is_first: bool = True  # no data has been parsed yet
        self._first_bytes: bytes = b""  # perhaps the beginning of the preface of HTTP/2
        self._writing_paused: bool = False  # the client has a backlog
        # The requests of the connection, each from its head to the end of its response:
        self._current: Http1Stream | None = None  # being answered
        self._next: Http1Stream | None = None  # its head has just been parsed
        self._parsing: Http1Stream | None = None  # its request has begun to arrive and has not ended
        self._tunnel: Http1Stream | None = None  # set after a 101
        self._refusal: WireError | None = None  # answered after the current request
        self._is_beginning: bool = False  # `_begin_next` is running
        # The request that is arriving:
        self._body_read: int = 0  # bytes of its body since the last rate check
        # After its last request:
        self._half_closed: bool = False  # the client has closed its side after a whole request
        self._eof_read: bool = False  # the end of file was read, after all other data
        self._probe_due_s: float = 0.0  # when a half-closed client is probed

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
                self._switch_after_preface(data)
                return
            self._is_first = False
            self._first_bytes = b""
        error = self._parser.feed(data)
        if error is not None:
            self._parse_failed(error)
        self._advance(len(data))

    def _switch_after_preface(self, data: bytes) -> None:
        """Hand the connection over to HTTP/2 once its preface is complete; no HTTP/1.1 request begins like that."""
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
        connection.redirect = self.redirect
        connection.key_exemption = self.key_exemption
        connection.take_over(transport, data)

    def eof_received(self) -> bool | None:
        tunnel = self._tunnel
        if tunnel is not None and self._phase == OPEN:
            tunnel.request_ended = True
            tunnel.exchange.request_end([])
            if not tunnel.exchange.over:
                return True  # the other direction stays open until it ends, too
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
            self._advance(0)

    # --- reading ---

    def _begin_next(self) -> None:
        """Begin the next request, and further ones as long as each is answered at once; then send a pending refusal."""
        if self._is_beginning:
            return  # called by a request that was answered at once: the outer loop continues
        self._is_beginning = True
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
        self._is_beginning = False
        if self._refusal is not None and self._current is None and self._phase == OPEN:
            self._registry.proxy.count_refused(self._refusal.reason)
            self._answer_and_close(self._refusal.reason, self._refusal.detail)

    def _advance(self, count: int) -> None:
        """Begin the next request if it may begin, and set deadlines and reading, after progress of the connection.

        The progress: `count` bytes have been parsed, or a response has ended.
        """
        self._begin_next()
        if self._phase != OPEN:
            return
        if self._parser.in_message:
            self._set_deadlines(count)
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
        self._advance(0)

    def _parse_failed(self, error: WireError) -> None:
        """Fail the request that is arriving, or refuse the next one, because of malformed data."""
        stream = self._parsing
        self._parsing = None
        if stream is None:
            self._refusal = error
            return
        if stream is self._next:
            self._next = None
            self._current = stream
        stream.exchange.request_failed(error.reason, error.detail)

    def _set_deadlines(self, count: int) -> None:
        """Set the deadlines of a partial request, after `count` more bytes."""
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
        """Fail a request whose body is slower than the minimum rate, unless this side delays the body.

        This side does so while reading is paused, after the response has begun (the pod may then cause the delay), and
        before a 100 (Continue) that was requested.
        """
        stream = self._parsing
        elapsed_s = BODY_RATE_GRACE_S + now_s - self._deadlines.body_s
        self._deadlines.body_s = NEVER
        if stream is None:
            return
        is_fast = self._body_read >= self._registry.body_rate * elapsed_s
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
        """Read no more than can be parsed; a closing connection reads everything and discards it."""
        if self._transport is None or self._phase > LINGERING:
            return
        reading = self._reading
        if self._phase == LINGERING:
            reading.resume(SLOW_READER | UNPARSED)
        else:
            reading.set(UNPARSED, self._parser.has_unparsed())
        self._registry.note_paused(self, reading.is_paused_by(SLOW_READER | UNPARSED))

    # --- called by the current stream ---

    def pause_request(self, pause: bool) -> None:
        self._reading.set(SLOW_READER, pause)
        self._update_reading()
        if self._parser.needs_turn and not pause:
            self._reading.wait_for_turn()

    def stream_ended(self, stream: Http1Stream) -> None:
        if stream is self._next:
            self._next = None  # refused while its body was read: it does not begin
        elif stream is self._current:
            self._current = None
        else:
            return
        if stream.close:
            self._cancel_next()
            self._close_in_order(not stream.request_ended or self._reading.is_paused(), stream.until_close, True)
            return
        self._quiet_since_s = stream.exchange.done_s
        self._advance(0)

    def stream_cut(self, stream: Http1Stream) -> None:
        if self._current is not stream:
            return
        if stream.until_close or stream is self._tunnel:
            self.abort(stream.until_close)
            return
        if stream.exchange.is_shed:
            self.abort(True)  # its memory is needed now
            return
        # An orderly close delivers the responses before it; the framing shows the client that this one is cut.
        self._current = None
        self._cancel_next()
        self._close_in_order(True, True, False)

    def begin_tunnel(self, stream: Http1Stream) -> None:
        self._tunnel = stream
        self._cancel_next()
        data = self._parser.take_unparsed()
        if data:
            stream.exchange.request_body(data)
        self._update_reading()
        if not self.half_closes():
            self._reading.keep_last_reads()
        if self._eof_read:  # the end of file came before the 101, and was the end of the client's direction
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
            writer.write_eof()  # the connection closes after the client has closed its side, too

    # --- called by the listener ---

    def drain(self) -> None:
        if self._phase != OPEN:
            self._drain_closing()
        elif not self._parser.in_message and self._is_idle() and not self._is_new() and self._registry.closes_idle():
            self._close_in_order(False, False, True)

    def _is_new(self) -> bool:
        """Return True if the connection was accepted a moment ago, so that its first request may still arrive."""
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
        """Return True if no request is being answered and no data is left to be parsed."""
        return (
            self._current is None
            and self._next is None
            and not self._parser.has_unparsed()  # otherwise the next request begins within a turn
        )

    def _can_half_close(self) -> bool:
        """Return True if an end of file need not mean that the client has disconnected."""
        return self._tunnel is None and self.half_closes() and not self._registry.abort_on_half_close

    def _awaits_answers(self) -> bool:
        """Return True if a client that closes its side may still read a response: its request is complete."""
        first = self._next if self._current is None else self._current
        return self._phase == OPEN and self._can_half_close() and first is not None and first.request_ended

    def _half_close(self, now_s: float) -> None:
        """Record that the client has closed its side, and probe it from now on."""
        if self._half_closed:
            return
        self._half_closed = True
        self._deadlines.head_s = self._deadlines.body_s = NEVER
        self._deadlines.half_close_s = self._probe_due_s = now_s + HALF_CLOSE_PROBE_S
        self._arm(now_s)

    def _half_close_due(self, now_s: float) -> None:
        """End the connection if the client's kernel has reset it after a probe; else probe again when it is time.

        No event reports the reset, because the socket is not read any more; its state shows it.
        """
        if self.socket_state() == TCP_CLOSE:
            self.peer_has_ended(True)
            return
        current = self._current
        check_s = HALF_CLOSE_CHECK_S
        if now_s >= self._probe_due_s:
            self._probe_due_s = now_s + HALF_CLOSE_PROBE_AGAIN_S
            check_s = HALF_CLOSE_FIRST_CHECK_S
            if current is not None:
                current.probe()
        self._deadlines.half_close_s = now_s + check_s

    def _is_busy(self) -> bool:
        return self._current is not None

    def _answer_and_close(self, reason: Reason, detail: str) -> None:
        """Refuse a connection, or data that is not a request, and close the connection."""
        body = refusal_text(reason, detail)
        headers: Headers = [(b"Activator-Reason", reason.value.encode())]
        if reason is Reason.OVERLOADED:
            headers.append((b"Retry-After", b"1"))  # connections become free all the time
        self.write(plain_response(reason.status, body, headers, True, False, False))
        self._close_in_order(True, True, True)  # over TLS at once: the client sees the end, and may take it

    def _client_gone(self) -> None:
        current = self._current
        self._current = None
        if current is not None:
            current.exchange.client_gone()
        self._cancel_next()

    def _cancel_next(self) -> None:
        stream = self._next
        self._next = None
        if stream is not None:
            stream.exchange.client_gone()

    def _release(self) -> None:
        super()._release()
        self._parsing = None
        self._tunnel = None
        parser = self._parser
        self._parser = _NO_PARSER  # another connection may get `parser`
        self._registry.retire_parser(parser)

    def is_draining(self) -> bool:
        return self._registry.closes_kept or self._registry.is_left(self._entry)


class _Sink(RequestSink):
    """The parser's sink, which forwards events to the connection and to the exchange of its stream."""

    def __init__(self, connection: Http1Connection) -> None:
        self._connection = connection

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        connection = self._connection
        if connection._phase != OPEN:
            connection._parsing = None
            return
        connection._origin_of_client().stamp(head)
        head.entry = connection._entry
        stream = Http1Stream(connection, keep_alive, http_1_0, not head.has_body)
        stream.exchange = connection.open_request(head, stream)
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
            connection._reading.resume(SLOW_READER)  # it was paused for the body of this request, which is complete
            stream.request_ended = True
            stream.exchange.request_end(trailers)


_NO_PARSER: Final = RequestParser(RequestSink(), RequestLimits())  # the parser of closed connections
