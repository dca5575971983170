"""Asking pods until they answer: which are asked when, with which timeout, and how many at once.

Rules
  1. One bad pod never delays another (no head-of-line blocking): each has a task of its own, and a pod that has not
     answered within a moment (PROBE_MOMENT_S) takes no place from the others. Pods that are hurried (expedited
     probing) have places of their own: thousands of silent pods, as where much is broken, keep no request waiting.
  2. A pod that does not answer is asked less and less often. When requests wait, a bounded number of pods is hurried:
     asked every few milliseconds, and once more beside a question that hangs, since a proxy before the program
     (Knative's queue-proxy) may let a question hang that it would answer now.
  3. The timeout of a question follows how long the last answers took.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

from activator.control_plane.probes.probe import (
    PROBE_HURRIED_LONG_S,
    PROBE_HURRIED_LONG_STEP_S,
    PROBE_TIMEOUT_S,
    PROBES_HURRIED_MAX,
    Ask,
    Question,
    ask,
)
from activator.messages import Change, Probed, ProbeOrder, StartProbe
from activator.runtime.clock import NEVER, Later, Now
from activator.runtime.tasks import TaskGroupOwner, call_later, wait_for
from lb.rng import Rng

PROBE_BACKOFF_INITIAL_S: Final = 0.05
PROBE_BACKOFF_MAX_S: Final = 5.0
PROBE_TIMEOUT_MIN_S: Final = 0.25  # however near the pods are: a loaded machine may take that long …
PROBE_TIMEOUT_RTTS: Final = 16.0  # … and else so many times what the last answers took
PROBE_TIMEOUT_MAX_S: Final = 10.0  # to which each silence doubles it
PROBES_AT_ONCE_MAX: Final = 64  # pods asked in the same moment …
PROBE_MOMENT_S: Final = 0.25  # … which is so long; a pod that has not answered by then keeps no other waiting
EXPEDITED_REVISIONS_MAX: Final = 10_000  # revisions of which it is known since when requests wait
PROBE_HURRY_S: Final = 0.25  # how long probing is expedited after requests were last seen to wait
PROBE_HURRY_FORGET_S: Final = 2.0  # … and since when they have waited is forgotten after such a pause
PROBE_HURRIED_STEP_SHARE: Final = 0.01  # a hurried pod is asked in steps of this share of the time since …
PROBE_HURRIED_STEP_MIN_S: Final = 0.002
PROBE_HURRIED_STEP_MAX_S: Final = 0.025  # … and more where many pods are hurried: PROBES_HURRIED_MAX in such a step
PROBE_SECOND_AFTER_S: Final = 0.025  # a hurried pod that has not answered by then is asked once more beside

log = logging.getLogger("activator.probing")

AskPod = Callable[[Question, float], Coroutine[None, None, Ask]]
Wait = Callable[[asyncio.Event, float], Coroutine[None, None, bool]]


class Failing(NamedTuple):
    """A pod does not answer: since the first question of all to which it did not, and why."""

    since_s: float
    cause: str


def _ignore(key: str) -> None:
    pass


class AdaptiveTimeout:
    """How long to wait for an answer, from how long the last ones of the same revision took.

    A fixed timeout would be a cliff: no pod that is farther away than that would ever be ready.
    """

    def __init__(self) -> None:
        self._slowest_s: float = PROBE_TIMEOUT_S / PROBE_TIMEOUT_RTTS  # of late, falling slowly

    def answered(self, took_s: float) -> None:
        self._slowest_s = max(took_s, 0.875 * self._slowest_s)

    def timeout_s(self, silences: int) -> float:
        """After so many silences in a row: each doubles it."""
        first_s = max(PROBE_TIMEOUT_MIN_S, PROBE_TIMEOUT_RTTS * self._slowest_s)
        return float(min(first_s * 2.0 ** min(silences, 8), PROBE_TIMEOUT_MAX_S))


class ExpeditedProbing:
    """Since when requests wait for a revision, without a pause that counts."""

    def __init__(self) -> None:
        self.since_s: float = 0.0
        self._last_s: float = -NEVER

    def waits(self, now_s: float) -> None:
        # A report that a busy loop sent late is no pause: else the steps would be short again when its load is highest.
        if now_s - self._last_s > PROBE_HURRY_FORGET_S:
            self.since_s = now_s
        self._last_s = now_s

    def is_on(self, now_s: float) -> bool:
        """They waited a moment ago."""
        return now_s - self._last_s <= PROBE_HURRY_S


class Prober:
    """Asks the pods of its orders until they answer, and submits `Probed`.

    `ask_pod` asks one pod once; `wait` sits out a pause that an event may end; `later` is the loop's `call_later`.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        rng: Rng,
        now: Now,
        ask_pod: AskPod = ask,
        wait: Wait = wait_for,
        later: Later = call_later,
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._rng = rng
        self.now = now
        self.ask_pod = ask_pod
        self.wait = wait
        self._later = later
        self.on_failed: Callable[[str], None] = _ignore  # a pod of this revision was asked, and did not answer
        self.on_answered: Callable[[str], None] = _ignore
        self._places = {hurried: asyncio.Semaphore(PROBES_AT_ONCE_MAX) for hurried in (False, True)}
        self._asked: dict[str, dict[str, _AskedPod]] = {}  # by revision and identity
        self._timeouts: dict[str, AdaptiveTimeout] = {}
        self._expedited: dict[str, ExpeditedProbing] = {}
        self.hurried: int = 0  # pods, now
        self.asked_totals: dict[Ask, int] = dict.fromkeys(Ask, 0)
        self.errors_total: int = 0

    def order(self, orders: list[ProbeOrder]) -> None:
        """Start and stop probes."""
        for order in orders:
            asked = self._asked.setdefault(order.key, {})
            former = asked.pop(order.identity, None)
            if former is not None and former.task is not None:
                former.task.cancel()
            if isinstance(order, StartProbe):
                pod = _AskedPod(self, order)
                expedited = self._expedited.get(order.key)
                if expedited is not None and expedited.is_on(self.now()):  # requests wait for a pod as this one comes
                    pod.hurry(self.now(), expedited.since_s)
                pod.task = self._tasks.start("probe", self._until_it_answers(pod))
                asked[order.identity] = pod
            elif not asked:
                del self._asked[order.key]
                self._timeouts.pop(order.key, None)

    def hurry(self, key: str) -> None:
        """Requests wait for this revision: ask now, not after the backoff; a bounded number of pods, in turns."""
        now_s = self.now()
        expedited = self._expedited.get(key)
        if expedited is None:
            if len(self._expedited) >= EXPEDITED_REVISIONS_MAX:
                self._expedited.clear()
            expedited = self._expedited[key] = ExpeditedProbing()
        expedited.waits(now_s)
        asked = self._asked.get(key)
        if asked:
            for identity in list(asked)[:PROBES_HURRIED_MAX]:
                pod = asked.pop(identity)
                asked[identity] = pod
                pod.hurry(now_s, expedited.since_s)

    def failing(self, key: str) -> dict[str, Failing]:
        """The pods of a revision that are asked and have not answered yet, by identity."""
        asked = self._asked.get(key, {})
        return {identity: pod.failing for identity, pod in asked.items() if pod.failing is not None}

    async def _until_it_answers(self, pod: _AskedPod) -> None:
        try:
            await pod.ask_until_it_answers()
        finally:
            pod.close()
        self._submit(Probed(pod.order.key, pod.order.identity, pod.order.address))
        self.on_answered(pod.order.key)

    # --- what an asked pod needs ---

    def start_asking(self, pod: _AskedPod) -> asyncio.Task[None]:
        return self._tasks.start("question", self._ask_once(pod))

    def jitter(self) -> float:
        """Spreads pods that died together."""
        return 0.5 + float(self._rng.below(512)) / 1024.0

    async def _ask_once(self, pod: _AskedPod) -> None:
        order = pod.order
        adaptive = self._timeouts.setdefault(order.key, AdaptiveTimeout())
        question = Question(order.address, order.probe, order.tls, order.identity, order.key, pod.hurried)
        places = self._places[question.hurried]
        await places.acquire()
        place = _Place(places, self._later)
        begun_s = self.now()
        found = Ask.REFUSED
        try:
            found = await self.ask_pod(question, adaptive.timeout_s(pod.silences))
        except Exception:  # a defect: the pod is asked again all the same
            self.errors_total += 1
            log.exception("could not ask the pod %s of %s", order.identity, order.key)
        finally:
            place.give_back()
        self.asked_totals[found] += 1
        if found is Ask.ANSWERED:
            adaptive.answered(self.now() - begun_s)
        pod.answered_with(found, asyncio.current_task(), question.causes[-1] if question.causes else "")
        if found is not Ask.ANSWERED:
            self.on_failed(order.key)


class _Place:
    """One of the places for pods that are asked in the same moment; held no longer than that moment."""

    def __init__(self, places: asyncio.Semaphore, later: Later) -> None:
        self._places = places
        self._held = True
        self._timer = later(PROBE_MOMENT_S, self.give_back)

    def give_back(self) -> None:
        self._timer.cancel()
        if self._held:
            self._held = False
            self._places.release()


class _AskedPod:
    """One pod that is asked until it answers: when the next question is due, and whether two may be under way."""

    def __init__(self, prober: Prober, order: StartProbe) -> None:
        self.order = order
        self.task: asyncio.Task[None] | None = None
        self.silences = 0  # in a row
        self.failing: Failing | None = None
        self._prober = prober
        self._begun_s = prober.now()
        self._wake = asyncio.Event()  # an answer came, or requests wait
        self._questions: set[asyncio.Task[None]] = set()
        self._due_s = -NEVER  # not before: the next question
        self._backoff_s = PROBE_BACKOFF_INITIAL_S
        self.hurried = False
        self._hurried_since_s = 0.0
        self._hurried_until_s = 0.0
        self._over = False  # it has answered, or is not to be asked any more

    async def ask_until_it_answers(self) -> None:
        """Returns when the pod has answered."""
        while not self._over:
            now_s = self._prober.now()
            if self.hurried and now_s >= self._hurried_until_s:
                self.hurried = False
                self._prober.hurried -= 1
            may_ask = len(self._questions) < (2 if self.hurried else 1)
            if may_ask and now_s >= self._due_s:
                self._due_s = now_s + PROBE_SECOND_AFTER_S
                question = self._prober.start_asking(self)
                self._questions.add(question)
                question.add_done_callback(self._questions.discard)
                continue
            self._wake.clear()
            # Every question ends within its timeout, and then there is an answer.
            await self._prober.wait(self._wake, self._due_s - now_s if may_ask else PROBE_TIMEOUT_MAX_S)

    def answered_with(self, found: Ask, question: asyncio.Task[None] | None, cause: str) -> None:
        """A question has ended."""
        if question is not None:
            self._questions.discard(question)
        if found is Ask.ANSWERED:
            self._over = True
        else:
            since_s = self._prober.now() if self.failing is None else self.failing.since_s
            self.failing = Failing(since_s, cause or "it does not answer")
            self.silences = self.silences + 1 if found is Ask.SILENT else 0
            self._due_s = self._prober.now() + self._pause_s()
        self._wake.set()

    def hurry(self, now_s: float, since_s: float) -> None:
        """Requests wait, and have since then."""
        self._hurried_since_s = max(since_s, self._begun_s)
        self._hurried_until_s = now_s + PROBE_HURRY_S
        if self.hurried or self._over:
            return
        self.hurried = True
        self._prober.hurried += 1
        self._due_s = now_s if not self._questions else min(self._due_s, now_s + PROBE_SECOND_AFTER_S)
        self._wake.set()

    def close(self) -> None:
        """It is not to be asked any more."""
        self._over = True
        if self.hurried:
            self.hurried = False
            self._prober.hurried -= 1
        for question in list(self._questions):
            question.cancel()

    def _pause_s(self) -> float:
        if not self.hurried:
            backoff_s = self._backoff_s
            self._backoff_s = min(backoff_s * 2.0, PROBE_BACKOFF_MAX_S)
            return backoff_s * self._prober.jitter()
        since_s = self._prober.now() - self._hurried_since_s
        step_s = min(max(since_s * PROBE_HURRIED_STEP_SHARE, PROBE_HURRIED_STEP_MIN_S), PROBE_HURRIED_STEP_MAX_S)
        if since_s >= PROBE_HURRIED_LONG_S:
            step_s = PROBE_HURRIED_LONG_STEP_S
        return step_s * max(1.0, self._prober.hurried / PROBES_HURRIED_MAX)
