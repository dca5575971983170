"""ewma (peak EWMA): draw two pods with room, and pick the one that is expected to finish a request sooner.

The cost of a pod is its latency times the requests that it would then have in flight. The latency is an exponentially
weighted moving average that follows peaks: a slower response replaces the average at once, a faster one is weighted by
the time since the last response (TIME_CONSTANT_S). So a stalled pod is avoided after one response, and its share
recovers slowly.

Rules
  1. A pod without a measured latency is assumed to be as fast as the average. It is not flooded, because each request
     in flight adds to its cost. It is not starved, because a pod without any request yet is preferred. Without that
     preference, a slow pod that becomes slightly faster with each response would stay just below an average that it
     determines alone: in one test it got 123 of 200 requests. While a pod returns no responses, its latency decays to
     the average, so that a slow pod is tried again.
  2. A request that ended without a response (a negative latency) is a lower bound of the pod's latency. It is used only
     if it exceeds both the pod's latency and the average, and therefore never makes a pod look faster.
  3. Ages are measured at the time of the last pick. The latency of a pod is stored in its slot and discarded with it.
"""

from __future__ import annotations

from math import exp
from typing import ClassVar, Final, final

from mypy_extensions import i64

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rng import Rng
from lb.rooms import RoomArray, RoomStructure
from lb.tracker import PodTracker

TIME_CONSTANT_S: Final = 10.0  # the weight of an old latency is 1/e after this time
TYPICAL_SHARE: Final = 0.01  # the weight of one response in the average over all pods
FIRST_GUESS_S: Final = 1.0  # the latency of every pod before the first response; any value equal for all pods will do


@final
class Ewma(Policy):
    """The policy `ewma`: draw two pods with room and pick the one with the lower expected latency."""

    name: ClassVar[str] = "ewma"
    needs: ClassVar[type[RoomStructure]] = RoomArray

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.typical_s: float = 0.0  # the average latency over all pods; 0.0: no response yet
        self._now_s: float = 0.0

    def pick(self, table: PodTable, key: i64, now_s: float) -> PodTracker | None:
        self._now_s = now_s
        structure = table.structure
        assert isinstance(structure, RoomArray)
        if structure.count <= 1:
            return structure.only()
        one, other = structure.draw_two(self.rng)
        if _is_untried(one):
            return one
        if _is_untried(other):
            return other
        return other if self.cost_s(other, now_s) < self.cost_s(one, now_s) else one

    def on_add(self, tracker: PodTracker) -> None:
        tracker.forget_latency()

    def on_release(self, tracker: PodTracker, latency_s: float) -> None:
        known_s = tracker.latency_s
        if latency_s <= 0.0:
            if -latency_s > max(known_s, self.typical_s):
                tracker.latency_s = -latency_s
                tracker.latency_at_s = self._now_s
            elif known_s == 0.0:
                tracker.latency_at_s = self._now_s  # the pod has had a request, although its latency is unknown
            return
        if self.typical_s == 0.0:
            self.typical_s = latency_s
        self.typical_s += (latency_s - self.typical_s) * TYPICAL_SHARE
        if latency_s >= known_s:  # a peak, or the first response
            tracker.latency_s = latency_s
        else:
            weight: float = exp((tracker.latency_at_s - self._now_s) / TIME_CONSTANT_S)
            tracker.latency_s = latency_s + (known_s - latency_s) * weight
        tracker.latency_at_s = self._now_s

    def cost_s(self, tracker: PodTracker, now_s: float) -> float:
        """Return the pod's expected latency times its requests in flight, here and elsewhere, plus one."""
        expected_s = self.typical_s
        if expected_s == 0.0:
            expected_s = FIRST_GUESS_S
        known_s = tracker.latency_s
        if known_s != 0.0:
            weight: float = exp((tracker.latency_at_s - now_s) / TIME_CONSTANT_S)
            expected_s += (known_s - expected_s) * weight
        return expected_s * float(tracker.in_flight + tracker.elsewhere + 1)


def _is_untried(tracker: PodTracker) -> bool:
    """Return True if the pod has had no request."""
    return tracker.in_flight == 0 and tracker.latency_at_s == 0.0
