"""ewma (peak EWMA): of two pods with room, drawn by chance, the one that should finish a request sooner.

A pod's cost is its latency times the requests it would then have in flight. The latency is an exponentially weighted
mean that follows peaks: a slower answer counts in full at once, a faster one in proportion to the time that has passed
since the last (TIME_CONSTANT_S), so that a pod that stalls is left alone after one answer and trusted again slowly.

Rules
  1. A pod without a known latency is taken to be as fast as the average: it is not flooded (each request in flight
     doubles, trebles … its cost). Nor is it starved: of two, one that has had no request yet comes first. Without that,
     a slow pod that answers a little faster each time stays just below the average, which it makes alone, and the other
     waits: 123 of 200 requests at the slow pod. While a pod does not answer, its known latency fades into the average,
     so that a pod that was slow gets another chance.
  2. A request that ended without an answer (a negative latency) says that the pod would have taken longer: it counts
     only if it is above the known latency and the average, and never makes a pod look fast.
  3. The time is that of the last pick. The latency of a pod is kept on its slot and forgotten with it.
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

TIME_CONSTANT_S: Final = 10.0  # after so long a single look back counts 1/e
TYPICAL_SHARE: Final = 0.01  # of each answer in the average over all pods
FIRST_GUESS_S: Final = 1.0  # of every pod before the first answer of all; only that it is the same for all matters


@final
class Ewma(Policy):
    """The cheaper of two, by peak-sensitive latency and load."""

    name: ClassVar[str] = "ewma"
    needs: ClassVar[type[RoomStructure]] = RoomArray

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.typical_s: float = 0.0  # what an answer takes on average over all pods; 0.0: there was none
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
                tracker.latency_at_s = self._now_s  # it has had a request, though its latency is not known
            return
        if self.typical_s == 0.0:
            self.typical_s = latency_s
        self.typical_s += (latency_s - self.typical_s) * TYPICAL_SHARE
        if latency_s >= known_s:  # a peak, or the first
            tracker.latency_s = latency_s
        else:
            old: float = exp((tracker.latency_at_s - self._now_s) / TIME_CONSTANT_S)
            tracker.latency_s = latency_s + (known_s - latency_s) * old
        tracker.latency_at_s = self._now_s

    def cost_s(self, tracker: PodTracker, now_s: float) -> float:
        """The pod's expected latency times its requests in flight, here and elsewhere, with one request more."""
        expected_s = self.typical_s
        if expected_s == 0.0:
            expected_s = FIRST_GUESS_S
        known_s = tracker.latency_s
        if known_s != 0.0:
            fresh: float = exp((tracker.latency_at_s - now_s) / TIME_CONSTANT_S)
            expected_s += (known_s - expected_s) * fresh
        return expected_s * float(tracker.in_flight + tracker.elsewhere + 1)


def _is_untried(tracker: PodTracker) -> bool:
    """The pod has no result of a request yet, and none in flight."""
    return tracker.in_flight == 0 and tracker.latency_at_s == 0.0
