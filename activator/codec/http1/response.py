"""The parser of the responses on a connection to a pod.

Rules
  1. A response is parsed only after `expect`. Unrequested bytes make the connection unusable. If they arrive together
     with the end of a response, they do so before the end is delivered, so that no request reuses the connection.
  2. Whether a body follows depends on the request as well (RFC 9112 6.3). llhttp does not know the request, so its
     parser is replaced if it waits for a body after HEAD, 204 or 304.
  3. The end of the stream is the end of a response only if nothing else delimits it.
  4. A 101 is accepted only if the request offered the protocol that it names (RFC 9110 7.8). All bytes after it, until
     the end of the stream, are its body and have no grammar.
  5. Deviations of old servers that every other proxy accepts are accepted if they are unambiguous: equal lengths, a
     status up to 999, spaces behind a chunk's size, framing fields in the trailers (which are dropped).
  6. Data that exceed the share of one turn (`needs_turn`) are kept for `resume`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from httptools import HttpResponseParser
from mypy_extensions import mypyc_attr

from activator.codec.http1.chunks import CHUNK_OVERHEAD_BYTES_MAX, ChunkTracker
from activator.codec.http1.fields import tokens, without_lengths
from activator.codec.http1.framing import (
    CHUNKED,
    HEAD,
    LENGTH,
    TRAILERS_BYTES_MAX,
    UNTIL_EOF,
    MessageParser,
)
from activator.codec.http1.llhttp import Grammar
from activator.codec.message import UNKNOWN_LENGTH, Headers, ResponseHead
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

RESPONSE_HEAD_BYTES_MAX: Final = 64 * KIB
RESPONSE_HEADERS_MAX: Final = 256
INTERIM_RESPONSES_MAX: Final = 16  # 1xx responses before the final one; more is a loop

_BAD: Final = Reason.BAD_RESPONSE
_WITHOUT_BODY: Final = frozenset({204, 304})
_CONTROLS: Final = bytes(range(0x09)) + bytes(range(0x0A, 0x20)) + b"\x7f"  # HTAB is allowed in a reason phrase

_USUAL_LINES: Final[dict[bytes, tuple[int, bytes]]] = {
    b"HTTP/1.1 %d %b" % (status, status.phrase.encode()): (int(status), status.phrase.encode()) for status in HTTPStatus
}


@mypyc_attr(allow_interpreted_subclasses=True)
class ResponseSink:
    """The receiver of the responses to the requests that were announced with `expect`."""

    def interim_head(self, head: ResponseHead) -> None:
        """Receive a 1xx response; the final one is still to come."""
        raise NotImplementedError

    def response_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def response_body(self, data: bytes) -> None:
        raise NotImplementedError

    def response_end(self, trailers: Headers) -> None:
        raise NotImplementedError


_NO_SINK: Final = ResponseSink()


class ResponseParser(MessageParser):
    """The parser of the responses on one connection."""

    def __init__(self, sink: ResponseSink) -> None:
        chunks = ChunkTracker(_BAD, _BAD, CHUNK_OVERHEAD_BYTES_MAX, TRAILERS_BYTES_MAX, 0, space_after_size=True)
        super().__init__(
            _BAD,
            _BAD,
            _BAD,
            head_max=RESPONSE_HEAD_BYTES_MAX,
            fields_max=RESPONSE_HEADERS_MAX,
            blank_max=0,
            chunks=chunks,
            is_request=False,
            streams_bytes=False,
        )
        self._sink = sink
        self.keep_alive: bool = False  # once complete: the connection may carry another request
        self.keep_alive_s: float = -1.0  # after this idle time the pod closes the connection; negative: not stated
        self.started: bool = False  # a byte of a response has come since `expect`
        self.complete: bool = False  # the response has ended
        self.tunnelling: bool = False  # after a 101: all bytes are the body
        self._head_request: bool = False
        self._upgrade: bytes = b""  # the protocols that the request offers
        self._interims: int = 0
        self._head: ResponseHead | None = None  # valid, and not delivered yet
        self._http_1_0: bool = False
        self._status: int = 0
        self._reason_phrase: bytes = b""
        self._stopped = True  # until the first `expect`

    def expect(self, head_request: bool, upgrade: bytes = b"") -> None:
        """Prepare for the response to a request that is about to be sent; the previous response must be complete.

        `upgrade` is the list of protocols that the request offers, lowered and comma-separated. A parser that has
        reported an error remains unusable.
        """
        self._upgrade = upgrade
        if head_request:
            self._last_head = b""  # a response with the same head would have a body
        self.keep_alive = False
        self.started = False
        self.complete = False
        self._head_request = head_request
        self._interims = 0
        self._stopped = self._error is not None

    def feed(self, data: bytes) -> WireError | None:
        """Parse `data`. Return an error if the connection is unusable; a response that is `complete` remains valid."""
        if self._error is not None:
            return self._error
        if not data:
            return None
        if self.tunnelling:
            self._sink.response_body(data)
            return None
        if self.needs_turn:
            self._keep_more(data)
            return None
        if self._stopped:
            return self._spoil(_unexpected())
        self.started = True
        return self._feed_from(data, 0)

    def resume(self) -> WireError | None:
        """Parse the data that were kept, in the next turn if `needs_turn` is set."""
        self.needs_turn = False
        if self.has_unparsed() and self._error is None:
            self._stopped = False
        return self._feed_kept()

    def feed_eof(self) -> WireError | None:
        """End the stream: the pod has closed its side. Return an error if the response is not complete."""
        if self._error is not None:
            return self._error
        if self.tunnelling:
            self.complete = True
            self._sink.response_end([])
            return None
        if self._state == UNTIL_EOF:
            self._end_message([], 0)
            return None
        return self._spoil(WireError(Reason.POD_CLOSED, "the pod closed the connection before its response ended"))

    # --- MessageParser ---

    def _spoil(self, error: WireError) -> WireError:
        self._stopped = True
        self.keep_alive = False
        return super()._spoil(error)

    def _take_rest(self, data: bytes, pos: int) -> WireError | None:
        if self.needs_turn:
            self._keep(data, pos)
            return None
        if self._status == 101:  # this call has begun the tunnel
            self._sink.response_body(data[pos:])
            return None
        return self._spoil(_unexpected())  # `_deliver_end` has set the same error; this returns it to the caller

    def _forget_sink(self) -> None:
        self._sink = _NO_SINK

    def _new_grammar(self) -> Grammar:
        return HttpResponseParser(self._delivery)

    def _validate_line(self, line: bytes) -> None:
        usual = _USUAL_LINES.get(line)
        if usual is not None:
            self._http_1_0 = False
            self._status = usual[0]
            self._reason_phrase = usual[1]
            return
        if not line.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
            raise WireError(_BAD, "the response does not begin with HTTP/1.1 or HTTP/1.0")
        digits = line[9:12]
        if len(digits) != 3 or not digits.isdigit() or digits < b"100" or line[12:13] not in {b" ", b""}:
            raise WireError(_BAD, "the status is not a number from 100 to 999")
        phrase = line[13:]
        if len(phrase.translate(None, _CONTROLS)) != len(phrase):
            raise WireError(_BAD, "a control byte in the reason phrase")
        self._http_1_0 = line[7] == 48
        self._status = int(digits)
        self._reason_phrase = phrase

    def _validate_line_begun(self, line: bytes) -> None:
        beginning = line[:9]
        if not b"HTTP/1.1 ".startswith(beginning) and not b"HTTP/1.0 ".startswith(beginning):
            raise WireError(_BAD, "the response does not begin with HTTP/1.1 or HTTP/1.0")

    def _for_grammar(self, head: bytes, line_end: int) -> bytes:
        if not self._fields.length_repeated:
            return head
        line_end += 2
        fields = without_lengths(head[line_end:])
        return b"%bContent-Length: %d\r\n%b" % (head[:line_end], self._fields.content_length, fields)

    def _ends_with_head(self) -> bool:
        return self._state == HEAD and (self._head_request or self._status < 200 or self._status in _WITHOUT_BODY)

    def _judge_head(self) -> None:
        fields = self._fields
        status = self._status
        length = fields.content_length
        fields.check_framing(self._http_1_0)
        self.keep_alive = fields.keep_alive(self._http_1_0)
        self.keep_alive_s = fields.keep_alive_s
        if status < 200:
            self._judge_interim()
            length = UNKNOWN_LENGTH
        elif status == 204:
            # A 204 must have neither field (RFC 9112 6.1, RFC 9110 8.6), so this pod may send an unexpected body.
            if fields.chunked or length > 0:
                self.keep_alive = False
            length = UNKNOWN_LENGTH
        elif status != 304 and not self._head_request:
            self._expect_body(length)
        has_body = self._state != HEAD
        head = ResponseHead(status, self._reason_phrase, fields.end_to_end(), length, has_body)
        if status == 426 and fields.protocols:  # a 426 must have Upgrade (RFC 9110 15.5.22)
            head.headers = head.headers.with_line(b"Upgrade", fields.protocols).with_line(b"Connection", b"upgrade")
        elif status == 101:
            head.upgrade = self._judge_switch()
        self._head = head

    def _judge_switch(self) -> bytes:
        """Return the protocol of a 101. Raises WireError if the request did not offer it."""
        protocols = tokens(self._fields.protocols)
        if not self._upgrade:
            raise WireError(_BAD, "the pod switched protocols, but the request offered no upgrade")
        if self._http_1_0 or not self._fields.has_upgrade or len(protocols) != 1:
            raise WireError(_BAD, "a 101 that does not name one protocol in Upgrade")
        if protocols[0] not in tokens(self._upgrade):
            raise WireError(_BAD, "the pod switched to a protocol that the request did not offer")
        return protocols[0]

    def _judge_interim(self) -> None:
        """Validate a 1xx response, which has no body."""
        # Some servers send a length here, against RFC 9110 8.6. An interim response always ends with its head, so the
        # length is harmless. Behind a 101 it is ambiguous.
        if self._fields.chunked or (self._status == 101 and self._fields.content_length > 0):
            raise WireError(_BAD, "a 1xx response with a body")
        self._grammar_spoilt = True  # after `Connection: close` or HTTP/1.0, llhttp expects no other response
        self._interims += 1
        if self._interims > INTERIM_RESPONSES_MAX:
            raise WireError(_BAD, "too many 1xx responses")

    def _expect_body(self, length: int) -> None:
        """Set the state for the body that the framing fields announce; `length` is Content-Length, or negative."""
        if self._fields.chunked:
            self._state = CHUNKED
            self.body_remaining = -1
        elif length > 0:
            self._state = LENGTH
            self.body_remaining = length
        elif length < 0:
            self._state = UNTIL_EOF
            self.body_remaining = -1
            self.keep_alive = False

    def _is_repeatable(self) -> bool:
        fields = self._fields
        return (
            self.keep_alive
            and not self._http_1_0
            and not self._head_request
            and self._status >= 200
            and self._status not in _WITHOUT_BODY
            and fields.content_length >= 0
            and not fields.chunked
            and not fields.length_repeated
            and not fields.proxy_connection
        )

    def _deliver_head(self) -> None:
        head = self._head
        assert head is not None
        self._head = None
        if head.status >= 200:
            self._sink.response_head(head)
        elif head.status == 101:
            self.tunnelling = True
            self.keep_alive = False
            self._stopped = True  # `_take_rest` and `feed` deliver the bytes of the tunnel
            self._sink.response_head(head)
        else:
            self._sink.interim_head(head)

    def _deliver_body(self, data: bytes) -> None:
        self._sink.response_body(data)

    def _deliver_end(self, trailers: Headers, bytes_left: int) -> None:
        if self._status < 200:
            return
        self._stopped = True
        if bytes_left > 0:
            self._spoil(_unexpected())  # before the sink can reuse the connection for the next request
        self.complete = True
        self._sink.response_end(trailers)


def _unexpected() -> WireError:
    return WireError(_BAD, "the pod sent bytes that no request had asked for")
