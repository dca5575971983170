"""Interfaces that a throttler calls: to report events, and to share its slots with other members.

`data_plane/plane.py` passes in `SlotEvents` that post messages; ownership/ implements `SlotSource` and `SlotLender`.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.waiters import Waiter
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotEvents:
    """The receiver of a throttler's reports about the revision `key`. `epoch`: that of the pod's tracker."""

    def activated(self, key: str) -> None:
        """Handle the first request after an idle period."""
        raise NotImplementedError

    def queue_formed(self, key: str) -> None:
        """Handle a queue that forms: requests wait, and no slot is free."""
        raise NotImplementedError

    def drained(self, key: str, slot: int, generation: int) -> None:
        """Handle the end of the last request of a draining slot."""
        raise NotImplementedError

    def departed(self, key: str, identity: str) -> None:
        """Handle the end of the last request at a pod of a removed revision; its slot causes no more reports."""
        raise NotImplementedError

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        """Handle the end of the trial request of a recovering pod."""
        raise NotImplementedError

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        """Handle a pod that refused a connection (dead), was silent, or broke one; `reason`: a `Reason` value."""
        raise NotImplementedError

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        """Handle the request of a single-use pod: its grant, its end (`is_over`), or its failure."""

    def suspected(self, key: str, identity: str) -> None:
        """Handle another member's report that a pod accepts no connections; the pod is suspected here, too."""

    def served(self, key: str, identity: str, epoch: int) -> None:
        """Handle the response of a pod that had been silent or had broken a connection."""
        raise NotImplementedError

    def failed(self, key: str, error: Exception) -> None:
        """Handle an exception (a defect) of a waiter that was granted or refused a slot; others are not affected."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotSource:
    """The source of a revision's slots while another member owns the revision.

    A throttler without a source grants the free slots of its table. With a source, the table has the limits of the
    whole revision but only this member's requests, so the throttler grants nothing by itself: each slot comes from the
    source and is returned to it.
    """

    def take(self, waiter: Waiter) -> PodTracker | None:
        """Return the pod of a lent slot that is idle; None if the waiter must wait."""
        raise NotImplementedError

    def opened(self, lease: Lease) -> None:
        """Attach the lease to the slot that `take` returned last."""
        raise NotImplementedError

    def joined(self, waiter: Waiter) -> None:
        """Handle a waiter that has joined the queue."""
        raise NotImplementedError

    def cancelled(self, waiter: Waiter) -> None:
        """Handle a waiter that has left the queue without a slot."""
        raise NotImplementedError

    def queue_cleared(self) -> None:
        """Handle the removal of all waiters from the queue."""
        raise NotImplementedError

    def closed(self, lease: Lease, latency_s: float, succeeded: bool) -> None:
        """Handle the release of a lease, with the outcome passed to `RevisionThrottler.release`."""
        raise NotImplementedError

    def trial_over(self, lease: Lease) -> None:
        """Handle a lease that no longer bars other trials of its pod."""
        raise NotImplementedError

    def suspected(self, lease: Lease) -> None:
        """Handle a lease whose pod accepts no connections."""
        raise NotImplementedError

    def table_replaced(self) -> None:
        """Handle the replacement of the throttler's table; pods are other objects there."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotLender:
    """The lender of the owner's slots, which recalls them when a queue forms."""

    def recall(self) -> None:
        """Recall all lent slots: a queue has formed, or idle slots are not to be kept any more."""
        raise NotImplementedError

    def pod_placed(self, tracker: PodTracker) -> None:
        """Handle a pod that has been placed in a slot of the table, before any grant."""
        raise NotImplementedError

    def table_replaced(self) -> None:
        """Handle the replacement of the throttler's table, before any grant."""
        raise NotImplementedError

    def lent(self) -> int:
        """Return the number of slots that other members have."""
        raise NotImplementedError

    def lent_by_pod(self) -> dict[PodTracker, int]:
        """Return the number of slots that other members have, by pod."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Return the number of queued requests that wait at other members."""
        raise NotImplementedError


@final
class Sharing:
    """The roles of this member in sharing the slots of one revision; set by ownership/."""

    def __init__(self) -> None:
        self.source: SlotSource | None = None  # set if another member owns the revision
        self.lending: SlotLender | None = None  # set if this member owns it and there are others
