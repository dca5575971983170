"""The exposition: metrics collected from plain counters when somebody asks; the request path never touches this module.

It is rendered family by family in slices of a bounded number of samples, between which the loop may turn: with a
thousand revisions the text has a hundred thousand lines. A sample is as it was when its slice was rendered; a histogram
is never cut in two. A slice may be empty: something was added up, and there is more to add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from activator.data_plane.throttle.revision import RevisionThrottler
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES
from activator.telemetry.metrics.controller_families import CONTROLLER_FAMILIES
from activator.telemetry.metrics.families import METRICS_REVISIONS_MAX, REVISION_LABELS, Family, Kind, Source, add
from activator.telemetry.metrics.named import Roster
from activator.telemetry.metrics.program_families import PROGRAM_FAMILIES, Program
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from activator.telemetry.metrics.sample_text import FamilyText

SAMPLES_PER_SLICE: Final = 1000  # a millisecond or two
FOLDED_PER_SLICE: Final = 100  # revisions in `_other`, of one family; a histogram takes 20 us to add

_OPENMETRICS: Final = "application/openmetrics-text"  # the one format that has exemplars
_END_OF_OPENMETRICS: Final = b"# EOF\n"
Encode = Callable[[Collector], bytes]


class Exposition:
    """Of one program; nothing is global, so two programs in one process do not meet."""

    def __init__(
        self,
        throttlers: Mapping[str, RevisionThrottler],
        program: Callable[[], Program],
        named_max: int = METRICS_REVISIONS_MAX,
    ) -> None:
        self.histograms = True  # those of revisions are shown
        self._throttlers = throttlers
        self._program = program
        self._roster = Roster(REVISION_FAMILIES, named_max)
        self._texts = [(family, FamilyText(family)) for family in REVISION_FAMILIES]
        self._process = ProcessCollector(registry=CollectorRegistry(auto_describe=False))

    def render(self, accept: str = "") -> tuple[Iterator[bytes], str]:
        """The slices, each made when it is asked for, and the content type that fits what is accepted."""
        encode, content_type = choose_encoder(accept)
        return self._slices(encode, content_type.startswith(_OPENMETRICS)), content_type

    def _slices(self, encode: Encode, exemplars: bool) -> Iterator[bytes]:
        self._roster.update(self._throttlers)
        ended = False
        for metric in self._program_metrics():
            text = encode(Only(metric))
            ended = text.endswith(_END_OF_OPENMETRICS)
            yield text.removesuffix(_END_OF_OPENMETRICS)
        for family, writer in self._texts:
            if family.kind is Kind.HISTOGRAM and not self.histograms:
                continue
            description = encode(Only(family.metric(REVISION_LABELS)))
            yield description.removesuffix(_END_OF_OPENMETRICS)
            yield from samples_of(self._roster, family, writer, exemplars)
        if ended:
            yield _END_OF_OPENMETRICS

    def _program_metrics(self) -> Iterator[Metric]:
        yield from self._process.collect()
        program = self._program()
        for family in PROGRAM_FAMILIES:
            yield _read(family, program)
        cluster = program.cluster
        if cluster is not None:
            for of_cluster in CLUSTER_FAMILIES:
                yield _read(of_cluster, cluster)
        for of_controllers in CONTROLLER_FAMILIES:
            yield _read(of_controllers, program.controllers)


def samples_of(
    roster: Roster, family: Family[RevisionThrottler], writer: FamilyText, exemplars: bool = False
) -> Iterator[bytes]:
    """The lines of one family, in slices."""
    lines: list[str] = []
    for throttler, labels in roster.named:
        writer.write(lines, labels, family.read(throttler), exemplars)
        if len(lines) >= SAMPLES_PER_SLICE:
            yield "".join(lines).encode()
            lines.clear()
    rows = roster.gone(family)
    for number, throttler in enumerate(roster.others, start=1):
        rows = family.folded([*rows, *family.read(throttler)])
        if number % FOLDED_PER_SLICE == 0:
            yield b""
    writer.write(lines, roster.others_text, rows, exemplars)
    yield "".join(lines).encode()


def _read(family: Family[Source], source: Source) -> Metric:
    metric = family.metric(())
    for values, value in family.read(source):
        add(metric, values, value)
    return metric


class Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
