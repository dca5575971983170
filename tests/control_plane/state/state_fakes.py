"""A state worker and a data plane joined in memory, on a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from activator.config.specs import BalancingSpec, RevisionSpec
from activator.control_plane.state.worker import Reduce, StateWorker
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.tables.audit import Auditor
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import (
    Change,
    Effect,
    Load,
    ObservedPod,
    PodDrained,
    PodRefused,
    PodServed,
    PodStatus,
    PodTaken,
    ProbeOrder,
    RevisionBroken,
    ToControl,
    TrialEnded,
    decode,
    encode,
)
from activator.runtime.clock import TimingWheel
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.slots import Trim
from lb.tracker import EMPTY, READY, RECOVERING, STATE_NAMES, PodTracker
from tests.data_plane.throttle.throttle_fakes import Heard, Request, asking
from tests.manual_clock import ManualClock

KEY = "ns/rev"
SPEC = RevisionSpec(key=KEY, container_concurrency=2, balancing=BalancingSpec(policy="round-robin", max_scale=4))


def balanced(**changes: Any) -> RevisionSpec:
    """The revision with other values of these fields of `balancing`."""
    return replace(SPEC, balancing=replace(SPEC.balancing, **changes))


class Pool:
    """Stands for a connection pool: remembers whether it was closed."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.closed = False
        self.watched = 0


class Hooks(TableHooks):
    """Writes down what apply asks of the rooms above."""

    def __init__(self) -> None:
        self.routed: list[str] = []
        self.drained: list[str] = []
        self.ended: list[RevisionThrottler] = []
        self.unplaced: list[str] = []
        self.expired: list[tuple[str, int, int]] = []
        self.failures: list[Exception] = []
        self.trims: list[tuple[str, Trim]] = []
        self.told: list[ToControl] = []  # for the worker

    def make_policy(self, name: str) -> Policy:
        return create(name, Rng(7))

    def revision_set(self, throttler: RevisionThrottler) -> None:
        self.routed.append(throttler.key)

    def revision_dropped(self, throttler: RevisionThrottler) -> None:
        self.routed.remove(throttler.key)

    def revision_ended(self, throttler: RevisionThrottler) -> None:
        self.ended.append(throttler)

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        tracker.attachment = Pool(tracker.identity)

    def pod_withdrawn(self, attachment: object) -> None:
        assert isinstance(attachment, Pool)
        attachment.closed = True

    def address_taken(self, attachment: object) -> None:
        assert isinstance(attachment, Pool)
        attachment.watched += 1

    def pod_drained(self, key: str, identity: str) -> None:
        self.drained.append(identity)

    def pod_unplaced(self, key: str, identity: str) -> None:
        self.unplaced.append(identity)

    def drain_expired(self, key: str, slot: int, generation: int) -> None:
        self.expired.append((key, slot, generation))

    def trimmed(self, key: str, trim: Trim) -> None:
        self.trims.append((key, trim))

    def failed(self, effect: object, error: Exception) -> None:
        self.failures.append(error)

    def broken(self, key: str, cause: str, kind: str) -> None:
        self.told.append(RevisionBroken(key, cause, kind))


class Joined:
    """Both parts; every message between them goes through bytes."""

    def __init__(self, reduce_change: Reduce | None = None) -> None:
        self.clock = ManualClock()
        self.heard = Heard()
        self.hooks = Hooks()
        self.errors: list[Exception] = []
        self.probes: list[ProbeOrder] = []
        self.applied: Callable[[list[Effect]], None] = lambda _effects: None  # what the sources are told
        self.dirty: list[tuple[str, str]] = []  # sources that were asked to say a revision anew
        self.wheel = TimingWheel(self.clock.now, self.clock.call_later, self.errors.append)
        self.tables = RevisionTables(self.clock.now, self.wheel, self.clock.defer, self.heard, self.hooks, HeldBudget())
        self.auditor = Auditor(self.tables, self.wheel, self.clock.now, self.hooks.told.append, self.clock.defer)
        if reduce_change is None:
            self.worker = StateWorker(self.clock.now, self._send, self.probes.extend, self.source_dirty)
        else:
            self.worker = StateWorker(self.clock.now, self._send, self.probes.extend, self.source_dirty, reduce_change)

    def _send(self, effects: list[Effect]) -> None:
        carried: list[Effect] = [decode(encode(effect)) for effect in effects]  # type: ignore[misc]
        assert carried == effects
        self.tables.apply(carried)
        self.applied(effects)

    def source_dirty(self, source: str, key: str) -> None:
        self.dirty.append((source, key))

    def do(self, *changes: Change) -> None:
        """Submit, and let the worker work until nothing is left."""
        for change in changes:
            self.worker.submit(change)
        while self.worker.turn() or self.hooks.told:
            for message in self.hooks.told:
                assert not isinstance(message, Load | PodDrained | PodTaken)
                self.worker.submit(message)
            self.hooks.told.clear()

    def epoch(self, identity: str, key: str = KEY) -> int:
        """Of the pod, as the data plane knows it; 0: it does not."""
        tracker = self.tables.throttlers[key].table.find_identity(identity)
        return 0 if tracker is None else int(tracker.epoch)

    def refused(self, identity: str, dead: bool, reason: str = "", key: str = KEY) -> PodRefused:
        """What the data plane reports where a dial to the pod is refused now (`dead`), or its connection breaks."""
        return PodRefused(key, identity, self.epoch(identity, key), dead, reason)

    def served(self, identity: str) -> PodServed:
        """What it reports where the pod answers now, after strikes."""
        return PodServed(KEY, identity, self.epoch(identity))

    def trial(self, identity: str, passed: bool) -> TrialEnded:
        """What it reports where a trial of the pod ends now."""
        return TrialEnded(KEY, identity, self.epoch(identity), passed)

    def found(self, kind: str, identity: str) -> list[Change]:
        """What the data plane reports of the pod now: nothing where it is not in a state to be judged."""
        tracker = self.throttler().table.find_identity(identity)
        state = EMPTY if tracker is None else int(tracker.state)
        if kind == "served" and state != EMPTY:
            return [self.served(identity)]
        if kind in {"dead", "struck"} and state in {READY, RECOVERING}:
            return [self.refused(identity, kind == "dead")]
        if kind in {"passed", "failed"} and state == RECOVERING:
            return [self.trial(identity, kind == "passed")]
        return []

    def throttler(self, key: str = KEY) -> RevisionThrottler:
        return self.tables.throttlers[key]

    def ask(self, key: str = KEY) -> Request:
        """A request that has asked for a slot."""
        return asking(self.throttler(key), self.clock.now())

    def slots(self, key: str = KEY) -> dict[str, str]:
        """identity → state, as the table has it."""
        table = self.tables.throttlers[key].table
        table.check_invariants()
        return {
            tracker.identity: STATE_NAMES[tracker.state]
            for tracker in table.slots[: table.length]
            if tracker.state != EMPTY
        }


def seen(identity: str, status: PodStatus = PodStatus.READY, **more: object) -> ObservedPod:
    """A pod at an address made from its identity."""
    number = int("".join(digit for digit in identity if digit.isdigit()) or "0")
    fields: dict[str, object] = {"key": KEY, "source": "list", "address": f"10.0.0.{number}:80"}
    return ObservedPod(identity=identity, status=status, **{**fields, **more})  # type: ignore[arg-type]
