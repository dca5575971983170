"""Adaptive concurrency (`adaptive_concurrency`): a limit for a revision without one, found by the latency of its pods.

The limit is a gradient: latency that rises beyond TOLERANCE times the base, which is the latency without congestion,
lowers it, and latency below that lets it grow by its square root (as in Envoy's adaptive concurrency and Netflix's
concurrency-limits). These measure the base by letting few requests in now and then, or follow it slowly, which either
costs throughput or drifts in a lasting overload. Here each decrease is the measurement: if the limit has fallen by
half and the latency has not followed, congestion was not the cause, and the current latency is the base. That supposes
that no other data plane sends requests to the same pods: several would take each other's load for slowness of the pods,
and raise their limits without end.

Rules
  1. A window ends after WINDOW_S, or two base latencies if that is longer, and WINDOW_REQUESTS_MIN requests.
  2. The limit grows only if half of it was used in the window.
  3. A failed request counts only if it took longer than the base: a quick failure shows nothing about congestion.
"""

from __future__ import annotations

from math import sqrt
from typing import Final, final

TOLERANCE: Final = 1.5
WINDOW_S: Final = 0.1
WINDOW_REQUESTS_MIN: Final = 50
DECREASE_MAX: Final = 0.1  # share of the limit in one window
FALL: Final = 0.5  # share of the limit at which a decrease is judged
BASE_SHARE: Final = 0.1  # weight of a window whose latency is below the base
FOLLOWED: Final = 0.9  # the latency has followed if it is below this share


@final
class AdaptiveLimit:
    """The limit on all requests of one revision that one data plane has at pods. Callers pass in all times."""

    def __init__(self, limit_min: int, limit_max: int) -> None:
        self.limit_min = limit_min
        self.limit_max = limit_max
        self.limit: float = float(limit_min)
        self.base_s: float = 0.0  # 0.0: unknown
        # In the current window:
        self._total_s: float = 0.0  # the sum of the latencies
        self._count: int = 0
        self._peak: int = 0  # the most requests in flight
        self._window_since_s: float = 0.0
        self._fall_limit: float = 0.0  # the limit when the current decrease began; 0.0: it does not decrease
        self._fall_latency_s: float = 0.0  # the latency at that time

    def has_room(self, in_flight: int) -> bool:
        """Return True if another request may be sent to a pod."""
        return in_flight < int(self.limit)

    def configure(self, limit_min: int, limit_max: int) -> None:
        """Apply other bounds."""
        self.limit_min, self.limit_max = limit_min, limit_max
        self._set_bounded(self.limit)

    def ended(self, latency_s: float, succeeded: bool, in_flight: int, now_s: float) -> None:
        """Count a request that has ended at its pod; `in_flight`: the requests that are still at pods."""
        if latency_s <= 0.0 or (not succeeded and latency_s < self.base_s):
            return
        self._total_s += latency_s
        self._count += 1
        if in_flight >= self._peak:
            self._peak = in_flight + 1
        if self._count >= WINDOW_REQUESTS_MIN and now_s - self._window_since_s >= max(WINDOW_S, 2.0 * self.base_s):
            latency_s = self._total_s / self._count
            peak = self._peak
            self._total_s, self._count, self._peak = 0.0, 0, 0
            self._window_since_s = now_s
            self._adjust(latency_s, peak)

    def _adjust(self, latency_s: float, peak: int) -> None:
        """Adjust the base and the limit after a window. `latency_s`: its mean; `peak`: the most requests in flight."""
        if self.base_s == 0.0:
            self.base_s = latency_s
        elif latency_s < self.base_s:
            self.base_s += (latency_s - self.base_s) * BASE_SHARE
        gradient = TOLERANCE * self.base_s / latency_s
        if gradient >= 1.0:
            self._fall_limit = 0.0
            if 2 * peak >= self.limit:
                self._set_bounded(self.limit + sqrt(self.limit))
            return
        if self._fall_limit == 0.0:
            self._fall_limit, self._fall_latency_s = self.limit, latency_s
        elif self.limit <= FALL * self._fall_limit or self.limit <= self.limit_min:
            if latency_s > FOLLOWED * self._fall_latency_s:
                self.base_s = latency_s
            self._fall_limit, self._fall_latency_s = self.limit, latency_s
        self._set_bounded(self.limit * max(gradient, 1.0 - DECREASE_MAX))

    def _set_bounded(self, limit: float) -> None:
        """Set the limit, within its bounds."""
        self.limit = min(max(limit, float(self.limit_min)), float(self.limit_max))
