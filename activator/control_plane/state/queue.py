"""The one queue of changes, folded on entry, so that the number of pods bounds it, not the number of events.

A thousand updates of one pod that arrive before the worker takes them are one entry with the newest content, in the
place of the first. The auditor's report of a broken table is not replaced: it is counted by its kind, which later
reports of the same table do not have. A full list of a source replaces all earlier changes of that source for the
revision's pods. The removal of a revision replaces all its earlier changes, so that changes of a new revision of the
same name come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from activator.messages import (
    Change,
    ObservedPod,
    ObservedTable,
    PodFailedChecks,
    PodGone,
    PodRefused,
    PodServed,
    PodSetAside,
    PodsListed,
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
    """Return the key of a change: of several changes with one key only the newest counts."""
    kind = type(change)
    if isinstance(change, ObservedPod):
        return (change.key, "pod", change.source, change.identity)
    if isinstance(change, PodGone):
        return (change.key, "pod", change.source, change.identity)
    if isinstance(change, PodsListed):
        return (change.key, "list", change.source)
    if isinstance(change, PodRefused):  # a certain failure is not folded into an uncertain one
        return (change.key, "dead" if change.dead else "struck", change.identity)
    if isinstance(change, SlotDrained):
        return (change.key, "slot", str(change.slot), str(change.generation))
    if isinstance(change, RevisionSet):
        return (change.key, "revision")
    if isinstance(change, (RevisionFailed, RevisionRecovered)):
        return (change.key, "failure")
    if isinstance(change, ObservedTable):
        return (change.key, "table", str(change.worker))
    if kind in _OF_A_POD:
        return (change.key, kind.__name__, change.identity)  # type: ignore[union-attr]
    return (change.key, kind.__name__)


_OF_A_POD: Final = frozenset({Probed, PodFailedChecks, PodSetAside, PodServed, TrialEnded, PodUnplaced, SlotForgotten})


def _may_be_dropped(change: Change) -> bool:
    """Return True if a full queue may drop it: its source can submit it again, and no request depends on it."""
    return isinstance(change, ObservedPod) and change.status is not PodStatus.DRAINING


@final
class _Entry:
    """A change in the queue, and the ones before and after it."""

    __slots__ = ("change", "key", "newer", "older")

    def __init__(self, key: FoldKey, change: Change) -> None:
        self.key = key
        self.change = change
        self.older: _Entry | None = None
        self.newer: _Entry | None = None


class ChangeQueue:
    """A first-in, first-out queue in the order of each key's first arrival.

    `superseded` is called with the keys that a list or a removal replaces.
    """

    def __init__(self, changes_max: int, superseded: Callable[[FoldKey], None] | None = None) -> None:
        self._changes_max = changes_max
        self._superseded = superseded
        self._entries: dict[FoldKey, _Entry] = {}
        # In order of arrival by links: to find the first key of a dictionary takes time for each key that was deleted
        # before it, 9 us per change with 100,000 waiting.
        self._oldest: _Entry | None = None
        self._newest: _Entry | None = None
        self._of_revisions: dict[str, dict[FoldKey, None]] = {}  # the keys of each revision
        self.folded_total: int = 0
        self.taken: list[Change] = []  # by the last `take`, whose caller may have failed before it stored them

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: FoldKey) -> bool:
        return key in self._entries

    def mend(self) -> None:
        """Repair the links after an exception; no waiting change is lost."""
        waiting = list(self._entries.items())  # a dictionary also keeps the order of arrival
        self._oldest = self._newest = None
        self._of_revisions = {}
        for key, entry in waiting:
            entry.newer = None
            self._append(entry)
            self._of_revisions.setdefault(key[0], {})[key] = None

    def put(self, change: Change) -> bool:
        """Add a change. Return False if the queue is full and drops it: its source must then submit it again."""
        key = fold_key(change)
        if type(change) is RevisionGone:
            self._supersede(list(self._of_revisions.get(change.key, ())))
        elif type(change) is PodsListed:  # also if it folds: changes between the two lists are older than it
            self._supersede(self._pods_of(change))
        entry = self._entries.get(key)
        if entry is not None:
            self.folded_total += 1
            before = entry.change
            if not (type(before) is RevisionBroken and before.kind):
                entry.change = change
            return True
        if len(self._entries) >= self._changes_max and _may_be_dropped(change):
            return False
        self._append(_Entry(key, change))
        self._of_revisions.setdefault(key[0], {})[key] = None
        return True

    def put_rest(self, change: Change) -> None:
        """Put the rest of a change that was taken behind all others, unless a newer one of its kind is queued."""
        if fold_key(change) not in self._entries:
            self.put(change)

    def take(self, count: int) -> list[Change]:
        """Remove and return the oldest `count` changes."""
        taken: list[Change] = []
        self.taken = taken
        while self._oldest is not None and len(taken) < count:
            taken.append(self._oldest.change)  # first: the change is in one of the two at each moment
            self._pop(self._oldest)
        return taken

    def take_of(self, revision: str) -> list[Change]:
        """Remove and return all changes of one revision, the oldest first."""
        return [self._pop(self._entries[key]) for key in list(self._of_revisions.get(revision, ()))]

    def _append(self, entry: _Entry) -> None:
        self._entries[entry.key] = entry
        older = self._newest
        entry.older = older
        if older is None:
            self._oldest = entry
        else:
            older.newer = entry
        self._newest = entry

    def _pop(self, entry: _Entry) -> Change:
        older, newer = entry.older, entry.newer
        if older is None:
            self._oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self._newest = older
        else:
            newer.older = older
        key = entry.key
        del self._entries[key]
        of_revision = self._of_revisions[key[0]]
        del of_revision[key]
        if not of_revision:
            del self._of_revisions[key[0]]
        return entry.change

    def _pods_of(self, listed: PodsListed) -> list[FoldKey]:
        """Return the keys of single pods that the source of the list has reported."""
        return [
            key
            for key in self._of_revisions.get(listed.key, ())
            if isinstance(change := self._entries[key].change, (ObservedPod, PodGone))
            and change.source == listed.source
        ]

    def _supersede(self, stale: list[FoldKey]) -> None:
        for key in stale:
            self._pop(self._entries[key])
            self.folded_total += 1
            if self._superseded is not None:
                self._superseded(key)
