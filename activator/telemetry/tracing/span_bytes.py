"""Spans as OTLP has them on the wire (opentelemetry-proto, trace/v1), written without an object in between.

Rules
  1. A span is encoded once, when its request is over. An object for the SDK and its encoder took ten times as long, and
     kept the loop waiting for a thread. What is sent is a few bytes around many spans.
  2. Every text is UTF-8: callers give `str`, or bytes that are ASCII.
  3. What this writes, the classes that protoc makes of the standard read; the tests compare field by field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

AttributeValue = str | bool | int | float

KIND_INTERNAL: Final = 1
KIND_SERVER: Final = 2
KIND_CLIENT: Final = 3

# A tag is the number of a field and how its value is written (2: a length and so many bytes), which fits into a byte
# for the first fifteen.
_SHORT_MAX: Final = 1024  # lengths of nearly everything here
_TIMES: Final = Struct("<BQBQ")
_EVENT_TIME: Final = Struct("<BQ")
_DOUBLE: Final = Struct("<Bd")
_MASK_64: Final = (1 << 64) - 1
# Field 16 as four bytes: sampled, and it is known whether the parent is remote: no, and yes.
_OWN_PARENT: Final = b"\x85\x01\x01\x01\x00\x00"
_REMOTE_PARENT: Final = b"\x85\x01\x01\x03\x00\x00"
_STATUS_ERROR: Final = b"\x18\x02"


def _long_varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_VARINTS: Final[list[bytes]] = [_long_varint(value) for value in range(_SHORT_MAX)]


def varint(value: int) -> bytes:
    """Of a number that is not negative."""
    return _VARINTS[value] if value < _SHORT_MAX else _long_varint(value)


def text_attribute(name: bytes, value: str) -> bytes:
    """One of a span's attributes; `name`: as `attribute_name` makes it."""
    data = value.encode("utf-8", "replace")
    size = varint(len(data))
    any_value = len(data) + 1 + len(size)
    inner = varint(any_value)
    whole = len(name) + 1 + len(inner) + any_value
    return b"".join([b"\x4a", varint(whole), name, b"\x12", inner, b"\x0a", size, data])


def int_attribute(name: bytes, value: int) -> bytes:
    """As `text_attribute`, of a number that is not negative."""
    number = varint(value)
    whole = len(name) + 3 + len(number)
    return b"".join([b"\x4a", varint(whole), name, b"\x12", varint(1 + len(number)), b"\x18", number])


def true_attribute(name: bytes) -> bytes:
    """As `text_attribute`, of what is so."""
    return b"".join([b"\x4a", varint(len(name) + 4), name, b"\x12\x02\x10\x01"])


def attribute_name(name: str) -> bytes:
    """To be made once for all values that it will have."""
    data = name.encode()
    return b"\x0a" + varint(len(data)) + data


def event(name: bytes, at_ns: int) -> bytes:
    """One of a span's events."""
    inner = _EVENT_TIME.pack(0x09, at_ns) + b"\x12" + varint(len(name)) + name
    return b"\x5a" + varint(len(inner)) + inner


def error_status(message: str) -> bytes:
    """Of a span that failed."""
    data = message.encode("utf-8", "replace")
    inner = b"\x12" + varint(len(data)) + data + _STATUS_ERROR if data else _STATUS_ERROR
    return b"\x7a" + varint(len(inner)) + inner


def ids_of(trace_id: bytes, trace_state: bytes) -> bytes:
    """What all spans of a trace begin with; the id in binary."""
    state = b"\x1a" + varint(len(trace_state)) + trace_state if trace_state else b""
    return b"\x0a\x10" + trace_id + state


def span(
    ids: bytes,
    span_id: bytes,
    parent_id: bytes,
    remote_parent: bool,
    name: bytes,
    kind: int,
    start_ns: int,
    end_ns: int,
    attributes: bytes,
    events: bytes,
    status: bytes,
) -> bytes:
    """One of a batch; ids in binary, an empty parent: there is none. The last three: of the functions above."""
    pieces = [ids, b"\x12\x08", span_id]
    if parent_id:
        pieces.append(b"\x22\x08")
        pieces.append(parent_id)
    pieces += [
        b"\x2a",
        varint(len(name)),
        name,
        b"\x30",
        varint(kind),
        _TIMES.pack(0x39, start_ns, 0x41, end_ns),
        attributes,
        events,
        status,
        _REMOTE_PARENT if remote_parent else _OWN_PARENT,
    ]
    body = b"".join(pieces)
    return b"\x12" + varint(len(body)) + body


class Envelope:
    """What stands around the spans of a batch: whose they are, and what has made them."""

    def __init__(self, resource: Mapping[str, object], scope: str) -> None:
        described = b"".join([_attribute(name, value) for name, value in resource.items()])
        self._resource = b"\x0a" + varint(len(described)) + described
        named = b"\x0a" + varint(len(scope.encode())) + scope.encode()
        self._scope = b"\x0a" + varint(len(named)) + named

    def around(self, spans: list[bytes]) -> bytes:
        """The body of one call (ExportTraceServiceRequest)."""
        size = len(self._scope)
        for one in spans:
            size += len(one)
        inner = varint(size)
        outer = len(self._resource) + 1 + len(inner) + size
        return b"".join([b"\x0a", varint(outer), self._resource, b"\x12", inner, self._scope, *spans])


def _attribute(name: str, value: object) -> bytes:
    """One of a resource's, which stand in field 1 and may be of any kind."""
    any_value = _any(value)
    inner = attribute_name(name) + b"\x12" + varint(len(any_value)) + any_value
    return b"\x0a" + varint(len(inner)) + inner


def _any(value: object) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value & _MASK_64)
    if isinstance(value, float):
        return _DOUBLE.pack(0x21, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_any(one) for one in value]
        inner = b"".join([b"\x0a" + varint(len(one)) + one for one in items])
        return b"\x2a" + varint(len(inner)) + inner
    data = str(value).encode("utf-8", "replace")
    return b"\x0a" + varint(len(data)) + data
