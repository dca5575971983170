"""A throttler with everything around it made up, and waiters that write down what happens to them."""

from __future__ import annotations

from collections.abc import Callable

from activator.config.specs import QueueSpec, RevisionSpec
from activator.data_plane.tables.apply import GRANTS_PER_TURN_MAX
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.messages import PodRefused, PodServed, TrialEnded
from activator.runtime.reasons import Reason
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from tests.manual_clock import ManualClock


def _nothing(key: str, identity: str) -> None:
    pass


class Heard(SlotEvents):
    """Every event, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.reports: list[PodRefused | PodServed | TrialEnded] = []  # of these, what the state worker is sent
        self.reasons: list[str] = []  # of those who were refused
        self.on_refused: Callable[[str, str], None] = _nothing  # as the data plane has it: `RevisionTables.suspected`

    def activated(self, key: str) -> None:
        self.events.append(("activated",))

    def queue_formed(self, key: str) -> None:
        self.events.append(("queue_formed",))

    def drained(self, key: str, slot: int, generation: int) -> None:
        self.events.append(("drained", str(slot), str(generation)))

    def departed(self, key: str, identity: str) -> None:
        self.events.append(("departed", identity))

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        self.events.append(("trial", identity, str(succeeded)))
        self.reports.append(TrialEnded(key, identity, epoch, succeeded))

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        self.events.append(("refused", identity, str(dead)))
        self.reasons.append(reason)
        self.on_refused(key, identity)
        self.reports.append(PodRefused(key, identity, epoch, dead, reason))

    def served(self, key: str, identity: str, epoch: int) -> None:
        self.events.append(("served", identity, str(epoch)))
        self.reports.append(PodServed(key, identity, epoch))

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        self.events.append(("taken", identity, "over" if is_over else failure or "begun"))

    def failed(self, key: str, error: Exception) -> None:
        self.events.append(("failed", repr(error)))


class Request(Waiter):
    """Holds its lease until the test releases it."""

    def __init__(self, throttler: RevisionThrottler, name: int = 0) -> None:
        super().__init__()
        self.throttler = throttler
        self.name = name
        self.lease: Lease | None = None
        self.ends: list[str] = []

    def ask(self, now_s: float) -> None:
        """As the proxy asks."""
        lease = self.throttler.try_acquire(self, now_s)
        if lease is not None:
            self.granted(lease)
            return
        refusal = self.throttler.queue.enqueue(self)
        if refusal is not None:
            self.refused(refusal, "")

    def granted(self, lease: Lease) -> None:
        self.lease = lease
        self.ends.append("granted")

    def refused(self, reason: Reason, detail: str) -> None:
        self.ends.append(reason.value)

    def revoked(self, reason: Reason, detail: str) -> None:
        self.ends.append("revoked")
        self.release()

    def release(self, succeeded: bool = True) -> None:
        lease = self.lease
        assert lease is not None
        self.lease = None
        self.throttler.release(lease, 0.0, succeeded)

    def leave(self) -> None:
        self.ends.append("left")
        self.throttler.queue.cancel(self)


def asking(throttler: RevisionThrottler, now_s: float, name: int = 0) -> Request:
    """A request that has asked for a slot."""
    request = Request(throttler, name)
    request.ask(now_s)
    return request


def make(
    policy: str = "round-robin", depth: int = 100, per_turn: int = GRANTS_PER_TURN_MAX
) -> tuple[RevisionThrottler, TrackerTable, Heard, ManualClock]:
    clock = ManualClock()
    heard = Heard()
    table = TrackerTable(create(policy, Rng(1)), 4, 0.5)
    spec = RevisionSpec(key="ns/rev", queue=QueueSpec(depth=depth))
    return RevisionThrottler(spec, table, clock.now, clock.defer, heard, per_turn), table, heard, clock
