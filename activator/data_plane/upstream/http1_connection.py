"""One HTTP/1.1 connection to a pod: one request at a time, kept alive in between.

Rules
  1. A response that is complete is handed over after the parser has returned, never from inside it: the hand-over may
     put the next request on this very connection.
  2. A byte that was not asked for closes the connection.
  3. A response that is complete before its request has been sent ends the connection: otherwise the pod could take the
     rest as slowly as it pleases, and nothing else could be sent meanwhile.
  4. `abort` takes effect at once; what the transport reports later is ignored.
  5. What a pod sends is parsed in turns, as what a client sends (runtime/reading.py). The end of the connection is
     judged when all that came before it has been parsed.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http1.lenient import LenientResponseParser
from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.http1.serialise import chunk, last_chunk, request_bytes
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.exchange import PodStream, PodUser
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.runtime.buffered_writer import BufferedWriter, WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.errors import WireError
from activator.runtime.last_reads import last_reads
from activator.runtime.reading import SLOW_READER, UNPARSED, Reading
from activator.runtime.reasons import Reason
from activator.runtime.transport import WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES, Transport, watch

_NO_BODY_EXPECTED: Final = frozenset({b"GET", b"HEAD"})


class Http1PodConnection(PodStream, PooledConnection):
    """An asyncio protocol by its methods (a native class cannot derive from asyncio.Protocol)."""

    def __init__(
        self,
        owner: ConnectionOwner,
        now: Now,
        turn: WriteBatcher,
        authority: bytes = b"",
        lenient: bool = False,
    ) -> None:
        self._owner = owner
        self._now = now
        self._turn = turn
        self._authority = authority  # of the pod: the Host of requests that name none (HTTP/1.0)
        self.bare: Transport | None = None  # over TLS: the connection beneath it, until `connection_made`
        self._transport: Transport | None = None
        self._writer: BufferedWriter | None = None
        self._parser: ResponseParser = LenientResponseParser(_Sink(self)) if lenient else ResponseParser(_Sink(self))
        self._reading = Reading(turn.shares.add, self._turn_came)
        self._exchange: PodUser | None = None
        self.fresh: bool = True  # no byte of a response has ever come
        self.reused = False
        self.last_read_s: float = 0.0  # when it last read something, or was opened: idle since then
        self.is_closed: bool = False
        self.retiring: bool = False
        # per request
        self._chunked: bool = False
        self._last: bool = False  # the connection is not to carry another request
        self._request_ended: bool = True
        self._trailers: Headers = []
        self._blocked: bool = False  # much of what was written is still to be sent
        self._outlives_close: bool = False  # the pod may compute on after we have closed, and keeps its slot

    # --- the pool's side ---

    def serve(self, exchange: PodUser) -> PodStream:
        """It must be open and idle."""
        assert self._exchange is None and not self.is_closed
        self._exchange = exchange
        head = exchange.head
        self._parser.expect(head.method == b"HEAD", head.upgrade)
        return self

    def cut(self) -> None:
        self.abort()

    def is_usable(self) -> bool:
        """Nothing was received that forbids another request."""
        transport = self._transport
        return not self.is_closed and transport is not None and not transport.is_closing()

    def watch(self) -> None:
        if self._transport is not None:
            watch(self._transport)

    def close(self) -> None:
        if not self.is_closed:
            self._gone()
            writer = self._writer
            transport = self._transport
            if writer is not None and transport is not None:
                writer.close()
                if transport.get_write_buffer_size() > 0:
                    self._owner.leaving(transport)

    # --- PodStream ---

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        self._chunked = head.has_body and head.content_length < 0
        # Servers are known that do not look for such a body, and would take it for the next request.
        self._last = head.has_body and head.method in _NO_BODY_EXPECTED
        self._request_ended = not head.has_body
        writer = self._writer
        assert writer is not None
        if not body:
            writer.write(request_bytes(head, self._authority))
            return
        pieces = [request_bytes(head, self._authority)]
        pieces.extend([chunk(data) if self._chunked else data for data in body])
        writer.write(b"".join(pieces))

    def send_body(self, data: bytes) -> None:
        writer = self._writer
        if not self.is_closed and writer is not None:
            writer.write(chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        self._request_ended = True
        writer = self._writer
        if self.is_closed or writer is None:
            return
        if self._chunked:
            writer.write(last_chunk(trailers))
        elif self._parser.tunnelling:
            writer.write_eof()

    def abort(self) -> None:
        self._exchange = None
        if not self.is_closed:
            self._gone()
            if self._writer is not None:
                self._writer.cut()

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        writer = self._writer
        if self.is_closed or writer is None:
            self.abort()
            return False
        self._exchange = successor
        if not (waits and self._request_ended):
            self._last = True
            if self.half_closes() and self._parser.tunnelling:
                writer.write_eof()  # behind what the client has sent
            elif self.half_closes():
                writer.write_eof_now()
            else:
                writer.close_now()  # over TLS the pod answers with its own end, and `connection_lost` follows
                self._outlives_close = waits
        self.resume_response()
        return True

    def half_closes(self) -> bool:
        return self._transport is not None and self._transport.can_write_eof()

    def finish(self) -> None:
        self._exchange = None
        if self._writer is not None and self.half_closes():
            self._writer.shut()
        self.close()

    def pause_response(self) -> None:
        if not self.is_closed:
            self._reading.pause(SLOW_READER)

    def resume_response(self) -> None:
        if not self.is_closed:
            self._reading.resume(SLOW_READER)
            if self._parser.needs_turn:
                self._reading.wait_for_turn()

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._transport = transport
        self._writer = BufferedWriter(self._turn, transport)
        self._reading.start(transport if self.bare is None else self.bare)
        self.bare = None
        self.last_read_s = self._now()
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        exchange = self._exchange
        if exchange is None:
            self.close()  # no response is expected
            return
        if self.fresh:
            self.fresh = False
            self._owner.answered(self)
        now_s = self._now()
        self.last_read_s = now_s
        exchange.read_s = now_s
        self._reading.took(len(data))
        self._fed(exchange, self._parser.feed(data))

    def _fed(self, exchange: PodUser, error: WireError | None) -> None:
        """The parser has handed over what it found."""
        parser = self._parser
        if parser.complete:
            self._complete()  # what may follow it spoils the connection, not the response
        elif error is not None:
            self._break(error.reason, error.detail, False)
        else:
            if parser.needs_turn:
                self._reading.pause(UNPARSED)
                self._reading.wait_for_turn()
            exchange.response_flush()

    def _turn_came(self) -> None:
        """The next turn has come: parse on."""
        if not self._reading.is_paused_by(SLOW_READER):
            self._parse_on()

    def _parse_on(self) -> None:
        exchange = self._exchange
        if self._parser.needs_turn and exchange is not None and not self.is_closed:
            exchange.read_s = self._now()
            self._reading.resume(UNPARSED)
            self._fed(exchange, self._parser.resume())

    def _parse_all(self) -> None:
        """Nothing more comes: parse what is left of the last read, in as many shares as it takes."""
        while self._parser.needs_turn and self._exchange is not None and not self.is_closed:
            self._parse_on()

    def eof_received(self) -> bool | None:
        self._parse_all()
        exchange = self._exchange
        if self._parser.tunnelling and exchange is not None and not self.is_closed:
            exchange.response_end([])
            return not self.is_closed  # the other direction goes on until it ends too
        if exchange is not None and not self.is_closed:
            self._ended(True)  # now: the transport closes only when the pod has taken all of the request
        return None  # the transport closes, and `connection_lost` follows

    def connection_lost(self, error: Exception | None) -> None:
        self._parse_all()
        if error is not None and not self.is_closed and self._exchange is not None:
            self._read_last()
        if self.is_closed:
            self._forget()
            return
        if self._outlives_close and isinstance(error, TimeoutError):
            self._exchange = None  # our own time for the end of TLS is over, and says nothing of the pod
        if self._exchange is None:
            self._gone()
            self._forget()
            return
        self._transport = None  # closed already
        self._writer = None
        self._ended(error is None)
        self._forget()

    def _read_last(self) -> None:
        """Deliver what the pod sent before a write failed; of a tunnel, the end of its direction behind it."""
        self.was_reset = True
        has_data = False
        for data in last_reads(self._transport):
            has_data = True
            self.data_received(data)
            self._parse_all()
        exchange = self._exchange
        if has_data and exchange is not None and self._parser.tunnelling:
            self._exchange = None
            self._gone()
            exchange.response_end([])

    def _ended(self, orderly: bool) -> None:
        """The pod sends no more."""
        untouched = self.reused and not self._parser.started
        if orderly:
            truncated = self._parser.feed_eof()
            if truncated is None and self._parser.complete:
                self._complete()
                return
        self._owner.cut(self)
        self._break(Reason.POD_CLOSED, "", untouched)

    def pause_writing(self) -> None:
        self._blocked = True
        if self._exchange is not None:
            self._exchange.pod_blocked()

    def resume_writing(self) -> None:
        self._blocked = False
        if self._exchange is not None:
            self._exchange.pod_drained()

    # --- within ---

    def _complete(self) -> None:
        exchange = self._exchange
        self._exchange = None
        trailers = self._trailers
        self._trailers = []
        if self._request_ended and not self._blocked:
            self._reading.resume(SLOW_READER)  # the client of this answer was slow; that of the next one need not be
            self._owner.finished(self, self._may_be_reused())
        else:
            self.abort()
        if exchange is not None:
            exchange.response_end(trailers)

    def _may_be_reused(self) -> bool:
        """True if the connection may carry another request."""
        return self._parser.keep_alive and not self._last and not self.retiring and self.is_usable()

    @property
    def keep_alive_s(self) -> float:
        """How long the pod said, with its last response, that it keeps an idle connection; below 0: it did not say."""
        return self._parser.keep_alive_s

    def _break(self, reason: Reason, detail: str, untouched: bool) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.pod_failed(reason, detail, untouched)

    def _gone(self) -> None:
        self.is_closed = True
        self._owner.closed(self)

    def _forget(self) -> None:
        """The connection is lost: refer to nothing any more, so that no cycle is left for the collector."""
        self._reading.stop()
        self._parser.retire()
        self._transport = None
        self._writer = None


class _Sink(ResponseSink):
    """Hands what the parser finds to the exchange that the connection serves."""

    def __init__(self, connection: Http1PodConnection) -> None:
        self._connection = connection

    def interim_head(self, head: ResponseHead) -> None:
        exchange = self._connection._exchange
        if exchange is not None:
            exchange.response_interim(head)

    def response_head(self, head: ResponseHead) -> None:
        exchange = self._connection._exchange
        if exchange is not None:
            exchange.response_head(head)

    def response_body(self, data: bytes) -> None:
        exchange = self._connection._exchange
        if exchange is not None:
            exchange.response_body(data)

    def response_end(self, trailers: Headers) -> None:
        self._connection._trailers = trailers
