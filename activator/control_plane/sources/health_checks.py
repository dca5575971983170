"""Active health checks: ready pods are probed periodically if their revision configures it.

Rules
  1. The pods of a revision are probed one after the other, evenly over its interval, so that the checks of many pods
     are spread out. A pod is probed again only after its last check has ended.
  2. The cost is bounded, whatever is configured: HEALTH_CHECKS_PER_S_MAX starts a second and HEALTH_CHECKS_AT_ONCE_MAX
     under way. Beyond that the intervals become longer; checks are not queued.
  3. After `fall` failures in a row the state worker is notified, with the pod's epoch at the check: a pod that has been
     removed, or has changed its state by then, is not taken out.
  4. Only READY pods are probed here. The prober probes pods in quarantine, `rise` times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from activator.control_plane.probes.probe import ProbeOutcome, ProbeRequest, probe_once
from activator.control_plane.probes.probed_pod import Wait
from activator.control_plane.state.model import Model
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import Change, Effect, PodFailedChecks, RebuildRevision, SetRevision
from activator.runtime.clock import Now
from activator.runtime.schedule import Schedule
from activator.runtime.tasks import TaskGroupOwner, wait_for
from lb.tracker import READY

HEALTH_CHECKS_PER_S_MAX: Final = 500.0  # 2 % of a core
HEALTH_CHECKS_AT_ONCE_MAX: Final = 256
HEALTH_CHECK_TIMEOUT_MAX_S: Final = 10.0  # and never more than the interval
_IDLE_S: Final = 3600.0  # nothing is due: sleep until a revision configures checks

log = logging.getLogger("activator.probing")


class _Round:
    """The current round of one revision: the pods still to be probed in this interval, and failures in a row."""

    def __init__(self) -> None:
        self.remaining: list[str] = []  # identities, the next one last
        self.step_s = 0.0
        self.failures: dict[str, tuple[int, int]] = {}  # by identity: the pod's epoch, and the failures in a row
        self.probing_now: set[str] = set()  # identities with a check under way


class HealthChecks:
    """The health checks of all revisions; `probe_pod` probes one pod once, `wait` sleeps."""

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        model: Model,
        now: Now,
        probe_pod: Callable[[ProbeRequest, float], Coroutine[None, None, ProbeOutcome]] = probe_once,
        wait: Wait = wait_for,
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._model = model
        self._now = now
        self._probe_pod = probe_pod
        self._wait = wait
        self._rounds: dict[str, _Round] = {}
        self._due: Schedule[str] = Schedule()
        self._wake = asyncio.Event()  # a revision configures checks, or a check under way has ended
        self.under_way = 0
        self.checks_total = 0
        self.failed_total = 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            now_s = self._now()
            may_check = self.under_way < HEALTH_CHECKS_AT_ONCE_MAX
            key = self._due.pop(now_s) if may_check else None
            if key is not None:
                self._check_next(key, now_s)
                await self._wait(asyncio.Event(), 1.0 / HEALTH_CHECKS_PER_S_MAX)
            else:
                self._wake.clear()
                await self._wait(self._wake, min(self._due.next_s() - now_s, _IDLE_S) if may_check else _IDLE_S)

    def applied(self, effects: list[Effect]) -> None:
        """Begin with revisions that now configure checks; those that no longer do end when they are due."""
        for effect in effects:
            if type(effect) is SetRevision or type(effect) is RebuildRevision:
                key = effect.key
                if effect.spec.probing.checks is not None and key not in self._rounds:
                    self._rounds[key] = _Round()
                    self._due.plan(key, self._now())
                    self._wake.set()

    def _check_next(self, key: str, now_s: float) -> None:
        """Start the check of the next pod of a revision that is due, and plan the one after it."""
        revision = self._model.revisions.get(key)
        checks = None if revision is None else revision.spec.probing.checks
        current = self._rounds[key]
        if revision is None or checks is None:
            del self._rounds[key]
            return
        if not current.remaining:
            self._begin_round(current, revision, checks.interval_s)
        identity = current.remaining.pop() if current.remaining else ""
        self._due.plan(key, now_s + current.step_s)
        pod = revision.pods.get(identity)
        if pod is not None and pod.state() == READY and identity not in current.probing_now:
            current.probing_now.add(identity)
            self.under_way += 1
            self.checks_total += 1
            self._tasks.start("health check", self._check(revision, pod, current))

    def _begin_round(self, current: _Round, revision: RevisionRecord, interval_s: float) -> None:
        """Begin a new round with the pods that are ready now."""
        ready = [pod.identity for pod in revision.pods.values() if pod.state() == READY]
        current.remaining = ready[::-1]
        current.step_s = interval_s / max(len(ready), 1)
        current.failures = {identity: current.failures[identity] for identity in ready if identity in current.failures}

    async def _check(self, revision: RevisionRecord, pod: PodRecord, current: _Round) -> None:
        """Probe the pod once, and count the outcome."""
        spec = revision.spec
        checks = spec.probing.checks
        assert checks is not None
        request = ProbeRequest(pod.address, spec.probing.probe, spec.connection.tls, pod.identity, spec.key, causes=[])
        outcome = ProbeOutcome.REFUSED
        try:
            outcome = await self._probe_pod(request, min(checks.interval_s, HEALTH_CHECK_TIMEOUT_MAX_S))
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug is no evidence against the pod
            log.exception("could not check the pod %s of %s", pod.identity, spec.key)
            outcome = ProbeOutcome.ANSWERED
        finally:
            self.under_way -= 1
            self._wake.set()
            current.probing_now.discard(pod.identity)
        self._count_outcome(
            spec.key, pod, current, outcome, request.causes[-1] if request.causes else "it does not answer"
        )

    def _count_outcome(self, key: str, pod: PodRecord, current: _Round, outcome: ProbeOutcome, cause: str) -> None:
        """Count the failures of the pod in a row; report the pod after `fall` of them."""
        if outcome is ProbeOutcome.ANSWERED:
            current.failures.pop(pod.identity, None)
            return
        self.failed_total += 1
        epoch, before = current.failures.get(pod.identity, (pod.epoch, 0))
        failures = before + 1 if epoch == pod.epoch else 1
        current.failures[pod.identity] = (pod.epoch, failures)
        revision = self._model.revisions.get(key)
        checks = None if revision is None else revision.spec.probing.checks
        if checks is not None and failures >= checks.fall:
            del current.failures[pod.identity]
            cause = f"failed {failures} health checks in a row: {cause}"
            log.warning("%s: the pod %s %s; removing it from service", key, pod.identity, cause)
            self._submit(PodFailedChecks(key, pod.identity, pod.epoch, cause))
