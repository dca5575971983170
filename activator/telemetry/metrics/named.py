"""Which revisions are shown by name; beyond the cap they are shown as one, so that the number of series is bounded.

A revision is shown by its name from its first reading on, or in `_other` for good: if it moved, the counters of
`_other` would fall, and a fall is read as a restart that counts everything again. For the same reason what a revision
in `_other` had counted stays there when the revision has gone: a data plane sends it a last time (`RevisionEnded`).

A reading takes several turns of the loop, and another one may begin meanwhile: each sees those that were there at its
own beginning. Therefore what has ended is added at the beginning of the next reading, not when it comes.
"""

from __future__ import annotations

from typing import Final

from activator.messages import RevisionStatistics
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind, Row
from activator.telemetry.metrics.sample_text import pairs_text

OTHER: Final = ("_other", "_other")  # namespace and name; neither can be a revision's own

Rows = dict[str, list[Row]]  # by family
Families = tuple[Family[RevisionStatistics], ...]


class Reading:
    """All revisions at one time, added one by one; the reader may let the loop turn in between.

    `named`: each with its labels as text.
    """

    def __init__(self, roster: Roster, families: Families, gone: Rows, others: set[int]) -> None:
        self.named: list[tuple[RevisionStatistics, str]] = []
        self._roster = roster
        self._families = families
        self._rows = dict(gone)
        self._others = others

    def add(self, statistics: RevisionStatistics) -> None:
        """One revision, as it is now."""
        if statistics.incarnation not in self._others and not statistics.dropped:
            labels = self._roster.labels_of(statistics)
            if labels is not None:
                self.named.append((statistics, labels))
                return
            self._others.add(statistics.incarnation)
        if statistics.incarnation in self._others:
            fold(self._rows, self._families, statistics)

    def others(self, family: Family[RevisionStatistics]) -> list[Row]:
        """Of all that are shown as one: those that are there, and what those that have gone had counted."""
        return self._rows.get(family.name, [])


class Roster:
    """`named_max`: how many revisions are shown by name; `labels`: what the two that name one are called."""

    def __init__(self, families: Families, named_max: int, labels: tuple[str, ...] = REVISION_LABELS) -> None:
        self.others_text = pairs_text(labels, OTHER)
        self._label_names = labels
        self._families = families
        self._lasting = tuple(family for family in families if family.kind is not Kind.GAUGE)
        self._named_max = named_max
        self._named: dict[int, str] = {}  # labels as text, by incarnation
        self._others: set[int] = set()  # incarnations
        self._gone: Rows = {}
        self._ended: list[RevisionStatistics] = []  # of `_others`, since the last reading began

    def read(self) -> Reading:
        """A reading begins."""
        for statistics in self._ended:
            self._others.discard(statistics.incarnation)
            fold(self._gone, self._lasting, statistics)
        self._ended.clear()
        return Reading(self, self._families, self._gone, set(self._others))

    def ended(self, statistics: RevisionStatistics) -> None:
        """The revision will not be read again."""
        self._named.pop(statistics.incarnation, None)
        if statistics.incarnation in self._others:
            self._ended.append(statistics)

    def labels_of(self, statistics: RevisionStatistics) -> str | None:
        """What a revision is shown by; None: in `_other`."""
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
        rows[family.name] = family.folded([*rows.get(family.name, []), *family.read(statistics)])


def labels_of(statistics: RevisionStatistics) -> tuple[str, str]:
    """Namespace and name."""
    namespace, _, name = statistics.key.partition("/")
    return namespace, name
