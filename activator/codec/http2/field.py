"""A header field of HTTP/2 and its kind, by its meaning to a proxy.

Rules
  1. A field is classified once, when its literal is decoded. It is then kept in a table, and a head that refers to it
     only reads its `kind`.
  2. The kinds from MALFORMED_FROM on are malformed in every head and trailer section of a request (RFC 9113 8.1.1).
     The reader of a head checks the fields that only some heads may have (TE, Content-Length, pseudo-header fields).
  3. A field that HTTP/1.1 cannot carry has no line, so that blocks of lines never contain CR, LF or NUL.
  4. Fields are immutable: tables, heads and a cache share the same object.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.http1.field_names import is_claim, is_internal
from lb import COMPILED

_COMPILED: Final[bool] = COMPILED

ORDINARY: Final = 0
# Pseudo-header fields (RFC 9113 8.3, RFC 8441 4).
METHOD: Final = 1
SCHEME: Final = 2
PATH: Final = 3
AUTHORITY: Final = 4
PROTOCOL: Final = 5
STATUS: Final = 6
PSEUDO_MAX: Final = STATUS  # ORDINARY < kind <= PSEUDO_MAX: a pseudo-header field that has a meaning
# Fields that a proxy reads, as in http1/fields.
HOST: Final = 7
LENGTH: Final = 8
COOKIE: Final = 9  # a client may cut it into several fields (RFC 9113 8.2.3)
TE: Final = 10
CLAIM: Final = 11  # a client's claim about its own origin
TRACE: Final = 12  # traceparent
INTERNAL: Final = 13  # a name that only Knative's components and this program use
EXPECT: Final = 14
HOP: Final = 15  # any other hop-by-hop field, which is not forwarded
# Fields that no head may have.
ALIAS: Final = 16  # a name that a pod may mistake for a framing field
CONNECTION_SPECIFIC: Final = 17  # RFC 9113 8.2.2
OTHER_PSEUDO: Final = 18  # an unknown pseudo-header field
MALFORMED: Final = 19  # RFC 9113 8.2.1, or a value that HTTP/1.1 cannot carry (RFC 9110 5.5)
MALFORMED_FROM: Final = ALIAS

OVERHEAD: Final = 32  # bytes per entry of a table besides name and value (RFC 7541 4.1)
LINE_OVERHEAD: Final = 4  # bytes per line in HTTP/1.1 besides name and value: colon, space, CR, LF

_KINDS: Final[dict[bytes, int]] = {
    b":method": METHOD,
    b":scheme": SCHEME,
    b":path": PATH,
    b":authority": AUTHORITY,
    b":protocol": PROTOCOL,
    b":status": STATUS,
    b"host": HOST,
    b"content-length": LENGTH,
    b"cookie": COOKIE,
    b"te": TE,
    b"traceparent": TRACE,
    b"expect": EXPECT,
    b"proxy-authenticate": HOP,
    b"proxy-authorization": HOP,
    b"content_length": ALIAS,
    b"transfer_encoding": ALIAS,
    b"connection": CONNECTION_SPECIFIC,
    b"proxy-connection": CONNECTION_SPECIFIC,
    b"keep-alive": CONNECTION_SPECIFIC,
    b"transfer-encoding": CONNECTION_SPECIFIC,
    b"upgrade": CONNECTION_SPECIFIC,
}

_HTAB: Final = 9
_SPACE: Final = 32
_DELETE: Final = 127
_COLON: Final = 58
_A: Final = 97
_C: Final = 99
_F: Final = 102
_K: Final = 107
_R: Final = 114
_T: Final = 116
_X: Final = 120

_NAME_BYTES: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"  # RFC 9110 5.6.2, without capitals
_IN_NAME: Final[bytes] = bytes(1 if byte in _NAME_BYTES else 0 for byte in range(256))
_CONTROLS: Final = bytes(range(0x09)) + bytes(range(0x0A, 0x20)) + b"\x7f"


@final
class Field:
    """A header field: `name: value`.

    `line` is the field as a `Fields` block of message.py holds it, CRLF in front; empty for a pseudo-header field and
    for one of kind MALFORMED. `size` is the size of its entry in a table, in bytes (RFC 7541 4.1). If `never_indexed`
    is set, the field must be forwarded as a literal that is never indexed (RFC 7541 6.2.3).
    """

    def __init__(self, name: bytes, value: bytes, name_kind: i64, never_indexed: bool) -> None:
        """Make a field; `name_kind` is the result of this module's function for the name."""
        self.name = name
        self.value = value
        self.name_kind: i64 = name_kind
        self.size: i64 = len(name) + len(value) + OVERHEAD
        self.never_indexed: bool = never_indexed
        if not is_value(value):
            self.kind: i64 = MALFORMED
            self.line: bytes = b""
        else:
            self.kind = name_kind
            if ORDINARY < name_kind <= PSEUDO_MAX or name_kind >= OTHER_PSEUDO:
                self.line = b""
            else:
                self.line = b"\r\n%b: %b" % (name, value)

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.value!r}, kind={self.kind})"


def field_of(name: bytes, value: bytes, never_indexed: bool = False) -> Field:
    """Return a field that was not received from a peer."""
    return Field(name, value, name_kind(name), never_indexed)


def name_kind(name: bytes) -> i64:
    """Return the kind of a field with this name and a well-formed value."""
    size: i64 = len(name)
    if size == 0:
        return MALFORMED
    first: i64 = name[0]
    if first == _COLON:
        return _KINDS.get(name, OTHER_PSEUDO)
    if not _is_name(name):
        return MALFORMED
    if first == _A:
        # A shortcut for accept, accept-encoding and others, which nearly every head has.
        if size < 3 or name[1] != _C or name[2] != _T:
            return ORDINARY
        return INTERNAL if is_internal(name) else ORDINARY
    if first == _X:
        if size < 3 or (name[2] != _F and name[2] != _R):
            return ORDINARY
        return CLAIM if is_claim(name) else ORDINARY
    kind: i64 = _KINDS.get(name, ORDINARY)
    if kind == ORDINARY:
        if first == _K and is_internal(name):
            return INTERNAL
        if first == _F and is_claim(name):
            return CLAIM
    return kind


def _is_name(name: bytes) -> bool:
    """Return True if `name` is a token without capital letters (RFC 9113 8.2.1, RFC 9110 5.6.2)."""
    if not _COMPILED:
        return not name.translate(None, _NAME_BYTES)
    pos: i64 = 0
    size: i64 = len(name)
    while pos < size:
        if _IN_NAME[name[pos]] == 0:
            return False
        pos += 1
    return True


def is_value(value: bytes) -> bool:
    """Return True if there is no control byte but HTAB, and no whitespace at an end (RFC 9113 8.2.1, RFC 9110 5.5)."""
    size: i64 = len(value)
    if size == 0:
        return True
    first: i64 = value[0]
    last: i64 = value[size - 1]
    if first <= _SPACE or last <= _SPACE:  # whitespace, or a control byte
        return False
    if not _COMPILED:
        return len(value.translate(None, _CONTROLS)) == size
    pos: i64 = 0
    while pos < size:
        byte: i64 = value[pos]
        if (byte < _SPACE and byte != _HTAB) or byte == _DELETE:
            return False
        pos += 1
    return True
