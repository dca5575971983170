"""Spans of requests and of the control plane's passes, made from their timestamps after they have ended.

    GET                      from arrival to end; its parent is the client's span
    ├─ throttler_try         in the queue, until a slot was granted; has events of a start from zero
    ├─ connect               until there was a connection; only if the request waited for one
    └─ activator_proxy       at the pod; its id was sent to the pod

Rules
  1. The three children follow each other without a gap and together cover the parent, to the nanosecond.
  2. The loop is never blocked: spans are encoded at once (span_bytes.py) and queued for a thread (span_sender.py).
  3. The attributes of a request are those of OpenTelemetry's conventions for HTTP, without the query, which may contain
     secrets; each is on one span only. The names of spans are a closed set.
  4. A trace that was queued for sending becomes an exemplar in the histograms of its revision; a dropped one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.trace_context import Sampler, TraceContext
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.starting import Start
from activator.runtime.clock import Now
from activator.telemetry.logs.fields import header_of, printable, reason_of, status_of, without_zone
from activator.telemetry.tracing.span_bytes import (
    KIND_CLIENT,
    KIND_INTERNAL,
    KIND_SERVER,
    attribute_name,
    error_status,
    event,
    ids_of,
    int_attribute,
    span,
    text_attribute,
    true_attribute,
)
from activator.telemetry.tracing.span_sender import SpanSender

# RFC 9110 and 5789. For other methods the span's name is HTTP, because clients can invent any number of them.
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})
_STATE_MAX: Final = 512  # the longest tracestate, in bytes, that is put into spans; a longer one is only forwarded
_METHOD: Final = attribute_name("http.request.method")
_PATH: Final = attribute_name("url.path")
_HOST: Final = attribute_name("server.address")
_CLIENT: Final = attribute_name("client.address")
_PROTOCOL: Final = attribute_name("network.protocol.version")
_STATUS: Final = attribute_name("http.response.status_code")
_GRPC_STATUS: Final = attribute_name("rpc.grpc.status_code")
_NAMESPACE: Final = attribute_name("activator.namespace")
_REVISION: Final = attribute_name("activator.revision")
_ERROR: Final = attribute_name("error.type")
_COLD: Final = attribute_name("activator.cold")
_POD: Final = attribute_name("activator.pod")
_ADDRESS: Final = attribute_name("network.peer.address")
_RESENT: Final = attribute_name("http.request.resend_count")
_CONTROLLER: Final = attribute_name("controller")
_RESULT: Final = attribute_name("result")


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
            if self.sender.give(b"".join(spans), len(spans)):
                exchange.leave_exemplars(context.trace_id, float(timeline.at(exchange.done_s)) / 1e9)
        except Exception as error:
            self._failed(error)

    def reconciled(self, controller: str, began_s: float, ended_s: float, result: str, error_type: str) -> None:
        """Trace a pass of the control plane that has ended (`Controllers.on_pass`), if it is sampled."""
        if not self._sampler.draw():
            return
        attributes = text_attribute(_CONTROLLER, controller) + text_attribute(_RESULT, result)
        status = b""
        if error_type:
            attributes += text_attribute(_ERROR, error_type)
            status = error_status(error_type)
        timeline = _Timeline(self._wall_ns(), self._now())
        name = f"reconcile {controller}".encode()
        began, ended = timeline.at(began_s), timeline.at(ended_s)
        ids = ids_of(self._sampler.new_id(16), b"")
        own = self._sampler.new_id(8)
        made = span(ids, own, b"", False, name, KIND_INTERNAL, began, ended, attributes, b"", status)
        self.sender.give(made, 1)

    def close(self) -> None:
        """Send the queued spans, and block until it is done."""
        self.sender.close()


class _Timeline:
    """The conversion from monotonic seconds to nanoseconds since 1970, for all times of one request."""

    def __init__(self, wall_ns: int, now_s: float) -> None:
        self._wall_ns: i64 = wall_ns
        self._now_s = now_s

    def at(self, time_s: float) -> i64:
        return self._wall_ns + i64((time_s - self._now_s) * 1e9)


def _spans(exchange: Exchange, trace: TraceContext, client: ClientStream, timeline: _Timeline) -> list[bytes]:
    head = exchange.head
    ids = ids_of(bytes.fromhex(trace.trace_id), _trace_state(head.headers.block) if trace.parent_id else b"")
    server = bytes.fromhex(trace.server_id)
    arrived, done = timeline.at(exchange.arrived_s), timeline.at(exchange.done_s)
    status = _status(exchange)
    whole = span(
        ids,
        server,
        bytes.fromhex(trace.parent_id),
        bool(trace.parent_id),
        head.method if head.method in _METHODS else b"HTTP",
        KIND_SERVER,
        arrived,
        done,
        _of_request(exchange, client),
        b"",
        status,
    )
    if not exchange.revision_key():
        return [whole]
    granted_s, connected_s = exchange.granted_s, exchange.connected_s
    granted = timeline.at(granted_s) if granted_s > 0.0 else done
    start = exchange.start
    cold = b"" if start is None else true_attribute(_COLD)
    events = b"" if start is None else _events(start, timeline, arrived, granted)
    tried = span(
        ids, trace.more_ids[:8], server, False, b"throttler_try", KIND_INTERNAL, arrived, granted, cold, events, b""
    )
    spans = [whole, tried]
    if granted_s == 0.0:
        return spans
    connected = timeline.at(connected_s) if connected_s >= granted_s else done  # earlier: of a previous attempt
    if connected_s != granted_s:
        own = trace.more_ids[8:]
        spans.append(span(ids, own, server, False, b"connect", KIND_INTERNAL, granted, connected, b"", b"", b""))
    if connected_s >= granted_s:
        own = bytes.fromhex(trace.proxy_id)
        pod = _of_pod(exchange)
        spans.append(span(ids, own, server, False, b"activator_proxy", KIND_CLIENT, connected, done, pod, b"", status))
    return spans


def _trace_state(block: bytes) -> bytes:
    value = header_of(block, b"\r\ntracestate:")
    return value if len(value) <= _STATE_MAX and value.isascii() else b""


def _status(exchange: Exchange) -> bytes:
    """Return the status of the server's span: failures of the server are errors, those of clients are not."""
    code = status_of(exchange)
    reason = reason_of(exchange)
    return error_status(reason) if code >= 500 or (reason and code < 400) else b""


def _of_request(exchange: Exchange, client: ClientStream) -> bytes:
    head = exchange.head
    target = head.target
    query = target.find(b"?")
    attributes = [
        text_attribute(_METHOD, printable(head.method)),
        text_attribute(_PATH, printable(target if query < 0 else target[:query])),
        text_attribute(_HOST, printable(head.authority)),
        text_attribute(_CLIENT, without_zone(client.client_ip())),
        text_attribute(_PROTOCOL, client.protocol().removeprefix("HTTP/")),
        int_attribute(_STATUS, status_of(exchange)),
    ]
    key = exchange.revision_key()
    if key:
        slash = key.find("/")
        attributes.append(text_attribute(_NAMESPACE, key[:slash]))
        attributes.append(text_attribute(_REVISION, key[slash + 1 :]))
    if exchange.grpc_status >= 0:
        attributes.append(int_attribute(_GRPC_STATUS, int(exchange.grpc_status)))
    reason = reason_of(exchange)
    if reason:
        attributes.append(text_attribute(_ERROR, reason))
    return b"".join(attributes)


def _of_pod(exchange: Exchange) -> bytes:
    lease = exchange.last_lease
    if lease is None:
        return b""
    attributes = text_attribute(_POD, lease.identity) + text_attribute(_ADDRESS, lease.address)
    if exchange.pod_protocol:
        attributes += text_attribute(_PROTOCOL, exchange.pod_protocol.removeprefix("HTTP/"))
    if exchange.status:
        attributes += int_attribute(_STATUS, int(exchange.status))
    if exchange.retries():
        attributes += int_attribute(_RESENT, exchange.retries())
    return attributes


def _events(start: Start, timeline: _Timeline, arrived: i64, granted: i64) -> bytes:
    """Return the events of a start from zero, clamped to the time in which the request waited for it."""
    events = b""
    if start.placed_s > 0.0:
        events = event(b"pod placed", min(max(timeline.at(start.placed_s), arrived), granted))
    if start.ready_s > 0.0:
        events += event(b"pod ready", min(max(timeline.at(start.ready_s), arrived), granted))
    return events
