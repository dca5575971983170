"""Metrics by Knative's names: what Prometheus reads, and what a collector is sent."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.kinds import Duration
from activator.config.model.telemetry import KnativeExport
from activator.config.specs import KnativeSpec, RoutingSpec
from activator.runtime.distribution import Distribution
from activator.runtime.tasks import TaskGroupOwner
from activator.telemetry.metrics.cluster_families import KnativeView
from activator.telemetry.metrics.knative_export import KnativeExporter
from activator.telemetry.metrics.knative_metrics import KnativeMetrics, otlp_data
from activator.telemetry.metrics.knative_requests import DURATION_BOUNDS_S, SIZE_BOUNDS, KnativeRequests
from activator.telemetry.switchboard import export_of
from tests.data_plane.proxy.proxy_fakes import World, request_head
from tests.telemetry.http_collector import Answer, HttpCollector
from tests.telemetry.revision_figures import of_world, read_from, throttlers

LABELS = {"k8s_namespace_name": "ns", "kn_revision_name": "app"}
ALL_LABELS = {**LABELS, "kn_service_name": "svc", "kn_configuration_name": "conf"}
OF_THE_REQUEST = {
    "http_request_method": "POST",
    "url_scheme": "http",
    "server_address": "app.test",
    "network_protocol_name": "http",
    "network_protocol_version": "1.1",
    "http_response_status_code": "200",
}


def measured(named_max: int = 1000) -> tuple[World, KnativeMetrics]:
    """A revision with one request at a pod, one in line, and one that has ended."""
    world = World(knative=KnativeSpec(service="svc", configuration="conf"))
    requests = KnativeRequests(world.errors.append)
    world.proxy.measurer = requests
    world.pod()
    head = request_head("POST", length=300)
    first, _ = world.begin(head)
    first.request_body(b"x" * 300)
    first.request_end([])
    world.clock.pass_time(0.003)
    world.answer(first)
    world.begin()
    world.begin()
    stream = SimpleNamespace(is_connected=True, errors_total=4)
    cluster = cast("KnativeView", SimpleNamespace(stream=stream))
    return world, KnativeMetrics(of_world(world.throttler), requests, lambda: cluster, named_max)


def values_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_prometheus_reads() -> None:
    _, metrics = measured()
    slices, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    values = values_of(b"".join(slices).decode())
    labels = tuple(sorted(LABELS.items()))
    assert values["kn_revision_request_concurrency", tuple(sorted(ALL_LABELS.items()))] == 2.0
    assert values["kn_revision_request_queued", labels] == 1.0
    assert values["kn_revision_request_active", labels] == 1.0
    request = {**ALL_LABELS, **OF_THE_REQUEST}
    for name, bound in (
        ("http_server_request_duration_seconds", "0.005"),
        ("http_server_request_body_size_bytes", "500.0"),
        ("http_server_response_body_size_bytes", "5.0"),
    ):
        assert values[f"{name}_count", tuple(sorted(request.items()))] == 1.0
        assert values[f"{name}_bucket", tuple(sorted({**request, "le": bound}.items()))] == 1.0
    size = [value for (name, _), value in values.items() if name == "http_server_request_body_size_bytes_sum"]
    assert size == [300.0]
    peer = (("peer", "autoscaler"),)
    assert values["kn_activator_stats_conn_reachable", peer] == 1.0
    assert values["kn_activator_stats_conn_errors_total", peer] == 4.0


def test_beyond_the_cap_revisions_are_one() -> None:
    made = throttlers(5)
    world = World()
    requests = KnativeRequests(world.errors.append, revisions_max=2)
    world.proxy.measurer = requests
    metrics = KnativeMetrics(read_from(made), requests, lambda: None, named_max=2)
    values = values_of(b"".join(metrics.render()[0]).decode())
    names = {dict(labels)["kn_revision_name"] for _, labels in values}
    assert names == {"r0", "r1", "_other"}
    for _ in range(3):
        world.begin(request_head(host="nobody.test"))
    reading = metrics.begin()
    list(reading.fill())
    points = {described.name: list(values) for described, values in reading.points()}
    ((attributes, value),) = points["http.server.request.duration"]
    assert isinstance(value, Distribution) and value.buckets[-1][1] == 3
    assert attributes["http.response.status_code"] == 404
    assert "kn.revision.name" not in attributes, "none was found"


def measured_requests(world: World, requests: KnativeRequests) -> list[tuple[str, dict[str, str | int], int]]:
    found = requests.read({world.throttler.key})
    return [(key, one.attributes(), one.duration.buckets()[-1][1]) for key, one in found]


def test_what_requests_are_told_apart_by_is_bounded() -> None:
    world = World(routing=RoutingSpec(hosts=("*",)))
    requests = KnativeRequests(world.errors.append, series_max=10)
    world.proxy.measurer = requests
    world.pod(limit=10)
    count = 2_000
    for number in range(count):
        head = request_head(host=f"h{number}.test:{number % 60000}")
        head.method = b"M%d" % (number % 300) if number % 2 else b"GET"
        exchange, _ = world.begin(head)
        world.answer(exchange, 200 + number % 350)
    assert not world.errors
    found = measured_requests(world, requests)
    assert len(found) <= 10 + 24
    assert sum(number for _, _, number in found) == count
    late = [attributes for _, attributes, _ in found[10:]]
    assert {one["server.address"] for one in late} == {"_other"}
    assert {one["http.request.method"] for one in late} == {"_OTHER"}
    assert {one["http.response.status_code"] for one in late} == {200, 300, 400, 500}
    assert list(requests.read(set())) == [], "who has left is not told of"


@pytest.mark.parametrize(
    ("authority", "address", "port"),
    [
        ("app.test", "app.test", None),
        ("app.test:80", "app.test", None),
        ("app.test:8080", "app.test", 8080),
        ("[2001:db8::1]", "2001:db8::1", None),
        ("[2001:db8::1]:81", "2001:db8::1", 81),
    ],
)
def test_hosts_and_ports(authority: str, address: str, port: int | None) -> None:
    world = World(routing=RoutingSpec(hosts=("*",)))
    requests = KnativeRequests(world.errors.append)
    world.proxy.measurer = requests
    world.pod()
    exchange, _ = world.begin(request_head(host=authority))
    world.answer(exchange)
    ((_, attributes, _),) = measured_requests(world, requests)
    assert (attributes["server.address"], attributes.get("server.port")) == (address, port)


def test_the_bounds_are_knatives() -> None:
    """vendor/…/otelhttp/internal/semconv/server.go, and where it says nothing the SDK's own."""
    assert list(DURATION_BOUNDS_S) == [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
    assert list(SIZE_BOUNDS) == [0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000]


class Collector(HttpCollector):
    """Takes metrics."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.arrived = threading.Event()
        super().__init__()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert path == "/v1/metrics"
        self.batches.append(ExportMetricsServiceRequest.FromString(body))
        self.arrived.set()
        return 200, {}


async def gathered() -> None:
    """There is nobody to ask."""


def check(batch: Any) -> None:
    (resource,) = batch.resource_metrics
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "activator"
    (scope,) = resource.scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    assert not metrics["kn.revision.request.active"].sum.is_monotonic
    (active,) = metrics["kn.revision.request.active"].sum.data_points
    assert active.as_int == 1
    (concurrency,) = metrics["kn.revision.request.concurrency"].gauge.data_points
    assert concurrency.as_double == 2.0 and len(concurrency.attributes) == 4
    attributes = {one.key: one.value.string_value for one in active.attributes}
    assert attributes == {"k8s.namespace.name": "ns", "kn.revision.name": "app"}
    assert metrics["kn.revision.request.active"].unit == "{request}"
    duration = metrics["http.server.request.duration"]
    (point,) = duration.histogram.data_points
    assert duration.unit == "s" and point.count == sum(point.bucket_counts) == 1
    assert not point.HasField("min") and not point.HasField("max")
    said = {one.key: one.value.string_value or one.value.int_value for one in point.attributes}
    named = {name.replace(".", "_"): str(value) for name, value in said.items()}
    assert named == {**ALL_LABELS, **OF_THE_REQUEST}
    sizes = metrics["http.server.request.body.size"]
    assert sizes.unit == "By" and sizes.histogram.data_points[0].sum == 300.0
    assert point.sum == pytest.approx(0.003) and len(point.bucket_counts) == len(point.explicit_bounds) + 1
    place = list(point.bucket_counts).index(1)
    assert place == 0 and point.explicit_bounds[0] >= 0.003
    errors = metrics["kn.activator.stats.conn.errors"].sum
    assert errors.is_monotonic and errors.data_points[0].as_int == 4


def test_what_a_collector_is_sent() -> None:
    collector = Collector()
    world, metrics = measured()
    heard: list[object] = []  # who hears of requests while these metrics are wanted, and when they are not

    async def scenario() -> None:
        requests = cast("KnativeRequests", metrics.requests)
        tasks = TaskGroupOwner(lambda name, error: None)
        exporter = KnativeExporter(metrics, world.proxy, requests, tasks, lambda: 7, gathered)
        exporter.set(KnativeExport("http/protobuf", f"{collector.url}/v1/metrics", Duration(0.01)))
        assert await asyncio.to_thread(collector.arrived.wait, 60.0)
        heard.append(world.proxy.measurer)
        exporter.set(KnativeExport())
        heard.append(world.proxy.measurer)
        await tasks.close()

    asyncio.run(scenario())
    collector.close()
    assert heard == [metrics.requests, None]
    check(collector.batches[0])
    assert (
        collector.batches[0].resource_metrics[0].scope_metrics[0].metrics[3].histogram.data_points[0].time_unix_nano
        == 7
    )


def test_the_port_and_its_changes() -> None:
    world, metrics = measured()
    problems: list[str] = []

    def read(address: str) -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60.0) as answer:
            return str(answer.read().decode())

    async def scenario() -> None:
        requests = cast("KnativeRequests", metrics.requests)
        tasks = TaskGroupOwner(lambda name, error: problems.append(name))
        exporter = KnativeExporter(metrics, world.proxy, requests, tasks, lambda: 7, gathered)
        exporter.set(KnativeExport("prometheus", "127.0.0.1:0"))
        async with asyncio.timeout(60.0):
            await exporter.listening.wait()
            first = exporter.address
            assert "kn_revision_request_queued{" in await asyncio.to_thread(read, first)
            exporter.set(KnativeExport("prometheus", first))  # another setting, the same port: the former lets go of it
            await exporter.listening.wait()
            assert exporter.address == first
            assert "kn_revision_request_queued{" in await asyncio.to_thread(read, first)
        exporter.set(KnativeExport())
        await tasks.close()
        assert exporter.address == ""

    asyncio.run(scenario())
    assert problems == []


def test_the_data_is_the_sdks() -> None:
    _, metrics = measured()
    reading = metrics.begin()
    list(reading.fill())
    data = otlp_data(reading, Resource({}), 1, 2)
    assert [metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics] == [
        "kn.revision.request.concurrency",
        "kn.revision.request.queued",
        "kn.revision.request.active",
        "http.server.request.duration",
        "http.server.request.body.size",
        "http.server.response.body.size",
        "kn.activator.stats.conn.reachable",
        "kn.activator.stats.conn.errors",
    ]


def test_what_the_cluster_says() -> None:
    own = KnativeExport("prometheus", ":9191", Duration(5.0))
    assert export_of(own, ClusterSettings()) == own
    wanted = ClusterSettings(metrics_protocol="http/protobuf", metrics_endpoint="http://a/v1/metrics")
    assert export_of(own, wanted) == KnativeExport("http/protobuf", "http://a/v1/metrics", Duration(5.0))
