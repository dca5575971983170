"""One HTTP/1.1 connection to a pod, which carries one request at a time and is kept alive.

Rules
  1. A complete response is reported after the parser has returned, never from within it, because the next request may
     be sent on this connection at once.
  2. Unsolicited data closes the connection.
  3. A response that is complete before its request has been sent ends the connection: the pod could read the rest as
     slowly as it likes, and no other request could be sent during that time.
  4. `abort` takes effect at once; later events of the transport are ignored.
  5. Data from a pod is parsed in turns, like data from a client (runtime/reading.py). The end of the connection is
     handled after all data before it has been parsed.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http1.lenient import LenientResponseParser
from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.http1.serialise import chunk, last_chunk, request_bytes
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.errors import WireError
from activator.runtime.reading import SLOW_READER, UNPARSED
from activator.runtime.reasons import Reason

_NO_BODY_EXPECTED: Final = frozenset({b"GET", b"HEAD"})


class Http1PodStream(PodStream):
    """The requests of one connection, one after another."""

    def __init__(self, connection: Http1PodConnection) -> None:
        self._connection = connection
        self.reused = False
        # Per request:
        self._chunked: bool = False
        self.last: bool = False  # the connection must not carry another request
        self.request_ended: bool = True

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        self._chunked = head.has_body and head.content_length < 0
        # Some servers ignore such a body and would parse it as the next request.
        self.last = head.has_body and head.method in _NO_BODY_EXPECTED
        self.request_ended = not head.has_body
        writer = self._connection._writer
        assert writer is not None
        if not body:
            writer.write(request_bytes(head, self._connection.authority))
            return
        pieces = [request_bytes(head, self._connection.authority)]
        pieces.extend([chunk(data) if self._chunked else data for data in body])
        writer.write(b"".join(pieces))

    def send_body(self, data: bytes) -> None:
        connection = self._connection
        writer = connection._writer
        if not connection.is_closed and writer is not None:
            writer.write(chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        self.request_ended = True
        connection = self._connection
        writer = connection._writer
        if connection.is_closed or writer is None:
            return
        if self._chunked:
            writer.write(last_chunk(trailers))
        elif connection.tunnelling():
            writer.write_eof()

    def abort(self) -> None:
        self._connection.cut()

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        connection = self._connection
        writer = connection._writer
        if connection.is_closed or writer is None:
            connection.cut()
            return False
        connection.exchange = successor
        if not (waits and self.request_ended):
            self.last = True
            if self.half_closes() and connection.tunnelling():
                writer.write_eof()  # after what the client has sent
            elif self.half_closes():
                writer.write_eof_now()
            else:
                writer.close_now()  # over TLS the pod answers with its own end, and `connection_lost` follows
                connection.outlives_close = waits
        self.resume_response()
        return True

    def half_closes(self) -> bool:
        return self._connection.half_closes()

    def finish(self) -> None:
        self._connection.finish()

    def pause_response(self) -> None:
        self._connection.pause_reading(True)

    def resume_response(self) -> None:
        self._connection.pause_reading(False)


class Http1PodConnection(PooledConnection):
    """A connection to a pod that speaks HTTP/1.1."""

    def __init__(
        self,
        owner: ConnectionOwner,
        now: Now,
        batcher: WriteBatcher,
        authority: bytes = b"",
        lenient: bool = False,
    ) -> None:
        super().__init__(owner, now, batcher, authority)
        self._parser: ResponseParser = LenientResponseParser(_Sink(self)) if lenient else ResponseParser(_Sink(self))
        self._stream: Http1PodStream | None = Http1PodStream(self)  # None after the loss: avoid a reference cycle
        self.exchange: PodUser | None = None
        self.reused: bool = False  # it has carried an exchange before
        self._trailers: Headers = []
        self._blocked: bool = False  # the write buffer is above its high-water mark
        self.outlives_close: bool = False  # the pod may still work on the request after the close, and keeps its slot

    # --- the pool's side ---

    def serve(self, exchange: PodUser) -> PodStream:
        """Serve `exchange` on this connection, which must be open and idle."""
        stream = self._stream
        assert stream is not None and self.exchange is None and not self.is_closed
        self.exchange = exchange
        stream.reused = self.reused
        head = exchange.head
        self._parser.expect(head.method == b"HEAD", head.upgrade)
        return stream

    def cut(self) -> None:
        self.exchange = None
        if not self.is_closed:
            self._mark_and_report_closed()
            if self._writer is not None:
                self._writer.cut()

    def is_usable(self) -> bool:
        """Return True if the connection is open."""
        transport = self._transport
        return not self.is_closed and transport is not None and not transport.is_closing()

    # --- its stream's side ---

    def tunnelling(self) -> bool:
        """Return True after a 101: all bytes that follow are the body."""
        return self._parser.tunnelling

    def finish(self) -> None:
        """Close a tunnel whose both directions have ended."""
        self.exchange = None
        if self._writer is not None and self.half_closes():
            self._writer.shut()
        self.close()

    def pause_reading(self, pause: bool) -> None:
        if not self.is_closed:
            self._reading.set(SLOW_READER, pause)
            if not pause and self._parser.needs_turn:
                self._reading.wait_for_turn()

    # --- asyncio protocol ---

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        exchange = self.exchange
        if exchange is None:
            self.close()  # no response is expected
            return
        exchange.read_s = self._note_read(len(data))
        self._after_parsing(exchange, self._parser.feed(data))

    def _after_parsing(self, exchange: PodUser, error: WireError | None) -> None:
        """End the exchange if its response is complete or malformed; otherwise flush it to the client."""
        parser = self._parser
        if parser.complete:
            self._complete()  # data after the response spoils the connection, not the response
        elif error is not None:
            self._break(error.reason, error.detail, False)
        else:
            if parser.needs_turn:
                self._parse_later()
            exchange.response_flush()

    def _turn_came(self) -> None:
        if not self._reading.is_paused_by(SLOW_READER):
            self._parse_on()

    def _parse_on(self) -> bool:
        exchange = self.exchange
        if exchange is None or self.is_closed or not self._parser.needs_turn:
            return False
        exchange.read_s = self._now()
        self._reading.resume(UNPARSED)
        self._after_parsing(exchange, self._parser.resume())
        return True

    def eof_received(self) -> bool | None:
        self._parse_all()
        exchange = self.exchange
        if self._parser.tunnelling and exchange is not None and not self.is_closed:
            exchange.response_end([])
            return not self.is_closed  # the other direction stays open until it ends, too
        if exchange is not None and not self.is_closed:
            self._complete_or_fail(
                True
            )  # now, because the transport closes only after the pod has read all of the request
        return None  # the transport closes, and `connection_lost` follows

    def _read_last(self) -> None:
        """Deliver what the pod sent before a write failed; for a tunnel, also the end of its direction."""
        self._parse_all()
        serving = self.exchange
        if self.is_closed or serving is None:
            return
        if self._stream is not None:
            self._stream.was_reset = True
        has_data = self._parse_last_reads()
        exchange = self.exchange
        if has_data and exchange is not None and self._parser.tunnelling:
            self.exchange = None
            self._mark_and_report_closed()
            exchange.response_end([])

    def _lost(self, error: Exception | None) -> None:
        self._parse_all()
        if self.is_closed:
            return
        if self.outlives_close and isinstance(error, TimeoutError):
            self.exchange = None  # this side's timeout for the TLS shutdown, not a failure of the pod
        if self.exchange is None:
            self._mark_and_report_closed()
            return
        self._transport = None  # it is closed
        self._writer = None
        self._complete_or_fail(error is None)

    def _release(self) -> None:
        super()._release()
        self._parser.retire()
        self._stream = None

    def _complete_or_fail(self, orderly: bool) -> None:
        """Complete or fail the exchange at the end of the pod's data. `orderly`: the connection did not break."""
        untouched = self.reused and not self._parser.started
        if orderly:
            truncated = self._parser.feed_eof()
            if truncated is None and self._parser.complete:
                self._complete()
                return
        self._owner.pod_closed(self)
        self._break(Reason.POD_CLOSED, "", untouched)

    def pause_writing(self) -> None:
        self._blocked = True
        if self.exchange is not None:
            self.exchange.pod_blocked()

    def resume_writing(self) -> None:
        self._blocked = False
        if self.exchange is not None:
            self.exchange.pod_drained()

    # --- within ---

    def _complete(self) -> None:
        """Return the connection to the pool, or cut it, and then end the exchange."""
        stream = self._stream
        assert stream is not None
        exchange = self.exchange
        self.exchange = None
        trailers = self._trailers
        self._trailers = []
        if stream.request_ended and not self._blocked:
            self._reading.resume(SLOW_READER)  # the next client may read at another speed
            self._owner.finished(self, self._may_be_reused(stream))
        else:
            self.cut()
        if exchange is not None:
            exchange.response_end(trailers)

    def _may_be_reused(self, stream: Http1PodStream) -> bool:
        """Return True if the connection may carry another request."""
        return self._parser.keep_alive and not stream.last and not self.retiring and self.is_usable()

    @property
    def keep_alive_s(self) -> float:
        """Seconds for which the pod keeps an idle connection, by its last response; below 0: not stated."""
        return self._parser.keep_alive_s

    def _break(self, reason: Reason, detail: str, untouched: bool) -> None:
        """Cut the connection, and fail its exchange."""
        exchange = self.exchange
        self.cut()
        if exchange is not None:
            exchange.pod_failed(reason, detail, untouched)


class _Sink(ResponseSink):
    """The parser's sink, which forwards events to the exchange that the connection serves."""

    def __init__(self, connection: Http1PodConnection) -> None:
        self._connection = connection

    def interim_head(self, head: ResponseHead) -> None:
        exchange = self._connection.exchange
        if exchange is not None:
            exchange.response_interim(head)

    def response_head(self, head: ResponseHead) -> None:
        exchange = self._connection.exchange
        if exchange is not None:
            exchange.response_head(head)

    def response_body(self, data: bytes) -> None:
        exchange = self._connection.exchange
        if exchange is not None:
            exchange.response_body(data)

    def response_end(self, trailers: Headers) -> None:
        self._connection._trailers = trailers
