"""The waiting changes of one revision, after an exception or while it is rebuilt, and how they return to the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.control_plane.state.model import Renewal
from activator.control_plane.state.queue import ChangeQueue, FoldKey, fold_key
from activator.messages import (
    Change,
    ObservedPod,
    PodGone,
    PodsListed,
    Probed,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
)

CHANGE_QUEUE_MAX: Final = 100_000  # folded changes waiting for the state worker, or in one revision that waits

# Changes that sources repeat, and changes that nothing repeats; the content of all further kinds is observed again.
OF_SOURCES: Final = (RevisionSet, RevisionGone, RevisionFailed, RevisionRecovered, ObservedPod, PodGone, PodsListed)
_NOT_REPEATED: Final = (Probed, SlotDrained, RevisionBroken)


class Parked:
    """The waiting changes of one revision.

    `lost`: the change that was set aside, if any. `renewal`: the revision is being rebuilt, and its changes wait until
    that is complete, whatever `until_s` is.
    """

    def __init__(
        self,
        until_s: float,
        superseded: Callable[[FoldKey], None],
        lost: Change | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        self.until_s = until_s
        self.lost = lost
        self.renewal = renewal
        self.changes = ChangeQueue(CHANGE_QUEUE_MAX, superseded)

    def is_over(self, now_s: float) -> bool:
        return self.renewal is None and self.until_s <= now_s

    def take_all(self, queued: list[Change], is_known: bool) -> list[Change]:
        """Remove and return the changes in order, when the wait is over.

        `queued`: those that are still in the worker's queue. They are newer than the changes that were taken out of it
        and parked; a newer submission would have moved them here. `is_known`: the model has the revision.
        """
        lost = self.lost
        waiting = [*self.changes.take(len(self.changes)), *queued]
        if type(lost) is RevisionGone or (isinstance(lost, RevisionSet) and not is_known):
            # Later changes are invalid without it: a new revision of the same name would inherit pods that count as
            # probed, although their probes ended with the old one.
            waiting.insert(0, lost)
        elif isinstance(lost, _NOT_REPEATED) and not _is_outdated(lost, waiting):
            waiting.append(lost)  # after the others: if it raised again, they would never be handled
        return waiting


def _is_outdated(lost: Change, newer: list[Change]) -> bool:
    """Return True if the subject was removed or reported again; an auditor's finding stays, merged with the new one."""
    if any(type(change) is RevisionGone for change in newer):
        return True
    key = fold_key(lost)
    return not (type(lost) is RevisionBroken and lost.kind) and any(fold_key(change) == key for change in newer)
