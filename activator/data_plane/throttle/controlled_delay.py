"""Controlled delay (`queue.target_wait`): in a lasting overload, some requests are rejected instead of all being late.

This is Facebook's variant of CoDel ("Fail at Scale", ACM Queue 13/8). While a queue is emptied now and then, every
request may wait up to its timeout. A queue that has stood for the whole interval is overloaded: then a slot that
becomes free goes to the first request that has waited for at most the target.

Rules
  1. A slot never stays free because of this: the last waiting request is served whatever it has waited.
  2. The time without a ready pod does not count: the interval, and the wait of each request, begin after it. So it has
     no effect on programs that serve one request and have no other copy ready meanwhile.
  3. A request that is retried at another pod is not rejected.
"""

from __future__ import annotations

from typing import final

from activator.data_plane.throttle.waiters import Waiter


@final
class ControlledDelay:
    """The controlled delay of one queue. Callers pass in all times, in monotonic seconds."""

    def __init__(self, target_s: float, interval_s: float) -> None:
        self.target_s = target_s
        self.interval_s = interval_s
        self._standing_since_s: float = 0.0  # when the interval began

    def restart_interval(self, now_s: float) -> None:
        """Restart the interval: a first request waits, or a first pod is ready after a time without one."""
        self._standing_since_s = now_s

    def is_late(self, waiter: Waiter, now_s: float) -> bool:
        """Return True if the waiter is to be rejected instead of served, provided that more waiters follow it."""
        since_s = self._standing_since_s
        if now_s - since_s < self.interval_s or waiter.is_retry:
            return False
        return now_s - max(waiter.asked_s, since_s) > self.target_s
