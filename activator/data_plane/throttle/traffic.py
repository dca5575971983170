"""What one revision has carried, for the metrics: made at its first request, so that idle revisions cost nothing.

Rules
  1. Plain counters and histograms without labels: the request path adds, telemetry/ reads and names.
  2. What counts events only grows; a tunnel counts when it begins and when it ends.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.data_plane.throttle.starting import PHASES, ColdPhases
from activator.runtime.histogram import Histogram

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
    """Of one revision, since its first request."""

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
