"""One reserved slot of one pod, from the grant to the release.

A lease captures identity, address and generation when it is granted. After an `await` the slot may belong to another
pod; code that logs, traces or releases names the pod of the lease, never the one in the slot.
"""

from __future__ import annotations

from lb.tracker import PodTracker


class Lease:
    """`attachment` is what the data path hangs on the pod (its connection pool), as it was when granted."""

    def __init__(self, tracker: PodTracker, granted_s: float) -> None:
        self.tracker = tracker
        self.generation: int = tracker.generation
        self.identity: str = tracker.identity
        self.address: str = tracker.address
        self.attachment: object | None = tracker.attachment
        self.granted_s = granted_s
        self.trial: bool = False  # granted to a RECOVERING pod, and nothing is found out yet: the outcome decides
        self.bars_trials: bool = False  # and while it lasts no other trial begins
        self.exempt: bool = False  # granted by an exempting rule, if need be beyond the pod's limit
        self.released: bool = False
