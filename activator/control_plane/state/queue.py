"""The one queue of changes, folded on entry: its bound is pods, not events.

A thousand updates of one pod that arrive before the worker looks are one entry with the newest content, in the place of
the first. What the auditor found about a broken table is not replaced: it is counted by its kind, which later reports
about the same table do not have. A full list of a source replaces everything that source said before of the revision's
pods. The end of a revision replaces everything that was said of it, so that reports about a successor of the same name
come after.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from activator.messages import (
    Change,
    Listed,
    PodGone,
    PodRefused,
    PodSeen,
    PodServed,
    PodStatus,
    PodUnplaced,
    Probed,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
    SlotForgotten,
    TrialEnded,
)

FoldKey = tuple[str, ...]


def fold_key(change: Change) -> FoldKey:
    """Changes with the same key say the same kind of thing of the same pod: the newest counts."""
    kind = type(change)
    if isinstance(change, PodSeen):
        return (change.key, "pod", change.source, change.identity)
    if isinstance(change, PodGone):
        return (change.key, "pod", change.source, change.identity)
    if isinstance(change, Listed):
        return (change.key, "list", change.source)
    if isinstance(change, PodRefused):  # what is known is not folded into what is inferred
        return (change.key, "dead" if change.dead else "struck", change.identity)
    if isinstance(change, SlotDrained):
        return (change.key, "slot", str(change.slot), str(change.generation))
    if isinstance(change, RevisionSet):
        return (change.key, "revision")
    if isinstance(change, (RevisionFailed, RevisionRecovered)):
        return (change.key, "failure")
    if kind in _OF_A_POD:
        return (change.key, kind.__name__, change.identity)  # type: ignore[union-attr]
    return (change.key, kind.__name__)


_OF_A_POD: Final = frozenset({Probed, PodServed, TrialEnded, PodUnplaced, SlotForgotten})


def _may_be_dropped(change: Change) -> bool:
    """When the queue is full: its source can submit it again, and no request goes meanwhile to a pod that leaves."""
    return isinstance(change, PodSeen) and change.status is not PodStatus.DRAINING


class ChangeQueue:
    """First in, first out, by first arrival of each key. `superseded` is called with what a list replaces."""

    def __init__(self, changes_max: int, superseded: Callable[[FoldKey], None] | None = None) -> None:
        self._changes_max = changes_max
        self._superseded = superseded
        self._changes: dict[FoldKey, Change] = {}
        self._of_revisions: dict[str, dict[FoldKey, None]] = {}  # the keys of each
        self.folded_total: int = 0

    def __len__(self) -> int:
        return len(self._changes)

    def put(self, change: Change) -> bool:
        """False when the queue is full and the change may be dropped: its source must then list anew."""
        key = fold_key(change)
        if type(change) is RevisionGone:
            self._supersede(list(self._of_revisions.get(change.key, ())))
        elif type(change) is Listed:  # also where it folds: what was said between the two lists is older than it
            self._supersede(self._pods_of(change))
        before = self._changes.get(key)
        if before is not None:
            self.folded_total += 1
            if not (type(before) is RevisionBroken and before.kind):
                self._changes[key] = change
            return True
        if len(self._changes) >= self._changes_max and _may_be_dropped(change):
            return False
        self._changes[key] = change
        self._of_revisions.setdefault(key[0], {})[key] = None
        return True

    def take(self, count: int) -> list[Change]:
        """The oldest `count` changes, out of the queue."""
        changes = self._changes
        if count >= len(changes):
            self._changes, self._of_revisions = {}, {}
            return list(changes.values())
        return [self._pop(key) for key in list(islice(changes, count))]

    def take_of(self, revision: str) -> list[Change]:
        """All that is said of one revision, the oldest first, out of the queue."""
        return [self._pop(key) for key in list(self._of_revisions.get(revision, ()))]

    def _pop(self, key: FoldKey) -> Change:
        of_revision = self._of_revisions[key[0]]
        del of_revision[key]
        if not of_revision:
            del self._of_revisions[key[0]]
        return self._changes.pop(key)

    def _pods_of(self, listed: Listed) -> list[FoldKey]:
        """What the source of the list has said of the revision's pods one by one."""
        return [
            key
            for key in self._of_revisions.get(listed.key, ())
            if isinstance(change := self._changes[key], (PodSeen, PodGone)) and change.source == listed.source
        ]

    def _supersede(self, stale: list[FoldKey]) -> None:
        for key in stale:
            self._pop(key)
            self.folded_total += 1
            if self._superseded is not None:
                self._superseded(key)
