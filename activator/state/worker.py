"""The one writer: takes changes, reduces them, commits the model, sends effects to the data part.

Rules
  1. A batch is what is there, at most `CHANGES_PER_BATCH_MAX`; then the loop turns.
  2. An exception in a change sets that change aside (bounded, visible in /debug) and parks the changes of *its
     revision* for a growing while; all other revisions go on at once. Requests in flight are never touched.
  3. Time is monotonic seconds everywhere: the seed of this project once mixed units in this very place and restarted
     its worker for ever.
  4. Whoever waits for a change hears of it exactly once: applied, superseded, refused, set aside or shut down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from activator.clock import Now
from activator.config import (
    CHANGE_QUEUE_MAX,
    CHANGES_PER_BATCH_MAX,
    DEAD_LETTERS_MAX,
    PANIC_BACKOFF_FACTOR,
    PANIC_BACKOFF_INITIAL_S,
    PANIC_BACKOFF_MAX_S,
    PANIC_RESET_AFTER_S,
)
from activator.histogram import Histogram
from activator.state.messages import Change, Effect, ProbeOrder
from activator.state.model import Model, Reduction, commit
from activator.state.queue import ChangeQueue, FoldKey, fold_key
from activator.state.reduce import key_of, reduce
from activator.tasks import pause

# Of the two histograms below: from a single change to a full batch on a slow machine.
TURN_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)

HEARTBEAT_S = 1.0  # the loop turns at least this often, and liveness looks at it

log = logging.getLogger("activator.state")

Reduce = Callable[[Model, Change, float], Reduction]


class Outcome(Enum):
    """What became of a change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    SET_ASIDE = "set_aside"
    SHUT_DOWN = "shut_down"


class DeadLetter(msgspec.Struct, frozen=True):
    """A change that raised."""

    change: str
    error: str
    at_s: float


class Parked:
    """The changes of one revision, waiting until its backoff is over."""

    def __init__(self, backoff_s: float, now_s: float) -> None:
        self.backoff_s = backoff_s
        self.until_s = now_s + backoff_s
        self.changes = ChangeQueue(CHANGE_QUEUE_MAX)


class StateWorker:
    """`send` delivers effects to the data part, `probe` orders to the prober; `source_dirty` forces a relist."""

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        probe: Callable[[list[ProbeOrder]], None],
        source_dirty: Callable[[str], None],
        reduce_change: Reduce = reduce,
    ) -> None:
        self._now = now
        self._send = send
        self._probe = probe
        self._source_dirty = source_dirty
        self._reduce = reduce_change
        self.model = Model()
        self.queue = ChangeQueue(CHANGE_QUEUE_MAX)
        self.parked: dict[str, Parked] = {}
        self.dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)
        self.turned_s: float = now()  # the heartbeat
        self.panics_total: int = 0
        self.changes_total: int = 0
        self.refused_total: int = 0
        self.batches_total: int = 0
        self.dropped_total: int = 0
        self.queue_wait = Histogram(TURN_BOUNDS_S)  # of each batch's oldest change
        self.processing = Histogram(TURN_BOUNDS_S)  # of each batch
        self._waiting_since_s: float | None = None  # somebody in the queue, at the longest
        self._last_panics: dict[str, tuple[float, float]] = {}  # by revision: when, and the backoff that followed
        self._wake = asyncio.Event()
        self._completions: dict[FoldKey, list[asyncio.Future[Outcome]]] = {}
        self._closed = False

    # --- asking for a change ---

    def submit(self, change: Change) -> None:
        """Put a change into the queue. From the event loop's thread only."""
        if self._closed:
            return
        parked = self.parked.get(key_of(change))
        queue = self.queue if parked is None else parked.changes
        if parked is None and self._waiting_since_s is None:
            self._waiting_since_s = self._now()
        if not queue.put(change):
            self.dropped_total += 1
            self._source_dirty(getattr(change, "source", ""))
        self._wake.set()

    def submit_and_tell(self, change: Change) -> asyncio.Future[Outcome]:
        """Like `submit`; the future ends exactly once with what became of the change."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(Outcome.SHUT_DOWN)
            return future
        key = fold_key(change)
        self._settle(key, Outcome.SUPERSEDED)
        self._completions[key] = [future]
        self.submit(change)
        return future

    def is_settled(self) -> bool:
        """At least one batch has been applied, and revisions that are parked aside nothing waits."""
        return self.batches_total > 0

    # --- the loop ---

    async def run(self) -> None:
        """Until cancelled. Being cancelled settles every change that somebody waits for.

        Whatever else it raises is a defect outside of any one change; it may be run again.
        """
        try:
            while True:
                self.turned_s = self._now()
                if not self.turn():
                    await self._sleep()
                else:
                    await pause(0.0)
        except asyncio.CancelledError:
            self._closed = True
            for key in list(self._completions):
                self._settle(key, Outcome.SHUT_DOWN)
            raise

    def turn(self) -> bool:
        """One batch; False when there was nothing to do."""
        self._wake.clear()
        now_s = self._now()
        self._unpark(now_s)
        batch = self.queue.take(CHANGES_PER_BATCH_MAX)
        if not batch:
            return False
        if self._waiting_since_s is not None:
            self.queue_wait.observe(now_s - self._waiting_since_s)
        self._waiting_since_s = now_s if len(self.queue) else None
        effects: list[Effect] = []
        probes: list[ProbeOrder] = []
        settled: list[tuple[FoldKey, Outcome]] = []
        for change in batch:
            outcome = self._handle(change, now_s, effects, probes)
            if outcome is not None and self._completions:
                settled.append((fold_key(change), outcome))
        self.batches_total += 1
        self.changes_total += len(batch)
        try:
            if effects:
                self._send(effects)
        finally:  # each part gets what is its own, whatever befalls the other
            if probes:
                self._probe(probes)
            for key, outcome in settled:
                self._settle(key, outcome)
            self.processing.observe(self._now() - now_s)
        log.debug("%d changes, %d effects", len(batch), len(effects))
        return True

    def _handle(self, change: Change, now_s: float, effects: list[Effect], probes: list[ProbeOrder]) -> Outcome | None:
        key = key_of(change)
        parked = self.parked.get(key)
        if parked is not None:
            parked.changes.put(change)
            return None
        try:
            reduction = self._reduce(self.model, change, now_s)
        except Exception as error:
            self._set_aside(change, error, now_s)
            return Outcome.SET_ASIDE
        commit(self.model, reduction)
        effects.extend(reduction.effects)
        probes.extend(reduction.probes)
        if reduction.refused:
            self.refused_total += 1
            return Outcome.REFUSED
        return Outcome.APPLIED

    def _set_aside(self, change: Change, error: Exception, now_s: float) -> None:
        key = key_of(change)
        self.panics_total += 1
        self.dead_letters.append(DeadLetter(repr(change), repr(error), now_s))
        last = self._last_panics.get(key)
        backoff_s = PANIC_BACKOFF_INITIAL_S
        if last is not None and now_s - last[0] < PANIC_RESET_AFTER_S:
            backoff_s = min(last[1] * PANIC_BACKOFF_FACTOR, PANIC_BACKOFF_MAX_S)
        self._last_panics[key] = (now_s, backoff_s)
        self.parked[key] = Parked(backoff_s, now_s)
        log.error("a change of %s was set aside, the revision waits %.1f s: %r", key, backoff_s, change, exc_info=error)

    def _unpark(self, now_s: float) -> None:
        for key in [key for key, parked in self.parked.items() if parked.until_s <= now_s]:
            parked = self.parked.pop(key)
            for change in parked.changes.take(len(parked.changes)):
                self.queue.put(change)

    async def _sleep(self) -> None:
        delay_s = HEARTBEAT_S
        if self.parked:
            soonest_s = min(parked.until_s for parked in self.parked.values())
            delay_s = min(delay_s, max(soonest_s - self._now(), 0.001))
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _settle(self, key: FoldKey, outcome: Outcome) -> None:
        for future in self._completions.pop(key, ()):
            if not future.done():
                future.set_result(outcome)
