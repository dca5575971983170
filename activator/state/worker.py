"""The one writer: takes changes, reduces them, commits the model, sends effects to the data part.

Rules
  1. A batch is what is there, at most `CHANGES_PER_BATCH_MAX`; then the loop turns.
  2. An exception in a change sets that change aside (bounded, visible in /debug) and parks the changes of *its
     revision* for a growing while; all other revisions go on at once. Requests in flight are never touched. What the
     data part has of a revision and cannot trust (`RevisionBroken`) is made anew from the model: the first time at
     once, then with the same backoff.
  3. Time is monotonic seconds everywhere: the seed of this project once mixed units in this very place and restarted
     its worker for ever.
  4. Whoever waits for a change hears of it exactly once: applied, superseded, refused, set aside or shut down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from activator.clock import Now
from activator.config import (
    CHANGE_QUEUE_MAX,
    CHANGES_PER_BATCH_MAX,
)
from activator.histogram import Histogram
from activator.state.messages import Change, Effect, ProbeOrder, RevisionBroken, RevisionGone
from activator.state.model import Model, Reduction, commit
from activator.state.queue import ChangeQueue, FoldKey, fold_key
from activator.state.reduce import key_of, reduce
from activator.state.supervision import Supervision
from activator.tasks import pause
from lb.rng import Rng

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


class Parked:
    """The changes of one revision, waiting until its backoff is over."""

    def __init__(self, until_s: float, superseded: Callable[[FoldKey], None]) -> None:
        self.until_s = until_s
        self.changes = ChangeQueue(CHANGE_QUEUE_MAX, superseded)


class StateWorker:
    """`send` delivers effects to the data part, `probe` orders to the prober; `source_dirty` forces a relist."""

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        probe: Callable[[list[ProbeOrder]], None],
        source_dirty: Callable[[str], None],
        reduce_change: Reduce = reduce,
        rng: Rng | None = None,
    ) -> None:
        self._now = now
        self._send = send
        self._probe = probe
        self._source_dirty = source_dirty
        self._reduce = reduce_change
        self.model = Model()
        self.queue = ChangeQueue(CHANGE_QUEUE_MAX, self._superseded)
        self.parked: dict[str, Parked] = {}
        self.supervision = Supervision(rng)
        self.turned_s: float = now()  # the heartbeat
        self.illegal_totals: dict[tuple[int, str, int], int] = {}  # transitions that were refused
        self.mismatch_totals: dict[str, int] = {}  # by kind: what the auditor found and a change repaired
        self.rebuilds_total: int = 0
        self.changes_total: int = 0
        self.refused_total: int = 0
        self.batches_total: int = 0
        self.dropped_total: int = 0
        self.queue_wait = Histogram(TURN_BOUNDS_S)  # of each batch's oldest change
        self.processing = Histogram(TURN_BOUNDS_S)  # of each batch
        self._waiting_since_s: float | None = None  # somebody in the queue, at the longest
        self._wake = asyncio.Event()
        self._completions: dict[FoldKey, list[asyncio.Future[Outcome]]] = {}
        self._closed = False

    # --- asking for a change ---

    def submit(self, change: Change) -> None:
        """Put a change into the queue. From the event loop's thread only."""
        if self._closed:
            return
        key = key_of(change)
        if isinstance(change, RevisionBroken):
            self._broken(key, change)
        parked = self.parked.get(key)
        queue = self.queue if parked is None else parked.changes
        if parked is None and self._waiting_since_s is None:
            self._waiting_since_s = self._now()
        if not queue.put(change):
            self.dropped_total += 1
            self._source_dirty(getattr(change, "source", ""))
            self._settle(fold_key(change), Outcome.REFUSED)
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

    @property
    def panics_total(self) -> int:
        return self.supervision.panics_total

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
        except Exception as error:
            for lost in {effect.key for effect in effects}:
                self.submit(RevisionBroken(lost, f"its effects were lost: {error!r}"))
            raise
        finally:  # each part gets what is its own, whatever befalls the other
            try:
                if probes:
                    self._probe(probes)
            finally:
                for key, outcome in settled:
                    self._settle(key, outcome)
            self.processing.observe(self._now() - now_s)
        log.debug("%d changes, %d effects", len(batch), len(effects))
        return True

    def _handle(self, change: Change, now_s: float, effects: list[Effect], probes: list[ProbeOrder]) -> Outcome | None:
        key = key_of(change)
        parked = self.parked.get(key)
        if parked is not None:
            if parked.changes.put(change):
                return None
            self._source_dirty(getattr(change, "source", ""))
            return Outcome.REFUSED
        try:
            reduction = self._reduce(self.model, change, now_s)
            commit(self.model, reduction)
        except Exception as error:
            self._set_aside(change, error, now_s)
            return Outcome.SET_ASIDE
        effects.extend(reduction.effects)
        probes.extend(reduction.probes)
        for kind, found in reduction.mismatches:
            self.mismatch_totals[kind] = self.mismatch_totals.get(kind, 0) + 1
            log.warning("the auditor found in %s (%s), repaired: %s", key, kind, found)
        for transition in reduction.illegal:
            self.illegal_totals[transition] = self.illegal_totals.get(transition, 0) + 1
        if isinstance(change, RevisionGone):
            self.supervision.forget(key)
        if reduction.refused:
            self.refused_total += 1
            return Outcome.REFUSED
        return Outcome.APPLIED

    def _set_aside(self, change: Change, error: Exception, now_s: float) -> None:
        key = key_of(change)
        backoff_s = self.supervision.panicked(key, change, error, now_s)
        self.parked[key] = Parked(now_s + backoff_s, self._superseded)
        log.error("a change of %s was set aside, the revision waits %.1f s: %r", key, backoff_s, change, exc_info=error)

    def _broken(self, key: str, change: RevisionBroken) -> None:
        if key in self.parked:
            return  # it will be made anew when its time has come
        now_s = self._now()
        self.rebuilds_total += 1
        backoff_s = self.supervision.panicked(key, change, change.cause, now_s)
        again = self.supervision.in_a_row(key, now_s) > 1
        if again:
            self.parked[key] = Parked(now_s + backoff_s, self._superseded)
        wait = f"in {backoff_s:.1f} s" if again else "at once"
        log.error("%s is made anew from the model %s: %s", key, wait, change.cause)

    def _unpark(self, now_s: float) -> None:
        for key in [key for key, parked in self.parked.items() if parked.until_s <= now_s]:
            parked = self.parked.pop(key)
            for change in parked.changes.take(len(parked.changes)):
                if not self.queue.put(change):
                    self._settle(fold_key(change), Outcome.REFUSED)
                    self._source_dirty(getattr(change, "source", ""))

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

    def _superseded(self, key: FoldKey) -> None:
        self._settle(key, Outcome.SUPERSEDED)

    def _settle(self, key: FoldKey, outcome: Outcome) -> None:
        for future in self._completions.pop(key, ()):
            if not future.done():
                future.set_result(outcome)
