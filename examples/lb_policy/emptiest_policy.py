"""emptiest: the pod with the greatest free share of its limit, for pods of unequal size.

A pod of limit 100 with 50 in flight is half full, one of limit 4 with 3 in flight is fuller. Among equals the one that
was picked the longest ago.
"""

from __future__ import annotations

from typing import ClassVar

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rng import Rng
from lb.tracker import PodTracker


class Emptiest(Policy):
    """Scans the slots: O(pods) a pick, which is fine for some dozens of pods."""

    name: ClassVar[str] = "emptiest"

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.turn = 0
        self.picked_at: dict[str, int] = {}  # by identity: the memory of a pod must not outlive it (on_remove)

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        best: PodTracker | None = None
        best_rank = (True, 2.0, 0)
        for pod in table.slots[: table.length]:
            if not pod.has_room or pod.warming:
                continue
            rank = (pod.is_far, pod.in_flight / pod.limit, self.picked_at.get(pod.identity, 0))
            if rank < best_rank:
                best, best_rank = pod, rank
        return best

    def on_reserve(self, tracker: PodTracker) -> None:
        self.turn += 1
        self.picked_at[tracker.identity] = self.turn

    def on_remove(self, tracker: PodTracker) -> None:
        self.picked_at.pop(tracker.identity, None)
