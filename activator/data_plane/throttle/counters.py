"""The counters and histograms of one revision.

Rules
  1. Counters and histograms have no labels: the request path updates them, telemetry/ reads and names them.
  2. Counters of events only grow; a tunnel is counted at its beginning and at its end.
  3. The histograms (`Traffic`) are created at the revision's first request, so that unused revisions cost nothing.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.token_counts import TokenCounts
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.last_requests import LastRequests
from activator.data_plane.throttle.starting import PHASES, ColdPhases
from activator.runtime.histogram import Histogram
from activator.runtime.reasons import Reason

# From 250 us, a warm request within one data center, to the default total timeout.
REQUEST_BOUNDS_S: Final[tuple[float, ...]] = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
# A request that waits for a slot waits at least until another one ends; the default queue timeout is 60 s.
WAIT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
# A start takes from 50 ms (a local program) to minutes (a container that is scheduled, pulled and started).
COLD_BOUNDS_S: Final[tuple[float, ...]] = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

USERS_MAX: Final = 100  # users of a revision whose tokens are counted by name
OTHER_USERS: Final = "_other"  # the name under which those of all others are counted

# A first token takes from 10 ms to the time of a long prompt; the next ones from 1 ms, on a fast GPU, to 1 s.
FIRST_TOKEN_BOUNDS_S: Final[tuple[float, ...]] = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
OUTPUT_TOKEN_BOUNDS_S: Final[tuple[float, ...]] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


@final
class TokenTraffic:
    """The tokens of one revision, as its pods have reported them."""

    def __init__(self) -> None:
        self.prompt: i64 = 0
        self.completion: i64 = 0
        self.cached: i64 = 0  # the part of `prompt` that pods had in their caches
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS_S)
        self.output_token = Histogram(OUTPUT_TOKEN_BOUNDS_S)
        self.by_user: dict[str, tuple[int, int]] = {}  # `prompt` and `completion`, by the name of the user

    def add(self, tokens: TokenCounts, user: str) -> None:
        """Count the tokens of one response; `user` is "" if the request had no key."""
        self.prompt += tokens.prompt
        self.completion += tokens.completion
        self.cached += tokens.cached
        if user:
            if user not in self.by_user and len(self.by_user) >= USERS_MAX:
                user = OTHER_USERS
            prompt, completion = self.by_user.get(user, (0, 0))
            self.by_user[user] = prompt + tokens.prompt, completion + tokens.completion


@final
class Traffic:
    """The traffic of one revision since its first request."""

    def __init__(self) -> None:
        self.duration = Histogram(REQUEST_BOUNDS_S)
        self.first_byte = Histogram(REQUEST_BOUNDS_S)
        self.wait = Histogram(WAIT_BOUNDS_S)
        self.cold: dict[str, Histogram] = {}  # by phase; empty before the first cold start
        self.fallbacks: dict[str, int] = {}  # requests that fell back to another revision, by its key
        self.request_bytes: i64 = 0
        self.response_bytes: i64 = 0
        self.tunnels: i64 = 0  # open now
        self.tunnels_total: i64 = 0
        self.concurrency: i64 = 0  # requests in progress, waiting or at a pod
        self.request_seconds: float = 0.0  # the integral of `concurrency` until `changed_s`
        self.changed_s: float = 0.0
        self.tokens: TokenTraffic | None = None  # None: they are not counted

    def token_traffic(self) -> TokenTraffic:
        """Return the traffic in tokens; created on first use."""
        if self.tokens is None:
            self.tokens = TokenTraffic()
        return self.tokens

    def begun(self, now_s: float) -> None:
        """Count the arrival of a request."""
        self._advance_integral(now_s)
        self.concurrency += 1

    def ended(self, now_s: float) -> None:
        """Count the end of a request."""
        self._advance_integral(now_s)
        self.concurrency -= 1

    def request_seconds_at(self, now_s: float) -> float:
        """Return the total time that requests have spent in progress until `now_s`, in seconds."""
        self._advance_integral(now_s)
        return self.request_seconds

    def _advance_integral(self, now_s: float) -> None:
        if now_s > self.changed_s:  # times may arrive out of order, because some were read earlier
            self.request_seconds += float(self.concurrency) * (now_s - self.changed_s)
            self.changed_s = now_s

    def cold_request(self, phases: ColdPhases) -> None:
        """Add the phases of a request that waited for a cold start and received a response."""
        if not self.cold:
            self.cold = {phase: Histogram(COLD_BOUNDS_S) for phase in PHASES}
        for phase, duration_s in zip(PHASES, phases, strict=True):
            self.cold[phase].observe(duration_s)


@final
class RevisionCounters:
    """The counters of one revision, read at scrape time."""

    def __init__(self) -> None:
        self.requests_total: int = 0
        self.queued_total: int = 0
        self.granted_total: int = 0
        self.exempted_total: int = 0
        self.quiet: int = 0  # requests in progress that do not count as activity
        self.quiet_total: int = 0
        self.failed_totals: dict[Reason, int] = {}  # requests that ended without a complete response of their pod
        self.codes: dict[int, int] = {}  # response heads of pods, by status
        self.grpc_statuses: dict[int, int] = {}  # gRPC calls that have ended in any way, by status
        self.client_gone_total: int = 0
        self.retries: dict[Reason, int] = {}  # retries, by the reason of the failed attempt
        self.cold_starts_total: int = 0  # starts from zero that requests waited for and that led to a ready pod
        self.errors_total: int = 0  # exceptions of waiters that were granted or rejected, and of policies
        self.last_requests: LastRequests | None = None  # set if they are recorded
        self._traffic: Traffic | None = None

    def keep_requests(self, count: int) -> None:
        """Keep the records of the last `count` requests from now on, beginning with the existing ones."""
        former = self.last_requests
        if count == 0:
            self.last_requests = None
        elif former is None:
            self.last_requests = LastRequests(count)
        elif former.count != count:
            self.last_requests = LastRequests(count, former.oldest_first(), former.evicted)

    @property
    def traffic(self) -> Traffic:
        """The traffic of the revision; created on first use."""
        traffic = self._traffic
        if traffic is None:
            traffic = self._traffic = Traffic()
        return traffic

    @property
    def fallbacks(self) -> dict[str, int]:
        """Requests that fell back to another revision, by its key."""
        return {} if self._traffic is None else self._traffic.fallbacks

    def has_traffic(self) -> bool:
        """Return True if `traffic` contains anything."""
        return self._traffic is not None

    def has_requests(self) -> bool:
        """Return True if a counted request has not ended."""
        return self._traffic is not None and self._traffic.concurrency != 0


@final
class Errors:
    """The counter and reporter of exceptions of waiters that were granted or rejected, and of policies.

    A separate object, so that its users hold no reference to the throttler: revisions are removed often, and a
    reference cycle would stay in memory until the next full garbage collection.
    """

    def __init__(self, key: str, events: SlotEvents, counters: RevisionCounters) -> None:
        self._key = key
        self._events = events
        self._counters = counters
        self._hook_errors: int = 0

    def raised(self, error: Exception) -> None:
        """Count and report the exception of a waiter, or of a policy that picks a waiter's pod."""
        self._counters.errors_total += 1
        self._events.failed(self._key, error)

    def hook_raised(self, error: Exception) -> None:
        """Count the exception of a policy's hook; report the 1st, 2nd, 4th, 8th …: each request may raise it."""
        self._counters.errors_total += 1
        self._hook_errors += 1
        if self._hook_errors & (self._hook_errors - 1) == 0:
            self._events.failed(self._key, error)
