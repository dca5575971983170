"""The metrics of the memory that programs on this machine use, by revision (sources/process/memory_use.py).

At most METRICS_REVISIONS_MAX revisions have rows of their own; the others share the row `_other`, which has sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from activator.control_plane.sources.process.memory_use import RESOURCES, MemoryWatch, Use
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind, Row
from activator.telemetry.metrics.named import OTHER


class MemoryFigures(NamedTuple):
    """The use of each revision that has programs, by key."""

    uses: list[tuple[str, Use]]

    @classmethod
    def of(cls, memory: MemoryWatch, keys: Iterable[str]) -> MemoryFigures:
        uses = [(key, memory.use_of(key)) for key in keys]
        return cls([(key, use) for key, use in uses if use])


def _memory(figures: MemoryFigures) -> Iterable[Row]:
    """Yield the memory of each revision by resource, and the sums of those without rows of their own."""
    for key, use in figures.uses[:METRICS_REVISIONS_MAX]:
        namespace, _, revision = key.partition("/")
        for resource, amount in use.items():
            yield (namespace, revision, resource), float(amount)
    others: Use = {}
    for _, use in figures.uses[METRICS_REVISIONS_MAX:]:
        for resource, amount in use.items():
            others[resource] = others.get(resource, 0) + amount
    for resource, amount in others.items():
        yield (*OTHER, resource), float(amount)


MEMORY_FAMILIES: tuple[Family[MemoryFigures], ...] = (
    Family(
        "activator_program_memory_bytes",
        Kind.GAUGE,
        "Memory of the programs of a revision: resident (shared pages count for each process) and, with the package "
        "nvidia-ml-py, that of GPUs.",
        _memory,
        (*REVISION_LABELS, "resource"),
        ((), (), RESOURCES),
    ),
)
