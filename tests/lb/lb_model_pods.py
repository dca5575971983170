"""The pods and leases of the model of a table, each with what the table must count of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lb.tracker import READY, RECOVERING, UNLIMITED, PodTracker


@dataclass
class ModelPod:
    identity: str
    address: str
    state: int
    limit: int
    age: int
    others: dict[int, ModelPod] = field(repr=False)  # all pods of the table
    in_flight: int = 0
    trials: int = 0
    suspect: bool = False
    weight: int = 1
    elsewhere: int = 0
    is_far: bool = False
    # Slow start.
    warming: bool = False
    arrived: int = 0
    from_s: float | None = None

    def is_routable(self) -> bool:
        return self.state in {READY, RECOVERING}

    def is_warm(self) -> bool:
        return self.is_routable() and not self.warming and not self.is_far

    def has_room(self) -> bool:
        bars = self.state == RECOVERING and self.trials > 0
        return self.is_routable() and self.in_flight < self.left() and not self.suspect and not bars

    def left(self) -> int:
        """What the older pods at the address leave of its limit."""
        if self.limit >= UNLIMITED:
            return self.limit
        older = (pod for pod in self.others.values() if pod.address == self.address and pod.age < self.age)
        return max(self.limit - sum(pod.in_flight for pod in older), 0)

    def capacity(self) -> int:
        return self.left() if self.state == READY else min(self.left(), 1) if self.state == RECOVERING else 0


@dataclass
class Lease:
    tracker: PodTracker
    generation: int
    pod: ModelPod
    trial: bool = False
