"""The prober: it probes pods until they answer, with adaptive timeouts and bounded concurrency.

Rules
  1. One bad pod never delays another (no head-of-line blocking): each has a task of its own, and a pod that has not
     answered within PROBE_MOMENT_S releases its permit. Expedited pods have permits of their own:
     thousands of silent pods, as in a large failure, do not delay any request.
  2. A pod that does not answer is probed with a growing backoff. While requests wait, a bounded number of pods is
     expedited: probed every few milliseconds, and with a second probe if one hangs, because a proxy before the
     program (Knative's queue-proxy) may hold a probe that it would answer now.
  3. The timeout of a probe follows the duration of the last answers.
  4. An order is valid until another one replaces it. `Probed` is submitted repeatedly, and the pod is probed again,
     until the state worker has received it and ends the order; an internal error does not end one. So no pod waits
     without end for an answer, an order or a message that was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, Protocol

from activator.control_plane.probes.probe import PROBES_EXPEDITED_MAX, ProbeOutcome, ProbeRequest, probe_once
from activator.control_plane.probes.probed_pod import (
    PROBE_EXPEDITE_S,
    AdaptiveTimeout,
    Failing,
    ProbeContext,
    ProbedPod,
    ProbePermit,
    Wait,
)
from activator.messages import Change, Probed, ProbeOrder, SetProbes, StartProbe, StopProbe
from activator.runtime.clock import NEVER, Later, Now
from activator.runtime.tasks import TaskGroupOwner, call_later, wait_for
from lb.rng import Rng

PROBES_AT_ONCE_MAX: Final = 64  # pods probed at the same moment (PROBE_MOMENT_S)
EXPEDITED_REVISIONS_MAX: Final = 10_000  # revisions for which the beginning of the waiting is known
PROBE_EXPEDITE_FORGET_S: Final = 2.0  # requests that wait after a longer pause without any begin a new wait
PROBE_REPEAT_S: Final = 5.0  # a pod that has answered is probed again if its order has not ended by then

log = logging.getLogger("activator.probing")

ProbePod = Callable[[ProbeRequest, float], Coroutine[None, None, ProbeOutcome]]
Panicked = Callable[[str, object, object, float], float]


class ProbeListener(Protocol):
    """The receiver of the outcomes of probes."""

    def pod_failed(self, key: str) -> None:
        """Record that a pod of the revision was probed and did not answer."""

    def pod_answered(self, key: str) -> None:
        """Record that a pod of the revision has answered."""


class ExpeditedProbing:
    """The time since which requests have been waiting for a revision, whatever short pauses there were."""

    def __init__(self) -> None:
        self.since_s: float = 0.0
        self._last_s: float = -NEVER

    def requests_wait(self, now_s: float) -> None:
        """Record that requests wait now."""
        # A report that a busy loop sent late is not a pause: the steps would become short when the load is highest.
        if now_s - self._last_s > PROBE_EXPEDITE_FORGET_S:
            self.since_s = now_s
        self._last_s = now_s

    def is_on(self, now_s: float) -> bool:
        """Return True if requests waited within the last PROBE_EXPEDITE_S."""
        return now_s - self._last_s <= PROBE_EXPEDITE_S


class Prober(ProbeContext):
    """The prober: it probes the pods of its orders until they answer, and submits `Probed` until the order ends.

    `panicked` counts a bug in the work for a revision and returns how long to wait, in seconds; `probe_pod` sends one
    probe; `wait` waits for an event or a timeout; `later` is the loop's `call_later`.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        rng: Rng,
        now: Now,
        listener: ProbeListener,
        panicked: Panicked,
        probe_pod: ProbePod = probe_once,
        wait: Wait = wait_for,
        later: Later = call_later,
    ) -> None:
        super().__init__(now, wait, rng)
        self._tasks = tasks
        self._submit = submit
        self.probe_pod = probe_pod
        self._later = later
        self._listener = listener
        self._panicked = panicked
        self._permits = {expedited: asyncio.Semaphore(PROBES_AT_ONCE_MAX) for expedited in (False, True)}
        self._probed: dict[str, OrderedDict[str, ProbedPod]] = {}  # by revision and identity
        self._failed: dict[tuple[str, str], StartProbe | StopProbe] = {}  # orders that raised, to be repeated
        self._timeouts: dict[str, AdaptiveTimeout] = {}
        self._expedited: dict[str, ExpeditedProbing] = {}
        self.outcome_totals: dict[ProbeOutcome, int] = dict.fromkeys(ProbeOutcome, 0)
        self.errors_total: int = 0

    def execute(self, orders: list[ProbeOrder]) -> None:
        """Start and stop probes. Never raises: an order that fails is repeated later, and the others are executed."""
        for order in orders:
            if isinstance(order, SetProbes):
                wanted = {pod.identity for pod in order.pods}
                for identity in list(self._probed_of(order.key)):
                    if identity not in wanted:
                        self._execute_one(StopProbe(order.key, identity))
                for pod in order.pods:
                    self._execute_one(pod)
            else:
                self._execute_one(order)

    @property
    def expedited(self) -> int:
        """The number of expedited pods."""
        return len(self.expedited_pods)

    def expedite(self, key: str) -> None:
        """Expedite the probes of a revision for which requests wait: a bounded number of pods, in turns."""
        now_s = self.now()
        expedited = self._expedited.get(key)
        if expedited is None:
            if len(self._expedited) >= EXPEDITED_REVISIONS_MAX:
                self._expedited.clear()
            expedited = self._expedited[key] = ExpeditedProbing()
        expedited.requests_wait(now_s)
        probed = self._probed.get(key)
        if probed:
            for identity in list(probed)[:PROBES_EXPEDITED_MAX]:
                probed.move_to_end(identity)
                probed[identity].expedite(now_s, expedited.since_s)

    def failing(self, key: str) -> dict[str, Failing]:
        """Return the probed pods of a revision that have not answered yet, by identity."""
        probed = self._probed_of(key)
        return {identity: pod.failing for identity, pod in probed.items() if pod.failing is not None}

    # --- orders ---

    def _probed_of(self, key: str) -> OrderedDict[str, ProbedPod]:
        return self._probed.get(key) or OrderedDict()

    def _execute_one(self, order: StartProbe | StopProbe) -> None:
        name = (order.key, order.identity)
        try:
            self._failed.pop(name, None)
            if isinstance(order, StartProbe):
                self._start_probing(order)
            else:
                self._stop_probing(order.key, order.identity)
        except Exception as error:
            self._repeat_later(order, error)

    def _repeat_later(self, order: StartProbe | StopProbe, error: object) -> None:
        """Count and log an order that raised an exception; repeat it after a backoff."""
        name = (order.key, order.identity)
        self._failed[name] = order
        backoff_s = self._panicked(order.key, order, error, self.now())
        log.error("%r failed (%r); next attempt in %.1f s", order, error, backoff_s)
        self._later(backoff_s, partial(self._repeat, name))

    def _repeat(self, name: tuple[str, str]) -> None:
        order = self._failed.get(name)
        if order is not None:  # otherwise a newer one has replaced it
            self._execute_one(order)

    def _start_probing(self, order: StartProbe) -> None:
        """Probe a pod until its order ends; an equal order that is being carried out stays."""
        former = self._probed_of(order.key).get(order.identity)
        if former is not None and former.order == order and former.is_probing():
            return
        self._stop_probing(order.key, order.identity)
        pod = ProbedPod(self, order)
        self._probed.setdefault(order.key, OrderedDict())[order.identity] = pod
        expedited = self._expedited.get(order.key)
        if expedited is not None and expedited.is_on(self.now()):  # requests already wait for a new pod
            pod.expedite(self.now(), expedited.since_s)
        pod.task = self._tasks.start("probe", self._probe_until_stopped(pod))
        pod.task.add_done_callback(partial(self._repeat_if_failed, pod))

    def _stop_probing(self, key: str, identity: str) -> None:
        probed = self._probed_of(key)
        pod = probed.get(identity)
        if pod is not None:
            pod.cancel_probes()
            if pod.task is not None:
                pod.task.cancel()
            del probed[identity]
        if not probed:
            self._probed.pop(key, None)
            self._timeouts.pop(key, None)

    async def _probe_until_stopped(self, pod: ProbedPod) -> None:
        """Submit `Probed` whenever the pod answers, until the task is cancelled."""
        order = pod.order
        try:
            while True:
                await pod.probe_until_it_answers()
                pod.cancel_probes()
                self._submit(Probed(order.key, order.identity, order.address))
                self._listener.pod_answered(order.key)
                await self.wait(asyncio.Event(), PROBE_REPEAT_S)
                pod.restart()
        except Exception as error:
            self._repeat_later(order, error)
        finally:
            pod.cancel_probes()

    def _repeat_if_failed(self, pod: ProbedPod, task: asyncio.Task[None]) -> None:
        """Repeat the order of a task that has failed, after a backoff; a cancelled task has no order any more."""
        order = pod.order
        if task.cancelled() or self._probed_of(order.key).get(order.identity) is not pod:
            return
        if (order.key, order.identity) not in self._failed:  # otherwise the order is already to be repeated
            self._repeat_later(order, task.exception())

    # --- for the probed pods ---

    def start_probe(self, pod: ProbedPod) -> asyncio.Task[None]:
        return self._tasks.start("one probe", self._probe_once(pod))

    async def _probe_once(self, pod: ProbedPod) -> None:
        order = pod.order
        outcome, cause = ProbeOutcome.REFUSED, ""
        try:
            outcome, cause = await self._probe_with_permit(pod)
        except Exception:  # a bug: the pod is probed again
            self.errors_total += 1
            log.exception("could not probe the pod %s of %s", order.identity, order.key)
        self.outcome_totals[outcome] += 1
        pod.on_probe_result(outcome, asyncio.current_task(), cause)
        if outcome is not ProbeOutcome.ANSWERED:
            self._listener.pod_failed(order.key)

    async def _probe_with_permit(self, pod: ProbedPod) -> tuple[ProbeOutcome, str]:
        """Probe the pod once, at most PROBES_AT_ONCE_MAX at a time; return the outcome and the cause."""
        order = pod.order
        adaptive = self._timeouts.setdefault(order.key, AdaptiveTimeout())
        request = ProbeRequest(order.address, order.probe, order.tls, order.identity, order.key, pod.expedited)
        permits = self._permits[request.expedited]
        await permits.acquire()
        permit = ProbePermit(permits, self._later)
        try:
            begun_s = self.now()
            outcome = await self.probe_pod(request, adaptive.timeout_s(pod.consecutive_timeouts))
        finally:
            permit.release()
        if outcome is ProbeOutcome.ANSWERED:
            adaptive.answered(self.now() - begun_s)
        return outcome, request.causes[-1] if request.causes else ""
