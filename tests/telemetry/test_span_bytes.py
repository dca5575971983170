"""What is written as OTLP, read by the classes that protoc has made of the standard."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from activator.telemetry.tracing.span_bytes import (
    KIND_CLIENT,
    Envelope,
    attribute_name,
    error_status,
    event,
    ids_of,
    int_attribute,
    span,
    text_attribute,
    true_attribute,
    varint,
)

TRACE = bytes(range(1, 17))
OWN = bytes(range(21, 29))
PARENT = bytes(range(31, 39))
NANOS = st.integers(0, 2**63 - 1)


def plain(value: Any) -> Any:
    """An AnyValue's."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def made(attributes: bytes = b"", events: bytes = b"", status: bytes = b"", state: bytes = b"", **more: Any) -> Any:
    """One span, written and read."""
    said: dict[str, Any] = {"parent_id": PARENT, "remote_parent": False, "start_ns": 1, "end_ns": 2, **more}
    one = span(
        ids_of(TRACE, state),
        OWN,
        said["parent_id"],
        said["remote_parent"],
        b"name",
        KIND_CLIENT,
        said["start_ns"],
        said["end_ns"],
        attributes,
        events,
        status,
    )
    request = ExportTraceServiceRequest.FromString(Envelope({}, "scope").around([one]))
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    assert scope.scope.name == "scope"
    (read,) = scope.spans
    return read


@given(NANOS, NANOS, st.booleans())
def test_the_parts_that_each_has(start_ns: int, end_ns: int, remote: bool) -> None:
    read = made(state=b"a=1,b=2", start_ns=start_ns, end_ns=end_ns, remote_parent=remote)
    assert (read.trace_id, read.span_id, read.parent_span_id) == (TRACE, OWN, PARENT)
    assert (read.name, read.kind, read.trace_state) == ("name", KIND_CLIENT, "a=1,b=2")
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (start_ns, end_ns)
    assert read.flags == (0x301 if remote else 0x101)  # sampled; who the parent is, is known


def test_what_is_not_there_is_not_written() -> None:
    read = made(parent_id=b"")
    assert (read.parent_span_id, read.trace_state) == (b"", "")
    assert not read.attributes and not read.events and not read.HasField("status")


@given(st.text(max_size=3_000), st.integers(0, 2**63 - 1))
def test_attributes_of_any_length(text: str, number: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    written = text_attribute(attribute_name("a.text"), text) + int_attribute(attribute_name("a.number"), number)
    read = made(written + true_attribute(attribute_name("a.truth")))
    assert [(one.key, plain(one.value)) for one in read.attributes] == [
        ("a.text", text),
        ("a.number", number),
        ("a.truth", True),
    ]


@given(NANOS, NANOS)
def test_events(first_ns: int, second_ns: int) -> None:
    read = made(events=event(b"one", first_ns) + event(b"two", second_ns))
    assert [(one.name, one.time_unix_nano) for one in read.events] == [("one", first_ns), ("two", second_ns)]


@given(st.text(max_size=200))
def test_failures(message: str) -> None:
    message = message.encode("utf-8", "replace").decode()
    read = made(status=error_status(message))
    assert (read.status.code, read.status.message) == (2, message)


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_seven_bits_a_byte(number: int) -> None:
    written = varint(number)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(written)) == number
    assert [byte >> 7 for byte in written] == [1] * (len(written) - 1) + [0]


RESOURCE = {
    "text": "ü",
    "yes": True,
    "no": False,
    "number": -5,
    "share": 0.25,
    "texts": ("a", "b"),
    "numbers": [1, 2],
}


@given(st.integers(0, 300))
def test_an_envelope_around_many(count: int) -> None:
    one = span(ids_of(TRACE, b""), OWN, b"", False, b"n", KIND_CLIENT, 1, 2, b"", b"", b"")
    request = ExportTraceServiceRequest.FromString(Envelope(RESOURCE, "scope").around([one] * count))
    (read,) = request.resource_spans
    described = {one.key: plain(one.value) for one in read.resource.attributes}
    assert described == {**RESOURCE, "texts": ["a", "b"]}
    assert [len(scope.spans) for scope in read.scope_spans] == [count]
