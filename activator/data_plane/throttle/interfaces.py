"""Interfaces that a throttler calls: to report what happens, and to share its slots with other members.

`data_plane/plane.py` hands in `SlotEvents` that post messages; ownership/ implements `SlotSource` and `LineObserver`.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.waiters import Waiter
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotEvents:
    """The reports of a throttler, all about the revision `key`; `epoch` is the pod's (lb/tracker.py)."""

    def activated(self, key: str) -> None:
        """The first request after a silence."""
        raise NotImplementedError

    def wanted(self, key: str) -> None:
        """A line has formed: requests wait and no slot is free."""
        raise NotImplementedError

    def drained(self, key: str, slot: int, generation: int) -> None:
        """The last request of a draining slot has ended."""
        raise NotImplementedError

    def departed(self, key: str, identity: str) -> None:
        """The last request at a pod of a removed revision has ended; nothing more is reported of its slot."""
        raise NotImplementedError

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        """The one request that a recovering pod was tried with has ended."""
        raise NotImplementedError

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        """A pod did not take a connection (dead), or was silent, or broke one; `reason`: the value of a `Reason`."""
        raise NotImplementedError

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        """A pod that takes one request has been given it; or it is over there, or has failed there."""

    def suspected(self, key: str, identity: str) -> None:
        """Another member has found that a pod takes no connections, and reports it: the pod is suspected here, too."""

    def served(self, key: str, identity: str, epoch: int) -> None:
        """A pod that was silent or broke a connection has answered a request."""
        raise NotImplementedError

    def failed(self, key: str, error: Exception) -> None:
        """A waiter raised when it was granted a slot or refused one: a defect of ours; the line goes on."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotSource:
    """The source of a revision's slots while another member owns the revision.

    A throttler without a source grants what its table has room for. With one, the table has the whole revision's limits
    and only this member's requests, so it grants nothing by itself: each slot comes from the source and goes back to
    it.
    """

    def take(self, waiter: Waiter) -> PodTracker | None:
        """The pod of a slot that is here and idle; None: the waiter must wait."""
        raise NotImplementedError

    def opened(self, lease: Lease) -> None:
        """The lease has what `take` returned last."""
        raise NotImplementedError

    def joined(self, waiter: Waiter) -> None:
        """The waiter stands in line."""
        raise NotImplementedError

    def left(self, waiter: Waiter) -> None:
        """It does not any more, and was not granted a slot."""
        raise NotImplementedError

    def line_left(self) -> None:
        """Nobody that stood in line does any more."""
        raise NotImplementedError

    def closed(self, lease: Lease, latency_s: float, succeeded: bool) -> None:
        """A lease was released, with this outcome (`RevisionThrottler.release`)."""
        raise NotImplementedError

    def trial_over(self, lease: Lease) -> None:
        """It does not keep other trials of its pod any more."""
        raise NotImplementedError

    def suspected(self, lease: Lease) -> None:
        """Its pod takes no connections."""
        raise NotImplementedError

    def table_replaced(self) -> None:
        """The throttler has another table: pods that were known are other objects there."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class LineObserver:
    """The owner's lending, which ends when a line forms."""

    def line_formed(self) -> None:
        """The first one stands in line."""
        raise NotImplementedError

    def pod_placed(self, tracker: PodTracker) -> None:
        """A pod has a slot of the table, and nothing more has been granted of it yet."""
        raise NotImplementedError

    def table_replaced(self) -> None:
        """The throttler has another table, and nothing has been granted of it yet."""
        raise NotImplementedError

    def lent(self) -> int:
        """Slots of the table that other members have."""
        raise NotImplementedError

    def lent_of(self) -> dict[PodTracker, int]:
        """The same by pod."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Requests in the line that wait at other members."""
        raise NotImplementedError


@final
class Sharing:
    """How the members of a group share the slots of one revision; ownership/ sets it."""

    def __init__(self) -> None:
        self.source: SlotSource | None = None  # the source of the slots where another member owns the revision
        self.lending: LineObserver | None = None  # set where this member owns it and there are others
