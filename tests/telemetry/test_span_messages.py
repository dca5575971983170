"""Spans as a collector decodes them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from activator.telemetry.tracing.span_messages import (
    Envelope,
    TraceSpans,
    put_failure,
    put_number,
    put_text,
    put_true,
)

TRACE = bytes(range(1, 17))
OWN = bytes(range(21, 29))
PARENT = bytes(range(31, 39))
NANOS = st.integers(0, 2**63 - 1)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=3_000)  # lone surrogates too


def plain(value: Any) -> Any:
    """An AnyValue's."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def one_span(parent_id: bytes = PARENT, state: str = "", start_ns: int = 1, remote: bool = False) -> tuple[Any, Any]:
    """A trace, and its only span."""
    spans = TraceSpans(TRACE, state)
    return spans, spans.add(OWN, parent_id, "name", Span.SPAN_KIND_CLIENT, start_ns, 2, remote)


def received(spans: TraceSpans) -> Any:
    """The only span of a trace, as a collector decodes it."""
    request = ExportTraceServiceRequest.FromString(Envelope({}, "scope").around([spans.encode()]))
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    assert scope.scope.name == "scope"
    (read,) = scope.spans
    return read


@given(NANOS, st.booleans())
def test_the_fields_that_each_span_has(start_ns: int, remote: bool) -> None:
    spans, _ = one_span(state="a=1,b=2", start_ns=start_ns, remote=remote)
    read = received(spans)
    assert (read.trace_id, read.span_id, read.parent_span_id) == (TRACE, OWN, PARENT)
    assert (read.name, read.kind, read.trace_state) == ("name", Span.SPAN_KIND_CLIENT, "a=1,b=2")
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (start_ns, 2)
    assert read.flags == (0x301 if remote else 0x101)  # sampled; whether the parent is remote is known


def test_what_is_not_there_is_not_written() -> None:
    read = received(one_span(parent_id=b"")[0])
    assert (read.parent_span_id, read.trace_state) == (b"", "")
    assert not read.attributes and not read.events and not read.HasField("status")


@given(ANY_TEXT, st.integers(0, 2**63 - 1))
def test_attributes_of_any_length(text: str, number: int) -> None:
    spans, span = one_span()
    put_text(span, "a.text", text)
    put_number(span, "a.number", number)
    put_true(span, "a.truth")
    assert [(one.key, plain(one.value)) for one in received(spans).attributes] == [
        ("a.text", text.encode("utf-8", "replace").decode()),
        ("a.number", number),
        ("a.truth", True),
    ]


def test_an_empty_text_is_still_a_text() -> None:
    spans, span = one_span()
    put_text(span, "a.text", "")
    (attribute,) = received(spans).attributes
    assert plain(attribute.value) == ""


@given(ANY_TEXT)
def test_failures(message: str) -> None:
    spans, span = one_span()
    put_failure(span, message)
    status = received(spans).status
    assert (status.code, status.message) == (2, message.encode("utf-8", "replace").decode())


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
    spans, _ = one_span()
    request = ExportTraceServiceRequest.FromString(Envelope(RESOURCE, "scope").around([spans.encode()] * count))
    (read,) = request.resource_spans
    described = {one.key: plain(one.value) for one in read.resource.attributes}
    assert described == {**RESOURCE, "texts": ["a", "b"]}
    assert [len(scope.spans) for scope in read.scope_spans] == [count]


@given(st.lists(st.integers(1, 4), max_size=20), ANY_TEXT)
def test_an_envelope_is_encoded_as_the_library_would_do_it(counts: list[int], text: str) -> None:
    whole = ExportTraceServiceRequest()
    resource_spans = whole.resource_spans.add()
    attribute = resource_spans.resource.attributes.add(key="service.name")
    attribute.value.string_value = text.encode("utf-8", "replace").decode()
    scope_spans = resource_spans.scope_spans.add(scope={"name": "scope"})
    traces = []
    for count in counts:
        spans = TraceSpans(TRACE)
        for number in range(count):
            put_number(spans.add(OWN, b"", "name", Span.SPAN_KIND_SERVER, number, number), "number", number)
        assert len(spans) == count
        traces.append(spans.encode())
        scope_spans.MergeFromString(traces[-1])
    assert Envelope({"service.name": text}, "scope").around(traces) == whole.SerializeToString()
