"""Limits the number of series: a bounded number of revisions have their own labels, the others share `_other`.

A revision is shown by its name from its first reading on, or permanently in `_other`: if it moved, the counters of
`_other` would fall, which Prometheus reads as a restart and counts everything again. For the same reason the counts of
a revision in `_other` remain after its removal: the data plane sends them a last time (`RevisionEnded`).

A reading takes several turns of the loop and may overlap with another one; each covers the revisions that existed when
it began. Therefore the counts of removed revisions are added when the next reading begins, not when they arrive.
"""

from __future__ import annotations

from typing import Final

from activator.messages import RevisionStatistics
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind, Row
from activator.telemetry.metrics.sample_text import pairs_text

OTHER: Final = ("_other", "_other")  # namespace and name; no revision can have either

Rows = dict[str, list[Row]]  # by family
Families = tuple[Family[RevisionStatistics], ...]


class Reading:
    """A reading of all revisions, which are added one by one; the loop may run in between.

    `named` holds the revisions that are shown by name, with their labels as text.
    """

    def __init__(self, roster: NamedRevisions, families: Families, removed: Rows, others: set[int]) -> None:
        self.named: list[tuple[RevisionStatistics, str]] = []
        self._roster = roster
        self._families = families
        self._rows = dict(removed)
        self._others = others

    def add(self, statistics: RevisionStatistics) -> None:
        """Add one revision with its current figures."""
        if statistics.incarnation not in self._others and not statistics.dropped:
            labels = self._roster.labels_of(statistics)
            if labels is not None:
                self.named.append((statistics, labels))
                return
            self._others.add(statistics.incarnation)
        if statistics.incarnation in self._others:
            fold(self._rows, self._families, statistics)

    def others(self, family: Family[RevisionStatistics]) -> list[Row]:
        """Return the rows of `_other`: the aggregated revisions, and the counts of those that were removed."""
        return self._rows.get(family.name, [])


class NamedRevisions:
    """The revisions that are shown by name, at most `named_max`; `labels` are the names of their two labels."""

    def __init__(self, families: Families, named_max: int, labels: tuple[str, ...] = REVISION_LABELS) -> None:
        self.others_text = pairs_text(labels, OTHER)
        self._label_names = labels
        self._families = families
        self._without_gauges = tuple(family for family in families if family.kind is not Kind.GAUGE)
        self._named_max = named_max
        self._named: dict[int, str] = {}  # labels as text, by incarnation
        self._others: set[int] = set()  # incarnations
        self._removed: Rows = {}  # the counts of removed revisions of `_other`
        self._ended: list[RevisionStatistics] = []  # revisions of `_other` removed since the last reading began

    def read(self) -> Reading:
        """Begin a reading."""
        for statistics in self._ended:
            self._others.discard(statistics.incarnation)
            fold(self._removed, self._without_gauges, statistics)
        self._ended.clear()
        return Reading(self, self._families, self._removed, set(self._others))

    def ended(self, statistics: RevisionStatistics) -> None:
        """Record the last statistics of a revision, which will not be read again."""
        self._named.pop(statistics.incarnation, None)
        if statistics.incarnation in self._others:
            self._ended.append(statistics)

    def labels_of(self, statistics: RevisionStatistics) -> str | None:
        """Return the labels of a revision as text; None if it is in `_other`."""
        incarnation = statistics.incarnation
        labels = self._named.get(incarnation)
        if labels is None:
            if len(self._named) >= self._named_max or incarnation in self._others:
                self._others.add(incarnation)
                return None
            labels = self._named[incarnation] = pairs_text(self._label_names, labels_of(statistics))
        return labels


def fold(rows: Rows, families: Families, statistics: RevisionStatistics) -> None:
    """Add the figures of one revision to those of others; the lists in `rows` are replaced, not changed."""
    for family in families:
        if family.is_named_only:
            continue
        rows[family.name] = family.folded([*rows.get(family.name, []), *family.read(statistics)])


def labels_of(statistics: RevisionStatistics) -> tuple[str, str]:
    """Return the namespace and the name."""
    namespace, _, name = statistics.key.partition("/")
    return namespace, name
