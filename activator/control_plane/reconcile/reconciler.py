"""Establishes the desired state of each Activation in the cluster: many at once, one pass per Activation at a time.

Rules
  1. The latest Desired of a key counts; earlier ones are folded into it. The events of all of them are reported.
  2. A Desired that equals the known state costs a comparison: no task, no call, no report.
  3. A failed pass is retried after its key's own pause; its report has the time.
  4. `writers.py` decides which replica of the activator writes for which Activation. `abandon` ends the pass of an
     Activation that another replica owns from now on.
  5. Memory is bounded by KEYS_MAX keys. A key exists from its first Desired until `forget`, or until its objects have
     been removed (`present` False).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from activator.control_plane.reconcile.api import Api
from activator.control_plane.reconcile.desired import Desired, ObservedScale
from activator.control_plane.reconcile.events import EventComponent
from activator.control_plane.reconcile.groups import IN_ORDER, REMOVAL, Groups, Part, run_groups
from activator.control_plane.reconcile.kinds import Kinds
from activator.control_plane.reconcile.observed_cache import ObservedCache
from activator.control_plane.reconcile.reads import Reads
from activator.control_plane.reconcile.report import GOOD, UNCHANGED, Component, Report, Result
from activator.control_plane.reconcile.run import ReconcileRun
from activator.control_plane.reconcile.scale import ScaleComponent
from activator.control_plane.reconcile.service import ServiceComponent
from activator.control_plane.reconcile.status import StatusComponent
from activator.control_plane.reconcile.traffic import TrafficComponent
from activator.control_plane.reconcile.work_queue import WorkQueue
from activator.control_plane.reconcile.writer import CONTROLLER, Pause, Writer
from activator.runtime.clock import Later, Now
from activator.runtime.controller_counts import Controllers, error_type_of
from activator.runtime.tasks import OnTaskError, TaskGroupOwner, call_later, pause
from lb.rng import Rng

RECONCILE_PASSES_MAX: Final = 20  # at once
RECONCILE_KEYS_MAX: Final = 50_000  # Activations of this replica
RETRY_AFTER_MAX_S: Final = 120.0  # bounds the time that the API asks to wait


class Reconciler:
    """The reconciler.

    `wall_s` returns the time of day; `reported` is called after each pass; `instance` names this process in events.
    """

    def __init__(
        self,
        api: Api,
        controllers: Controllers,
        now: Now,
        wall_s: Callable[[], float],
        rng: Rng,
        reported: Callable[[Report], None],
        on_error: OnTaskError,
        instance: str = "activator",
        passes_max: int = RECONCILE_PASSES_MAX,
        keys_max: int = RECONCILE_KEYS_MAX,
        call_later: Later = call_later,
        pause: Pause = pause,
    ) -> None:
        self._api = api
        self._controllers = controllers
        self._now = now
        self._wall_s = wall_s
        self._reported = reported
        self._passes_max = passes_max
        self._keys_max = keys_max
        self._tasks = TaskGroupOwner(on_error)
        self._writer = Writer(api, controllers, rng, pause)
        self._events = EventComponent(instance, now, wall_s)
        self._parts: dict[Component, Part] = {
            Component.SERVICE: ServiceComponent(),
            Component.SCALE: ScaleComponent(Kinds(api, now)),
            Component.STATUS: StatusComponent(),
            Component.EVENTS: self._events,
            Component.TRAFFIC: TrafficComponent(),
        }
        self._desired: dict[str, Desired] = {}  # the latest, by key
        self._memories: dict[str, ObservedCache] = {}
        self._active = 0  # the number of passes that were started and have not ended
        self._running: dict[str, asyncio.Task[None] | None] = {}  # running passes
        self._closed = False
        self.refused_total = 0  # Desired states beyond KEYS_MAX
        self.no_pass_total = 0  # Desired states that equalled the known state
        self._queue = WorkQueue(now, call_later, rng, self._start_due_passes, self._count_added)
        controllers.register(CONTROLLER, passes_max)

    # --- what a source calls ----------------------------------------------------------------------------------------

    def want(self, desired: Desired) -> bool:
        """Have this state established; call it on the loop. Return False with too many keys, or after `close`."""
        key = desired.key
        before = self._desired.get(key)
        if self._closed or (before is None and len(self._desired) >= self._keys_max):
            self.refused_total += 1
            return False
        if before is None or before.uid != desired.uid:
            self._memories[key] = ObservedCache()
        self._desired[key] = desired
        self._events.add(desired)
        if self._queue.is_free(key) and self._is_established(desired):
            self.no_pass_total += 1
            if not desired.present:
                self.forget(key)
            return True
        self._queue.put(key, self._is_urgent(desired, before))
        return True

    def service_written(self, key: str, version: str, is_there: bool) -> bool:
        """Record the Service's version, or its last one before its deletion.

        Return True if another program wrote it, so that the source must call `want` again.
        """
        memory = self._memories.get(key)
        if memory is None:
            return False
        if is_there:
            memory.service_watched = version
        else:
            memory.service_deleted = version
        return memory.is_service_outdated

    def wake(self) -> None:
        """Retry all failed keys: the API answers again."""
        self._queue.wake()

    def forget(self, key: str) -> None:
        """Stop writing for this key: the Activation was deleted, or another replica writes for it."""
        desired = self._desired.pop(key, None)
        self._memories.pop(key, None)
        self._queue.forget(key)
        if desired is not None:
            self._events.forget(key, desired.uid)

    def abandon(self, key: str) -> None:
        """Forget the key and cancel its pass. A call that was sent may still take effect."""
        self.forget(key)
        task = self._running.get(key)
        if task is not None:
            task.cancel()

    @property
    def is_quiet(self) -> bool:
        """True if no pass runs or is due; some may be due later."""
        return self._active == 0 and not len(self._queue)

    def __len__(self) -> int:
        """Return the number of known keys."""
        return len(self._desired)

    @property
    def dropped_events_total(self) -> int:
        """The number of events beyond the budget of their object."""
        return self._events.dropped_total

    async def close(self) -> None:
        """Start no more passes, and cancel the running ones."""
        self._closed = True
        self._queue.close()
        await self._tasks.close()

    # --- passes -----------------------------------------------------------------------------------------------------

    def _is_established(self, desired: Desired) -> bool:
        """Return True if the cluster is known to be as desired; the writes that this saves are counted."""
        run = self._new_run(desired)
        groups = self._groups(desired)
        if any(self._parts[component].has_work(run) for group in groups for component in group):
            return False
        for group in groups:
            for component in group:
                self._writer.count_unchanged(component)
        return True

    def _is_urgent(self, desired: Desired, before: Desired | None) -> bool:
        """Return True if the key jumps the queue: it asks for that, or it starts from zero."""
        if desired.urgent:
            return True
        if not desired.replicas or (before is not None and before.replicas == desired.replicas):
            return False
        known = self._memories[desired.key].known_scale(desired.observed, self._now())
        return isinstance(known, ObservedScale) and known.replicas == 0

    def _new_run(self, desired: Desired) -> ReconcileRun:
        reads = Reads(self._api, desired)
        return ReconcileRun(desired, self._memories[desired.key], reads, self._writer, self._now, self._wall_s)

    def _groups(self, desired: Desired) -> Groups:
        return IN_ORDER if desired.present else REMOVAL

    def _count_added(self, is_retry: bool) -> None:
        self._controllers.added(CONTROLLER, is_retry)

    def _start_due_passes(self) -> None:
        """Start due passes, up to the limit of concurrent ones."""
        while self._active < self._passes_max and not self._closed:
            taken = self._queue.take()
            if taken is None:
                return
            key, waited_s = taken
            self._controllers.taken(CONTROLLER, waited_s)
            self._active += 1
            self._tasks.start(f"reconcile {key}", self._run_pass(key))

    async def _run_pass(self, key: str) -> None:
        """Run the pass of a key, queue the key again if it has more to do, and report the results."""
        report: Report | None = None
        desired = self._desired.get(key)
        self._running[key] = asyncio.current_task()
        try:
            if desired is not None:
                report = await self._reconcile(desired)
        finally:
            self._active -= 1
            del self._running[key]
            failed = report is not None and not report.good
            again_in_s = None if report is None else _again_in_s(report)
            at_least_s = 0.0 if report is None else _retry_after_s(report)
            retry_in_s = self._queue.done(key, failed, again_in_s, at_least_s)
            self._start_due_passes()
        if report is not None and desired is not None:
            self._finish(desired, msgspec.structs.replace(report, retry_in_s=retry_in_s if failed else None))

    async def _reconcile(self, desired: Desired) -> Report:
        """Run all components; return their outcomes."""
        run = self._new_run(desired)
        with self._controllers.reconcile(CONTROLLER) as counted:
            outcomes = await run_groups(self._parts, run, self._groups(desired))
            for outcome in outcomes.values():
                if outcome.error is not None:
                    self._controllers.failed(CONTROLLER, error_type_of(outcome.error))
            if any(outcome.result not in GOOD for outcome in outcomes.values()):
                counted.requeue()
        return Report(desired.key, desired.uid, desired.generation, outcomes)

    def _finish(self, desired: Desired, report: Report) -> None:
        """Forget a key whose objects are gone, and report the pass to the source."""
        is_removed = not desired.present and report.good
        is_gone = report.outcomes.get(Component.STATUS, UNCHANGED).result is Result.NOT_FOUND
        if (is_removed or is_gone) and self._desired.get(desired.key) is desired:
            self.forget(desired.key)
        memory = self._memories.get(desired.key)
        if memory is not None and memory.is_service_outdated:  # another program wrote it during the pass
            self._queue.put(desired.key, False)
        self._reported(report)


def _again_in_s(report: Report) -> float | None:
    """Return the earliest time that a component has requested.

    None: none has, or a component that failed requested none, so that the key's pause applies.
    """
    asked = [outcome.again_in_s for outcome in report.outcomes.values() if outcome.again_in_s is not None]
    if any(outcome.result not in GOOD and outcome.again_in_s is None for outcome in report.outcomes.values()):
        return None
    return min(asked, default=None)


def _retry_after_s(report: Report) -> float:
    """Return how long the API has asked to wait with a refusal, bounded by RETRY_AFTER_MAX_S."""
    asked = [getattr(outcome.error, "retry_after_s", None) or 0.0 for outcome in report.outcomes.values()]
    return min(max(asked, default=0.0), RETRY_AFTER_MAX_S)
