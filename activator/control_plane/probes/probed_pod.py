"""One pod that is probed until it answers: when the next probe is due, its timeout, and how many run at once.

The prober (prober.py) creates one for each of its orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

from activator.control_plane.probes.probe import (
    PROBE_EXPEDITED_LONG_S,
    PROBE_EXPEDITED_LONG_STEP_S,
    PROBE_TIMEOUT_S,
    PROBES_EXPEDITED_MAX,
    ProbeOutcome,
)
from activator.messages import StartProbe
from activator.runtime.backoff import Backoff, grown_s
from activator.runtime.clock import NEVER, Later, Now
from lb.rng import Rng

PROBE_BACKOFF_INITIAL_S: Final = 0.05
PROBE_BACKOFF_MAX_S: Final = 5.0
# The timeout follows the round trips of the last answers: a multiple of them, at least the minimum (a loaded machine
# may take that long to answer), and doubled by each timeout up to the maximum.
PROBE_TIMEOUT_MIN_S: Final = 0.25
PROBE_TIMEOUT_RTTS: Final = 16.0
PROBE_TIMEOUT_MAX_S: Final = 10.0
PROBE_MOMENT_S: Final = 0.25  # a probe holds its permit for so long at most; a silent one does not delay others
PROBE_EXPEDITE_S: Final = 0.25  # how long probing is expedited after the last report of waiting requests
# An expedited pod is probed in steps of a share of the time since requests began to wait, between the bounds; the steps
# grow where more than PROBES_EXPEDITED_MAX pods are expedited.
PROBE_EXPEDITED_STEP_SHARE: Final = 0.01
PROBE_EXPEDITED_STEP_MIN_S: Final = 0.002
PROBE_EXPEDITED_STEP_MAX_S: Final = 0.025
PROBE_SECOND_AFTER_S: Final = 0.025  # an expedited pod that has not answered by then gets a second, concurrent probe

Wait = Callable[[asyncio.Event, float], Coroutine[None, None, bool]]


class Failing(NamedTuple):
    """The failure of a pod to answer: the time of the first failed probe, and the last cause."""

    since_s: float
    cause: str


class AdaptiveTimeout:
    """The timeout of probes to the pods of one revision, derived from the duration of its last answers.

    With a fixed timeout a pod with longer round trips would never be ready.
    """

    def __init__(self) -> None:
        self._slowest_s: float = PROBE_TIMEOUT_S / PROBE_TIMEOUT_RTTS  # the slowest recent answer; it decays slowly

    def answered(self, took_s: float) -> None:
        self._slowest_s = max(took_s, 0.875 * self._slowest_s)

    def timeout_s(self, consecutive_timeouts: int) -> float:
        """Return the timeout after `consecutive_timeouts` timeouts in a row, each of which doubles it."""
        first_s = max(PROBE_TIMEOUT_MIN_S, PROBE_TIMEOUT_RTTS * self._slowest_s)
        return grown_s(first_s, consecutive_timeouts, PROBE_TIMEOUT_MAX_S)


class ProbeContext:
    """The part of the prober that a probed pod uses."""

    def __init__(self, now: Now, wait: Wait, rng: Rng) -> None:
        self.now = now
        self.wait = wait
        self.rng = rng  # spreads the probes of pods that failed together
        self.expedited_pods: set[ProbedPod] = set()

    def start_probe(self, pod: ProbedPod) -> asyncio.Task[None]:
        """Probe the pod once; the result is passed to `on_probe_result`."""
        raise NotImplementedError


class ProbePermit:
    """The permit of one probe, of a bounded number; it is released after PROBE_MOMENT_S at the latest."""

    def __init__(self, permits: asyncio.Semaphore, later: Later) -> None:
        self._permits = permits
        self._is_acquired = True
        self._timer = later(PROBE_MOMENT_S, self.release)

    def release(self) -> None:
        self._timer.cancel()
        if self._is_acquired:
            self._is_acquired = False
            self._permits.release()


class ProbedPod:
    """One pod that is probed until it answers: when the next probe is due, and whether two may run at once."""

    def __init__(self, context: ProbeContext, order: StartProbe) -> None:
        self.order = order
        self.task: asyncio.Task[None] | None = None
        self.consecutive_timeouts = 0
        self.failing: Failing | None = None
        self._context = context
        self._begun_s = context.now()  # requests cannot have waited for this pod before
        self._wake = asyncio.Event()  # an answer arrived, or requests wait
        self._probes: set[asyncio.Task[None]] = set()
        self._due_s = -NEVER  # the earliest time of the next probe
        self._backoff = Backoff(PROBE_BACKOFF_INITIAL_S, PROBE_BACKOFF_MAX_S, context.rng)
        self._expedited_since_s = 0.0
        self._expedited_until_s = 0.0
        self._answered = False
        self._answers = 0  # in a row
        self._counts_from_s = -NEVER  # the earliest time of an answer that counts

    @property
    def expedited(self) -> bool:
        """True while queued requests wait for this pod."""
        return self in self._context.expedited_pods

    async def probe_until_it_answers(self) -> None:
        """Probe the pod until it has answered."""
        while not self._answered:
            now_s = self._context.now()
            if self.expedited and now_s >= self._expedited_until_s:
                self._context.expedited_pods.discard(self)
            may_probe = len(self._probes) < (2 if self.expedited else 1)
            if may_probe and now_s >= self._due_s:
                self._due_s = now_s + PROBE_SECOND_AFTER_S
                probe = self._context.start_probe(self)
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
                continue
            self._wake.clear()
            # Every probe ends within its timeout and then sets `_wake`.
            await self._context.wait(self._wake, self._due_s - now_s if may_probe else PROBE_TIMEOUT_MAX_S)

    def on_probe_result(self, outcome: ProbeOutcome, probe: asyncio.Task[None] | None, cause: str) -> None:
        """Count an answer, or plan the next probe after a failure; then wake `probe_until_it_answers`."""
        if probe is not None:
            self._probes.discard(probe)
        now_s = self._context.now()
        if outcome is ProbeOutcome.ANSWERED:
            if now_s >= self._counts_from_s:  # an earlier one is of a probe beside the one that counted
                self._answers += 1
                self._due_s = self._counts_from_s = now_s + self.order.rise_interval_s
            self._answered = self._answers >= self.order.rise
        else:
            self._answers = 0
            self._counts_from_s = -NEVER
            since_s = self._context.now() if self.failing is None else self.failing.since_s
            self.failing = Failing(since_s, cause or "it does not answer")
            self.consecutive_timeouts = self.consecutive_timeouts + 1 if outcome is ProbeOutcome.SILENT else 0
            self._due_s = self._context.now() + self._pause_s()
        self._wake.set()

    def expedite(self, now_s: float, since_s: float) -> None:
        """Expedite probing for PROBE_EXPEDITE_S, because requests have been waiting since `since_s`."""
        self._expedited_since_s = max(since_s, self._begun_s)
        self._expedited_until_s = now_s + PROBE_EXPEDITE_S
        if self.expedited or self._answered:
            return
        self._context.expedited_pods.add(self)
        if self._answers:
            return  # the answers that are still needed have to be `rise_interval_s` apart
        self._due_s = now_s if not self._probes else min(self._due_s, now_s + PROBE_SECOND_AFTER_S)
        self._wake.set()

    def is_probing(self) -> bool:
        """Return True if it has not answered and its task is running."""
        return not self._answered and self.task is not None and not self.task.done()

    def cancel_probes(self) -> None:
        """Cancel the probes under way, and end expedited probing."""
        self._context.expedited_pods.discard(self)
        for probe in list(self._probes):
            probe.cancel()

    def restart(self) -> None:
        """Forget the answer and all failures, so that the pod is probed again from the beginning."""
        self._answered = False
        self._answers = 0
        self._counts_from_s = -NEVER
        self.consecutive_timeouts = 0
        self.failing = None
        self._due_s = -NEVER
        self._backoff.reset()

    def _pause_s(self) -> float:
        """Return the pause after a probe without an answer, in seconds."""
        if not self.expedited:
            return self._backoff.next_s()
        since_s = self._context.now() - self._expedited_since_s
        step_s = min(max(since_s * PROBE_EXPEDITED_STEP_SHARE, PROBE_EXPEDITED_STEP_MIN_S), PROBE_EXPEDITED_STEP_MAX_S)
        if since_s >= PROBE_EXPEDITED_LONG_S:
            step_s = PROBE_EXPEDITED_LONG_STEP_S
        return step_s * max(1.0, len(self._context.expedited_pods) / PROBES_EXPEDITED_MAX)
