"""The place in line of those who look at a waiting page, or whom another revision serves meanwhile: without it nothing
would wake the revision.

Rules
  1. A revision has at most one. It waits as long as somebody looks: each page that is sent moves its end.
  2. When it is granted a slot it gives it back in the same call: the next load of the page goes to the pod.
"""

from __future__ import annotations

from typing import Final, final

from activator.data_plane.throttle.lease import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason

MISSED_REFRESHES: Final = 3  # a page that was not loaded again for so many times its interval is closed …
CLOSED_AFTER_S: Final = 5.0  # … and so long: a browser in the background loads late


@final
class PageTicket(Waiter):
    """Of one revision."""

    def __init__(self, throttler: RevisionThrottler, wheel: TimingWheel) -> None:
        super().__init__()
        self._throttler = throttler
        self._wheel = wheel

    def looked_at(self, now_s: float, refresh_s: float) -> None:
        """A page was sent."""
        self.wanted_until(now_s + MISSED_REFRESHES * refresh_s + CLOSED_AFTER_S)

    def wanted_until(self, until_s: float) -> None:
        """Somebody wants a start; its end is moved later only."""
        if self.wheel_next is None or until_s > self.deadline_s:
            self._wheel.arm(self, until_s)

    def granted(self, lease: Lease) -> None:
        self._over()
        self._throttler.release(lease, 0.0, False)

    def is_served(self, lease: Lease) -> bool:
        return False  # it is given back at once

    def refused(self, reason: Reason, detail: str) -> None:
        self._over()  # whoever loads the page again is told

    def expired(self, now_s: float) -> None:
        """Nobody looks any more."""
        throttler = self._throttler
        self._over()
        throttler.cancel(self)

    def _over(self) -> None:
        self._wheel.cancel(self)
        onlookers = self._throttler.onlookers
        if onlookers.page_ticket is self:
            onlookers.page_ticket = None
