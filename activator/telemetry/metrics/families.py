"""The definition of a metric: its name, help text, labels, and the function that reads it.

Rules
  1. Labels are namespace, revision and closed sets (state, reason, code class, phase); never a path, a host or other
     data of a request, and pods only of revisions that have few (`metrics.pods`). The trace id of an exemplar is not a
     label and creates no series.
  2. Names and units follow Prometheus' conventions; the name of a counter lacks `_total`, which the exposition adds.
  3. Each family has a help text, from which `docs/metrics.md` is generated.
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


class Aggregation(Enum):
    """The way in which the values of aggregated revisions are combined."""

    SUM = "sum"
    MAX = "max"


Value = float | Distribution
Row = tuple[tuple[str, ...], Value]  # the values of the family's own labels, and the value


class Family(NamedTuple, Generic[Source]):
    """A metric that each `Source` has."""

    name: str
    kind: Kind
    text: str
    read: Callable[[Source], Iterable[Row]]
    labels: tuple[str, ...] = ()  # in addition to those that name the source
    values: tuple[tuple[str, ...], ...] = ()  # all values of each label; empty: as configured
    bounds: tuple[float, ...] = ()  # the bounds of a histogram
    fold: Aggregation = Aggregation.SUM
    is_named_only: bool = False  # only of revisions that are shown by name
    why: str = ""  # for the control plane: the difference to the nearest metric of a controller runtime

    def metric(self, source_labels: tuple[str, ...]) -> Metric:
        """Return the metric without samples."""
        labels = (*source_labels, *self.labels)
        if self.kind is Kind.COUNTER:
            return CounterMetricFamily(self.name, self.text, labels=labels)
        if self.kind is Kind.GAUGE:
            return GaugeMetricFamily(self.name, self.text, labels=labels)
        return HistogramMetricFamily(self.name, self.text, labels=labels)

    def folded(self, rows: Iterable[Row]) -> list[Row]:
        """Merge rows that have the same labels."""
        merged: dict[tuple[str, ...], Value] = {}
        for labels, value in rows:
            earlier = merged.get(labels)
            merged[labels] = value if earlier is None else self._fold(earlier, value)
        return list(merged.items())

    def _fold(self, first: Value, second: Value) -> Value:
        if isinstance(first, Distribution) and isinstance(second, Distribution):
            return first.plus(second)
        assert isinstance(first, float) and isinstance(second, float), f"{self.name}: rows of two kinds"
        return max(first, second) if self.fold is Aggregation.MAX else first + second


def add(metric: Metric, labels: tuple[str, ...], value: Value) -> None:
    """Add one row to a metric that `Family.metric` made."""
    if isinstance(metric, HistogramMetricFamily):
        assert isinstance(value, Distribution), f"{metric.name} is a histogram"
        buckets = [("+Inf" if bound == inf else repr(bound), float(count)) for bound, count in value.buckets]
        metric.add_metric(labels, buckets, value.total)
    else:
        assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily) and isinstance(value, float)
        metric.add_metric(labels, value)


def single_row(read: Callable[[Source], float]) -> Callable[[Source], list[Row]]:
    """Return the `read` function of a family without labels of its own."""
    return lambda source: [((), float(read(source)))]


def counter(name: str, text: str, read: Callable[[Source], float], why: str = "") -> Family[Source]:
    """Return a counter without labels of its own."""
    return Family(name, Kind.COUNTER, text, single_row(read), why=why)


def gauge(
    name: str, text: str, read: Callable[[Source], float], fold: Aggregation = Aggregation.SUM, why: str = ""
) -> Family[Source]:
    """Return a gauge without labels of its own."""
    return Family(name, Kind.GAUGE, text, single_row(read), fold=fold, why=why)
