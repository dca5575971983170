"""Spans of requests and of the control plane's passes, made from their timestamps after they have ended.

    GET                      from arrival to end; its parent is the client's span
    ├─ throttler_try         in line, until a slot was granted; a start from zero by its events
    ├─ connect               until there was a connection; only where one had to be waited for
    └─ activator_proxy       at the pod; its id is what the pod was sent

Rules
  1. The three parts follow each other without a gap and together are the whole, to the nanosecond.
  2. Nothing here blocks the loop: spans are encoded at once (span_bytes.py) and handed to a thread (span_sender.py).
  3. What is said of a request is what OpenTelemetry's conventions for HTTP name, without the query, which may hold
     secrets; it is said once. Names of spans are of a closed set.
  4. A trace that is on its way is left as an exemplar in the histograms of its revision; one that is dropped is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from activator.data_plane.exchange import ClientStream, Exchange
from activator.data_plane.headers.trace_context import Sampler, TraceContext
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.request import RequestRecord
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

# RFC 9110 and 5789; of others the span's name is HTTP, since clients can make up any.
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})
_STATE_MAX: Final = 512  # bytes of a tracestate that are kept in spans; it goes on to the pod whatever its length
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
    """`wall_ns`: the time of day in nanoseconds since 1970; `now`: the clock of the exchanges."""

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
        if not isinstance(exchange, RequestRecord):
            return
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
        """A pass of the control plane is over (`Controllers.on_pass`); chance decides whether it is traced."""
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
        """Send what waits; blocks."""
        self.sender.close()


class _Timeline:
    """From monotonic seconds to nanoseconds since 1970; one for all times of one request."""

    def __init__(self, wall_ns: int, now_s: float) -> None:
        self._wall_ns: i64 = wall_ns
        self._now_s = now_s

    def at(self, time_s: float) -> i64:
        return self._wall_ns + i64((time_s - self._now_s) * 1e9)


def _spans(exchange: RequestRecord, trace: TraceContext, client: ClientStream, timeline: _Timeline) -> list[bytes]:
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
    connected = timeline.at(connected_s) if connected_s >= granted_s else done  # or: of an attempt before the last
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


def _status(exchange: RequestRecord) -> bytes:
    """Of a server's span: its own failures are errors, its clients' are not."""
    code = status_of(exchange)
    reason = reason_of(exchange)
    return error_status(reason) if code >= 500 or (reason and code < 400) else b""


def _of_request(exchange: RequestRecord, client: ClientStream) -> bytes:
    head = exchange.head
    target = head.target
    query = target.find(b"?")
    said = [
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
        said.append(text_attribute(_NAMESPACE, key[:slash]))
        said.append(text_attribute(_REVISION, key[slash + 1 :]))
    if exchange.grpc_status >= 0:
        said.append(int_attribute(_GRPC_STATUS, int(exchange.grpc_status)))
    reason = reason_of(exchange)
    if reason:
        said.append(text_attribute(_ERROR, reason))
    return b"".join(said)


def _of_pod(exchange: RequestRecord) -> bytes:
    lease = exchange.last_lease
    if lease is None:
        return b""
    said = text_attribute(_POD, lease.identity) + text_attribute(_ADDRESS, lease.address)
    if exchange.pod_protocol:
        said += text_attribute(_PROTOCOL, exchange.pod_protocol.removeprefix("HTTP/"))
    if exchange.status:
        said += int_attribute(_STATUS, int(exchange.status))
    if exchange.retries():
        said += int_attribute(_RESENT, exchange.retries())
    return said


def _events(start: Start, timeline: _Timeline, arrived: i64, granted: i64) -> bytes:
    """What was seen of a start from zero while the request waited for it."""
    said = b""
    if start.placed_s > 0.0:
        said = event(b"pod placed", min(max(timeline.at(start.placed_s), arrived), granted))
    if start.ready_s > 0.0:
        said += event(b"pod ready", min(max(timeline.at(start.ready_s), arrived), granted))
    return said
