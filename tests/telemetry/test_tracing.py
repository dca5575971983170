"""What a pod is told of a trace, and the spans that a collector receives."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from activator.codec.message import Fields, RequestHead
from activator.config.model.telemetry import TRACING_RATE, Tracing
from activator.config.specs import QueueSpec
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.trace_context import Sampler, TraceContext, is_sampled, is_traceparent
from activator.runtime.controller_counts import Controllers
from activator.runtime.errors import StartError
from activator.runtime.reasons import Reason
from activator.telemetry.tracing.otlp_client import OtlpClient
from activator.telemetry.tracing.span_messages import Envelope
from activator.telemetry.tracing.span_sender import TRACE_SPANS_MAX, SpanSender
from activator.telemetry.tracing.spans import SpanMaker
from activator.telemetry.tracing.switch import TraceSwitch, endpoint_of, is_wanted, sampling_rate
from lb.rng import Rng
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head
from tests.manual_clock import ManualClock
from tests.telemetry.http_collector import Answer, HttpCollector

TRACE = "0123456789abcdef0123456789abcdef"
PARENT = "fedcba9876543210"
WALL_NS = 1_795_296_896_062_500_000


class Entropy:
    """No two the same, and the same each time."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, size: int) -> bytes:
        self.asked += 1
        return hashlib.shake_128(self.asked.to_bytes(4, "big")).digest(size)


def head_with(*lines: bytes) -> RequestHead:
    """As the parser delivers it."""
    head = request_head()
    head.headers = Fields(b"".join(b"\r\n" + line for line in (b"Host: app.test", *lines)))
    own = [line for line in lines if line.lower().startswith(b"traceparent:")]
    head.traceparent = b", ".join(own)
    return head


def traceparent(flags: str = "01", version: str = "00") -> bytes:
    return f"traceparent: {version}-{TRACE}-{PARENT}-{flags}".encode()


def sampler(rate: float) -> Sampler:
    return Sampler(rate, Rng(7), Entropy())


def sent(head: RequestHead, context: TraceContext) -> RequestHead:
    """Return what a pod is sent."""
    edits = HeadEdits()
    context.edit(edits)
    return edits.apply(head)


# --- what the pod is told ---


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_who_is_traced_goes_on_being_traced(rate: float, flags: str) -> None:
    head = head_with(b"tracestate: a=1", traceparent(flags), b"baggage: b=2", b"X: y")
    context = sampler(rate).begin(head)
    assert context is not None
    assert (context.trace_id, context.parent_id) == (TRACE, PARENT)
    assert context.proxy_id != context.server_id
    told = f"traceparent: 00-{TRACE}-{context.proxy_id}-01".encode()
    lines = [b"Host: app.test", b"tracestate: a=1", told, b"baggage: b=2", b"X: y"]
    assert sent(head, context).headers.block == b"".join(b"\r\n" + line for line in lines)


@pytest.mark.parametrize("lines", [(), (traceparent("00"),), (traceparent("02"), b"tracestate: a=1", b"baggage: c=d")])
def test_who_is_not_traced_passes_untouched(lines: tuple[bytes, ...]) -> None:
    head = head_with(*lines)
    block = head.headers.block
    of = Sampler(1e-9, Rng(7), Entropy())
    assert of.begin(head) is None
    assert head.headers.block is block


def test_rates_that_do_not_ask_the_client() -> None:
    assert sampler(0.0).begin(head_with(traceparent("01"))) is None
    context = sampler(1.0).begin(head_with(traceparent("00")))
    assert context is not None and context.trace_id == TRACE


def test_a_trace_that_begins_here() -> None:
    head = head_with(b"X: y")
    context = sampler(1.0).begin(head)
    assert context is not None and context.parent_id == ""
    assert len({context.trace_id[:16], context.server_id, context.proxy_id}) == 3
    headers = sent(head, context).headers
    assert headers.get(b"traceparent") == f"00-{context.trace_id}-{context.proxy_id}-01".encode()
    assert headers.get(b"x") == b"y"


@pytest.mark.parametrize(
    "lines",
    [
        (traceparent("01"), traceparent("01")),
        (b"TraceParent: 00-nonsense",),
        (traceparent("01") + b"-more",),
        (traceparent("01", "ff"),),
        (b"traceparent: 00-" + b"0" * 32 + b"-fedcba9876543210-01",),
        (f"traceparent: 00-{TRACE}-{'0' * 16}-01".encode(),),
        (f"traceparent: 00-{TRACE.upper()}-{PARENT}-01".encode(),),
        (b"traceparent:",),
    ],
)
def test_of_what_cannot_be_read_nothing_is_kept(lines: tuple[bytes, ...]) -> None:
    head = head_with(b"A: b", *lines, b"tracestate: a=1", b"C: d")
    context = sampler(1.0).begin(head)
    assert context is not None and context.parent_id == ""
    assert context.trace_id != TRACE
    told = f"traceparent: 00-{context.trace_id}-{context.proxy_id}-01".encode()
    kept = (told, b"Host: app.test", b"A: b", b"C: d")
    assert sent(head, context).headers.block == b"".join(b"\r\n" + line for line in kept)


def test_later_versions_are_read_as_far_as_they_are_known() -> None:
    context = sampler(0.5).begin(head_with(traceparent("01", "cc") + b"-more"))
    assert context is not None and (context.trace_id, context.parent_id) == (TRACE, PARENT)


def test_a_line_that_connection_named_is_not_there_to_be_replaced() -> None:
    head = head_with(b"X: y")
    head.traceparent = traceparent("01")
    context = sampler(0.5).begin(head)
    assert context is not None
    assert sent(head, context).headers.block.count(b"traceparent") == 1


@given(st.binary(max_size=70))
def test_anything_can_be_looked_at(value: bytes) -> None:
    if is_traceparent(value):
        is_sampled(value)


def test_the_share_that_is_traced() -> None:
    of = sampler(0.25)
    traced = sum(of.begin(head_with()) is not None for _ in range(10_000))
    assert 2_000 < traced < 3_000  # of a fixed seed


def test_the_parser_tells_of_it() -> None:
    value = f"00-{TRACE}-{PARENT}-01"
    head = request_head(TraceParent=value, TE="trailers")
    assert head.traceparent == f"TraceParent: {value}".encode()
    assert head.headers.get(b"traceparent") == value.encode()
    assert request_head(Trace_Parent=value).traceparent == b""
    assert sampler(0.5).begin(head) is not None


# --- what a collector receives ---


class Collector(HttpCollector):
    """Takes spans, or says with this status that it does not."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.status = 200
        self.arrived = threading.Condition()
        super().__init__()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert path == "/v1/traces"
        with self.arrived:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(resource.resource)
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
            self.arrived.notify_all()
        return self.status, {}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


class Traced:
    """A proxy whose requests are traced."""

    def __init__(self, collector: Collector, rate: float = 1.0, **spec: Any) -> None:
        self.collector = collector
        self.world = World(**spec)
        self.sampler = Sampler(rate, Rng(1), Entropy())
        client = OtlpClient(f"{collector.url}/v1/traces", {})
        self.sender = SpanSender(client, Envelope({"service.name": "activator"}, "activator"))
        self.spans = SpanMaker(
            self.sender, self.sampler, lambda: WALL_NS, self.world.clock.now, self.world.errors.append
        )
        self.world.proxy.sampler = self.sampler
        self.world.proxy.tracer = self.spans

    def received(self) -> dict[str, Any]:
        self.spans.close()
        assert not self.world.errors
        return {span.name: span for span in self.collector.spans}


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def length_s(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_the_spans_of_a_cold_request_nest_and_add_up(collector: Collector) -> None:
    traced = Traced(collector)
    world = traced.world
    head = head_with(traceparent("01"), b"tracestate: a=1")
    head.target = b"/a/path?secret=1"
    exchange, _ = world.begin(head)
    world.clock.pass_time(2.0)
    world.throttler.queue.pod_placed()
    world.clock.pass_time(1.0)
    world.throttler.queue.pod_ready()
    pool = world.pod(connects=False)
    world.clock.pass_time(0.25)
    pool.connect(at_pod(exchange))
    world.clock.pass_time(0.5)
    world.answer(exchange, 200)
    spans = traced.received()
    assert set(spans) == {"GET", "throttler_try", "connect", "activator_proxy"}
    server = spans["GET"]
    parts = [spans[name] for name in ("throttler_try", "connect", "activator_proxy")]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert {span.trace_state for span in spans.values()} == {"a=1"}
    assert server.parent_span_id.hex() == PARENT
    assert all(part.parent_span_id == server.span_id for part in parts)
    assert len({span.span_id for span in spans.values()}) == 4
    assert [length_s(part) for part in parts] == [3.0, 0.25, 0.5]
    assert length_s(server) == 3.75
    edges = [server.start_time_unix_nano, *(part.end_time_unix_nano for part in parts)]
    assert [part.start_time_unix_nano for part in parts] == edges[:-1]
    assert server.end_time_unix_nano == edges[-1] == WALL_NS
    head_sent = pool.pods[0].head
    assert head_sent is not None
    told = head_sent.headers.get(b"traceparent")
    assert told == f"00-{TRACE}-{parts[2].span_id.hex()}-01".encode()
    assert [event.name for event in parts[0].events] == ["pod placed", "pod ready"]
    assert [(event.time_unix_nano - edges[0]) / 1e9 for event in parts[0].events] == [2.0, 3.0]
    said = attributes(server)
    assert said["url.path"] == "/a/path" and "secret" not in str(said)
    assert (said["http.response.status_code"], said["activator.revision"]) == (200, "app")
    assert attributes(parts[0]) == {"activator.cold": True}
    assert attributes(parts[2])["activator.pod"] == "p1"
    assert attributes(parts[2])["http.response.status_code"] == 200
    assert attributes(collector.resources[0])["service.name"] == "activator"
    assert traced.sender.sent_total == 4


def test_who_finds_a_connection_has_no_span_of_waiting_for_one(collector: Collector) -> None:
    traced = Traced(collector)
    traced.world.pod()
    exchange, _ = traced.world.begin(head_with(traceparent("01"), b"tracestate: " + b"a=1," * 200))
    traced.world.clock.pass_time(0.5)
    traced.world.answer(exchange, 200)
    spans = traced.received()
    assert set(spans) == {"GET", "throttler_try", "activator_proxy"}
    assert [length_s(span) for span in spans.values()] == [0.5, 0.0, 0.5]
    assert spans["GET"].trace_state == "", "of that length nobody keeps it"


def test_requests_that_fail(collector: Collector) -> None:
    traced = Traced(collector, queue=QueueSpec(timeout_s=3.0))
    world = traced.world
    world.begin(request_head(host="nobody.test"))
    world.begin()
    world.clock.pass_time(4.0)
    world.pod()
    broken, _ = world.begin()
    at_pod(broken).pod_failed(Reason.POD_CLOSED, "", False)
    made_up = request_head("PROPFIND")
    exchange, _ = world.begin(made_up)
    world.answer(exchange, 404)
    traced.received()
    seen = [(span.name, attributes(span).get("error.type"), span.status.code) for span in collector.spans]
    assert [one for one in seen if one[0] in {"GET", "HTTP"}] == [
        ("GET", "no_route", 0),
        ("GET", "queue_timeout", 2),
        ("GET", "pod_closed", 2),
        ("HTTP", None, 0),
    ]
    names = [name for name, _, _ in seen]
    assert names.count("throttler_try") == 3 and names.count("connect") == 0
    assert names.count("activator_proxy") == 2


def test_nothing_is_made_of_who_is_not_traced(collector: Collector) -> None:
    traced = Traced(collector, rate=0.0)
    traced.world.pod()
    exchange, _ = traced.world.begin(head_with(traceparent("01")))
    traced.world.answer(exchange)
    assert traced.received() == {}
    assert exchange.head.headers.get(b"traceparent") == f"00-{TRACE}-{PARENT}-01".encode()


def test_passes_of_the_control_plane(collector: Collector) -> None:
    traced = Traced(collector)
    clock = ManualClock()
    controllers = Controllers(traced.world.clock.now)
    controllers.on_pass = traced.spans.reconciled
    with controllers.reconcile("endpoints"):
        traced.world.clock.pass_time(0.5)
    with pytest.raises(TimeoutError), controllers.reconcile("revision"):
        raise TimeoutError
    spans = traced.received()
    assert clock.now() and set(spans) == {"reconcile endpoints", "reconcile revision"}
    assert length_s(spans["reconcile endpoints"]) == 0.5
    assert attributes(spans["reconcile revision"]) == {
        "controller": "revision",
        "result": "error",
        "error.type": "timeout",
    }
    assert spans["reconcile revision"].status.code == 2
    assert {(len(span.trace_id), len(span.span_id)) for span in spans.values()} == {(16, 8)}


class Stuck:
    """A collector that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.expedited = False
        self.closed = False
        self.bodies: list[bytes] = []

    def post(self, body: bytes) -> bool:
        assert self.go.wait(60.0)
        self.bodies.append(body)
        return True

    def expedite(self) -> None:
        self.expedited = True

    def close(self) -> None:
        self.closed = True

    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
            (scope,) = resource.scope_spans
            found.append(scope.spans)
        return found


def test_what_waits_to_be_sent_is_bounded() -> None:
    world = World()
    client = Stuck()
    of = Sampler(1.0, Rng(1), Entropy())
    sender = SpanSender(client, Envelope({}, "test"), 3_000, 500, 3600.0)
    world.proxy.sampler = of
    world.proxy.tracer = SpanMaker(sender, of, lambda: WALL_NS, world.clock.now, world.errors.append)
    world.pod()
    for _ in range(1_100):
        exchange, _ = world.begin()
        world.answer(exchange)
    assert sender.dropped_total == 300
    client.go.set()
    sender.close()
    batches = client.spans()
    assert sum(map(len, batches)) == sender.sent_total == 3_000
    assert all(len(batch) < 500 + 3 for batch in batches), "as many as are wanted, and the rest of a trace"
    assert client.expedited and client.closed
    assert not world.errors
    assert not sender.give(b"", 1)
    assert sender.dropped_total == 301, "nobody sends it any more"


def test_spans_do_not_wait_for_company_forever() -> None:
    client = Stuck()
    client.go.set()
    sender = SpanSender(client, Envelope({}, "test"), 100, 50, 0.01)
    sender.give(b"", 1)
    while sender.sent_total < 1:
        threading.Event().wait(0.005)
    sender.close()
    assert len(client.bodies) == 1


class Broken(Stuck):
    """Raises, which no client should, at the first body."""

    def post(self, body: bytes) -> bool:
        if self.go.is_set():
            return super().post(body)
        self.go.set()
        raise RuntimeError("injected")


def test_a_defect_costs_one_body_and_not_the_thread() -> None:
    client = Broken()
    sender = SpanSender(client, Envelope({}, "test"), 100, 1, 3600.0)
    sender.give(b"", 1)
    while sender.failed_total < 1:
        threading.Event().wait(0.005)
    sender.give(b"", 1)
    sender.close()
    assert (sender.failed_total, sender.sent_total, len(client.bodies)) == (1, 1, 1)
    assert client.closed


def test_a_collector_that_refuses_costs_spans_and_nothing_else(collector: Collector) -> None:
    collector.status = 400
    traced = Traced(collector)
    traced.world.pod()
    exchange, client = traced.world.begin()
    traced.world.answer(exchange)
    traced.received()
    assert client.has_ended()
    assert (traced.sender.sent_total, traced.sender.failed_total) == (0, 3)


# --- the switch ---


@pytest.mark.parametrize(
    ("tracing", "environ", "wanted"),
    [
        (Tracing(), {}, False),
        (Tracing(), {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (Tracing(exporter="none"), {"OTEL_TRACES_EXPORTER": "otlp"}, False),
        (Tracing(exporter="otlp"), {"OTEL_TRACES_EXPORTER": "none"}, True),
        (Tracing(exporter="otlp"), {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_when_traces_are_sent(tracing: Tracing, environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted(tracing, environ) is wanted


@pytest.mark.parametrize(
    ("tracing", "environ", "rate"),
    [
        (Tracing(), {}, TRACING_RATE),
        (Tracing(sampling_rate=0.25), {"OTEL_TRACES_SAMPLER": "always_on"}, 0.25),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, 1.0),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"}, 1.0),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "much"}, TRACING_RATE),
        (Tracing(), {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"}, TRACING_RATE),
    ],
)
def test_how_much_is_traced(tracing: Tracing, environ: dict[str, str], rate: float) -> None:
    assert sampling_rate(tracing, environ) == rate


def test_where_spans_go() -> None:
    assert endpoint_of(Tracing()) == ""
    assert endpoint_of(Tracing(endpoint="http://a:4318")) == "http://a:4318/v1/traces"
    assert endpoint_of(Tracing(endpoint="http://a:4318/")) == "http://a:4318/v1/traces"
    assert endpoint_of(Tracing(endpoint="http://a/own/path")) == "http://a/own/path"


class Switched:
    """A switch over a proxy with one pod; `environ` may change."""

    def __init__(self, **environ: str) -> None:
        self.world = World()
        self.environ = environ
        self.controllers = Controllers(self.world.clock.now)
        clock, errors = self.world.clock, self.world.errors
        self.switch = TraceSwitch(
            self.world.proxy, self.controllers, environ, Rng(1), Entropy(), lambda: WALL_NS, clock.now, errors.append
        )
        self.world.pod(limit=9)

    def one_request(self) -> None:
        exchange, _ = self.world.begin()
        self.world.answer(exchange)

    def is_off(self) -> bool:
        proxy = self.world.proxy
        return (proxy.sampler, proxy.tracer, self.controllers.on_pass) == (None, None, None)


def test_the_switch(collector: Collector) -> None:
    switched = Switched()
    switch = switched.switch
    assert switch.totals == {"sent": 0, "failed": 0, "dropped": 0}
    switched.one_request()
    switch.set(Tracing("otlp", collector.url, 1.0))
    switched.one_request()
    with switched.controllers.reconcile("revision"):
        pass
    switch.set(Tracing("otlp", collector.url, 1.0))  # the same: nothing changes
    switch.set(Tracing("none"))
    switched.one_request()
    assert switched.is_off()
    with collector.arrived:
        assert collector.arrived.wait_for(lambda: len(collector.spans) == 4, 60.0)
    assert {one.key: one.value.string_value for one in collector.resources[0].attributes}["service.name"] == "activator"
    switch.close()


def test_what_becomes_of_spans_after_the_switch_is_counted_too(collector: Collector) -> None:
    """Those that wait are sent when it goes off, or elsewhere: the counters add up whenever they are read."""
    switched = Switched(OTEL_BSP_SCHEDULE_DELAY="3600000")  # nothing is sent before
    switch = switched.switch
    switch.set(Tracing("otlp", collector.url, 1.0))
    switched.one_request()
    switch.set(Tracing("otlp", collector.url + "/", 1.0))
    switched.one_request()
    switch.set(Tracing("none"))
    switch.close()
    assert len(collector.spans) == 6
    assert switch.totals == switch.totals == {"sent": 6, "failed": 0, "dropped": 0}
    assert not switch._leaving, "nothing is kept of what has ended"
    collector.status = 400
    switch.set(Tracing("otlp", collector.url, 1.0))
    switched.one_request()
    switch.close()
    assert switch.totals == {"sent": 6, "failed": 3, "dropped": 0}


def test_of_many_switches_nothing_stays_behind_though_nobody_reads_the_totals(collector: Collector) -> None:
    switch = Switched().switch
    for number in range(4):
        switch.set(Tracing("otlp", f"{collector.url}/{number}", 1.0))
        for thread in switch._leaving:
            thread.join(60.0)
        assert len(switch._leaving) <= 1
    switch.close()


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "many"},
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "0"},
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(2 * TRACE_SPANS_MAX)},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "11"},
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
    ],
)
def test_what_is_refused_changes_nothing(collector: Collector, environ: dict[str, str]) -> None:
    """Variables that say what cannot be, at the start, then while spans are sent already."""
    switched = Switched(**environ)
    wanted = Tracing("otlp", collector.url, 1.0)
    for _ in range(2):
        with pytest.raises(StartError, match="tracing: "):
            switched.switch.set(wanted)
        assert switched.is_off()
    switched.environ.clear()
    switched.switch.set(wanted)
    tracer = switched.world.proxy.tracer
    switched.environ.update(environ)
    for _ in range(2):
        with pytest.raises(StartError, match="tracing: "):
            switched.switch.set(Tracing("otlp", collector.url, 0.5))
        assert switched.world.proxy.tracer is tracer is not None
    switched.switch.set(wanted)  # what is in force needs nothing new
    switched.one_request()
    switched.switch.close()
    assert switched.switch.totals["sent"] == len(collector.spans) == 3
