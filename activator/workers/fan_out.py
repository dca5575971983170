"""Many data planes as one, for the control plane: effects go to all of them, and their reports are merged.

Rules
  1. A worker that joins is sent each revision as it is at that time, and every later effect.
  2. Slots have the number of their worker: a drained slot is freed there and nowhere else.
  3. A pod has drained when no worker has a request there. A worker that has ended has none.
  4. A revision's load is the sum of the workers' loads. Totals include those of workers that have ended.
  5. The effects of a table are confirmed when each worker has confirmed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from activator.members.lives import Lives
from activator.messages import (
    Command,
    Drained,
    DropRevision,
    Effect,
    FreeSlot,
    FromData,
    Load,
    ObservedTable,
    PodDrained,
    RebuildRevision,
    SentRevision,
    SetRevision,
    ShowOutput,
    SlotDrained,
    WithdrawPod,
)

Send = Callable[[int, list[Effect | Command]], None]

_WORKER_SHIFT: Final = 32  # the bits of a slot's number above this are the worker's number
_SLOT_MASK: Final = (1 << _WORKER_SHIFT) - 1
_NO_SLOT: Final = _SLOT_MASK  # no table has this slot
DRAINS_MAX: Final = 100_000  # pods that some workers have reported as drained; beyond that, the oldest is forgotten


class Loads:
    """The loads of one revision."""

    def __init__(self) -> None:
        self._by_worker: dict[int, Load] = {}
        self._requests_total: int = 0  # requests of workers that have ended
        self._request_seconds: float = 0.0

    def add(self, worker: int, load: Load) -> Load:
        """Replace the load of a worker, and return the sum.

        Request-seconds are not extrapolated beyond the last report of a worker, so that the sum never falls.
        """
        self._by_worker[worker] = load
        return self._sum(load.key, load.at_s)

    def end(self, worker: int, key: str) -> Load | None:
        """Remove a worker, and return the sum without it; None if it had no load."""
        load = self._by_worker.pop(worker, None)
        if load is None:
            return None
        self._requests_total += load.requests_total
        self._request_seconds += load.request_seconds
        return self._sum(key, load.at_s)

    def _sum(self, key: str, at_s: float) -> Load:
        loads = self._by_worker.values()
        return Load(
            key,
            sum(load.in_flight for load in loads),
            sum(load.queued for load in loads),
            self._requests_total + sum(load.requests_total for load in loads),
            sum(load.concurrency for load in loads),
            self._request_seconds + sum(load.request_seconds for load in loads),
            at_s,
            min((load.oldest_s for load in loads if load.oldest_s > 0.0), default=0.0),
        )


class FanOut:
    """The workers of one parent. `receive` gets the merged reports, for the control plane."""

    def __init__(self, send: Send, receive: Callable[[FromData], None], lives: Lives) -> None:
        self._send = send
        self._receive = receive
        self._workers: dict[int, None] = {}
        self._standing: dict[type, Command] = {}  # commands that are sent to every worker that joins
        self._output: dict[str, ShowOutput] = {}  # the same for the output of revisions that are starting, by key
        self.lives = lives
        self._loads: dict[str, Loads] = {}
        self._offsets: dict[str, dict[int, int]] = {}  # effects from before a worker joined, by revision
        self._confirmed: dict[str, dict[int, int]] = {}  # effects that each worker has confirmed, by revision
        self._drains: dict[tuple[str, str], set[int]] = {}  # for each pod, workers that may have requests there
        self._drained: dict[int, bool] = {}  # workers that have drained, and whether all their requests finished
        self._is_draining = False

    @property
    def workers(self) -> list[int]:
        """The numbers of the workers."""
        return list(self._workers)

    def use_lives(self, lives: Lives) -> None:
        """Use the lives of the group. To be called before any effect is applied."""
        self.lives = lives

    # --- workers ---

    def joined(self, worker: int, revisions: Iterable[SentRevision]) -> None:
        """Add a worker that has begun, and send it the standing commands and all revisions."""
        self._workers[worker] = None
        effects: list[Effect | Command] = [*self._standing.values()]
        for revision in revisions:
            key = revision.effect.key
            effects.append(self.lives.with_life(revision.effect))
            self._loads.setdefault(key, Loads())
            if revision.sent:
                self._offsets.setdefault(key, {})[worker] = revision.sent
        effects.extend(self._output.values())  # behind the revisions
        if effects:
            self._send(worker, effects)

    def ended(self, worker: int) -> None:
        """Remove a worker that has ended, with its load and its requests."""
        if worker not in self._workers:
            return
        del self._workers[worker]
        for by_worker in (*self._offsets.values(), *self._confirmed.values()):
            by_worker.pop(worker, None)
        for key, loads in list(self._loads.items()):
            load = loads.end(worker, key)
            if load is not None:
                self._receive(load)
        for key, identity in [pod for pod, waiting in self._drains.items() if worker in waiting]:
            self._pod_drained(worker, PodDrained(key, identity))
        if self._is_draining:
            self._drained.setdefault(worker, False)
            self._report_if_all_drained()

    # --- to the workers ---

    def apply(self, effects: list[Effect]) -> None:
        """Send effects of the state worker to all workers, in order."""
        effects = [self.lives.with_life(effect) for effect in effects]
        for effect in effects:
            self._prepare_for_reports(effect)
        frees_slot = [type(effect) is FreeSlot for effect in effects]
        for worker in self._workers:
            if any(frees_slot):
                self._send(worker, [_for_worker(worker, effect) for effect in effects])
            else:
                self._send(worker, list(effects))

    def execute(self, command: Command) -> None:
        """Send a command of the control plane to all workers."""
        if isinstance(command, ShowOutput):
            if command.lines:
                self._output[command.key] = command
            else:
                self._output.pop(command.key, None)
        else:
            self._standing[type(command)] = command
        for worker in self._workers:
            self._send(worker, [command])

    def drain_begins(self) -> None:
        """Report `Drained` once each worker has reported it or has ended. To be called after `Drain` was sent."""
        self._is_draining = True
        self._report_if_all_drained()

    # --- from the workers ---

    def receive(self, worker: int, message: FromData) -> None:
        """Merge a report of a worker, unless the worker has ended."""
        if worker not in self._workers:
            return
        if isinstance(message, Load):
            loads = self._loads.get(message.key)
            if loads is not None:  # else the revision was dropped before this report
                self._receive(loads.add(worker, message))
        elif isinstance(message, PodDrained):
            self._pod_drained(worker, message)
        elif isinstance(message, SlotDrained):
            self._receive(replace(message, slot=worker << _WORKER_SHIFT | message.slot))
        elif isinstance(message, ObservedTable):
            self._table_confirmed(worker, message)
        elif isinstance(message, Drained):
            self._drained[worker] = message.finished
            self._report_if_all_drained()
        else:
            self._receive(message)

    # --- internal ---

    def _prepare_for_reports(self, effect: Effect) -> None:
        """Prepare for the reports that an effect will cause; without workers, report a withdrawn pod as drained."""
        key = effect.key
        if type(effect) is SetRevision or type(effect) is RebuildRevision:
            self._loads.setdefault(key, Loads())
        if type(effect) is WithdrawPod:
            self._drains[key, effect.identity] = set(self._workers)
            if not self._workers:  # no worker has a request there
                del self._drains[key, effect.identity]
                self._receive(PodDrained(key, effect.identity))
        elif type(effect) is RebuildRevision or type(effect) is DropRevision:
            self._offsets.pop(key, None)  # counted from the beginning again
            self._confirmed.pop(key, None)
            if type(effect) is DropRevision:
                self._loads.pop(key, None)
                self._output.pop(key, None)

    def _pod_drained(self, worker: int, message: PodDrained) -> None:
        """Record that a worker has no request at a pod, and report the pod once none has."""
        pod = (message.key, message.identity)
        waiting = self._drains.get(pod)
        if waiting is None:  # it was withdrawn with its revision
            waiting = self._drains[pod] = set(self._workers)
            if len(self._drains) > DRAINS_MAX:
                del self._drains[next(iter(self._drains))]
        waiting.discard(worker)
        if not waiting:
            self._drains.pop(pod, None)
            self._receive(message)

    def _table_confirmed(self, worker: int, message: ObservedTable) -> None:
        """Report a worker's table, with the number of effects that all workers have confirmed."""
        key = message.key
        applied = message.applied + self._offsets.get(key, {}).get(worker, 0)
        confirmed = self._confirmed.setdefault(key, {})
        confirmed[worker] = applied
        received = min([confirmed.get(one, -1) for one in self._workers], default=applied)
        self._receive(replace(message, applied=applied, worker=worker, received=received))

    def _report_if_all_drained(self) -> None:
        """Report `Drained` if each worker has reported it."""
        if self._is_draining and all(worker in self._drained for worker in self._workers):
            self._is_draining = False
            self._receive(Drained(all(self._drained.values())))


def _for_worker(worker: int, effect: Effect) -> Effect:
    """Return the effect as this worker gets it: the number of a slot without the worker's."""
    if type(effect) is not FreeSlot:
        return effect
    slot = effect.slot & _SLOT_MASK if effect.slot >> _WORKER_SHIFT == worker else _NO_SLOT
    return replace(effect, slot=slot)
