"""The prober: it probes pods until they answer, with adaptive timeouts and bounded concurrency.

Rules
  1. One bad pod never delays another (no head-of-line blocking): each has a task of its own, and a pod that has not
     answered within PROBE_MOMENT_S gives its place to the others. Expedited pods have places of their own:
     thousands of silent pods, as in a large failure, do not delay any request.
  2. A pod that does not answer is probed with a growing backoff. While requests wait, a bounded number of pods is
     expedited: probed every few milliseconds, and with a second question if one hangs, because a proxy before the
     program (Knative's queue-proxy) may hold a question that it would answer now.
  3. The timeout of a question follows the duration of the last answers.
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

from activator.control_plane.probes.asked_pod import (
    PROBE_EXPEDITE_S,
    AdaptiveTimeout,
    AskedPod,
    Asker,
    Failing,
    Place,
    Wait,
)
from activator.control_plane.probes.probe import PROBES_EXPEDITED_MAX, Ask, Question, ask
from activator.messages import Change, Probed, ProbeOrder, SetProbes, StartProbe, StopProbe
from activator.runtime.clock import NEVER, Later, Now
from activator.runtime.tasks import TaskGroupOwner, call_later, wait_for
from lb.rng import Rng

PROBES_AT_ONCE_MAX: Final = 64  # pods probed at the same moment (PROBE_MOMENT_S)
EXPEDITED_REVISIONS_MAX: Final = 10_000  # revisions for which the beginning of the waiting is known
PROBE_EXPEDITE_FORGET_S: Final = 2.0  # after such a pause, waiting counts from its end
PROBE_REPEAT_S: Final = 5.0  # a pod that has answered is probed again if its order has not ended by then

log = logging.getLogger("activator.probing")

AskPod = Callable[[Question, float], Coroutine[None, None, Ask]]
Panicked = Callable[[str, object, object, float], float]


class ProbeListener(Protocol):
    """The receiver of the outcomes of probes."""

    def pod_failed(self, key: str) -> None:
        """Record that a pod of the revision was probed and did not answer."""

    def pod_answered(self, key: str) -> None:
        """Record that a pod of the revision has answered."""


class ExpeditedProbing:
    """The time since which requests wait for a revision; short pauses do not count."""

    def __init__(self) -> None:
        self.since_s: float = 0.0
        self._last_s: float = -NEVER

    def waits(self, now_s: float) -> None:
        # A report that a busy loop sent late is not a pause: the steps would become short when the load is highest.
        if now_s - self._last_s > PROBE_EXPEDITE_FORGET_S:
            self.since_s = now_s
        self._last_s = now_s

    def is_on(self, now_s: float) -> bool:
        """Return True if requests waited within the last PROBE_EXPEDITE_S."""
        return now_s - self._last_s <= PROBE_EXPEDITE_S


class Prober(Asker):
    """The prober: it probes the pods of its orders until they answer, and submits `Probed` until the order ends.

    `panicked` counts a bug in the work for a revision and returns how long to wait, in seconds; `ask_pod` sends one
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
        ask_pod: AskPod = ask,
        wait: Wait = wait_for,
        later: Later = call_later,
    ) -> None:
        super().__init__(now, wait, rng)
        self._tasks = tasks
        self._submit = submit
        self.ask_pod = ask_pod
        self._later = later
        self._listener = listener
        self._panicked = panicked
        self._places = {expedited: asyncio.Semaphore(PROBES_AT_ONCE_MAX) for expedited in (False, True)}
        self._asked: dict[str, OrderedDict[str, AskedPod]] = {}  # by revision and identity
        self._failed: dict[tuple[str, str], StartProbe | StopProbe] = {}  # orders that raised, to be repeated
        self._timeouts: dict[str, AdaptiveTimeout] = {}
        self._expedited: dict[str, ExpeditedProbing] = {}
        self.asked_totals: dict[Ask, int] = dict.fromkeys(Ask, 0)
        self.errors_total: int = 0

    def order(self, orders: list[ProbeOrder]) -> None:
        """Start and stop probes. Never raises: an order that fails is repeated later, and the others are executed."""
        for order in orders:
            if isinstance(order, SetProbes):
                wanted = {pod.identity for pod in order.pods}
                for identity in list(self._asked_of(order.key)):
                    if identity not in wanted:
                        self._execute(StopProbe(order.key, identity))
                for pod in order.pods:
                    self._execute(pod)
            else:
                self._execute(order)

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
        expedited.waits(now_s)
        asked = self._asked.get(key)
        if asked:
            for identity in list(asked)[:PROBES_EXPEDITED_MAX]:
                asked.move_to_end(identity)
                asked[identity].expedite(now_s, expedited.since_s)

    def failing(self, key: str) -> dict[str, Failing]:
        """Return the probed pods of a revision that have not answered yet, by identity."""
        asked = self._asked_of(key)
        return {identity: pod.failing for identity, pod in asked.items() if pod.failing is not None}

    # --- orders ---

    def _asked_of(self, key: str) -> OrderedDict[str, AskedPod]:
        return self._asked.get(key) or OrderedDict()

    def _execute(self, order: StartProbe | StopProbe) -> None:
        name = (order.key, order.identity)
        try:
            self._failed.pop(name, None)
            if isinstance(order, StartProbe):
                self._start(order)
            else:
                self._stop(order.key, order.identity)
        except Exception as error:
            self._failed_at(order, error)

    def _failed_at(self, order: StartProbe | StopProbe, error: object) -> None:
        name = (order.key, order.identity)
        self._failed[name] = order
        backoff_s = self._panicked(order.key, order, error, self.now())
        log.error("%r failed (%r); next attempt in %.1f s", order, error, backoff_s)
        self._later(backoff_s, partial(self._repeat, name))

    def _repeat(self, name: tuple[str, str]) -> None:
        order = self._failed.get(name)
        if order is not None:  # otherwise a newer one has replaced it
            self._execute(order)

    def _start(self, order: StartProbe) -> None:
        former = self._asked_of(order.key).get(order.identity)
        if former is not None and former.order == order and former.is_asking():
            return
        self._stop(order.key, order.identity)
        pod = AskedPod(self, order)
        self._asked.setdefault(order.key, OrderedDict())[order.identity] = pod
        expedited = self._expedited.get(order.key)
        if expedited is not None and expedited.is_on(self.now()):  # requests already wait for a new pod
            pod.expedite(self.now(), expedited.since_s)
        pod.task = self._tasks.start("probe", self._probe_until_stopped(pod))
        pod.task.add_done_callback(partial(self._ended, pod))

    def _stop(self, key: str, identity: str) -> None:
        asked = self._asked_of(key)
        pod = asked.get(identity)
        if pod is not None:
            pod.rest()
            if pod.task is not None:
                pod.task.cancel()
            del asked[identity]
        if not asked:
            self._asked.pop(key, None)
            self._timeouts.pop(key, None)

    async def _probe_until_stopped(self, pod: AskedPod) -> None:
        order = pod.order
        try:
            while True:
                await pod.ask_until_it_answers()
                pod.rest()
                self._submit(Probed(order.key, order.identity, order.address))
                self._listener.pod_answered(order.key)
                await self.wait(asyncio.Event(), PROBE_REPEAT_S)
                pod.begin_again()
        except Exception as error:
            self._failed_at(order, error)
        finally:
            pod.rest()

    def _ended(self, pod: AskedPod, task: asyncio.Task[None]) -> None:
        """Restart a probe that has failed after a backoff; one whose order has ended was cancelled."""
        order = pod.order
        if task.cancelled() or self._asked_of(order.key).get(order.identity) is not pod:
            return
        if (order.key, order.identity) not in self._failed:  # otherwise the failure is noted, or there is a newer order
            self._failed_at(order, task.exception())

    # --- for the probed pods ---

    def start_asking(self, pod: AskedPod) -> asyncio.Task[None]:
        return self._tasks.start("question", self._ask_once(pod))

    async def _ask_once(self, pod: AskedPod) -> None:
        order = pod.order
        found, cause = Ask.REFUSED, ""
        try:
            found, cause = await self._ask_in_its_place(pod)
        except Exception:  # a bug: the pod is probed again
            self.errors_total += 1
            log.exception("could not probe the pod %s of %s", order.identity, order.key)
        self.asked_totals[found] += 1
        pod.answered_with(found, asyncio.current_task(), cause)
        if found is not Ask.ANSWERED:
            self._listener.pod_failed(order.key)

    async def _ask_in_its_place(self, pod: AskedPod) -> tuple[Ask, str]:
        order = pod.order
        adaptive = self._timeouts.setdefault(order.key, AdaptiveTimeout())
        question = Question(order.address, order.probe, order.tls, order.identity, order.key, pod.expedited)
        places = self._places[question.expedited]
        await places.acquire()
        place = Place(places, self._later)
        try:
            begun_s = self.now()
            found = await self.ask_pod(question, adaptive.timeout_s(pod.silences))
        finally:
            place.give_back()
        if found is Ask.ANSWERED:
            adaptive.answered(self.now() - begun_s)
        return found, question.causes[-1] if question.causes else ""
