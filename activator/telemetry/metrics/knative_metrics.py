"""The metrics of Knative's activator, with its names and labels, for existing dashboards.

Rules
  1. Where possible, values are read from the same plain counters as our own metrics. knative_requests.py counts
     requests by method, host, status and so on, but only while these metrics are enabled; request_counts.py adds up the
     counts of several workers.
  2. One list of metrics has two outputs: Prometheus' text, and the data of OpenTelemetry's SDK for its exporters.
  3. Metrics that cannot be bounded are omitted: Knative's http.client metrics have the address of every pod that ever
     existed.

Source: knative.dev/serving pkg/activator, pkg/http/handler (v1.23), and OpenTelemetry's conventions for HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from activator.messages import RevisionStatistics
from activator.runtime.distribution import Distribution
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.cluster_families import KnativeView
from activator.telemetry.metrics.exposition import READ_PER_SLICE, SAMPLES_PER_SLICE, SingleMetricCollector
from activator.telemetry.metrics.families import add
from activator.telemetry.metrics.knative_requests import OTHER
from activator.telemetry.metrics.named import NamedRevisions, labels_of
from activator.telemetry.metrics.request_counts import RequestReader

Attributes = dict[str, str | int]
Number = int | float
Value = Number | Distribution
Point = tuple[Attributes, Value]


class Kind(Enum):
    """The kinds of OpenTelemetry; Prometheus does not distinguish the first two."""

    GAUGE = "gauge"
    UP_DOWN = "up-down counter"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Described(NamedTuple):
    """The description of one metric."""

    name: str  # in OpenTelemetry's form
    unit: str
    kind: Kind
    text: str

    @property
    def prometheus_name(self) -> str:
        """The name with its unit, except units in braces; the library adds the suffix of a counter."""
        return self.name.replace(".", "_") + _UNITS.get(self.unit, "")

    def family(self, labels: tuple[str, ...] = ()) -> Metric:
        families = {Kind.COUNTER: CounterMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
        metric: Metric = families.get(self.kind, GaugeMetricFamily)(self.prometheus_name, self.text, labels=labels)
        return metric


class Measure(NamedTuple):
    """A metric, and the function that reads it."""

    described: Described
    read: Callable[[Any], Any]


_UNITS: Final = {"s": "_seconds", "By": "_bytes"}
_REQUESTS: Final = "{request}"

CONCURRENCY: Final = Measure(
    Described("kn.revision.request.concurrency", _REQUESTS, Kind.GAUGE, "Requests that wait for a pod or are at one."),
    lambda revision: float(revision.table.in_flight + revision.queued),
)
REVISION_MEASURES: Final = (
    CONCURRENCY,
    Measure(
        Described("kn.revision.request.queued", _REQUESTS, Kind.UP_DOWN, "Requests that wait for a pod."),
        lambda revision: revision.queued,
    ),
    Measure(
        Described("kn.revision.request.active", _REQUESTS, Kind.UP_DOWN, "Requests at pods."),
        lambda revision: revision.table.in_flight,
    ),
)
REQUEST_MEASURES: Final = (
    Measure(
        Described(
            "http.server.request.duration",
            "s",
            Kind.HISTOGRAM,
            "From the arrival of a request to its end, by its kind.",
        ),
        lambda series: series.duration,
    ),
    Measure(
        Described("http.server.request.body.size", "By", Kind.HISTOGRAM, "Bodies of requests, as far as they came."),
        lambda series: series.request_size,
    ),
    Measure(
        Described("http.server.response.body.size", "By", Kind.HISTOGRAM, "Bodies of answers, as far as they went."),
        lambda series: series.response_size,
    ),
)
AUTOSCALER_MEASURES: Final = (
    Measure(
        Described(
            "kn.activator.stats.conn.reachable",
            "{reachable}",
            Kind.GAUGE,
            "1 while there is a connection to the autoscaler.",
        ),
        lambda view: int(view.stream.is_connected),
    ),
    Measure(
        Described(
            "kn.activator.stats.conn.errors",
            "{error}",
            Kind.COUNTER,
            "Connections to the autoscaler that were there and broke.",
        ),
        lambda view: int(view.stream.errors_total),
    ),
)
METRICS: Final = tuple(measure.described for measure in (*REVISION_MEASURES, *REQUEST_MEASURES, *AUTOSCALER_MEASURES))


class KnativeMetrics:
    """Knative's metrics of one program; `cluster` returns None if there is no cluster."""

    def __init__(
        self,
        revisions: Callable[[], Iterable[RevisionStatistics]],
        requests: RequestReader,
        cluster: Callable[[], KnativeView | None],
        named_max: int = METRICS_REVISIONS_MAX,
    ) -> None:
        self.requests = requests
        self._revisions = revisions
        self._cluster = cluster
        self._roster = NamedRevisions((), named_max)

    def ended(self, statistics: RevisionStatistics) -> None:
        """Record the last statistics of a dropped revision whose last request has ended."""
        self._roster.ended(statistics)

    def render(self) -> tuple[Iterator[bytes], str]:
        """Return an iterator of slices of Prometheus' text, which may be empty, and the content type."""
        return self._slices(), CONTENT_TYPE_PLAIN_0_0_4

    def begin(self) -> KnativeReading:
        """Return a reading, which is empty until `fill` has been called."""
        return KnativeReading(self._revisions, self._roster, self.requests, self._cluster())

    def _slices(self) -> Iterator[bytes]:
        reading = self.begin()
        for _ in reading.fill():
            yield b""
        for described, points in reading.points():
            yield generate_latest(SingleMetricCollector(described.family()))
            lines = 0
            batch: list[Point] = []
            for point in points:
                batch.append(point)
                lines += len(point[1].buckets) if isinstance(point[1], Distribution) else 1
                if lines >= SAMPLES_PER_SLICE // 10:  # the library takes 5 us per line
                    yield _samples(described, batch)
                    lines = 0
                    batch.clear()
            yield _samples(described, batch)


class KnativeReading:
    """A reading of all revisions, or of as many as `fill` has read."""

    def __init__(
        self,
        revisions: Callable[[], Iterable[RevisionStatistics]],
        roster: NamedRevisions,
        requests: RequestReader,
        cluster: KnativeView | None,
    ) -> None:
        self._revisions = revisions
        self._roster = roster
        self._requests = requests
        self._cluster = cluster
        self._named: list[RevisionStatistics] = []
        self._others: dict[Measure, Number] = {}
        self._attributes: dict[str, Attributes] = {}  # by key, for all revisions

    def fill(self) -> Iterator[None]:
        """Read all revisions in steps, between which the loop may run."""
        for number, revision in enumerate(self._revisions(), start=1):
            if not revision.dropped:
                self._add(revision)
            if number % READ_PER_SLICE == 0:
                yield None

    def _add(self, revision: RevisionStatistics) -> None:
        self._attributes[revision.key] = _revision_attributes(revision, True)
        if self._roster.labels_of(revision) is not None:
            self._named.append(revision)
            return
        for measure in REVISION_MEASURES:
            self._others[measure] = self._others.get(measure, 0) + measure.read(revision)

    def points(self) -> Iterator[tuple[Described, Iterator[Point]]]:
        """Yield each metric with its values by attributes."""
        for measure in REVISION_MEASURES:
            yield measure.described, self._of_revisions(measure)
        for measure in REQUEST_MEASURES:
            yield measure.described, self._of_requests(measure)
        if self._cluster is not None:
            for measure in AUTOSCALER_MEASURES:
                yield measure.described, iter([({"peer": "autoscaler"}, measure.read(self._cluster))])

    def _of_revisions(self, measure: Measure) -> Iterator[Point]:
        with_service = measure is CONCURRENCY
        for revision in self._named:
            yield _revision_attributes(revision, with_service), measure.read(revision)
        if measure in self._others:
            yield _other_attributes(with_service), self._others[measure]

    def _of_requests(self, measure: Measure) -> Iterator[Point]:
        """Yield the values of request metrics; requests without a revision lack the revision's attributes."""
        for key, series in self._requests.read(self._attributes.keys()):
            revision_attributes = _other_attributes(True) if key == OTHER else self._attributes.get(key, {})
            value = measure.read(series)
            yield (
                {**series.attributes(), **revision_attributes},
                value if isinstance(value, Distribution) else Distribution.of(value),
            )


def _revision_attributes(revision: RevisionStatistics, with_service: bool) -> Attributes:
    namespace, name = labels_of(revision)
    attributes: Attributes = {"k8s.namespace.name": namespace, "kn.revision.name": name}
    if with_service:
        attributes["kn.service.name"] = revision.knative.service
        attributes["kn.configuration.name"] = revision.knative.configuration
    return attributes


def _other_attributes(with_service: bool) -> Attributes:
    attributes: Attributes = {"k8s.namespace.name": OTHER, "kn.revision.name": OTHER}
    return {**attributes, "kn.service.name": OTHER, "kn.configuration.name": OTHER} if with_service else attributes


def _samples(described: Described, points: list[Point]) -> bytes:
    """Return the lines of samples without the metric's description, which has been written."""
    text = b""
    by_labels: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        by_labels.setdefault(tuple(point[0]), []).append(point)
    for names, batch in by_labels.items():
        metric = described.family(tuple(name.replace(".", "_") for name in names))
        for attributes, value in batch:
            add(
                metric, tuple(map(str, attributes.values())), value if isinstance(value, Distribution) else float(value)
            )
        text += b"".join(
            line
            for line in generate_latest(SingleMetricCollector(metric)).splitlines(keepends=True)
            if not line.startswith(b"#")
        )
    return text


def otlp_data(reading: KnativeReading, resource: Any, started_ns: int, now_ns: int) -> Any:
    """Return a reading as the SDK's `MetricsData`, for its exporters; `resource` is the SDK's."""
    from opentelemetry.sdk.metrics import export as sdk  # imported only if metrics are exported
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    cumulative = sdk.AggregationTemporality.CUMULATIVE
    metrics = []
    for described, values in reading.points():
        data: Any
        if described.kind is Kind.HISTOGRAM:
            points = [_histogram_point(attributes, value, started_ns, now_ns) for attributes, value in values]
            data = sdk.Histogram(points, cumulative)
        else:
            numbers = [sdk.NumberDataPoint(attributes, started_ns, now_ns, value) for attributes, value in values]  # type: ignore[arg-type]
            data = (
                sdk.Gauge(numbers)
                if described.kind is Kind.GAUGE
                else sdk.Sum(numbers, cumulative, is_monotonic=described.kind is Kind.COUNTER)
            )
        metrics.append(sdk.Metric(described.name, described.text, described.unit, data))
    scope = InstrumentationScope("knative.dev/serving/pkg/activator")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [sdk.ScopeMetrics(scope, metrics, "")], "")])


def _histogram_point(attributes: Attributes, value: Value, started_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    assert isinstance(value, Distribution)
    counts = [count for _, count in value.buckets]
    bucket_counts = [count - before for count, before in zip(counts, [0, *counts[:-1]], strict=True)]
    bounds = [bound for bound, _ in value.buckets[:-1]]
    return HistogramDataPoint(
        attributes,
        started_ns,
        now_ns,
        counts[-1],
        value.total,
        bucket_counts,
        bounds,
        None,  # type: ignore[arg-type]  # min and max are optional, and not recorded
        None,  # type: ignore[arg-type]
    )
