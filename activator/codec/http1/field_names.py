"""The names of header fields that mean something to a proxy, and the kind of a field by its name.

Rules
  1. Most fields are classified by their first letter, some also by the byte where a special name's colon would be. In
     compiled code an indexed byte costs 1 to 2 ns, a method of bytes (find, strip, lower) 40 to 100. In plain Python
     methods are cheaper, so `kind_of` has a second form for it, and the tests compare the two forms.
  2. Names that only differ in `-` and `_` are one name if a server could take one for the other.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from lb import COMPILED

_COMPILED: Final[bool] = COMPILED  # reading a constant of this module takes 1 ns, an imported one 30

# Kinds of fields, by their meaning to a proxy.
ORDINARY: Final = 0
HOST: Final = 1
LENGTH: Final = 2
CODING: Final = 3
CONNECTION: Final = 4
UPGRADE: Final = 5
TE: Final = 6
HOP: Final = 7  # any other hop-by-hop field
PROXY_CONNECTION: Final = 8
# Content_Length and Transfer_Encoding: servers that pass fields as environment variables (CGI, WSGI) cannot distinguish
# them from the framing fields.
ALIAS: Final = 9
KEEP_ALIVE: Final = 10
CLAIM: Final = 11  # a client's claim about its own origin; trusted or not, its line is never forwarded to the pod
TRACE: Final = 12  # end to end, and read by tracing
INTERNAL: Final = 13  # a name that only Knative's components and this program use

_COLON: Final = 58
_LOWER: Final = 32  # setting this bit lowers a letter and does not change a hyphen
_A: Final = 97
_C: Final = 99
_E: Final = 101
_F: Final = 102
_H: Final = 104
_K: Final = 107
_O: Final = 111
_P: Final = 112
_R: Final = 114
_T: Final = 116
_U: Final = 117
_X: Final = 120

_KINDS: Final[dict[bytes, int]] = {
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"upgrade": UPGRADE,
    b"te": TE,
    b"keep-alive": KEEP_ALIVE,
    b"proxy-connection": PROXY_CONNECTION,
    b"traceparent": TRACE,
    b"proxy-authenticate": HOP,
    b"proxy-authorization": HOP,
    b"content_length": ALIAS,
    b"transfer_encoding": ALIAS,
}
_CLAIM_PREFIX: Final = b"x-forwarded-"
_CLAIM_BYTES_MIN: Final = 10  # the length of "x-real-ip:"
_CLAIMS: Final = frozenset({b"x-real-ip", b"x-request-id", b"x-forwarded"})
_INTERNAL_PREFIXES: Final = (b"activator-", b"knative-serving-")


def kind_of(data: bytes, start: i64, end: i64) -> i64:
    """Return the kind of the field on this line, by its first letter and its colon's position, then by its name."""
    if not _COMPILED:
        return _kind_of_name(data[start:end].partition(b":")[0].lower())
    first: i64 = data[start] | _LOWER
    if first == _A and (end - start < 3 or data[start + 1] | _LOWER != _C or data[start + 2] | _LOWER != _T):
        return ORDINARY  # not Activator-, but for example Accept or Authorization
    if first == _X:
        if end - start < _CLAIM_BYTES_MIN:
            return ORDINARY
        third: i64 = data[start + 2] | _LOWER
        fourth: i64 = data[start + 3] | _LOWER
        # x-forwarded-, x-real-ip, x-request-id
        if not ((third == _F and fourth == _O) or (third == _R and fourth == _E)):
            return ORDINARY
        return CLAIM if is_claim(data[start:end].partition(b":")[0].lower()) else ORDINARY
    if first == _C:
        if is_field(data, start, end, b"connection"):
            return CONNECTION
        return _kind_or_alias(data, start, end, LENGTH, b"content-length", b"content_length")
    if first == _P:
        return _proxy_kind(data, start, end)
    if first == _T:
        return _kind_with_t(data, start, end)
    return _single_kind(data, start, end, first)


def is_alias(lowered: bytes) -> bool:
    """Return True if a server could take the name for that of a framing field."""
    return _KINDS.get(lowered) == ALIAS


def _kind_of_name(lowered: bytes) -> int:
    if is_internal(lowered):
        return INTERNAL
    return CLAIM if is_claim(lowered) else _KINDS.get(lowered, ORDINARY)


def _kind_with_t(data: bytes, start: i64, end: i64) -> i64:
    """Return the kind of a field whose name begins with T."""
    if is_field(data, start, end, b"te"):
        return TE
    if is_field(data, start, end, b"traceparent"):
        return TRACE
    return _kind_or_alias(data, start, end, CODING, b"transfer-encoding", b"transfer_encoding")


def _single_kind(data: bytes, start: i64, end: i64, first: i64) -> i64:
    """Return the kind of a name whose first letter no other group of special names has."""
    if first == _H and is_field(data, start, end, b"host"):
        return HOST
    if first == _K:
        if is_field(data, start, end, b"keep-alive"):
            return KEEP_ALIVE
        return INTERNAL if is_internal(data[start:end].partition(b":")[0].lower()) else ORDINARY
    if first == _A:  # the caller has compared the second and third letters
        return INTERNAL if is_internal(data[start:end].partition(b":")[0].lower()) else ORDINARY
    if first == _F and is_field(data, start, end, b"forwarded"):
        return CLAIM
    if first == _U and is_field(data, start, end, b"upgrade"):
        return UPGRADE
    return ORDINARY


def is_internal(lowered: bytes) -> bool:
    """Return True if only Knative's components and this program use the name, in a spelling with `-` or `_`."""
    if not lowered.startswith((b"a", b"k")):
        return False
    name = lowered.replace(b"_", b"-")
    return name.startswith(_INTERNAL_PREFIXES) or name == b"k-original-host"


def is_claim(lowered: bytes) -> bool:
    """Return True if a field of this name is a client's claim about its own origin.

    Underscores count as hyphens, because servers that pass fields as environment variables cannot distinguish the two.
    """
    if not lowered.startswith(b"x"):
        return lowered == b"forwarded"
    name = lowered.replace(b"_", b"-")
    return name.startswith(_CLAIM_PREFIX) or name in _CLAIMS


def _kind_or_alias(data: bytes, start: i64, end: i64, kind: i64, name: bytes, alias: bytes) -> i64:
    """Return `kind` if the field has `name`, ALIAS if it has `alias`, both of one length, otherwise ORDINARY."""
    size: i64 = len(name)
    if end - start <= size or data[start + size] != _COLON:
        return ORDINARY
    if is_field(data, start, end, name):
        return kind
    return ALIAS if data[start : start + size].lower() == alias else ORDINARY


def _proxy_kind(data: bytes, start: i64, end: i64) -> i64:
    """Return the kind of a field whose name begins with P."""
    if is_field(data, start, end, b"proxy-connection"):
        return PROXY_CONNECTION
    if is_field(data, start, end, b"proxy-authorization") or is_field(data, start, end, b"proxy-authenticate"):
        return HOP
    return ORDINARY


def is_field(data: bytes, start: i64, end: i64, name: bytes) -> bool:
    """Return True if the line has this name, in any case. A bare CR passes for a hyphen, but llhttp refuses it."""
    size: i64 = len(name)
    if end - start <= size or data[start + size] != _COLON:
        return False
    pos: i64 = 0
    while pos < size and data[start + pos] | _LOWER == name[pos]:
        pos += 1
    return pos == size
