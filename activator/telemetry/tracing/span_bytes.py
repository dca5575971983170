"""An encoder of spans in OTLP's wire format (opentelemetry-proto, trace/v1), without intermediate objects.

Rules
  1. A span is encoded once, when its request has ended. Objects of the SDK and its encoder would take ten times as
     long, and block the loop while the sender's thread encodes. The body of a call is a few bytes around many spans.
  2. All text is UTF-8: callers pass `str`, or ASCII bytes.
  3. In the tests, the classes that protoc generates from the standard read the output and compare each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

AttributeValue = str | bool | int | float

KIND_INTERNAL: Final = 1
KIND_SERVER: Final = 2
KIND_CLIENT: Final = 3

# A tag is the number of a field and its wire type (2: length-delimited). The tags of the first fifteen fields are one
# byte.
_SHORT_MAX: Final = 1024  # precomputed varints, which cover nearly all lengths
_TIMES: Final = Struct("<BQBQ")
_EVENT_TIME: Final = Struct("<BQ")
_DOUBLE: Final = Struct("<Bd")
_MASK_64: Final = (1 << 64) - 1
# Field 16 (flags) as four bytes: sampled, and whether the parent is remote is known: no, or yes.
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
    """Return the varint of a number that is not negative."""
    return _VARINTS[value] if value < _SHORT_MAX else _long_varint(value)


def text_attribute(name: bytes, value: str) -> bytes:
    """Return an attribute of a span; `name` is a result of `attribute_name`."""
    data = value.encode("utf-8", "replace")
    size = varint(len(data))
    any_value = len(data) + 1 + len(size)
    inner = varint(any_value)
    whole = len(name) + 1 + len(inner) + any_value
    return b"".join([b"\x4a", varint(whole), name, b"\x12", inner, b"\x0a", size, data])


def int_attribute(name: bytes, value: int) -> bytes:
    """Return an attribute with a number that is not negative."""
    number = varint(value)
    whole = len(name) + 3 + len(number)
    return b"".join([b"\x4a", varint(whole), name, b"\x12", varint(1 + len(number)), b"\x18", number])


def true_attribute(name: bytes) -> bytes:
    """Return an attribute with the value true."""
    return b"".join([b"\x4a", varint(len(name) + 4), name, b"\x12\x02\x10\x01"])


def attribute_name(name: str) -> bytes:
    """Return the encoded name of an attribute, for repeated use."""
    data = name.encode()
    return b"\x0a" + varint(len(data)) + data


def event(name: bytes, at_ns: int) -> bytes:
    """Return an event of a span."""
    inner = _EVENT_TIME.pack(0x09, at_ns) + b"\x12" + varint(len(name)) + name
    return b"\x5a" + varint(len(inner)) + inner


def error_status(message: str) -> bytes:
    """Return the status of a span that failed."""
    data = message.encode("utf-8", "replace")
    inner = b"\x12" + varint(len(data)) + data + _STATUS_ERROR if data else _STATUS_ERROR
    return b"\x7a" + varint(len(inner)) + inner


def ids_of(trace_id: bytes, trace_state: bytes) -> bytes:
    """Return the fields with which all spans of a trace begin; `trace_id` is binary."""
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
    """Return an encoded span.

    Ids are binary; `parent_id` is empty for a root span. `attributes`, `events` and `status` are results of the
    functions above, concatenated.
    """
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
    """The body of a call around the spans of a batch: the resource and the instrumentation scope."""

    def __init__(self, resource: Mapping[str, object], scope: str) -> None:
        described = b"".join([_attribute(name, value) for name, value in resource.items()])
        self._resource = b"\x0a" + varint(len(described)) + described
        named = b"\x0a" + varint(len(scope.encode())) + scope.encode()
        self._scope = b"\x0a" + varint(len(named)) + named

    def around(self, spans: list[bytes]) -> bytes:
        """Return the body of one call (ExportTraceServiceRequest)."""
        size = len(self._scope)
        for one in spans:
            size += len(one)
        inner = varint(size)
        outer = len(self._resource) + 1 + len(inner) + size
        return b"".join([b"\x0a", varint(outer), self._resource, b"\x12", inner, self._scope, *spans])


def _attribute(name: str, value: object) -> bytes:
    """Return an attribute of a resource, which is in field 1 and may have any type."""
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
