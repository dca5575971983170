"""One reserved slot of one pod, from the grant to the release.

A lease captures identity, address and generation when it is granted. After an `await` the slot may belong to another
pod; code that logs, traces or releases names the pod of the lease, never the one in the slot.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason
from lb.ring import NO_LEASE, LeaseNode
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class LeaseHolder(Deadline):
    """Whom a slot was granted to: a request (waiters.py)."""

    def is_served(self, lease: Lease) -> bool:
        """Whether the slot is still in use: the request is at the pod, or waits for a connection to it."""
        return True

    def revoked(self, reason: Reason, detail: str) -> None:
        """The slot that was granted is taken back; the lease must be released before this returns."""
        raise NotImplementedError


@final
class Lease(LeaseNode):
    """`attachment` is what the data path hangs on the pod (its connection pool), as it was when granted."""

    def __init__(self, tracker: PodTracker, granted_s: float) -> None:
        # The chains of leases.py; the base is not called, since these are all that it has.
        self.is_lease = True
        self.older = NO_LEASE
        self.newer = NO_LEASE
        self.pod_older = NO_LEASE
        self.pod_newer = NO_LEASE
        self.holder: LeaseHolder = NOBODY  # while it is open
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


NOBODY: Final = LeaseHolder()
