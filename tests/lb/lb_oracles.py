"""What each policy should pick, found the plain way: a scan over `slots[:length]` with inline state checks.

Oracles (lb/testing.py) name the pods that the next pick may return: one where the policy is deterministic.
"""

from __future__ import annotations

from lb.circle import PROBES, point_of
from lb.hashing import mix
from lb.pod_table import PodTable
from lb.policies.ewma import Ewma
from lb.policy import Policy
from lb.rng import Rng
from lb.table import TrackerTable
from lb.testing import Oracle, contenders
from lb.tracker import PodTracker


class LowestSlot(Oracle):
    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        return found[:1]


class LongestAgo(Oracle):
    """The pod that was picked, or came to have room, the longest ago."""

    def picked(self, tracker: PodTracker) -> None:
        if not tracker.warming:
            self.touch(tracker)

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        return sorted(found, key=lambda t: self.stamp[t.slot])[:1]


class LeastLoaded(Oracle):
    """The lowest load; among equals the one that has had it the longest."""

    def moves_with_load(self, tracker: PodTracker) -> bool:
        return self.load.get(tracker.slot) != tracker.in_flight + tracker.elsewhere

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        return sorted(found, key=lambda t: (t.in_flight + t.elsewhere, self.stamp[t.slot]))[:1]


class NotTheWorst(Oracle):
    """Of two different pods the cheaper: with two or more, the pick has a rival that costs at least as much."""

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        if len(found) < 2:
            return found
        by_cost = sorted(self.cost(t, table, now_s) for t in found)
        return [t for t in found if self.cost(t, table, now_s) <= by_cost[-2]]

    def cost(self, tracker: PodTracker, table: TrackerTable, now_s: float) -> float:
        return float(tracker.in_flight + tracker.elsewhere)


class NotTheSlowest(NotTheWorst):
    def cost(self, tracker: PodTracker, table: TrackerTable, now_s: float) -> float:
        assert isinstance(table.policy, Ewma)
        if tracker.in_flight == 0 and tracker.latency_at_s == 0.0:
            return -1.0  # nobody has asked it yet: it comes before whoever was asked
        return table.policy.cost_s(tracker, now_s)


class NoReserve(Oracle):
    """Any pod that has a weight; those of weight 0 when there is no other."""

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        weighing = [t for t in contenders(table) if t.weight > 0]
        return [t for t in found if t.weight > 0] if weighing else found

    def new_pods(self, new_pods: list[PodTracker], others: list[PodTracker]) -> list[PodTracker]:
        weighing = [t for t in new_pods + others if t.weight > 0]
        return [t for t in new_pods if t.weight > 0] if weighing else new_pods


class OwnPod(NotTheWorst):
    """The key's pod: the one the shortest way before one of the key's points. Without a key, as choice-of-2."""

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        if key == 0:
            return super().among(found, table, key, now_s)
        return order_of(key, found)[:1]


def order_of(key: int, pods: list[PodTracker]) -> list[PodTracker]:
    """All pods in a key's own order, worked out from their addresses."""
    low = mix(key & 0xFFFFFFFF)
    high = mix(((key >> 32) & 0xFFFFFFFF) ^ low)
    circle = 1 << 48
    start, step = ((high << 16) ^ low) % circle, (((low << 16) ^ high) % circle) | 1

    def way(tracker: PodTracker) -> tuple[int, int, int]:
        point = point_of(tracker.address)
        shortest = min(((start + probe * step - point) % circle, probe) for probe in range(PROBES))
        return (*shortest, tracker.slot)

    return sorted(pods, key=way)


ORACLES: dict[str, type[Oracle]] = {
    "random": Oracle,
    "choice-of-2": NotTheWorst,
    "round-robin": LongestAgo,
    "least-connections": LeastLoaded,
    "first-available": LowestSlot,
    "weighted": NoReserve,
    "ewma": NotTheSlowest,
    "consistent-hash": OwnPod,
}


class ScanningPolicy(Policy):
    """A policy as a third party writes it: plain Python, no structure, no hooks."""

    name = "scanning"

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        best = None
        for tracker in table.slots[: table.length]:
            if tracker.has_room and not tracker.warming and (best is None or _rank(tracker) < _rank(best)):
                best = tracker
        return best


def _rank(tracker: PodTracker) -> tuple[bool, int]:
    return tracker.is_far, int(tracker.in_flight)


class HearingPolicy(ScanningPolicy):
    """One that writes down what it hears."""

    name = "hearing"

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.heard: list[tuple[str, str, float]] = []

    def on_add(self, tracker: PodTracker) -> None:
        self.heard.append(("add", tracker.identity, 0.0))

    def on_remove(self, tracker: PodTracker) -> None:
        self.heard.append(("remove", tracker.identity, 0.0))

    def on_reserve(self, tracker: PodTracker) -> None:
        self.heard.append(("reserve", tracker.identity, 0.0))

    def on_release(self, tracker: PodTracker, latency_s: float) -> None:
        self.heard.append(("release", tracker.identity, latency_s))
