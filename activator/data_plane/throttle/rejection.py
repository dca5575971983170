"""The rejection of waiters, a bounded number in each turn of the loop.

A refusal costs a write to a socket; ten thousand at once would block the loop for all other requests. A waiter that is
rejected in a later turn has already left the queue: it has no position, and if its client disconnects before then,
nothing is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from activator.data_plane.throttle.disciplines import FifoQueue
from activator.data_plane.throttle.waiters import Waiter, WaiterQueue
from activator.runtime.clock import Defer, Now
from activator.runtime.reasons import Reason

REFUSING_PER_TURN_S: Final = 0.005  # how long one turn may take to reject waiters

_CHECK_CLOCK_EVERY: Final = 16


class RejectionBatch:
    """Waiters that are all rejected with the same reason."""

    def __init__(self, waiters: WaiterQueue, reason: Reason, detail: str) -> None:
        self.waiters = waiters
        self.reason = reason
        self.detail = detail


class Rejections:
    """The pending rejections of one revision.

    `on_removed()` is called for each waiter that is no longer held, `failed(error)` if a waiter raises.
    """

    def __init__(
        self,
        now: Now,
        defer: Defer,
        on_removed: Callable[[], None],
        failed: Callable[[Exception], None],
        per_turn_max: int,
    ) -> None:
        self._now = now
        self._defer = defer
        self._on_removed = on_removed
        self._failed = failed
        self._per_turn_max = per_turn_max
        self._batches: deque[RejectionBatch] = deque()
        self._rejected: int = 0  # in this turn
        self._until_s: float = 0.0  # the time at which this turn must end
        self._deferred: bool = False  # the next turn continues
        self._is_rejecting: bool = False

    @property
    def length(self) -> int:
        """The number of waiters still to be rejected."""
        return sum(batch.waiters.length for batch in self._batches)

    def reject(self, waiter: Waiter, reason: Reason, detail: str) -> None:
        """Reject a waiter that has been removed from its queue."""
        if not self._batches or self._batches[-1].reason is not reason or self._batches[-1].detail != detail:
            self._batches.append(RejectionBatch(FifoQueue(), reason, detail))
        self._batches[-1].waiters.join(waiter)
        self._reject_up_to_bound()

    def reject_all(self, waiters: WaiterQueue, reason: Reason, detail: str) -> None:
        """Reject all waiters of a queue that accepts no more."""
        if waiters.length:
            self._batches.append(RejectionBatch(waiters, reason, detail))
            self._reject_up_to_bound()

    def _reject_up_to_bound(self) -> None:
        """Reject waiters until the bound of this turn is reached."""
        if not self._deferred:
            self._deferred = True
            self._rejected = 0
            self._until_s = self._now() + REFUSING_PER_TURN_S
            self._defer(self._next_turn)
        if self._is_rejecting:
            return  # called by a rejected waiter: the outer loop continues
        self._is_rejecting = True
        while self._batches and self._rejected < self._per_turn_max:
            batch = self._batches[0]
            waiter = batch.waiters.first()
            if waiter is None:
                self._batches.popleft()
                continue
            self._rejected += 1
            if self._rejected % _CHECK_CLOCK_EVERY == 0 and self._now() >= self._until_s:
                self._rejected = self._per_turn_max
            batch.waiters.leave(waiter)
            self._on_removed()
            self._call_refused(waiter, batch)
        self._is_rejecting = False

    def _call_refused(self, waiter: Waiter, batch: RejectionBatch) -> None:
        try:
            waiter.refused(batch.reason, batch.detail)
        except Exception as error:
            self._failed(error)

    def _next_turn(self) -> None:
        self._deferred = False
        while self._batches and self._batches[0].waiters.length == 0:
            self._batches.popleft()
        if self._batches:
            self._reject_up_to_bound()
