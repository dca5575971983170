"""Where a throttler's slots come from while another member owns its revision; ownership/ implements it.

A throttler without a source grants what its table has room for. With one, the table has the whole revision's limits and
only this member's requests, so it grants nothing by itself: each slot comes from the source, and goes back to it.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.data_plane.throttle.lease import Lease
from activator.data_plane.throttle.waiters import Waiter
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotSource:
    """Of one revision."""

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
