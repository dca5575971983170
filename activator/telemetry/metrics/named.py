"""Which revisions are shown by name; beyond the cap they are shown as one, so that the number of series is bounded.

A revision is shown by its name from its first reading on, or in `_other` for good: were it to move, the counters of
`_other` would fall, and a fall is read as a restart that counts everything again. For the same reason what a revision
in `_other` had counted stays there when the revision has gone; it is only asked at readings, so what it counted between
the last one and its end is known as well: the roster keeps it until the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from activator.data_plane.throttle.revision import RevisionThrottler
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Kind, Row
from activator.telemetry.metrics.sample_text import pairs_text

OTHER: Final = ("_other", "_other")  # namespace and name; neither can be a revision's own


class Roster:
    """`named_max`: how many revisions are shown by name; `labels`: what the two that name one are called."""

    def __init__(
        self,
        families: tuple[Family[RevisionThrottler], ...],
        named_max: int,
        labels: tuple[str, ...] = REVISION_LABELS,
    ) -> None:
        self._label_names = labels
        self.others_text = pairs_text(labels, OTHER)
        self._families = families
        self._named_max = named_max
        self._named: dict[str, RevisionThrottler] = {}
        self._labels: dict[str, str] = {}  # of those shown by name, as text
        self._others: dict[str, RevisionThrottler] = {}
        self._gone: dict[str, list[Row]] = {}  # by family: what revisions counted in `_other` that are there no more

    def update(self, throttlers: Mapping[str, RevisionThrottler]) -> None:
        """Take note of who has come and gone."""
        for key, throttler in list(self._named.items()):
            if throttlers.get(key) is not throttler:
                del self._named[key]
                del self._labels[key]
        for key, throttler in list(self._others.items()):
            if throttlers.get(key) is not throttler:
                del self._others[key]
                self._keep(throttler)
        for key, throttler in throttlers.items():
            if key in self._named or key in self._others:
                continue
            if len(self._named) < self._named_max:
                self._named[key] = throttler
                self._labels[key] = pairs_text(self._label_names, labels_of(throttler))
            else:
                self._others[key] = throttler

    @property
    def named(self) -> list[tuple[RevisionThrottler, str]]:
        """Those that are shown by name, each with its labels as text."""
        return [(throttler, self._labels[key]) for key, throttler in self._named.items()]

    @property
    def others(self) -> list[RevisionThrottler]:
        return list(self._others.values())

    def gone(self, family: Family[RevisionThrottler]) -> list[Row]:
        """What is to be added to `_other` for those who have left."""
        return self._gone.get(family.name, [])

    def _keep(self, throttler: RevisionThrottler) -> None:
        for family in self._families:
            if family.kind is not Kind.GAUGE:
                self._gone[family.name] = family.folded([*self.gone(family), *family.read(throttler)])


def labels_of(throttler: RevisionThrottler) -> tuple[str, str]:
    """Namespace and name."""
    namespace, _, name = throttler.key.partition("/")
    return namespace, name
