"""Pods that leave and still have requests, and the end of those that take too long.

Rules
  1. When the time of a drain is up, the requests of its pod are ended, and then the slot is reported to be freed. A
     request costs a closed connection and an answer: REVOKED_PER_TURN_MAX are ended in each turn of the loop, of all
     drains together.
  2. Whatever happened to a slot meanwhile is seen by its generation and its state: a pod that has come back keeps what
     has not been ended yet.
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
    """Of one pod."""

    def __init__(self, drains: Drains, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        super().__init__()
        self.throttler = throttler
        self.tracker = tracker
        self._generation: int = tracker.generation
        self._drains = drains

    def is_under_way(self) -> bool:
        """The pod still has the slot, and has not come back into it."""
        return self.tracker.generation == self._generation and self.tracker.state == DRAINING

    def expired(self, now_s: float) -> None:
        self._drains.overdue(self)


class Drains:
    """`over` is called when the time of a drain is up and the last request of the pod has been ended."""

    def __init__(
        self, wheel: TimingWheel, now: Now, defer: Defer, over: Callable[[RevisionThrottler, PodTracker], None]
    ) -> None:
        self._wheel = wheel
        self._now = now
        self._defer = defer
        self._over = over
        self._armed: dict[PodTracker, Drain] = {}  # each pod's latest, until its time is up
        self._overdue: deque[Drain] = deque()
        self._ended: int = 0  # requests, in this turn
        self._deferred: bool = False

    def begin(self, throttler: RevisionThrottler, tracker: PodTracker, timeout_s: float) -> None:
        """The pod leaves with what it carries. If it has flapped, this drain has all of its time."""
        self.forget(tracker)
        drain = Drain(self, throttler, tracker)
        self._armed[tracker] = drain
        self._wheel.arm(drain, self._now() + timeout_s)

    def forget(self, tracker: PodTracker) -> None:
        """The slot is another pod's, or nobody's."""
        drain = self._armed.pop(tracker, None)
        if drain is not None:
            self._wheel.cancel(drain)

    def overdue(self, drain: Drain) -> None:
        """Its time is up."""
        if self._armed.get(drain.tracker) is drain:
            del self._armed[drain.tracker]
        self._overdue.append(drain)
        self._end_some()

    def _end_some(self) -> None:
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
                self._over(drain.throttler, drain.tracker)

    def _next_turn(self) -> None:
        self._deferred = False
        if self._overdue:
            self._end_some()
