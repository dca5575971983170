"""The parser of the requests on a client's connection.

Rules
  1. Any input leads to calls of the sink or to one WireError, never to another exception. Messages delivered before an
     error remain valid; after it, the parser returns the same error for all further input.
  2. A request is delivered only when its whole head is valid; a request that two servers could read in two ways is
     refused, never repaired.
  3. A request that asks for the connection to be closed is the last; bytes after it are ignored (RFC 9112 9.6).
  4. `head.upgrade` holds the protocols that the client offers; the caller decides whether to accept one. The bytes
     after such a request may not be HTTP, so the caller pauses the parser until the response is known and may then use
     `take_unparsed`. In a request with a body the offer is ignored, as RFC 9110 7.8 allows: Java's HttpClient offers
     h2c with every POST.
  5. The parser of a closed connection may serve another one (`begin`), and then recognises a head of the former, as the
     heads of clients that connect for each request are often the same.
  6. A paused parser keeps the data as they were fed, with an offset: ten thousand requests in one read cost ten
     thousand offsets, not ten thousand copies of the rest.
"""

from __future__ import annotations

from typing import Final

from httptools import HttpRequestParser
from mypy_extensions import mypyc_attr

from activator.codec.http1.chunks import CHUNK_OVERHEAD_BYTES_MAX, ChunkTracker
from activator.codec.http1.fields import tokens, value_of
from activator.codec.http1.framing import CHUNKED, HEAD, LENGTH, TRAILERS_BYTES_MAX, MessageParser
from activator.codec.http1.llhttp import Grammar
from activator.codec.http1.target import RequestLine, check_authority
from activator.codec.message import Fields, Headers, RequestHead
from activator.config.model.listeners import Limits
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

TARGET_BYTES_MAX: Final = 16 * KIB

_DEFAULTS: Final = Limits()
# A member of an enum takes 1,000 instructions to look up, and each new connection needs five of them.
_BAD: Final = Reason.BAD_REQUEST
_TOO_LARGE: Final = Reason.HEADERS_TOO_LARGE
_CODING: Final = Reason.CODING_NOT_SUPPORTED


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestSink:
    """The receiver of the parsed requests. During a call it may call `pause` on the parser, and nothing else."""

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        raise NotImplementedError

    def request_body(self, data: bytes) -> None:
        raise NotImplementedError

    def request_end(self, trailers: Headers) -> None:
        raise NotImplementedError


_NO_SINK: Final = RequestSink()


class RequestLimits:
    """The limits of a request, in bytes and fields; `body_bytes` 0 means no limit."""

    def __init__(
        self,
        header_bytes: int = _DEFAULTS.header_bytes,
        headers: int = _DEFAULTS.headers,
        body_bytes: int = _DEFAULTS.body_bytes,
        target_bytes: int = TARGET_BYTES_MAX,
        chunk_overhead_bytes: int = CHUNK_OVERHEAD_BYTES_MAX,
        trailers_bytes: int = TRAILERS_BYTES_MAX,
    ) -> None:
        self.header_bytes: Final[int] = header_bytes
        self.headers: Final[int] = headers
        self.body_bytes: Final[int] = body_bytes
        self.target_bytes: Final[int] = target_bytes
        self.chunk_overhead_bytes: Final[int] = chunk_overhead_bytes
        self.trailers_bytes: Final[int] = trailers_bytes


class RequestParser(MessageParser):
    """The parser of the requests on one connection."""

    def __init__(self, sink: RequestSink, limits: RequestLimits) -> None:
        chunks = ChunkTracker(
            _BAD,
            _TOO_LARGE,
            limits.chunk_overhead_bytes,
            limits.trailers_bytes,
            limits.body_bytes,
        )
        super().__init__(
            _BAD,
            _TOO_LARGE,
            _CODING,
            head_max=limits.header_bytes,
            fields_max=limits.headers,
            blank_max=limits.header_bytes,
            chunks=chunks,
            is_request=True,
            streams_bytes=True,
        )
        self.limits = limits
        self._sink = sink
        self._body_max = limits.body_bytes
        self._request_line = RequestLine(limits.target_bytes)
        self._is_last: bool = False  # the client asked for the connection to be closed after this request
        self.paused: bool = False
        self._head: RequestHead | None = None  # valid, and not delivered yet
        self._known_host_line: bytes = b""  # a cache: most connections repeat the same Host
        self._known_authority: bytes = b""

    def begin(self, sink: RequestSink) -> None:
        """Parse the requests of another connection from now on; call it after `retire`, if `is_reusable`."""
        self._sink = sink
        self._is_last = self.paused = self.needs_turn = self._stopped = False
        self._blank_bytes = 0

    def is_reusable(self) -> bool:
        """Return True if the former connection ended between two requests, and the last head can be recognised."""
        return len(self._last_head) > 0 and not self.in_message and not self._blank_begun and self._error is None

    def feed(self, data: bytes) -> WireError | None:
        """Parse `data`. Return an error if the connection is unusable."""
        if self._error is not None:
            return self._error
        if self.paused or self.needs_turn:
            self._keep_more(data)
            return None
        return self._feed_from(data, 0)

    def pause(self) -> None:
        """Stop parsing. If the sink calls this, nothing after the current piece of the message is delivered."""
        self.paused = True
        self._stopped = True

    def resume(self) -> WireError | None:
        """Parse the data that were kept, as `feed` does: after a pause, or in the next turn if `needs_turn` is set."""
        self.paused = False
        self.needs_turn = False
        self._stopped = self._is_last and not self.in_message
        return self._feed_kept()

    # --- MessageParser ---

    def _take_rest(self, data: bytes, pos: int) -> WireError | None:
        if self.paused or self.needs_turn:  # otherwise the rest follows the last request and is ignored
            self._keep(data, pos)
        return None

    def _forget_sink(self) -> None:
        self._sink = _NO_SINK

    def _new_grammar(self) -> Grammar:
        return HttpRequestParser(self._delivery)

    def _validate_line(self, line: bytes) -> None:
        self._request_line.validate(line)

    def _validate_line_begun(self, line: bytes) -> None:
        self._request_line.check_length(line)

    def _for_grammar(self, head: bytes, line_end: int) -> bytes:
        line = self._request_line.for_grammar
        return line + head[line_end:] if line else head

    def _ends_with_head(self) -> bool:
        return False

    def _judge_head(self) -> None:
        fields = self._fields
        line = self._request_line
        fields.check_framing(line.http_1_0)
        headers = fields.end_to_end()
        authority, headers = self._judge_host(headers)
        length = fields.content_length
        if fields.chunked:
            if line.method == b"TRACE":
                raise WireError(Reason.BAD_REQUEST, "a body on TRACE")
            self._state = CHUNKED
            self.body_remaining = -1
        elif length > 0:
            if line.method == b"TRACE":
                raise WireError(Reason.BAD_REQUEST, "a body on TRACE")
            if length > self._body_max > 0:
                raise WireError(Reason.BODY_TOO_LARGE, "the body is too large")
            self._state = LENGTH
            self.body_remaining = length
        has_body = self._state != HEAD
        head = RequestHead(line.method, line.target, authority, headers, length, has_body)
        head.named = fields.named()
        head.claims = fields.claims()
        head.traceparent = fields.traceparent
        head.has_internal = fields.has_internal
        # RFC 9110 7.8: Upgrade is ignored in HTTP/1.0.
        if fields.protocols and fields.has_upgrade and not has_body and not line.http_1_0:
            head.upgrade = b", ".join(tokens(fields.protocols))
        self._head = head

    def _judge_host(self, headers: Fields) -> tuple[bytes, Fields]:
        """Return the request's authority (RFC 9112 3.2), and the fields with a Host field that matches it."""
        fields = self._fields
        line = self._request_line
        if fields.hosts == 1:
            if fields.host_line == self._known_host_line:
                authority = self._known_authority
            else:
                authority = check_authority(value_of(fields.host_line))
                self._known_host_line = fields.host_line
                self._known_authority = authority
            if line.authority is not None and line.authority != authority:
                authority = line.authority
                headers = headers.with_changed(fields.host_line, b"Host: %b" % authority)
            return authority, headers
        if fields.hosts > 1:
            raise WireError(Reason.BAD_REQUEST, "Host more than once")
        if not line.http_1_0:
            raise WireError(Reason.BAD_REQUEST, "no Host")
        authority = line.authority or b""
        return authority, headers.with_line(b"Host", authority) if authority else headers

    def _is_repeatable(self) -> bool:
        fields = self._fields
        return (
            not self._request_line.http_1_0
            and fields.content_length <= 0
            and not fields.chunked
            and not fields.proxy_connection
        )

    def _repeats_fields(self) -> bool:
        return not self._request_line.http_1_0

    def _deliver_head(self) -> None:
        head = self._head
        assert head is not None
        self._head = None
        http_1_0 = self._request_line.http_1_0
        keep_alive = self._fields.keep_alive(http_1_0)
        self._is_last = not keep_alive
        self._sink.request_head(head, keep_alive, http_1_0)

    def _deliver_body(self, data: bytes) -> None:
        self._sink.request_body(data)

    def _deliver_end(self, trailers: Headers, bytes_left: int) -> None:
        if self._is_last:
            self._stopped = True
        self._sink.request_end(trailers)
