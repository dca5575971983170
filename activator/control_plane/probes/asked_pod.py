"""One pod that is asked until it answers: when the next question is due, how long it may take, and how many at once.

The prober (prober.py) makes one for each of its orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

from activator.control_plane.probes.probe import (
    PROBE_HURRIED_LONG_S,
    PROBE_HURRIED_LONG_STEP_S,
    PROBE_TIMEOUT_S,
    PROBES_HURRIED_MAX,
    Ask,
)
from activator.messages import StartProbe
from activator.runtime.backoff import Backoff, grown_s
from activator.runtime.clock import NEVER, Later, Now
from lb.rng import Rng

PROBE_BACKOFF_INITIAL_S: Final = 0.05
PROBE_BACKOFF_MAX_S: Final = 5.0
PROBE_TIMEOUT_MIN_S: Final = 0.25  # however near the pods are: a loaded machine may take that long …
PROBE_TIMEOUT_RTTS: Final = 16.0  # … and else so many times what the last answers took
PROBE_TIMEOUT_MAX_S: Final = 10.0  # to which each silence doubles it
PROBE_MOMENT_S: Final = 0.25  # pods have a place for so long; one that has not answered by then keeps no other waiting
PROBE_HURRY_S: Final = 0.25  # how long probing is expedited after requests were last seen to wait
PROBE_HURRIED_STEP_SHARE: Final = 0.01  # a hurried pod is asked in steps of this share of the time since …
PROBE_HURRIED_STEP_MIN_S: Final = 0.002
PROBE_HURRIED_STEP_MAX_S: Final = 0.025  # … and more where many pods are hurried: PROBES_HURRIED_MAX in such a step
PROBE_SECOND_AFTER_S: Final = 0.025  # a hurried pod that has not answered by then is asked once more beside

Wait = Callable[[asyncio.Event, float], Coroutine[None, None, bool]]


class Failing(NamedTuple):
    """A pod does not answer: since the first question of all to which it did not, and why."""

    since_s: float
    cause: str


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
        return grown_s(first_s, silences, PROBE_TIMEOUT_MAX_S)


class Asker:
    """What a pod that is asked needs of the prober."""

    def __init__(self, now: Now, wait: Wait, rng: Rng) -> None:
        self.now = now
        self.wait = wait
        self.rng = rng  # spreads pods that died together
        self.hurried_pods: set[AskedPod] = set()

    def start_asking(self, pod: AskedPod) -> asyncio.Task[None]:
        """Ask it once; it is told what was found (`answered_with`)."""
        raise NotImplementedError


class Place:
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


class AskedPod:
    """One pod that is asked until it answers: when the next question is due, and whether two may be under way."""

    def __init__(self, asker: Asker, order: StartProbe) -> None:
        self.order = order
        self.task: asyncio.Task[None] | None = None
        self.silences = 0  # in a row
        self.failing: Failing | None = None
        self._asker = asker
        self._begun_s = asker.now()
        self._wake = asyncio.Event()  # an answer came, or requests wait
        self._questions: set[asyncio.Task[None]] = set()
        self._due_s = -NEVER  # not before: the next question
        self._backoff = Backoff(PROBE_BACKOFF_INITIAL_S, PROBE_BACKOFF_MAX_S, asker.rng)
        self._hurried_since_s = 0.0
        self._hurried_until_s = 0.0
        self._answered = False
        self._answers = 0  # in a row
        self._counts_from_s = -NEVER  # not before: the next answer counts

    @property
    def hurried(self) -> bool:
        """Requests wait for it."""
        return self in self._asker.hurried_pods

    async def ask_until_it_answers(self) -> None:
        """Returns when the pod has answered."""
        while not self._answered:
            now_s = self._asker.now()
            if self.hurried and now_s >= self._hurried_until_s:
                self._asker.hurried_pods.discard(self)
            may_ask = len(self._questions) < (2 if self.hurried else 1)
            if may_ask and now_s >= self._due_s:
                self._due_s = now_s + PROBE_SECOND_AFTER_S
                question = self._asker.start_asking(self)
                self._questions.add(question)
                question.add_done_callback(self._questions.discard)
                continue
            self._wake.clear()
            # Every question ends within its timeout, and then there is an answer.
            await self._asker.wait(self._wake, self._due_s - now_s if may_ask else PROBE_TIMEOUT_MAX_S)

    def answered_with(self, found: Ask, question: asyncio.Task[None] | None, cause: str) -> None:
        """A question has ended."""
        if question is not None:
            self._questions.discard(question)
        now_s = self._asker.now()
        if found is Ask.ANSWERED:
            if now_s >= self._counts_from_s:  # else it is of a question beside the one that counted
                self._answers += 1
                self._due_s = self._counts_from_s = now_s + self.order.rise_interval_s
            self._answered = self._answers >= self.order.rise
        else:
            self._answers = 0
            self._counts_from_s = -NEVER
            since_s = self._asker.now() if self.failing is None else self.failing.since_s
            self.failing = Failing(since_s, cause or "it does not answer")
            self.silences = self.silences + 1 if found is Ask.SILENT else 0
            self._due_s = self._asker.now() + self._pause_s()
        self._wake.set()

    def hurry(self, now_s: float, since_s: float) -> None:
        """Requests wait, and have since then."""
        self._hurried_since_s = max(since_s, self._begun_s)
        self._hurried_until_s = now_s + PROBE_HURRY_S
        if self.hurried or self._answered:
            return
        self._asker.hurried_pods.add(self)
        if self._answers:
            return  # the answers that are still needed are to be apart
        self._due_s = now_s if not self._questions else min(self._due_s, now_s + PROBE_SECOND_AFTER_S)
        self._wake.set()

    def is_asking(self) -> bool:
        """It has not answered, and its task goes on."""
        return not self._answered and self.task is not None and not self.task.done()

    def rest(self) -> None:
        """Nothing is under way any more, and nobody hurries it."""
        self._asker.hurried_pods.discard(self)
        for question in list(self._questions):
            question.cancel()

    def begin_again(self) -> None:
        """It is to be asked, as if it never had been."""
        self._answered = False
        self._answers = 0
        self._counts_from_s = -NEVER
        self.silences = 0
        self.failing = None
        self._due_s = -NEVER
        self._backoff.reset()

    def _pause_s(self) -> float:
        if not self.hurried:
            return self._backoff.next_s()
        since_s = self._asker.now() - self._hurried_since_s
        step_s = min(max(since_s * PROBE_HURRIED_STEP_SHARE, PROBE_HURRIED_STEP_MIN_S), PROBE_HURRIED_STEP_MAX_S)
        if since_s >= PROBE_HURRIED_LONG_S:
            step_s = PROBE_HURRIED_LONG_STEP_S
        return step_s * max(1.0, len(self._asker.hurried_pods) / PROBES_HURRIED_MAX)
