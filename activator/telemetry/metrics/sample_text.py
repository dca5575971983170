"""A renderer of the samples of revisions: 0.5 us per line, where prometheus_client takes 5.

Rules
  1. Only samples are rendered here, because there may be a hundred thousand of them. prometheus_client renders
     descriptions and the process's figures and selects the format, and in the tests its parsers read all of the output.
  2. Text that does not change is made once: the labels of a revision, those of a family, the bounds of its buckets.
  3. A line is the same in Prometheus' text format and in OpenMetrics, except that a bucket may have an exemplar in the
     latter. Its only label, a trace id of 32 digits, is far below the limit of OpenMetrics, 128 characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

from activator.messages import RevisionStatistics
from activator.runtime.distribution import Distribution, ExemplarReading
from activator.telemetry.metrics.families import Family, Kind, Row

LABELS_KEPT_MAX: Final = 10_000  # combinations of the labels of one family; then they are made again

_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def pairs_text(names: Iterable[str], values: Iterable[str]) -> str:
    """Return labels as the text between braces."""
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(names, values, strict=True))


def _exemplar_text(exemplar: ExemplarReading | None) -> str:
    """Return the text of an exemplar behind the count of its bucket."""
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.value} {exemplar.time_s:.3f}'


class FamilyText:
    """The renderer of one family's samples."""

    def __init__(self, family: Family[RevisionStatistics]) -> None:
        name = family.name
        self._labels = family.labels
        self._head = f"{name}_total{{" if family.kind is Kind.COUNTER else f"{name}{{"
        self._bucket_head = f"{name}_bucket{{"
        self._sum_head = f"{name}_sum{{"
        self._count_head = f"{name}_count{{"
        bounds = [*map(repr, family.bounds), "+Inf"]
        self._bounds = [f',le="{bound}"}} ' for bound in bounds]
        # The text of the family's own labels; at most LABELS_KEPT_MAX, because most values are of closed sets.
        self._family_labels: dict[tuple[str, ...], str] = {(): ""}

    def write(self, lines: list[str], revision: str, rows: Iterable[Row], exemplars: bool = False) -> None:
        """Add the lines of one revision, whose labels `pairs_text` has made; with exemplars in OpenMetrics."""
        for values, value in rows:
            family_labels = self._family_labels.get(values)
            if family_labels is None:
                if len(self._family_labels) >= LABELS_KEPT_MAX:
                    self._family_labels = {(): ""}
                family_labels = self._family_labels[values] = "," + pairs_text(self._labels, values)
            if isinstance(value, Distribution):
                self._write_histogram(lines, revision + family_labels, value, value.exemplars if exemplars else None)
            else:
                lines.append(f"{self._head}{revision}{family_labels}}} {'+Inf' if value == inf else value}\n")

    def _write_histogram(
        self, lines: list[str], labels: str, value: Distribution, exemplars: Mapping[float, ExemplarReading] | None
    ) -> None:
        start = self._bucket_head + labels
        buckets = value.buckets
        pairs = zip(self._bounds, buckets, strict=True)
        if exemplars:
            lines.extend(
                [f"{start}{text}{count}{_exemplar_text(exemplars.get(bound))}\n" for text, (bound, count) in pairs]
            )
        else:
            lines.extend([f"{start}{text}{bucket[1]}\n" for text, bucket in pairs])
        lines.append(f"{self._count_head}{labels}}} {buckets[-1][1]}\n")
        lines.append(f"{self._sum_head}{labels}}} {value.total}\n")
