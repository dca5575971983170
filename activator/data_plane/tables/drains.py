"""Draining pods with requests in progress, and the end of drains that time out.

Rules
  1. When a drain times out, the requests of its pod are ended, and then its slot is reported to be freed. Ending a
     request costs a closed connection and a response, so all drains together end REVOKED_PER_TURN_MAX per turn of the
     loop.
  2. Generation and state of the slot show if it has changed in the meantime: a pod that has returned keeps the requests
     that have not been ended yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from activator.data_plane.throttle.leases import newest_of
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, Defer, Now, TimingWheel
from activator.runtime.reasons import Reason
from lb.tracker import DRAINING, PodTracker

REVOKED_PER_TURN_MAX: Final = 64  # requests, some 30 us each


@final
class Drain(Deadline):
    """The drain of one pod."""

    def __init__(self, drains: Drains, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        super().__init__()
        self.throttler = throttler
        self.tracker = tracker
        self._generation: int = tracker.generation
        self._drains = drains

    def is_under_way(self) -> bool:
        """Return True if the pod still has the slot and still drains."""
        return self.tracker.generation == self._generation and self.tracker.state == DRAINING

    def expired(self, now_s: float) -> None:
        self._drains.overdue(self)


class Drains:
    """The drains of one data plane. `on_timeout` is called after a timeout, when the last request has been ended."""

    def __init__(
        self, wheel: TimingWheel, now: Now, defer: Defer, on_timeout: Callable[[RevisionThrottler, PodTracker], None]
    ) -> None:
        self._wheel = wheel
        self._now = now
        self._defer = defer
        self._on_timeout = on_timeout
        self._armed: dict[PodTracker, Drain] = {}  # the latest drain of each pod
        self._overdue: deque[Drain] = deque()
        self._ended: int = 0  # requests ended in this turn
        self._deferred: bool = False

    def begin(self, throttler: RevisionThrottler, tracker: PodTracker, timeout_s: float) -> None:
        """Begin the drain of a pod with requests; a pod that had returned has the full time again."""
        self.cancel(tracker)
        drain = Drain(self, throttler, tracker)
        self._armed[tracker] = drain
        self._wheel.arm(drain, self._now() + timeout_s)

    def cancel(self, tracker: PodTracker) -> None:
        """Cancel the timeout of a slot's drain, if it has one."""
        drain = self._armed.pop(tracker, None)
        if drain is not None:
            self._wheel.cancel(drain)

    def overdue(self, drain: Drain) -> None:
        """End the requests of a drain that has timed out."""
        if self._armed.get(drain.tracker) is drain:
            del self._armed[drain.tracker]
        self._overdue.append(drain)
        self._revoke_overdue()

    def _revoke_overdue(self) -> None:
        """End requests of overdue drains, at most REVOKED_PER_TURN_MAX per turn."""
        if not self._deferred:
            self._deferred = True
            self._ended = 0
            self._defer(self._next_turn)
        while self._overdue and self._ended < REVOKED_PER_TURN_MAX:
            drain = self._overdue[0]
            lease = newest_of(drain.tracker) if drain.is_under_way() else None
            if lease is not None:
                self._ended += 1
                drain.throttler.revoke(lease, Reason.POD_REMOVED, "")
                continue
            self._overdue.popleft()
            if drain.is_under_way():
                self._on_timeout(drain.throttler, drain.tracker)

    def _next_turn(self) -> None:
        self._deferred = False
        if self._overdue:
            self._revoke_overdue()
