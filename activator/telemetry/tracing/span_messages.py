"""Spans as OpenTelemetry's own protobuf messages, and the body of a call around many of them.

Rules
  1. The spans of a trace are encoded once, when its request has ended: the loop is held for one trace at a time. The
     sender's thread only joins bytes, because encoding a batch would hold the interpreter for milliseconds.
  2. `Envelope` relies on two properties of protobuf's format: joined encodings are the encoding of the merged message,
     and an embedded message is its tag, its length and its encoding.
  3. Protobuf takes no text that is not valid UTF-8; lone surrogates are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from google.protobuf.wrappers_pb2 import UInt64Value
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags, Status

_FIELD_ONE: Final = b"\x0a"  # Tags of fields with an embedded message.
_FIELD_TWO: Final = b"\x12"
_SAMPLED: Final = 1  # the flag of W3C Trace Context
_OWN_PARENT: Final = _SAMPLED | SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE_PARENT: Final = _OWN_PARENT | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


class TraceSpans:
    """The spans of one trace. Ids are binary."""

    def __init__(self, trace_id: bytes, trace_state: str = "") -> None:
        self._trace_id = trace_id
        self._trace_state = trace_state
        self._message = ScopeSpans()

    def __len__(self) -> int:
        return len(self._message.spans)

    def add(
        self,
        span_id: bytes,
        parent_id: bytes,
        name: str,
        kind: Span.SpanKind.ValueType,
        start_ns: int,
        end_ns: int,
        remote_parent: bool = False,
    ) -> Span:
        """Add a span and return it; `parent_id` is empty for a root span."""
        return self._message.spans.add(
            trace_id=self._trace_id,
            span_id=span_id,
            trace_state=self._trace_state,
            parent_span_id=parent_id,
            flags=_REMOTE_PARENT if remote_parent else _OWN_PARENT,
            name=name,
            kind=kind,
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
        )

    def encode(self) -> bytes:
        return self._message.SerializeToString()


def put_text(span: Span, name: str, value: str) -> None:
    """Add an attribute to a span."""
    attribute = span.attributes.add(key=name).value
    try:
        attribute.string_value = value
    except UnicodeEncodeError:
        attribute.string_value = _valid(value)


def put_number(span: Span, name: str, value: int) -> None:
    """Add an attribute with a number to a span."""
    span.attributes.add(key=name).value.int_value = value


def put_true(span: Span, name: str) -> None:
    """Add an attribute with the value true to a span."""
    span.attributes.add(key=name).value.bool_value = True


def put_failure(span: Span, message: str) -> None:
    """Set the status of a span to a failure with this message."""
    span.status.code = Status.STATUS_CODE_ERROR
    span.status.message = _valid(message)


class Envelope:
    """The body of a call around the spans of a batch: the resource and the instrumentation scope."""

    def __init__(self, resource: Mapping[str, object], scope: str) -> None:
        message = Resource()
        for name, value in resource.items():
            message.attributes.add(key=name).value.CopyFrom(_any_value(value))
        self._resource = ResourceSpans(resource=message).SerializeToString()
        self._scope = ScopeSpans(scope=InstrumentationScope(name=scope)).SerializeToString()

    def around(self, traces: list[bytes]) -> bytes:
        """Return the body of one call (ExportTraceServiceRequest); `traces` are results of `TraceSpans.encode`."""
        size = len(self._scope) + sum(map(len, traces))
        scope_spans = _FIELD_TWO + _varint(size)  # ResourceSpans.scope_spans
        size += len(self._resource) + len(scope_spans)
        resource_spans = _FIELD_ONE + _varint(size)  # ExportTraceServiceRequest.resource_spans
        return b"".join([resource_spans, self._resource, scope_spans, self._scope, *traces])


def _varint(number: int) -> bytes:
    """Return the encoding of a positive number: that of a message with one number, without its tag."""
    return UInt64Value(value=number).SerializeToString()[1:]


def _any_value(value: object) -> AnyValue:
    """Return the message for an attribute of the resource."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    encoded = AnyValue()
    if isinstance(value, Sequence) and not isinstance(value, str):
        encoded.array_value.values.extend(_any_value(item) for item in value)
        encoded.array_value.SetInParent()
    else:
        encoded.string_value = _valid(str(value))
    return encoded


def _valid(text: str) -> str:
    """Return the text with lone surrogates replaced."""
    return text.encode("utf-8", "replace").decode()
