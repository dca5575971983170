"""The counters and histograms of one revision.

Rules
  1. Plain counters and histograms without labels: the request path adds, telemetry/ reads and names.
  2. What counts events only grows; a tunnel counts when it begins and when it ends.
  3. The histograms (`Traffic`) are made at the revision's first request, so that idle revisions cost nothing.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.starting import PHASES, ColdPhases
from activator.runtime.histogram import Histogram
from activator.runtime.reasons import Reason

# From a quarter of a millisecond, which a warm request in one machine room takes, to the default total timeout.
REQUEST_BOUNDS_S: Final[tuple[float, ...]] = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
# A request that waits for a slot waits at least for another one to end; the queue timeout is 60 s by default.
WAIT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
# A start is a local program (50 ms) or a scheduled, pulled and started container (minutes).
COLD_BOUNDS_S: Final[tuple[float, ...]] = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@final
class Traffic:
    """The traffic of one revision since its first request."""

    def __init__(self) -> None:
        self.duration = Histogram(REQUEST_BOUNDS_S)
        self.first_byte = Histogram(REQUEST_BOUNDS_S)
        self.wait = Histogram(WAIT_BOUNDS_S)
        self.cold: dict[str, Histogram] = {}  # by phase; empty before the first cold start
        self.fallbacks: dict[str, int] = {}  # requests that another revision took, by its key
        self.request_bytes: i64 = 0
        self.response_bytes: i64 = 0
        self.tunnels: i64 = 0  # open now
        self.tunnels_total: i64 = 0
        self.concurrency: i64 = 0  # requests that are here, waiting or at a pod
        self.request_seconds: float = 0.0  # the integral of it over time, up to …
        self.changed_s: float = 0.0

    def begun(self, now_s: float) -> None:
        """A request has come."""
        self._advance(now_s)
        self.concurrency += 1

    def ended(self, now_s: float) -> None:
        """… and gone."""
        self._advance(now_s)
        self.concurrency -= 1

    def request_seconds_at(self, now_s: float) -> float:
        """How much time requests have spent here, all together, until now."""
        self._advance(now_s)
        return self.request_seconds

    def _advance(self, now_s: float) -> None:
        if now_s > self.changed_s:  # a time that was read a moment ago may come after one read later
            self.request_seconds += float(self.concurrency) * (now_s - self.changed_s)
            self.changed_s = now_s

    def cold_request(self, phases: ColdPhases) -> None:
        """A request that waited for a start was answered."""
        if not self.cold:
            self.cold = {phase: Histogram(COLD_BOUNDS_S) for phase in PHASES}
        for phase, took_s in zip(PHASES, phases, strict=True):
            self.cold[phase].observe(took_s)


@final
class RevisionCounters:
    """The counters of one revision, which are read at scrape time."""

    def __init__(self) -> None:
        self.requests_total: int = 0
        self.queued_total: int = 0
        self.granted_total: int = 0
        self.exempted_total: int = 0
        self.quiet: int = 0  # requests in progress that are no activity
        self.quiet_total: int = 0
        self.failed_totals: dict[Reason, int] = {}  # requests that did not end with their pod's answer
        self.codes: dict[int, int] = {}
        self.grpc_statuses: dict[int, int] = {}  # of gRPC calls that have ended, however they ended
        self.client_gone_total: int = 0
        self.retries: dict[Reason, int] = {}  # requests tried again, by what was the matter the first time
        self.cold_starts_total: int = 0  # starts from zero that requests waited for, and that came to a ready pod
        self.errors_total: int = 0  # exceptions of waiters that were granted or rejected, and of policies
        self._traffic: Traffic | None = None

    @property
    def traffic(self) -> Traffic:
        """The traffic of the revision, to be added to."""
        traffic = self._traffic
        if traffic is None:
            traffic = self._traffic = Traffic()
        return traffic

    @property
    def fallbacks(self) -> dict[str, int]:
        """Requests that another revision took, by its key."""
        return {} if self._traffic is None else self._traffic.fallbacks

    def has_traffic(self) -> bool:
        """True if there is anything to read in `traffic`."""
        return self._traffic is not None

    def has_requests(self) -> bool:
        """True if a request has been counted that has not ended."""
        return self._traffic is not None and self._traffic.concurrency != 0


@final
class Errors:
    """Counts and reports exceptions of waiters that were granted or rejected, and of policies.

    An object of its own, so that its users do not refer to the throttler: revisions come and go, and a reference cycle
    stays until the collector looks at all there is.
    """

    def __init__(self, key: str, events: SlotEvents, counters: RevisionCounters) -> None:
        self._key = key
        self._events = events
        self._counters = counters
        self._of_hooks: int = 0

    def raised(self, error: Exception) -> None:
        """Count and report the exception of a waiter, or of a policy that was to pick its pod."""
        self._counters.errors_total += 1
        self._events.failed(self._key, error)

    def hook_raised(self, error: Exception) -> None:
        """Count the exception of a policy's hook, and report it less and less often: it may be every request's."""
        self._counters.errors_total += 1
        self._of_hooks += 1
        if self._of_hooks & (self._of_hooks - 1) == 0:
            self._events.failed(self._key, error)
