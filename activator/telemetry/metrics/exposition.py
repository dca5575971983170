"""The exposition: metrics are collected from plain counters on request; the request path does not use this module.

All revisions are read first, then the text is rendered family by family. Both are done in bounded slices, between which
the loop may run, because the text of a thousand revisions has a hundred thousand lines. All figures of one revision are
read at one time. A slice is empty if it only read revisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from activator.messages import RevisionStatistics
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES, DECLARATION_FAMILIES, KNATIVE_FAMILIES
from activator.telemetry.metrics.controller_families import CONTROLLER_FAMILIES
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind, Source, add
from activator.telemetry.metrics.group_families import GROUP_FAMILIES
from activator.telemetry.metrics.member_families import MEMBER_FAMILIES
from activator.telemetry.metrics.memory_families import MEMORY_FAMILIES
from activator.telemetry.metrics.named import NamedRevisions, Reading
from activator.telemetry.metrics.program_families import PROGRAM_FAMILIES, Program
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from activator.telemetry.metrics.sample_text import FamilyText
from activator.telemetry.metrics.scaling_families import SCALING_FAMILIES
from activator.telemetry.metrics.worker_families import WORKER_FAMILIES

SAMPLES_PER_SLICE: Final = 1000  # a millisecond or two
READ_PER_SLICE: Final = 20  # revisions; one takes some 20 us, and 200 more if it is added to `_other`

_OPENMETRICS: Final = "application/openmetrics-text"  # the one format that has exemplars
_END_OF_OPENMETRICS: Final = b"# EOF\n"
Encode = Callable[[Collector], bytes]


class Exposition:
    """The exposition of one program. There is no global state, so two programs in one process are independent."""

    def __init__(
        self,
        revisions: Callable[[], Iterable[RevisionStatistics]],
        program: Callable[[], Program],
        named_max: int = METRICS_REVISIONS_MAX,
    ) -> None:
        self.histograms = True  # show the histograms of revisions
        self._revisions = revisions
        self._program = program
        self._roster = NamedRevisions(REVISION_FAMILIES, named_max)
        self._texts = [(family, FamilyText(family)) for family in REVISION_FAMILIES]
        self._process = ProcessCollector(registry=CollectorRegistry(auto_describe=False))

    def render(self, accept: str = "") -> tuple[Iterator[bytes], str]:
        """Return an iterator of the slices, each rendered on demand, and the content type that matches `accept`."""
        encode, content_type = choose_encoder(accept)
        return self._slices(encode, content_type.startswith(_OPENMETRICS)), content_type

    def ended(self, statistics: RevisionStatistics) -> None:
        """Record the last statistics of a dropped revision whose last request has ended."""
        self._roster.ended(statistics)

    def _slices(self, encode: Encode, exemplars: bool) -> Iterator[bytes]:
        reading = self._roster.read()
        for number, revision in enumerate(self._revisions(), start=1):
            reading.add(revision)
            if number % READ_PER_SLICE == 0:
                yield b""
        has_end_line = False
        for metric in self._program_metrics():
            text = encode(SingleMetricCollector(metric))
            has_end_line = text.endswith(_END_OF_OPENMETRICS)
            yield text.removesuffix(_END_OF_OPENMETRICS)
        for family, writer in self._texts:
            if family.kind is Kind.HISTOGRAM and not self.histograms:
                continue
            description = encode(SingleMetricCollector(family.metric(REVISION_LABELS)))
            yield description.removesuffix(_END_OF_OPENMETRICS)
            yield from samples_of(reading, self._roster.others_text, family, writer, exemplars)
        if has_end_line:
            yield _END_OF_OPENMETRICS

    def _program_metrics(self) -> Iterator[Metric]:
        yield from self._process.collect()
        program = self._program()
        for families, source in _sources(program):
            if source is not None:
                for family in families:
                    yield _read(family, source)


def _sources(program: Program) -> list[tuple[Iterable[Family[Any]], object]]:
    """Return the families and their source; a source is None if the program does not have that part."""
    return [
        (PROGRAM_FAMILIES, program),
        (CLUSTER_FAMILIES, program.cluster),
        (KNATIVE_FAMILIES, program.knative),
        (DECLARATION_FAMILIES, program.declarations),
        (WORKER_FAMILIES, program.workers),
        (MEMBER_FAMILIES, program.members),
        (SCALING_FAMILIES, program.scaling),
        (GROUP_FAMILIES, program.groups),
        (MEMORY_FAMILIES, program.memory),
        (CONTROLLER_FAMILIES, program.controllers),
    ]


def samples_of(
    reading: Reading, others: str, family: Family[RevisionStatistics], writer: FamilyText, exemplars: bool = False
) -> Iterator[bytes]:
    """Yield the lines of one family, in slices; `others` are the labels of the aggregated revisions."""
    lines: list[str] = []
    for revision, labels in reading.named:
        writer.write(lines, labels, family.read(revision), exemplars)
        if len(lines) >= SAMPLES_PER_SLICE:
            yield "".join(lines).encode()
            lines.clear()
    writer.write(lines, others, reading.others(family), exemplars)
    yield "".join(lines).encode()


def _read(family: Family[Source], source: Source) -> Metric:
    metric = family.metric(())
    for values, value in family.read(source):
        add(metric, values, value)
    return metric


class SingleMetricCollector(Collector):
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
