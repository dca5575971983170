"""What each policy should pick, found the plain way: a scan over `slots[:length]` with inline state checks.

An oracle watches the table from outside. It is shown the table after every step (`observe`) and every pick (`picked`),
and names the pods that the next pick may return (`allowed`): one where the policy is deterministic.
"""

from __future__ import annotations

from lb.policy import Policy
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY, RECOVERING, PodTracker


def candidates(table: TrackerTable) -> list[PodTracker]:
    found = []
    for tracker in table.slots[: table.length]:
        if tracker.state not in {READY, RECOVERING} or tracker.suspect_until_s != 0.0:
            continue
        if tracker.in_flight < tracker.limit:
            found.append(tracker)
    return found


class Oracle:
    """Any pod with room; the base of the others. `stamp` says when each pod last changed its place in the order."""

    def __init__(self) -> None:
        self.clock = 0
        self.stamp: dict[int, int] = {}  # of the slots with room
        self.load: dict[int, int] = {}

    def observe(self, table: TrackerTable) -> None:
        now = candidates(table)
        self.stamp = {t.slot: self.stamp[t.slot] for t in now if t.slot in self.stamp}
        for tracker in now:
            if tracker.slot not in self.stamp or self.moves_with_load(tracker):
                self.touch(tracker)
            self.load[tracker.slot] = tracker.in_flight

    def moves_with_load(self, tracker: PodTracker) -> bool:
        return False

    def touch(self, tracker: PodTracker) -> None:
        self.clock += 1
        self.stamp[tracker.slot] = self.clock

    def picked(self, tracker: PodTracker) -> None:
        pass

    def allowed(self, table: TrackerTable) -> list[PodTracker]:
        return candidates(table)


class LowestSlot(Oracle):
    def allowed(self, table: TrackerTable) -> list[PodTracker]:
        return candidates(table)[:1]


class LongestAgo(Oracle):
    """The pod that was picked, or came to have room, the longest ago."""

    def picked(self, tracker: PodTracker) -> None:
        self.touch(tracker)

    def allowed(self, table: TrackerTable) -> list[PodTracker]:
        return sorted(candidates(table), key=lambda t: self.stamp[t.slot])[:1]


class LeastLoaded(Oracle):
    """The lowest load; among equals the one that has had it the longest."""

    def moves_with_load(self, tracker: PodTracker) -> bool:
        return self.load.get(tracker.slot) != tracker.in_flight

    def allowed(self, table: TrackerTable) -> list[PodTracker]:
        return sorted(candidates(table), key=lambda t: (t.in_flight, self.stamp[t.slot]))[:1]


class NotTheWorst(Oracle):
    """Of two different pods the less loaded: with two or more, the pick has a rival at least as loaded."""

    def allowed(self, table: TrackerTable) -> list[PodTracker]:
        found = candidates(table)
        if len(found) < 2:
            return found
        by_load = sorted(t.in_flight for t in found)
        return [t for t in found if t.in_flight <= by_load[-2] or t.in_flight < by_load[-1]]


ORACLES: dict[str, type[Oracle]] = {
    "random": Oracle,
    "choice-of-2": NotTheWorst,
    "round-robin": LongestAgo,
    "least-connections": LeastLoaded,
    "first-available": LowestSlot,
}


class ScanningPolicy(Policy):
    """A policy as a third party writes it: plain Python, no structure, no hooks."""

    name = "scanning"

    def pick(self, table: TrackerTable, key: int, now_s: float) -> PodTracker | None:
        best = None
        for tracker in table.slots[: table.length]:
            if tracker.has_room and (best is None or tracker.in_flight < best.in_flight):
                best = tracker
        return best


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
