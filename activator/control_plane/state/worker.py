"""The one writer: takes changes, reduces them, commits the model, sends effects to the data plane.

Rules
  1. A batch is what is in the queue, at most `CHANGES_PER_BATCH_MAX`, and bounded by a short time, which grows with the
     number of waiting changes (`CHANGES_BATCH_S`); then the loop turns. A request takes several turns: in a flood each
     is as long as a batch. What requests have written by then does not wait for the batch (`before_batch`).
  2. An exception in a change sets that change aside (bounded, visible in /debug) and parks the changes of *its
     revision* for a growing while; all other revisions go on at once. Requests in flight are never touched. What the
     data plane has of a revision and cannot trust (`RevisionBroken`) is made anew from the model: the first time at
     once, then with the same backoff.
  3. Time is monotonic seconds everywhere: the seed of this project once mixed units in this very place and restarted
     its worker for ever.
  4. A change with an awaited outcome has exactly one: applied, superseded, refused, set aside or shut down.
  5. The content of a change that was set aside or dropped is not lost: when the revision's backoff is over, the
     change's source submits all of that revision anew, and a change that no source would submit again is tried again
     itself, after those that wait. Changes of a revision keep their order, parked or not.
     So a change that always raises costs one attempt per backoff, and the model converges as soon as it no longer does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from activator.control_plane.state.model import Model, Reduction, commit
from activator.control_plane.state.queue import ChangeQueue, FoldKey, fold_key
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import Supervision
from activator.messages import (
    Change,
    DropRevision,
    Effect,
    Listed,
    PodGone,
    PodSeen,
    Probed,
    ProbeOrder,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
)
from activator.runtime.clock import Now
from activator.runtime.histogram import Histogram
from activator.runtime.tasks import pause
from lb.rng import Rng

CHANGES_PER_BATCH_MAX: Final = 1_000  # changes the state worker takes before the loop is given a turn …
CHANGES_BATCH_S: Final = 0.00005  # … or as many as it reduces in this time, since requests wait meanwhile …
CHANGES_BATCH_STEP: Final = 256  # … and once more in it for so many that wait …
CHANGES_AT_ONCE: Final = 4  # … looked at after so many
CHANGE_QUEUE_MAX: Final = 100_000  # folded changes waiting for the state worker

# Of the two histograms below: from a single change to a full batch on a slow machine.
TURN_BOUNDS_S: Final[tuple[float, ...]] = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    10.0,
)

# Lost changes that sources repeat, and those that no source repeats; what matters of the others is found anew.
_OF_SOURCES: Final = (RevisionSet, RevisionGone, RevisionFailed, RevisionRecovered, PodSeen, PodGone, Listed)
_SAID_ONCE: Final = (Probed, SlotDrained, RevisionBroken)

HEARTBEAT_S: Final = 1.0  # the loop turns at least this often, and liveness looks at it

log = logging.getLogger("activator.state")

Reduce = Callable[[Model, Change, float], Reduction]


class Outcome(Enum):
    """What became of a change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    SET_ASIDE = "set_aside"
    SHUT_DOWN = "shut_down"


_APPLIED: Final[Outcome] = Outcome.APPLIED  # before Python 3.12 a look at a member of an Enum is a call, 120 ns


def _nothing() -> None:
    pass


def _is_outdated(lost: Change, newer: list[Change]) -> bool:
    """Its subject is gone, or was reported again; what the auditor found stays, and folds with the new report."""
    if any(type(change) is RevisionGone for change in newer):
        return True
    key = fold_key(lost)
    return not (type(lost) is RevisionBroken and lost.kind) and any(fold_key(change) == key for change in newer)


class Parked:
    """The changes of one revision, waiting until its backoff is over; `lost`: the one that was set aside."""

    def __init__(self, until_s: float, superseded: Callable[[FoldKey], None], lost: Change | None = None) -> None:
        self.until_s = until_s
        self.lost = lost
        self.changes = ChangeQueue(CHANGE_QUEUE_MAX, superseded)


class StateWorker:
    """`send` delivers effects to the data plane, `probe` orders to the prober; `source_dirty(source, key)` makes a
    source resubmit all that it knows of a revision (empty: the source that declares the revision);
    `before_batch` lets what cannot wait go first.
    """

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        probe: Callable[[list[ProbeOrder]], None],
        source_dirty: Callable[[str, str], None],
        reduce_change: Reduce = reduce,
        rng: Rng | None = None,
        before_batch: Callable[[], None] = _nothing,
    ) -> None:
        self._now = now
        self._send = send
        self._probe = probe
        self._source_dirty = source_dirty
        self._reduce = reduce_change
        self._before_batch = before_batch
        self.model = Model()
        self.queue = ChangeQueue(CHANGE_QUEUE_MAX, self._superseded)
        self.parked: dict[str, Parked] = {}
        self.supervision = Supervision(rng)
        self.turned_s: float = now()  # the last turn, for liveness
        self.illegal_totals: dict[tuple[int, str, int], int] = {}  # transitions that were refused: defects
        self.stale_total: int = 0  # changes that came late
        self.mismatch_totals: dict[str, int] = {}  # by kind: what the auditor found and a change repaired
        self.rebuilds_total: int = 0
        self.changes_total: int = 0
        self.refused_total: int = 0
        self.batches_total: int = 0
        self.dropped_total: int = 0
        self.queue_wait = Histogram(TURN_BOUNDS_S)  # of each batch's oldest change
        self.processing = Histogram(TURN_BOUNDS_S)  # of each batch
        self._first_due: int = 0  # changes that waited when the worker looked for the first time
        self._waiting_since_s: float | None = None  # since when the oldest change in the queue waits
        self._wake = asyncio.Event()
        self._completions: dict[FoldKey, list[asyncio.Future[Outcome]]] = {}
        self._closed = False

    # --- asking for a change ---

    def submit(self, change: Change) -> None:
        """Put a change into the queue. From the event loop's thread only."""
        if self._closed:
            return
        key = change.key
        if type(change) is RevisionBroken:
            self._broken(key, change)
        parked = self.parked.get(key)
        queue = self.queue
        if parked is not None:
            queue = parked.changes
            self._follow(key, parked)
        elif self._waiting_since_s is None:
            self._waiting_since_s = self._now()
        if not queue.put(change):
            self._drop(change)
            self._settle(fold_key(change), Outcome.REFUSED)
        self._wake.set()

    def submit_with_outcome(self, change: Change) -> asyncio.Future[Outcome]:
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
        """What was asked for before anything else has been applied; of a cluster without a revision that is nothing."""
        return (self._first_due > 0 and self.changes_total >= self._first_due) or len(self.queue) == 0

    @property
    def panics_total(self) -> int:
        return self.supervision.panics_total

    # --- the loop ---

    async def run(self) -> None:
        """Until cancelled. Being cancelled settles every change whose outcome is awaited.

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
        if len(self.queue) == 0:
            return False
        self._before_batch()
        if self._first_due == 0:
            self._first_due = len(self.queue)
        if self._waiting_since_s is not None:
            self.queue_wait.observe(now_s - self._waiting_since_s)
        effects: list[Effect] = []
        probes: list[ProbeOrder] = []
        settled: list[tuple[FoldKey, Outcome]] = []
        taken = 0
        until_s = now_s + CHANGES_BATCH_S * (1 + len(self.queue) // CHANGES_BATCH_STEP)
        while changes := self.queue.take(CHANGES_AT_ONCE):
            taken += len(changes)
            for change in changes:
                outcome = self._handle(change, now_s, effects, probes)
                if outcome is not None and self._completions:
                    settled.append((fold_key(change), outcome))
            if taken >= CHANGES_PER_BATCH_MAX or self._now() >= until_s:
                break
        self._waiting_since_s = now_s if len(self.queue) else None
        self.batches_total += 1
        self.changes_total += taken
        try:
            if effects:
                self._send(effects)
        except Exception as error:
            for lost in {effect.key for effect in effects}:
                self.submit(RevisionBroken(lost, f"its effects were lost: {error!r}"))
            raise
        finally:  # each part gets its own, whatever happens to the other
            try:
                if probes:
                    self._probe(probes)
            finally:
                for key, outcome in settled:
                    self._settle(key, outcome)
            self.processing.observe(self._now() - now_s)
        log.debug("%d changes, %d effects", taken, len(effects))
        return True

    def _handle(self, change: Change, now_s: float, effects: list[Effect], probes: list[ProbeOrder]) -> Outcome | None:
        key = change.key
        parked = self.parked.get(key)
        if parked is not None:
            if parked.changes.put(change):
                return None
            self._drop(change)
            return Outcome.REFUSED
        try:
            reduction = self._reduce(self.model, change, now_s)
        except Exception as error:
            self._set_aside(change, error, now_s)
            return Outcome.SET_ASIDE
        try:
            commit(self.model, reduction)
        except Exception as error:
            # What is written is true, but incomplete: the revision is made anew from it. What does no harm is sent all
            # the same: it would not be sent again.
            probes.extend(reduction.probes)
            effects.extend([effect for effect in reduction.effects if type(effect) is DropRevision])
            self._set_aside(change, error, now_s)
            self.submit(RevisionBroken(key, f"its records were written in part: {error!r}"))
            return Outcome.SET_ASIDE
        effects.extend(reduction.effects)
        probes.extend(reduction.probes)
        for kind, found in reduction.mismatches:
            self.mismatch_totals[kind] = self.mismatch_totals.get(kind, 0) + 1
            log.warning("the auditor found in %s (%s), repaired: %s", key, kind, found)
        if reduction.again is not None:
            self.queue.put_rest(reduction.again)
        for transition in reduction.illegal:
            self.illegal_totals[transition] = self.illegal_totals.get(transition, 0) + 1
            log.error("a defect: %r asks for a transition that there is not: %r", change, transition)
        for address, older, newer in reduction.ousted:
            log.info("%s: %s has the address %s now, %s leaves it", key, newer, address, older)
        if type(change) is RevisionGone:
            self.supervision.forget(key)
        if reduction.stale:
            self.stale_total += 1
            return Outcome.REFUSED
        if reduction.refused:
            self.refused_total += 1
            return Outcome.REFUSED
        return _APPLIED

    def _set_aside(self, change: Change, error: Exception, now_s: float) -> None:
        key = change.key
        backoff_s = self.supervision.panicked(key, change, error, now_s)
        self.parked[key] = Parked(now_s + backoff_s, self._superseded, change)
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
            lost = parked.lost
            # What is still in the queue came after what was taken out of it and parked; had anything been said
            # since, it would have been moved (`_follow`).
            waiting = [*parked.changes.take(len(parked.changes)), *self.queue.take_of(key)]
            if type(lost) is RevisionGone or (isinstance(lost, RevisionSet) and key not in self.model.revisions):
                # What came after it makes no sense without it: a successor would inherit pods that count as being
                # asked, though their answers were thrown away with the end of what they were asked for.
                waiting.insert(0, lost)
            elif isinstance(lost, _SAID_ONCE) and not _is_outdated(lost, waiting):
                waiting.append(lost)  # the others first: if it raised again, they would wait for ever
            self._put_all(self.queue, waiting)
            if isinstance(lost, _OF_SOURCES):
                self._ask_anew(lost)

    def _follow(self, key: str, parked: Parked) -> None:
        """Changes from before the parking that still wait among the others go before what comes now."""
        self._put_all(parked.changes, self.queue.take_of(key))

    def _put_all(self, queue: ChangeQueue, changes: list[Change]) -> None:
        # All of them first: what is said anew is newer than each.
        for change in [change for change in changes if not queue.put(change)]:
            self._settle(fold_key(change), Outcome.REFUSED)
            self._drop(change)

    def _drop(self, change: Change) -> None:
        """There is no place for it in the queue."""
        self.dropped_total += 1
        self._ask_anew(change)

    def _ask_anew(self, lost: Change) -> None:
        """Let the source of a change that was lost submit the current state."""
        self._source_dirty(getattr(lost, "source", ""), lost.key)

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
