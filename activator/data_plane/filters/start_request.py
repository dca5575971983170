"""A queue entry that requests a start from zero on behalf of clients that do not wait in the queue.

These are browsers that are shown a waiting page, and requests that another revision serves until the start is over.

Rules
  1. A revision has at most one start request. Each request extends the time for which it waits.
  2. A granted slot is released in the same call, so that the next request gets the pod.
"""

from __future__ import annotations

from typing import final

from activator.data_plane.exchange import Exchange
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason


@final
class StartRequest(Waiter):
    """The start request of one revision."""

    def __init__(self, throttler: RevisionThrottler, wheel: TimingWheel) -> None:
        super().__init__()
        self._throttler = throttler
        self._wheel = wheel

    def wait_until(self, until_s: float) -> None:
        """Extend the wait to `until_s` or later."""
        if self.wheel_next is None or until_s > self.deadline_s:
            self._wheel.arm(self, until_s)

    def granted(self, lease: Lease) -> None:
        self._remove()
        self._throttler.release(lease, 0.0, False)

    def is_served(self, lease: Lease) -> bool:
        return False  # `granted` has released it

    def refused(self, reason: Reason, detail: str) -> None:
        self._remove()  # the next request of a client is rejected with the reason

    def expired(self, now_s: float) -> None:
        """Leave the queue, because no request has extended the wait."""
        throttler = self._throttler
        self._remove()
        throttler.queue.cancel(self)

    def _remove(self) -> None:
        """Stop the timer, and allow another start request of the revision."""
        self._wheel.cancel(self)
        start_observers = self._throttler.queue.start_observers
        if start_observers.start_request is self:
            start_observers.start_request = None


def start_request_for(request: Exchange, throttler: RevisionThrottler, wheel: TimingWheel) -> StartRequest | None:
    """Return the start request of the request's revision, which is created if there is none.

    If the queue accepts no entry, refuse the request and return None.
    """
    start_request = throttler.queue.start_observers.start_request
    if isinstance(start_request, StartRequest):
        throttler.activate()
        return start_request
    start_request = StartRequest(throttler, wheel)
    refusal = throttler.enqueue_without_trying(start_request, request.asked_for_slot_s)
    if refusal is not None:
        request.fail(refusal, throttler.queue.refusal_detail())
        return None
    throttler.queue.start_observers.start_request = start_request
    return start_request
