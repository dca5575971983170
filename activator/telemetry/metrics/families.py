"""What a metric is before it is rendered: a name, a meaning, a closed set of labels, and how it is read.

Rules
  1. Labels are namespace, revision and closed sets (state, reason, code class, phase); never a pod, a path, a host or
     anything else that a request carries. The trace of an exemplar is no label: it makes no series.
  2. Names and units follow Prometheus' conventions; a counter stands here without `_total`, which the exposition adds.
  3. Each family says what it is for: `docs/metrics.md` is written from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from math import inf
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from activator.runtime.distribution import Distribution

REVISION_LABELS = ("namespace", "revision")

Source = TypeVar("Source")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Fold(Enum):
    """What becomes of the values of revisions that are shown as one."""

    SUM = "sum"
    MAX = "max"


Value = float | Distribution
Row = tuple[tuple[str, ...], Value]  # the values of the family's own labels, and what was read


class Family(NamedTuple, Generic[Source]):
    """One metric of each `Source`."""

    name: str
    kind: Kind
    text: str
    read: Callable[[Source], Iterable[Row]]
    labels: tuple[str, ...] = ()  # beside those that name the source
    values: tuple[tuple[str, ...], ...] = ()  # of each label, all that it can be; empty: as configured
    bounds: tuple[float, ...] = ()  # of a histogram
    fold: Fold = Fold.SUM
    adds: str = ""  # of the control plane: what it shows that the nearest metric of every controller does not

    def metric(self, source_labels: tuple[str, ...]) -> Metric:
        """Without samples yet."""
        labels = (*source_labels, *self.labels)
        if self.kind is Kind.COUNTER:
            return CounterMetricFamily(self.name, self.text, labels=labels)
        if self.kind is Kind.GAUGE:
            return GaugeMetricFamily(self.name, self.text, labels=labels)
        return HistogramMetricFamily(self.name, self.text, labels=labels)

    def folded(self, rows: Iterable[Row]) -> list[Row]:
        """Rows of many sources as those of one."""
        found: dict[tuple[str, ...], Value] = {}
        for labels, value in rows:
            before = found.get(labels)
            found[labels] = value if before is None else self._fold(before, value)
        return list(found.items())

    def _fold(self, one: Value, other: Value) -> Value:
        if isinstance(one, Distribution) and isinstance(other, Distribution):
            return one.plus(other)
        assert isinstance(one, float) and isinstance(other, float), f"{self.name}: rows of two kinds"
        return max(one, other) if self.fold is Fold.MAX else one + other


def add(metric: Metric, labels: tuple[str, ...], value: Value) -> None:
    """One row into a metric that `Family.metric` made."""
    if isinstance(metric, HistogramMetricFamily):
        assert isinstance(value, Distribution), f"{metric.name} is a histogram"
        buckets = [("+Inf" if bound == inf else repr(bound), float(count)) for bound, count in value.buckets]
        metric.add_metric(labels, buckets, value.total)
    else:
        assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily) and isinstance(value, float)
        metric.add_metric(labels, value)


def one(read: Callable[[Source], float]) -> Callable[[Source], list[Row]]:
    """A family without labels of its own."""
    return lambda source: [((), float(read(source)))]


def counter(name: str, text: str, read: Callable[[Source], float], adds: str = "") -> Family[Source]:
    """A counter without labels of its own."""
    return Family(name, Kind.COUNTER, text, one(read), adds=adds)


def gauge(
    name: str, text: str, read: Callable[[Source], float], fold: Fold = Fold.SUM, adds: str = ""
) -> Family[Source]:
    """A gauge without labels of its own."""
    return Family(name, Kind.GAUGE, text, one(read), fold=fold, adds=adds)
