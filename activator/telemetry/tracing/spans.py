"""Spans of requests and of the control plane's passes, made from their timestamps after they have ended.

    GET                      from arrival to end; its parent is the client's span
    ├─ throttler_try         in the queue, until a slot was granted; has events of a start from zero
    ├─ connect               until there was a connection; only if the request waited for one
    └─ activator_proxy       at the pod; its id was sent to the pod

Rules
  1. The three children follow each other without a gap and together cover the parent, to the nanosecond.
  2. The spans of a request are encoded when it has ended (span_messages.py), and queued for a thread (span_sender.py).
  3. The attributes of a request are those of OpenTelemetry's conventions for HTTP, without the query, which may contain
     secrets; each is on one span only. The names of spans are a closed set.
  4. A trace that was queued for sending becomes an exemplar in the histograms of its revision; a dropped one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.trace_context import Sampler, TraceContext
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.starting import Start
from activator.runtime.clock import Now
from activator.telemetry.logs.fields import header_of, printable, reason_of, status_of, without_zone
from activator.telemetry.tracing.span_messages import TraceSpans, put_failure, put_number, put_text, put_true
from activator.telemetry.tracing.span_sender import SpanSender

# RFC 9110 and 5789. For other methods the span's name is HTTP, because clients can invent any number of them.
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})
_STATE_MAX: Final = 512  # the longest tracestate, in bytes, that is put into spans; a longer one is only forwarded
_METHOD: Final = "http.request.method"
_PATH: Final = "url.path"
_HOST: Final = "server.address"
_CLIENT: Final = "client.address"
_PROTOCOL: Final = "network.protocol.version"
_STATUS: Final = "http.response.status_code"
_GRPC_STATUS: Final = "rpc.grpc.status_code"
_NAMESPACE: Final = "activator.namespace"
_REVISION: Final = "activator.revision"
_ERROR: Final = "error.type"
_COLD: Final = "activator.cold"
_POD: Final = "activator.pod"
_ADDRESS: Final = "network.peer.address"
_RESENT: Final = "http.request.resend_count"
_CONTROLLER: Final = "controller"
_RESULT: Final = "result"


class SpanMaker(ExchangeObserver):
    """The observer that makes spans of requests and passes.

    `wall_ns` returns the time of day in nanoseconds since 1970; `now` is the clock of the exchanges.
    """

    def __init__(
        self,
        sender: SpanSender,
        sampler: Sampler,
        wall_ns: Callable[[], int],
        now: Now,
        failed: Callable[[Exception], None],
    ) -> None:
        self.sender = sender
        self._sampler = sampler
        self._wall_ns = wall_ns
        self._now = now
        self._failed = failed

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        context = exchange.trace
        if context is None:
            return
        try:
            timeline = _Timeline(self._wall_ns(), self._now())
            spans = _spans(exchange, context, client, timeline)
            if self.sender.give(spans.encode(), len(spans)):
                exchange.leave_exemplars(context.trace_id, float(timeline.at(exchange.done_s)) / 1e9)
        except Exception as error:
            self._failed(error)

    def reconciled(self, controller: str, began_s: float, ended_s: float, result: str, error_type: str) -> None:
        """Trace a pass of the control plane that has ended (`Controllers.on_pass`), if it is sampled."""
        if not self._sampler.draw():
            return
        timeline = _Timeline(self._wall_ns(), self._now())
        spans = TraceSpans(self._sampler.new_id(16))
        own = self._sampler.new_id(8)
        began, ended = timeline.at(began_s), timeline.at(ended_s)
        span = spans.add(own, b"", f"reconcile {controller}", Span.SPAN_KIND_INTERNAL, began, ended)
        put_text(span, _CONTROLLER, controller)
        put_text(span, _RESULT, result)
        if error_type:
            put_text(span, _ERROR, error_type)
            put_failure(span, error_type)
        self.sender.give(spans.encode(), 1)

    def close(self) -> None:
        """Send the queued spans, and block until it is done."""
        self.sender.close()


class _Timeline:
    """The conversion from monotonic seconds to nanoseconds since 1970, for all times of one request."""

    def __init__(self, wall_ns: int, now_s: float) -> None:
        self._wall_ns = wall_ns
        self._now_s = now_s

    def at(self, time_s: float) -> int:
        return self._wall_ns + int((time_s - self._now_s) * 1e9)


def _spans(exchange: Exchange, trace: TraceContext, client: ClientStream, timeline: _Timeline) -> TraceSpans:
    """Return the spans of a request that has ended."""
    head = exchange.head
    spans = TraceSpans(bytes.fromhex(trace.trace_id), _trace_state(head.headers.block) if trace.parent_id else "")
    server_id = bytes.fromhex(trace.server_id)
    arrived, done = timeline.at(exchange.arrived_s), timeline.at(exchange.done_s)
    failure = _failure(exchange)
    name = head.method.decode() if head.method in _METHODS else "HTTP"
    parent = bytes.fromhex(trace.parent_id)
    server_span = spans.add(server_id, parent, name, Span.SPAN_KIND_SERVER, arrived, done, remote_parent=bool(parent))
    _describe_request(server_span, exchange, client)
    _put_status(server_span, failure)
    if not exchange.revision_key():
        return spans
    granted_s, connected_s = exchange.granted_s, exchange.connected_s
    granted = timeline.at(granted_s) if granted_s > 0.0 else done
    try_span = spans.add(trace.more_ids[:8], server_id, "throttler_try", Span.SPAN_KIND_INTERNAL, arrived, granted)
    if exchange.start is not None:
        put_true(try_span, _COLD)
        _put_events(try_span, exchange.start, timeline, arrived, granted)
    if granted_s == 0.0:
        return spans
    connected = timeline.at(connected_s) if connected_s >= granted_s else done  # earlier: of a previous attempt
    if connected_s != granted_s:
        spans.add(trace.more_ids[8:], server_id, "connect", Span.SPAN_KIND_INTERNAL, granted, connected)
    if connected_s >= granted_s:
        own = bytes.fromhex(trace.proxy_id)
        proxy_span = spans.add(own, server_id, "activator_proxy", Span.SPAN_KIND_CLIENT, connected, done)
        _describe_pod(proxy_span, exchange)
        _put_status(proxy_span, failure)
    return spans


def _trace_state(block: bytes) -> str:
    value = header_of(block, b"\r\ntracestate:")
    return value.decode() if len(value) <= _STATE_MAX and value.isascii() else ""


def _failure(exchange: Exchange) -> str | None:
    """Return the error message of the server span; None if it has not failed, as with an error of the client."""
    code = status_of(exchange)
    reason = reason_of(exchange)
    return reason if code >= 500 or (reason and code < 400) else None


def _put_status(span: Span, failure: str | None) -> None:
    if failure is not None:
        put_failure(span, failure)


def _describe_request(span: Span, exchange: Exchange, client: ClientStream) -> None:
    head = exchange.head
    target = head.target
    query = target.find(b"?")
    put_text(span, _METHOD, printable(head.method))
    put_text(span, _PATH, printable(target if query < 0 else target[:query]))
    put_text(span, _HOST, printable(head.authority))
    put_text(span, _CLIENT, without_zone(client.client_ip()))
    put_text(span, _PROTOCOL, client.protocol().removeprefix("HTTP/"))
    put_number(span, _STATUS, status_of(exchange))
    key = exchange.revision_key()
    if key:
        slash = key.find("/")
        put_text(span, _NAMESPACE, key[:slash])
        put_text(span, _REVISION, key[slash + 1 :])
    if exchange.grpc_status >= 0:
        put_number(span, _GRPC_STATUS, int(exchange.grpc_status))
    reason = reason_of(exchange)
    if reason:
        put_text(span, _ERROR, reason)


def _describe_pod(span: Span, exchange: Exchange) -> None:
    lease = exchange.last_lease
    if lease is None:
        return
    put_text(span, _POD, lease.identity)
    put_text(span, _ADDRESS, lease.address)
    if exchange.pod_protocol:
        put_text(span, _PROTOCOL, exchange.pod_protocol.removeprefix("HTTP/"))
    if exchange.status:
        put_number(span, _STATUS, int(exchange.status))
    if exchange.retries():
        put_number(span, _RESENT, exchange.retries())


def _put_events(span: Span, start: Start, timeline: _Timeline, arrived: int, granted: int) -> None:
    """Add the events of a start from zero, clamped to the time in which the request waited for it."""
    for name, time_s in (("pod placed", start.placed_s), ("pod ready", start.ready_s)):
        if time_s > 0.0:
            span.events.add(name=name, time_unix_nano=min(max(timeline.at(time_s), arrived), granted))
