"""The changes of one revision while it waits, after an exception or while it is made anew: what waits, what was set
aside, how they come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.control_plane.state.model import Renewal
from activator.control_plane.state.queue import ChangeQueue, FoldKey, fold_key
from activator.messages import (
    Change,
    Listed,
    PodGone,
    PodSeen,
    Probed,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
)

CHANGE_QUEUE_MAX: Final = 100_000  # folded changes waiting for the state worker, or in one revision that waits

# Lost changes that sources repeat, and those that no source repeats; what matters of the others is found anew.
OF_SOURCES: Final = (RevisionSet, RevisionGone, RevisionFailed, RevisionRecovered, PodSeen, PodGone, Listed)
_SAID_ONCE: Final = (Probed, SlotDrained, RevisionBroken)


class Parked:
    """`lost`: the change that was set aside, if there was one. `renewal`: the revision is being made anew, and its
    changes wait until that is done, whatever the time.
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

    def released(self, queued: list[Change], is_known: bool) -> list[Change]:
        """Its changes in order, when its backoff is over.

        `queued`: those that are still in the worker's queue. They came after what was taken out of it and parked; had
        anything been said since, they would have been moved here. `is_known`: the model has the revision.
        """
        lost = self.lost
        waiting = [*self.changes.take(len(self.changes)), *queued]
        if type(lost) is RevisionGone or (isinstance(lost, RevisionSet) and not is_known):
            # What came after it makes no sense without it: a successor would inherit pods that count as being
            # asked, though their answers were thrown away with the end of what they were asked for.
            waiting.insert(0, lost)
        elif isinstance(lost, _SAID_ONCE) and not _is_outdated(lost, waiting):
            waiting.append(lost)  # the others first: if it raised again, they would wait for ever
        return waiting


def _is_outdated(lost: Change, newer: list[Change]) -> bool:
    """Its subject is gone, or was reported again; what the auditor found stays, and folds with the new report."""
    if any(type(change) is RevisionGone for change in newer):
        return True
    key = fold_key(lost)
    return not (type(lost) is RevisionBroken and lost.kind) and any(fold_key(change) == key for change in newer)
