"""The header fields of one head: they are found in its bytes, classified and validated.

Rules
  1. This module returns only end-to-end fields as headers (RFC 9110 7.6.1): no framing fields, no hop-by-hop fields,
     and none that Connection names. The exception is the pair `TE: trailers`, `Connection: TE`, which a proxy may send.
  2. llhttp checks the grammar of the same bytes before any result of this module is used. This module finds only the
     fields that mean something to a proxy; the others stay unparsed in one block. If llhttp delivered the fields one by
     one, its own part would take 4.4 us instead of 1.4 for a head of 12 fields.
  3. Names are classified in field_names.py, whose rule on the cost of bytes and of methods also holds for the end of a
     line: `end_of_line` has a second form for plain Python.
  4. Framing that can be read in two ways is refused, never guessed (RFC 9112 6.1, 6.3, 11.2).
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from activator.codec.http1.field_names import (
    ALIAS,
    CLAIM,
    CODING,
    CONNECTION,
    HOST,
    INTERNAL,
    KEEP_ALIVE,
    LENGTH,
    ORDINARY,
    PROXY_CONNECTION,
    TE,
    TRACE,
    UPGRADE,
    is_alias,
    is_claim,
    is_internal,
    kind_of,
)
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, pairs_of
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from lb import COMPILED

_COMPILED: Final[bool] = COMPILED  # reading a constant of this module takes 1 ns, an imported one 30
_LENGTH_DIGITS_MAX: Final = 19
_LENGTH_MAX: Final = 2**63 - 1  # the largest value in pods written in C or Go; llhttp accepts 2**64 - 1
_LENGTH_DIGITS_NATIVE: Final = 18  # a number of this many digits always fits into an i64
_LF: Final = 10
_CR: Final = 13
_SPACE: Final = 32
_ZERO: Final = 48
# The first letters of all names in field_names.py, as bits: letter & 31 is its place in the alphabet.
_FIRST_LETTERS: Final = 1 << 1 | 1 << 3 | 1 << 6 | 1 << 8 | 1 << 11 | 1 << 16 | 1 << 20 | 1 << 21 | 1 << 24
_PROTECTED: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})  # Connection must not name them

# RFC 9110 6.5.1: fields for framing, routing, authentication, request modifiers, response control and content format
# are useless or dangerous after the body, because a recipient that merges trailers into headers would act on them.
NOT_IN_TRAILERS: Final = frozenset({
    b"accept", b"accept-charset", b"accept-encoding", b"accept-language", b"age", b"authorization", b"cache-control",
    b"connection", b"content-encoding", b"content-range", b"content-type", b"cookie", b"date", b"expect", b"expires",
    b"forwarded", b"from", b"if-match", b"if-modified-since", b"if-none-match", b"if-range", b"if-unmodified-since",
    b"keep-alive", b"location", b"max-forwards", b"pragma", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"range", b"referer", b"retry-after", b"set-cookie", b"te", b"trailer", b"upgrade",
    b"user-agent", b"vary", b"via", b"warning", b"www-authenticate",
})  # fmt: skip


_LENGTH_NAME: Final = b"content-length:"
_FIELD_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")  # RFC 9110 5.6.2, 5.5


class FieldValidator:
    """The classified fields of one head; `read` discards the previous head."""

    def __init__(self, bad: Reason, too_large: Reason, coding: Reason, fields_max: i64, is_request: bool) -> None:
        self._bad = bad
        self._is_request = is_request  # False: responses
        self._too_large = too_large
        self._coding = coding  # the reason for an unsupported transfer coding
        self._fields_max = fields_max
        self._named: list[bytes] = []  # names in Connection, except those with a meaning of their own
        self._claims: list[bytes] = []
        self._reset()

    def _reset(self) -> None:
        self._block: bytes = b""
        self._count: i64 = 0
        self.hosts: i64 = 0
        self.host_line: bytes = b""
        self.content_length: int = UNKNOWN_LENGTH
        self.length_repeated: bool = False  # a response repeated the same Content-Length
        self.chunked: bool = False
        self._other_coding: bool = False
        self.has_close: bool = False
        self.has_keep_alive: bool = False
        self.has_upgrade: bool = False
        self.proxy_connection: bool = False  # Proxy-Connection is present: dropped here, but llhttp acts on it
        self.protocols: bytes = b""  # the value of Upgrade
        self.has_internal: bool = False  # a field for this program or for Knative's components is present
        self.keep_alive_s: float = -1.0  # the peer's idle timeout from Keep-Alive; -1: not stated
        self.traceparent: bytes = b""  # the field line; several lines are joined, which makes the value invalid
        self._te_trailers: bool = False
        if self._named:
            self._named = []
        if self._claims:
            self._claims = []

    def read(self, data: bytes, line_end: i64, stop: i64) -> i64:
        """Classify the fields of the head whose first line ends at `line_end`, reading no byte at or behind `stop`.

        Return the position after the head, or -1 if it is not complete. `end_to_end` removes the fields that Connection
        names; all others to be removed are cut out of the block here, by position: in most heads none or two.

        Raises WireError if there are too many fields, or if one of them is invalid.
        """
        self._reset()
        kept = line_end  # the block contains all kept fields before this position
        block = b""
        pos = line_end + 2
        while True:
            end = end_of_line(data, pos, stop)
            if end <= pos:
                break
            self._count += 1
            if self._count > self._fields_max:
                raise WireError(self._too_large, "too many header fields")
            if _FIRST_LETTERS >> (data[pos] & 31) & 1:
                kind = kind_of(data, pos, end)
                if kind != ORDINARY and not self._record(kind, data[pos:end]):
                    if kept < pos - 2:
                        part = data[kept : pos - 2]
                        block = block + part if block else part
                    kept = end
            pos = end + 2
        if end < 0:
            return -1
        if kept < pos - 2:
            part = data[kept : pos - 2]
            block = block + part if block else part
        self._block = block
        return pos + 2

    # --- results for a head that llhttp has found well-formed ---

    def check_framing(self, http_1_0: bool) -> None:
        """Refuse framing that makes the end of the body ambiguous.

        Raises WireError for Transfer-Encoding with Content-Length, in HTTP/1.0, or with a coding other than chunked.
        """
        if self.chunked:
            if self.content_length >= 0:
                raise WireError(self._bad, "both Content-Length and Transfer-Encoding")
            if http_1_0:
                raise WireError(self._bad, "Transfer-Encoding in HTTP/1.0")
            if self._other_coding:
                raise WireError(self._coding, "a transfer coding other than chunked")

    def keep_alive(self, http_1_0: bool) -> bool:
        """Return True if the connection persists after this message (RFC 9112 9.3)."""
        if self.has_close:
            return False
        return self.has_keep_alive or not http_1_0

    def end_to_end(self) -> Fields:
        """Return the fields to forward."""
        block = self._block
        if self._named:
            block = _filtered(block, set(self._named), False)
        if self._te_trailers:
            block += b"\r\nTE: trailers\r\nConnection: TE"
        return Fields(block)

    def named(self) -> bytes:
        """Return the fields that Connection names, as a block."""
        return _filtered(self._block, set(self._named), True) if self._named else b""

    def claims(self) -> list[bytes]:
        """Return the lines about the request's origin, without those that Connection names."""
        if not self._claims:
            return []  # not the list itself, which the next head fills
        if not self._named:
            return self._claims
        named = set(self._named)  # a set, because a hostile client may name thousands
        return [line for line in self._claims if line.partition(b":")[0].lower() not in named]

    def trailers(self, section: bytes) -> Headers:
        """Return the fields of a trailer section that may be forwarded. `section` excludes the last, empty line.

        Raises WireError if there are too many fields, if one is malformed, or if a request has Host or a framing field.
        """
        if not section:
            return []
        lines = section.split(b"\r\n")
        lines.pop()  # the text after the last CRLF
        if len(lines) + self._count > self._fields_max:
            raise WireError(self._too_large, "too many header fields")
        if not all(map(_FIELD_LINE.fullmatch, lines)):
            raise WireError(self._bad, "a trailer is malformed")
        kept: Headers = []
        for pair in pairs_of(lines):
            lowered = pair[0].lower()
            if lowered in _PROTECTED or is_alias(lowered):
                if self._is_request:
                    raise WireError(self._bad, "a framing field or Host in the trailers")
                continue
            if lowered in NOT_IN_TRAILERS or is_claim(lowered) or (self._is_request and is_internal(lowered)):
                continue
            kept.append(pair)
        return kept

    # --- internals ---

    def _record(self, kind: i64, line: bytes) -> bool:
        """Record the field's value. Return True if its line stays in the block."""
        if kind == HOST:
            self.hosts += 1
            self.host_line = line
            return True
        if kind == LENGTH:
            self._read_length(line)
        elif kind == CONNECTION:
            self._read_connection(line)
        elif kind == CODING:
            self._read_coding(line)
        elif kind == UPGRADE:
            value = value_of(line)
            self.protocols = self.protocols + b"," + value if self.protocols else value
        elif kind == TE:
            if b"trailers" in tokens(value_of(line)):
                self._te_trailers = True
        elif kind == PROXY_CONNECTION:
            self.proxy_connection = True
        elif kind == CLAIM:
            return self._record_claim(line)
        elif kind == KEEP_ALIVE:
            self._read_keep_alive(line)
        elif kind == TRACE:
            self.traceparent = self.traceparent + b", " + line if self.traceparent else line
            return True
        elif kind == INTERNAL:
            self.has_internal = True
            return True
        elif kind == ALIAS:
            raise WireError(self._bad, "a field name that may be taken for a framing field")
        return False

    def _record_claim(self, line: bytes) -> bool:
        """Keep a request's claim for `claims`. Return True if the line stays in the block, as in a response."""
        if self._is_request:
            self._claims.append(line)
        return not self._is_request

    def _read_length(self, line: bytes) -> None:
        """Read Content-Length. Raises WireError if it is invalid, or if a request repeats it."""
        if self.content_length >= 0:
            self._read_length_again(value_of(line))
            return
        # The usual spelling is parsed byte by byte: 20 ns, where strip, isdigit and int take 200.
        size: i64 = len(line)
        start: i64 = 15
        if size > start and line[start] == _SPACE:
            start += 1
        length: i64 = 0
        if _COMPILED and start < size <= start + _LENGTH_DIGITS_NATIVE:
            pos = start
            while pos < size:
                digit: i64 = line[pos] - _ZERO
                if digit < 0 or digit > 9:
                    break
                length = length * 10 + digit
                pos += 1
            if pos == size:
                self.content_length = length
                return
        digits = value_of(line)
        if b"," in digits and not self._is_request:
            digits, _, others = digits.partition(b",")
            digits = digits.strip(b" \t")
            self.content_length = _parse_length(digits, self._bad)
            self._read_length_again(others)
            return
        self.content_length = _parse_length(digits, self._bad)

    def _read_length_again(self, value: bytes) -> None:
        """Accept repeated equal lengths (RFC 9112 6.3), but only in responses, where old servers send them."""
        if self._is_request or any(
            _parse_length(one.strip(b" \t"), self._bad) != self.content_length for one in value.split(b",")
        ):
            raise WireError(self._bad, "Content-Length more than once")
        self.length_repeated = True

    def _read_coding(self, line: bytes) -> None:
        """Accept exactly one `chunked`: recipients differ on which coding of a list is the last."""
        value = value_of(line).lower()
        if self.chunked:
            raise WireError(self._bad, "Transfer-Encoding more than once")
        if value != b"chunked":
            # A well-formed list that ends with chunked is an unsupported coding (RFC 9112 6.1); any other is malformed.
            codings = [coding.strip(b" \t") for coding in value.split(b",")]
            if codings.pop() != b"chunked" or b"chunked" in codings or not all(map(_is_coding, codings)):
                raise WireError(self._bad, "a Transfer-Encoding other than chunked")
            self._other_coding = True
        self.chunked = True

    def _read_keep_alive(self, line: bytes) -> None:
        """Read the timeout of `timeout=5, max=100`: not standardised, but used by Node, Apache and others."""
        for token in tokens(value_of(line)):
            name, _, seconds = token.partition(b"=")
            if name == b"timeout" and seconds.isdigit() and len(seconds) < _LENGTH_DIGITS_NATIVE:
                self.keep_alive_s = float(int(seconds))

    def _read_connection(self, line: bytes) -> None:
        """Read Connection. Raises WireError if it names a protected field."""
        if line == b"Connection: keep-alive":
            self.has_keep_alive = True
            return
        if line == b"Connection: close":
            self.has_close = True
            return
        for token in tokens(value_of(line)):
            if token == b"keep-alive":
                self.has_keep_alive = True
            elif token == b"close":
                self.has_close = True
            elif token == b"upgrade":
                self.has_upgrade = True
            elif token in _PROTECTED:
                raise WireError(self._bad, "Connection names a field that must not be removed")
            else:
                self._named.append(token)


def end_of_line(data: bytes, pos: i64, stop: i64) -> i64:
    """Return the position of the first CRLF within `data[pos:stop]`; -1 if there is none."""
    if not _COMPILED:
        return data.find(b"\r\n", pos, stop)
    # Testing every second byte is enough, because it is either the CR or the LF. Compiled, a head of 650 bytes takes
    # 0.4 us in this way; finding its end and splitting it would take 1.9 us.
    probe = pos
    while probe < stop:
        byte: i64 = data[probe]
        if byte <= _CR:
            if byte == _CR:
                if probe + 1 < stop and data[probe + 1] == _LF:
                    return probe
            elif byte == _LF and probe > pos and data[probe - 1] == _CR:
                return probe - 1
        probe += 2
    return -1


def internal_names(head: RequestHead) -> frozenset[bytes]:
    """Return the lowered names of the fields that only Knative's components and this program use."""
    lines = head.headers.block.split(b"\r\n")[1:]
    return frozenset([name for line in lines if is_internal(name := line.partition(b":")[0].lower())])


def _parse_length(digits: bytes, bad: Reason) -> int:
    """Return the length, at most _LENGTH_MAX. Raises WireError if it is no such number."""
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX or int(digits) > _LENGTH_MAX:
        raise WireError(bad, "Content-Length is not a length")
    return int(digits)


def _is_coding(text: bytes) -> bool:
    return text.isalnum()


def _filtered(block: bytes, names: set[bytes], keep: bool) -> bytes:
    """Return the fields with these names if `keep`, otherwise all others, as a block."""
    kept = [line for line in block.split(b"\r\n")[1:] if (line.partition(b":")[0].lower() in names) is keep]
    return b"".join([b"\r\n" + line for line in kept])


def value_of(line: bytes) -> bytes:
    """Return the value of a field line, without surrounding whitespace."""
    return line.partition(b":")[2].strip(b" \t")


def tokens(value: bytes) -> list[bytes]:
    """Return the members of a comma-separated list, lowered; empty ones are ignored (RFC 9110 5.6.1.2)."""
    if b"," not in value:
        only = value.strip(b" \t").lower()
        return [only] if only else []
    members = [member.strip(b" \t").lower() for member in value.split(b",")]
    return [member for member in members if member]


def without_lengths(lines: bytes) -> bytes:
    """Return the lines of a head without those of Content-Length. Each line includes its end."""
    if not lengths_in(lines):
        return lines
    return b"\r\n".join([line for line in lines.split(b"\r\n") if not line.lower().startswith(_LENGTH_NAME)])


def lengths_in(lines: bytes) -> list[bytes]:
    """Return the values of Content-Length in the lines of a head. Each line includes its end."""
    if _LENGTH_NAME not in lines.lower():
        return []
    found = [line for line in lines.split(b"\r\n") if line.lower().startswith(_LENGTH_NAME)]
    return [line[len(_LENGTH_NAME) :].strip(b" \t") for line in found]
