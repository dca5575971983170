"""Conversion between HTTP/2 fields and the program's heads and trailers (RFC 9113 section 8).

Rules
  1. A head that two servers could read in two ways is refused, never repaired: pseudo-header fields that are missing,
     repeated or misplaced, connection-specific fields, two hosts, an invalid length. The characters of each name and
     value were checked when the field was decoded (field.py).
  2. The result is the head that `codec/http1` would make from the same request in HTTP/1.1: `Host` is among the fields,
     the pieces of a cookie are one field (RFC 9113 8.2.3), claims and framing are removed. So it may be forwarded in
     either version.
  3. A field received as a literal that is never indexed is forwarded as one (RFC 7541 6.2.3).
  4. An extended CONNECT for a WebSocket (RFC 8441) is converted to a GET with `upgrade`, and back. The key that
     HTTP/1.1 requires is generated here.
"""

from __future__ import annotations

import base64
import os
from typing import Final

from mypy_extensions import i64

from activator.codec.http1.field_names import is_claim
from activator.codec.http1.fields import NOT_IN_TRAILERS
from activator.codec.http1.request import RequestLimits
from activator.codec.http1.serialise import PHRASES
from activator.codec.http1.target import check_authority, check_target, is_method
from activator.codec.http2.field import (
    ALIAS,
    AUTHORITY,
    CLAIM,
    CONNECTION_SPECIFIC,
    COOKIE,
    EXPECT,
    HOP,
    HOST,
    INTERNAL,
    LENGTH,
    METHOD,
    ORDINARY,
    PATH,
    PROTOCOL,
    PSEUDO_MAX,
    SCHEME,
    STATUS,
    TE,
    TRACE,
    Field,
)
from activator.codec.http2.hpack.encoder import NEVER_INDEXED, HpackEncoder, literal_start
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason

_AGAIN_BYTES_MAX: Final = 2048  # the largest head that is cached in case the same fields come again
_NO_FIELDS: Final[list[Field]] = []
_NO_LINES: Final[frozenset[bytes]] = frozenset()
_LENGTH_DIGITS_MAX: Final = 19
_LENGTH_MAX: Final = 2**63 - 1
_NEEDS_LENGTH: Final = frozenset({b"POST", b"PUT", b"PATCH"})  # servers of HTTP/1.1 require a length, even of 0
_BAD: Final = Reason.BAD_REQUEST
_BAD_RESPONSE: Final = Reason.BAD_RESPONSE
_REQUEST_ID: Final = b"\r\nX-Request-Id: "  # as headers/forwarding.py writes it, at the end
_REQUEST_ID_START: Final = literal_start(b"x-request-id")
_KEY: Final = frozenset({b"sec-websocket-key"})
_ACCEPT: Final = frozenset({b"sec-websocket-accept"})
_SCHEMES: Final = frozenset({b"http", b"https"})

# Fields that a head in HTTP/2 must not have (RFC 9113 8.2.2), or that are sent as pseudo-header fields.
NOT_IN_REQUESTS: Final = frozenset({b"host", b"connection", b"upgrade"})
NOT_IN_RESPONSES: Final = frozenset({b"connection", b"upgrade", b"keep-alive", b"proxy-connection"})
_KEPT_IN_RESPONSES: Final = frozenset({CLAIM, INTERNAL, TRACE, COOKIE, EXPECT})
_DROPPED_FROM_RESPONSES: Final = frozenset({HOP, TE, HOST})
_REFUSED_IN_TRAILERS: Final = frozenset({HOST, LENGTH, ALIAS})
_LENGTHS: Final[list[bytes]] = [b"%d" % length for length in range(1024)]
# int() of bytes takes 200 ns, a lookup 30.
_SMALL_LENGTHS: Final[dict[bytes, int]] = {digits: length for length, digits in enumerate(_LENGTHS)}
_STATUS_NUMBERS: Final[dict[bytes, int]] = {b"%d" % status: status for status in range(100, 1000)}


class RequestReader:
    """Converts the decoded header fields of one connection to request heads."""

    def __init__(self, limits: RequestLimits) -> None:
        self._target_max: i64 = limits.target_bytes
        self._body_max: int = limits.body_bytes
        # Caches: most connections repeat the same host, and often the same path.
        self._known_value: bytes = b""
        self._known_authority: bytes = b""
        self._known_line: bytes = b""
        self._known_path: bytes = b""
        self._known_target: bytes = b""
        self._lines: list[bytes] = []
        # The result of the last fields, in case the same list comes again.
        self._known_fields: list[Field] = _NO_FIELDS
        self._known_ended: bool = False
        self._block: bytes = b""
        self._never_indexed: frozenset[bytes] = _NO_LINES
        self._has_body: bool = False
        self._forget()

    def is_head(self) -> bool:
        """Return True if the last request, even if it was refused, is a HEAD."""
        return self._method == b"HEAD"

    def _forget(self) -> None:
        """Discard the previous request."""
        self._known_fields = _NO_FIELDS
        self._block = b""
        self._method = self._scheme = self._path = self._authority = self._protocol = b""
        self._host: bytes | None = None
        self._crumbs: list[bytes] = []  # the pieces of the cookie
        self._length: int = UNKNOWN_LENGTH
        self._claims: list[bytes] | None = None
        self._traceparent: bytes = b""
        self._has_internal: bool = False
        self._te: bool = False

    def read(self, fields: list[Field], ended: bool) -> RequestHead:
        """Return the request's head; no body follows if `ended`. Raises WireError, with BAD_REQUEST if it is malformed.

        If `fields` is the list of the last call, it is not checked again: the result is an equal head.
        """
        if fields is self._known_fields and ended == self._known_ended:
            return self._make_head()
        self._forget()
        lines = self._lines = [b""]  # the first line is replaced by Host
        never_indexed: list[bytes] = []
        seen: i64 = 0  # the kinds of pseudo-header fields read so far, as bits
        regular = False
        for field in fields:
            kind = field.kind
            if kind == ORDINARY:
                lines.append(field.line)
                regular = True
                if field.never_indexed and field.name not in NEVER_INDEXED:
                    never_indexed.append(field.line)
            elif kind <= PSEUDO_MAX:
                if regular or seen & (1 << kind):
                    raise WireError(_BAD, "a pseudo-header field in the wrong place, or twice")
                seen |= 1 << kind
                self._pseudo(kind, field.value)
            else:
                regular = True
                self._special(kind, field)
        upgrades = self._judge_method()
        if self._scheme not in _SCHEMES:
            raise WireError(_BAD, ":scheme is not http or https")
        self._judge_path(self._method, self._path)
        self._judge_authority(seen & (1 << AUTHORITY) != 0)
        lines[0] = self._known_line
        crumbs = self._crumbs
        if crumbs:
            lines.append(b"\r\ncookie: %b" % (crumbs[0] if len(crumbs) == 1 else b"; ".join(crumbs)))
        if self._te:
            lines.append(b"\r\nTE: trailers\r\nConnection: TE")
        if upgrades:
            lines.append(b"\r\nsec-websocket-key: %b" % base64.b64encode(os.urandom(16)))
            self._length = UNKNOWN_LENGTH
        self._has_body = False if upgrades else self._judge_length(ended)
        self._block = b"".join(lines)
        self._never_indexed = frozenset(never_indexed) if never_indexed else _NO_LINES
        head = self._make_head()
        if upgrades:
            head.upgrade = b"websocket"
        elif len(self._block) <= _AGAIN_BYTES_MAX:
            self._known_fields = fields
            self._known_ended = ended
        return head

    def _make_head(self) -> RequestHead:
        """Make a head from the validated fields."""
        headers = Fields(self._block)
        headers.never_indexed = self._never_indexed
        head = RequestHead(
            self._method, self._known_target, self._known_authority, headers, self._length, self._has_body
        )
        if self._claims is not None:
            head.claims = self._claims
        head.traceparent = self._traceparent
        head.has_internal = self._has_internal
        head.takes_trailers = self._te
        return head

    def _pseudo(self, kind: i64, value: bytes) -> None:
        if kind == METHOD:
            self._method = value
        elif kind == PATH:
            self._path = value
        elif kind == SCHEME:
            self._scheme = value
        elif kind == AUTHORITY:
            self._authority = value
        elif kind == PROTOCOL:
            self._protocol = value
        else:
            raise WireError(_BAD, "a pseudo-header field that requests do not have")

    def _special(self, kind: i64, field: Field) -> None:
        """Record a regular field that has a meaning to a proxy, or refuse it."""
        if kind == COOKIE:
            if field.value:
                self._crumbs.append(field.value)
        elif kind == LENGTH:
            if self._length >= 0:
                raise WireError(_BAD, "Content-Length more than once")
            self._length = _length_of(field.value, _BAD)
        elif kind == HOST:
            if self._host is not None:
                raise WireError(_BAD, "Host more than once")
            self._host = field.value
        elif kind == CLAIM:
            if self._claims is None:
                self._claims = []
            self._claims.append(field.line[2:])
        elif kind == TRACE:
            line = field.line[2:]
            self._traceparent = b"%b, %b" % (self._traceparent, line) if self._traceparent else line
            self._lines.append(field.line)
        elif kind in {INTERNAL, EXPECT}:
            self._has_internal = self._has_internal or kind == INTERNAL
            self._lines.append(field.line)
        elif kind == TE:
            if field.value.lower() != b"trailers":
                raise WireError(_BAD, "TE other than trailers")
            self._te = True
        elif kind != HOP:
            raise _malformed(kind, _BAD)

    def _judge_method(self) -> bool:
        """Validate the method. Return True if the request is an extended CONNECT for a WebSocket."""
        method = self._method
        protocol = self._protocol
        if method == b"CONNECT":
            if not protocol:
                raise WireError(Reason.METHOD_NOT_SUPPORTED, "CONNECT")
            if protocol.lower() != b"websocket":
                raise WireError(Reason.UPGRADE_NOT_SUPPORTED, "")
            self._method = b"GET"
            return True
        if protocol:
            raise WireError(_BAD, ":protocol without CONNECT")
        if not is_method(method):
            raise WireError(_BAD, "the method is not a token")
        return False

    def _judge_length(self, ended: bool) -> bool:
        """Validate the length. Return True if a body follows."""
        length = self._length
        if ended:
            if length > 0:
                raise WireError(_BAD, "content-length is not the length of the body")
            if self._method in _NEEDS_LENGTH:
                self._length = 0
            return False
        if self._method == b"TRACE":
            raise WireError(_BAD, "a body on TRACE")
        if length > self._body_max > 0:
            raise WireError(Reason.BODY_TOO_LARGE, "the body is too large")
        return length != 0

    def _judge_path(self, method: bytes, path: bytes) -> None:
        """Set `_known_target` to the path to forward. Raises WireError if it is too long or no path."""
        if path == self._known_path and path != b"*" and path:
            return
        if len(path) > self._target_max:
            raise WireError(Reason.TARGET_TOO_LONG, "the target is too long")
        if not path.startswith(b"/") and not (path == b"*" and method == b"OPTIONS"):
            raise WireError(_BAD, ":path is not a path")
        self._known_target = check_target(path)
        self._known_path = path

    def _judge_authority(self, has_authority: bool) -> None:
        """Require :authority or Host, and that they agree if both are present (RFC 9113 8.3.1)."""
        value = self._authority
        host = self._host
        if not has_authority:
            if host is None:
                raise WireError(_BAD, "neither :authority nor Host")
            value = host
        elif host is not None and host != value and check_authority(host) != check_authority(value):
            raise WireError(_BAD, ":authority and Host contradict each other")
        if value != self._known_value or not value:
            self._known_authority = check_authority(value)
            self._known_value = value
            self._known_line = b"\r\nHost: %b" % self._known_authority


class ResponseReader:
    """The converter of one connection's fields to response heads."""

    def __init__(self) -> None:
        # The result of the last fields, in case the same list comes again.
        self._known_fields: list[Field] = _NO_FIELDS
        self._known_ended: bool = False
        self._known_head_request: bool = False
        self._status: int = 0
        self._block: bytes = b""
        self._never_indexed: frozenset[bytes] = _NO_LINES
        self._length: int = UNKNOWN_LENGTH
        self._has_body: bool = False

    def read(self, fields: list[Field], ended: bool, head_request: bool) -> ResponseHead:
        """Return the head of a final or interim response; no body follows if `ended`. Raises WireError if malformed.

        If `fields` is the list of the last call, it is not checked again: the result is an equal head.
        """
        if fields is self._known_fields and ended == self._known_ended and head_request == self._known_head_request:
            headers = Fields(self._block)
            headers.never_indexed = self._never_indexed
            status = self._status
            return ResponseHead(status, PHRASES.get(status, b""), headers, self._length, self._has_body)
        head = self._read(fields, ended, head_request)
        headers = head.headers
        if len(headers.block) <= _AGAIN_BYTES_MAX:
            self._known_fields = fields
            self._known_ended = ended
            self._known_head_request = head_request
            self._status = head.status
            self._block = headers.block
            self._never_indexed = headers.never_indexed
            self._length = head.content_length
            self._has_body = head.has_body
        return head

    def _read(self, fields: list[Field], ended: bool, head_request: bool) -> ResponseHead:
        lines: list[bytes] = []
        status = b""
        length: int = UNKNOWN_LENGTH
        never_indexed: list[bytes] = []
        regular = False
        for field in fields:
            kind = field.kind
            if kind == ORDINARY or kind in _KEPT_IN_RESPONSES:
                lines.append(field.line)
                regular = True
                if field.never_indexed and field.name not in NEVER_INDEXED:
                    never_indexed.append(field.line)
            elif kind == STATUS:
                if regular or status:
                    raise WireError(_BAD_RESPONSE, ":status in the wrong place, or twice")
                status = field.value
            else:
                regular = True
                if kind == LENGTH:
                    length = _same_length(length, field.value)
                elif kind not in _DROPPED_FROM_RESPONSES:
                    raise _malformed(kind, _BAD_RESPONSE)
        number = _STATUS_NUMBERS.get(status, 0)
        if number == 0:
            raise WireError(_BAD_RESPONSE, ":status is not a number from 100 to 999")
        headers = _fields_of(lines, never_indexed)
        if number < 200:
            if number == 101 or ended:
                raise WireError(_BAD_RESPONSE, "a 101 in HTTP/2, or a 1xx response that ends the stream")
            return ResponseHead(number, PHRASES.get(number, b""), headers, UNKNOWN_LENGTH, False)
        if number == 204 or number == 304 or head_request:
            length = UNKNOWN_LENGTH if number == 204 else length
            return ResponseHead(number, PHRASES.get(number, b""), headers, length, False)
        if ended:
            if length > 0:
                raise WireError(_BAD_RESPONSE, "content-length is not the length of the body")
            length = 0
        return ResponseHead(number, PHRASES.get(number, b""), headers, length, not ended and length != 0)


def _fields_of(lines: list[bytes], never_indexed: list[bytes]) -> Fields:
    fields = Fields(b"".join(lines))
    if never_indexed:
        fields.never_indexed = frozenset(never_indexed)
    return fields


def _same_length(length: int, value: bytes) -> int:
    """Return the length in `value`, which may repeat an equal `length` (RFC 9110 8.6). Raises WireError otherwise."""
    again = _length_of(value, _BAD_RESPONSE)
    if 0 <= length != again:
        raise WireError(_BAD_RESPONSE, "Content-Length more than once")
    return again


def trailers_of(fields: list[Field], is_whole: bool, of_request: bool) -> Headers:
    """Return the trailers that may be forwarded. Raises WireError if they are malformed or too many.

    Framing fields and Host are refused in requests, as in HTTP/1.1, and dropped from responses. Fields that only
    Knative's components and this program use are dropped from requests.
    """
    bad = _BAD if of_request else _BAD_RESPONSE
    if not is_whole:
        raise WireError(bad, "the trailers are too large")
    kept: Headers = []
    for field in fields:
        kind = field.kind
        if ORDINARY < kind <= PSEUDO_MAX or kind >= CONNECTION_SPECIFIC:
            raise WireError(bad, "a trailer is malformed")
        if kind in _REFUSED_IN_TRAILERS:
            if of_request:
                raise WireError(bad, "a framing field or Host in the trailers")
            continue
        if field.name in NOT_IN_TRAILERS or is_claim(field.name) or (of_request and kind == INTERNAL):
            continue
        kept.append((field.name, field.value))
    return kept


# --- writing ---


def write_request(encoder: HpackEncoder, head: RequestHead, default_authority: bytes, secure: bool) -> bytes:
    """Return the field section of a request to a pod; `default_authority` is used if the client named none."""
    block = head.headers.block
    method = head.method
    if head.upgrade == b"websocket":
        method = b"CONNECT"
        block = head.headers.without(_KEY).block
    authority = head.authority or default_authority
    encoder.add_request_line(method, b"https" if secure else b"http", authority, head.target)
    if head.upgrade == b"websocket":
        encoder.add(b":protocol", b"websocket")
    if head.content_length >= 0:
        encoder.add(b"content-length", _length(head.content_length))
    # The last line is usually the request's id. It is encoded separately, because the lines before it tend to repeat.
    last = block.rfind(b"\r\n")
    never_indexed = head.headers.never_indexed
    if last > 0:
        encoder.add_lines(block[:last], never_indexed)
        block = block[last:]
    if block.startswith(_REQUEST_ID) and not never_indexed:
        encoder.add_once(_REQUEST_ID_START, block[len(_REQUEST_ID) :].strip(b" \t"))
    else:
        encoder.add_lines(block, never_indexed)
    return encoder.finish()


def write_response(encoder: HpackEncoder, head: ResponseHead) -> bytes:
    """Return the field section of a response to a client; a 101, which HTTP/2 lacks, becomes a 200 (RFC 8441 5)."""
    encoder.add_status(200 if head.status == 101 else head.status)
    if head.content_length >= 0 and (head.has_body or head.content_length > 0):
        encoder.add(b"content-length", _length(head.content_length))
    block = head.headers.block
    if head.status == 101:
        block = head.headers.without(_ACCEPT).block
    encoder.add_lines(block, head.headers.never_indexed)
    return encoder.finish()


def write_trailers(encoder: HpackEncoder, trailers: Headers) -> bytes:
    encoder.add_lines(Fields.from_pairs(trailers).block)
    return encoder.finish()


# --- internals ---


def _length(length: int) -> bytes:
    return _LENGTHS[length] if length < 1024 else b"%d" % length


def _length_of(digits: bytes, bad: Reason) -> int:
    small = _SMALL_LENGTHS.get(digits)
    if small is not None:
        return small
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX or int(digits) > _LENGTH_MAX:
        raise WireError(bad, "Content-Length is not a length")
    return int(digits)


def _malformed(kind: i64, bad: Reason) -> WireError:
    """Return the error for a field that this head must not have."""
    if kind == CONNECTION_SPECIFIC:
        return WireError(bad, "a field that only HTTP/1.1 has")
    if kind == ALIAS:
        return WireError(bad, "a field name that may be taken for a framing field")
    return WireError(bad, "a field name or value is malformed")
