"""The exposition: metrics collected from plain counters when somebody asks; the request path never touches this module.

It is rendered family by family in slices of a bounded number of samples, between which the loop may turn: with a
thousand revisions the text has a hundred thousand lines. A sample is as it was when its slice was rendered; a histogram
is never cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from activator.config import METRICS_REVISIONS_MAX
from activator.telemetry.families import REVISION_LABELS, Family, add
from activator.telemetry.named import OTHER, Roster, labels_of
from activator.telemetry.program_families import PROGRAM_FAMILIES, Program
from activator.telemetry.revision_families import REVISION_FAMILIES
from activator.throttle.revision import RevisionThrottler

SAMPLES_PER_SLICE: Final = 500  # rendering one takes 5 us

_END_OF_OPENMETRICS: Final = b"# EOF\n"


class Exposition:
    """Of one program; nothing is global, so two programs in one process do not meet."""

    def __init__(
        self,
        throttlers: Mapping[str, RevisionThrottler],
        program: Program,
        named_max: int = METRICS_REVISIONS_MAX,
    ) -> None:
        self._throttlers = throttlers
        self._program = program
        self._roster = Roster(REVISION_FAMILIES, named_max)
        self._process = ProcessCollector(registry=CollectorRegistry(auto_describe=False))

    def render(self, accept: str = "") -> tuple[Iterator[bytes], str]:
        """The slices, each made when it is asked for, and the content type that fits what is accepted."""
        encode, content_type = choose_encoder(accept)
        return self._slices(encode), content_type

    def _slices(self, encode: Callable[[Collector], bytes]) -> Iterator[bytes]:
        self._roster.update(self._throttlers)
        ended = False
        for pieces in self._families():
            for number, piece in enumerate(pieces):
                text = encode(_Only(piece))
                if text.endswith(_END_OF_OPENMETRICS):
                    ended = True
                    text = text[: -len(_END_OF_OPENMETRICS)]
                yield text if number == 0 else _without_description(text)
        if ended:
            yield _END_OF_OPENMETRICS

    def _families(self) -> Iterator[Iterator[Metric]]:
        for metric in self._process.collect():
            yield iter([metric])
        for family in PROGRAM_FAMILIES:
            metric = family.metric(())
            for values, value in family.read(self._program):
                add(metric, values, value)
            yield iter([metric])
        for of_revisions in REVISION_FAMILIES:
            yield self._pieces(of_revisions)

    def _pieces(self, family: Family[RevisionThrottler]) -> Iterator[Metric]:
        """One family in pieces, the first of them even if there is nothing in it."""
        metric = family.metric(REVISION_LABELS)
        for throttler in self._roster.named:
            for values, value in family.read(throttler):
                add(metric, (*labels_of(throttler), *values), value)
            if len(metric.samples) >= SAMPLES_PER_SLICE:
                yield metric
                metric = family.metric(REVISION_LABELS)
        rows = self._roster.gone(family)
        for throttler in self._roster.others:
            rows = family.folded([*rows, *family.read(throttler)])
        for values, value in rows:
            add(metric, (*OTHER, *values), value)
        yield metric


class _Only(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _without_description(text: bytes) -> bytes:
    """The samples alone: a family is described once."""
    while text.startswith(b"#"):
        text = text[text.index(b"\n") + 1 :]
    return text
