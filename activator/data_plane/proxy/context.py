"""State that all exchanges of one worker share: the router, the clock, the budgets and the counters."""

from __future__ import annotations

from collections.abc import Callable

from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.proxy.accounting import Accounting
from activator.data_plane.proxy.request_body import BodyBudgets
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.time_limits import next_limit_s
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Now, TimingWheel


class ProxyContext(Accounting):
    """The shared state of the exchanges of one worker.

    `send_timeout_s`: how long a client may take no byte of a response; 0.0 means no limit.
    """

    def __init__(
        self,
        router: Router,
        wheel: TimingWheel,
        now: Now,
        bodies: BodyBudgets,
        attempts_max: int,
        on_error: Callable[[Exception], None],
        send_timeout_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.router = router
        self.wheel = wheel
        self.now = now
        self.bodies = bodies
        self.attempts_max = attempts_max
        self.on_error = on_error
        self.send_timeout_s = send_timeout_s
        self.is_pending: bool = False  # a source has not listed its revisions yet
        self.filters: FilterChain | None = None  # apply to all requests, whatever their revision

    def arm(self, request: Exchange, throttler: RevisionThrottler) -> None:
        """Set the timer of a request to the next of its time limits."""
        self.wheel.arm(request, next_limit_s(request, throttler.timeouts, self.send_timeout_s))
