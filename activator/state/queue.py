"""The one queue of changes, folded on entry: its bound is pods, not events.

A thousand updates of one pod that arrive before the worker looks are one entry with the newest content, in the place of
the first. A full list of a source takes the place of everything that source said before of the revision's pods.
"""

from __future__ import annotations

from collections.abc import Callable

from activator.state.messages import (
    Change,
    Listed,
    PodGone,
    PodRefused,
    PodSeen,
    PodServed,
    PodUnplaced,
    Probed,
    RevisionSet,
    SlotDrained,
    SlotForgotten,
    TrialEnded,
)

FoldKey = tuple[str, ...]


def fold_key(change: Change) -> FoldKey:
    """Changes with the same key say the same kind of thing of the same pod: the newest counts."""
    if isinstance(change, PodSeen | PodGone):
        return (change.key, "pod", change.source, change.identity)
    if isinstance(change, Listed):
        return (change.key, "list", change.source)
    if isinstance(change, PodRefused):  # what is known is not folded into what is inferred
        return (change.key, "dead" if change.dead else "struck", change.identity)
    if isinstance(change, Probed | PodServed | TrialEnded | PodUnplaced | SlotForgotten):
        return (change.key, type(change).__name__, change.identity)
    if isinstance(change, SlotDrained):
        return (change.key, "slot", str(change.slot), str(change.generation))
    if isinstance(change, RevisionSet):
        return (change.spec.key, "revision")
    return (change.key, type(change).__name__)


class ChangeQueue:
    """First in, first out, by first arrival of each key. `superseded` hears of what a list took the place of."""

    def __init__(self, changes_max: int, superseded: Callable[[FoldKey], None] | None = None) -> None:
        self._changes_max = changes_max
        self._superseded = superseded
        self._changes: dict[FoldKey, Change] = {}
        self.folded_total: int = 0

    def __len__(self) -> int:
        return len(self._changes)

    def put(self, change: Change) -> bool:
        """False when the queue is full and the change may be dropped: its source must then list anew."""
        key = fold_key(change)
        if key in self._changes:
            self.folded_total += 1
            self._changes[key] = change
            return True
        if len(self._changes) >= self._changes_max and isinstance(change, PodSeen | Probed):
            return False
        if isinstance(change, Listed):
            self._supersede(change)
        self._changes[key] = change
        return True

    def take(self, count: int) -> list[Change]:
        """The oldest `count` changes, out of the queue."""
        keys = list(self._changes)[:count] if count < len(self._changes) else list(self._changes)
        return [self._changes.pop(key) for key in keys]

    def _supersede(self, listed: Listed) -> None:
        stale = [
            key
            for key, change in self._changes.items()
            if isinstance(change, PodSeen | PodGone) and change.key == listed.key and change.source == listed.source
        ]
        for key in stale:
            del self._changes[key]
            self.folded_total += 1
            if self._superseded is not None:
                self._superseded(key)
