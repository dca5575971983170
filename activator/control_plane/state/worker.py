"""The single writer: it takes changes, reduces them, commits to the model, and sends effects to the data plane.

Rules
  1. A batch has at most `CHANGES_PER_BATCH_MAX` changes and is bounded by a short time, which grows with the number of
     waiting changes (`CHANGES_BATCH_S`); then the event loop turns. A request takes several turns, and under many
     changes each lasts as long as a batch. What requests have written is flushed before the batch (`before_batch`).
  2. An exception in a change sets that change aside (bounded, visible in /debug) and parks the changes of *its
     revision* for a growing time; all other revisions continue. Requests in flight are never affected. A table of the
     data plane that cannot be trusted (`RevisionBroken`) is rebuilt from the model: the first time at once, then with
     the same backoff. With many pods that takes many turns, during which the revision's changes wait.
  3. All times are monotonic seconds. Mixed units here once made a worker restart without end.
  4. A change with an awaited outcome has exactly one: applied, superseded, refused, set aside or shut down.
  5. The content of a change that was set aside or dropped is not lost: after the revision's backoff the change's source
     submits the whole revision again, and a change that no source would repeat is retried itself, after the waiting
     ones. Changes of a revision keep their order, parked or not. So a change that always raises costs one attempt per
     backoff, and the model converges as soon as it no longer does.
  6. An exception anywhere else may have lost the changes in hand. All revisions concerned are then rebuilt from the
     model and submitted again (resync.py), so that no loss is permanent. The prober and the auditor repeat their
     reports until these have had their effect, and `rebuild_unconfirmed` finds effects that did not arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from activator.control_plane.state.model import Model, Reduction, commit
from activator.control_plane.state.parked import CHANGE_QUEUE_MAX, OF_SOURCES, Parked
from activator.control_plane.state.queue import ChangeQueue, FoldKey, fold_key
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.repair import LOST, rebuild_next_part
from activator.control_plane.state.resync import Resync
from activator.control_plane.state.supervision import Supervision
from activator.messages import (
    Change,
    DropRevision,
    Effect,
    ProbeOrder,
    RevisionBroken,
    RevisionGone,
    SetProbes,
)
from activator.runtime.clock import Now
from activator.runtime.histogram import Histogram
from activator.runtime.tasks import pause

# A batch ends after this many changes, or after a time, because requests wait during it.
CHANGES_PER_BATCH_MAX: Final = 1_000
CHANGES_BATCH_S: Final = 0.00005
CHANGES_BATCH_STEP: Final = 256  # for this many waiting changes the time is extended by another CHANGES_BATCH_S
CHANGES_AT_ONCE: Final = 4  # changes between two checks of the time

# Buckets of the two histograms below: from a single change to a full batch on a slow machine.
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

CONFIRM_WITHIN_S: Final = 30.0  # an audit should have seen a table within this time after effects were sent to it

HEARTBEAT_S: Final = 1.0  # the loop turns at least this often; the liveness check uses it

log = logging.getLogger("activator.state")

Reduce = Callable[[Model, Change, float], Reduction]


class ChangeOutcome(Enum):
    """The outcome of a change."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    SET_ASIDE = "set_aside"
    SHUT_DOWN = "shut_down"


# Before Python 3.12 access to a member of an Enum is a call, 120 ns.
_APPLIED: Final[ChangeOutcome] = ChangeOutcome.APPLIED


def _nothing() -> None:
    pass


class StateWorker:
    """The state worker.

    `send` delivers effects to the data plane, `probe` orders to the prober. `source_dirty(source, key)` makes a source
    submit the whole revision again (empty: the source that declares the revision). `before_batch` flushes urgent work.
    """

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        probe: Callable[[list[ProbeOrder]], None],
        source_dirty: Callable[[str, str], None],
        reduce_change: Reduce = reduce,
        supervision: Supervision | None = None,
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
        self.supervision = supervision or Supervision()
        self.turned_s: float = now()  # time of the last turn, for the liveness check
        self.illegal_totals: dict[tuple[int, str, int], int] = {}  # refused transitions: bugs
        self.stale_total: int = 0  # late changes
        self.mismatch_totals: dict[str, int] = {}  # by kind: mismatches that the auditor found and a change repaired
        self.rebuilds_total: int = 0
        self.changes_total: int = 0
        self.refused_total: int = 0
        self.batches_total: int = 0
        self.dropped_total: int = 0
        self.queue_wait = Histogram(TURN_BOUNDS_S)  # seconds, of each batch's oldest change
        self.processing = Histogram(TURN_BOUNDS_S)  # seconds, per batch
        self._first_due: int = 0  # changes that waited in the worker's first turn
        self._waiting_since_s: float | None = None  # the time from which the oldest change in the queue waits
        self._wake = asyncio.Event()
        self._completions: dict[FoldKey, list[asyncio.Future[ChangeOutcome]]] = {}  # awaited outcomes
        self._closed = False
        # The work of this turn; if the turn fails, all of it may be lost.
        self._resync = Resync()
        self._in_hand: list[Change] = []  # changes taken out of the queue
        self._unparking: str = ""  # the revision whose parked changes are being returned
        self._effects: list[Effect] = []  # committed, but not sent
        self._orders: list[ProbeOrder] = []

    # --- submitting changes ---

    def submit(self, change: Change) -> None:
        """Put a change into the queue. To be called only from the event loop's thread.

        It never raises: the caller must not fail because of a bug here.
        """
        if self._closed:
            return
        try:
            self._submit(change)
        except Exception as error:
            self._schedule_resync(change.key, error)

    def _submit(self, change: Change) -> None:
        key = change.key
        if type(change) is RevisionBroken:
            self._park_if_rebuilt_recently(key, change)
        parked = self.parked.get(key)
        queue = self.queue
        if parked is not None:
            queue = parked.changes
            self._park_older(key, parked)
        elif self._waiting_since_s is None:
            self._waiting_since_s = self._now()
        if not queue.put(change):
            self._drop(change)
            self._set_outcome(fold_key(change), ChangeOutcome.REFUSED)
        self._wake.set()

    def submit_with_outcome(self, change: Change) -> asyncio.Future[ChangeOutcome]:
        """Submit a change; the future ends exactly once, with its outcome."""
        future: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(ChangeOutcome.SHUT_DOWN)
            return future
        key = fold_key(change)
        self._set_outcome(key, ChangeOutcome.SUPERSEDED)
        self._completions[key] = [future]
        self.submit(change)
        return future

    def is_settled(self) -> bool:
        """Return True if all changes that waited in the first turn have been applied, or the queue is empty."""
        return (self._first_due > 0 and self.changes_total >= self._first_due) or len(self.queue) == 0

    @property
    def panics_total(self) -> int:
        return self.supervision.panics_total

    # --- the loop ---

    async def run(self) -> None:
        """Run until cancelled; a cancellation settles every change whose outcome is awaited.

        Any other exception is a bug outside of any one change; it may be run again.
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
                self._set_outcome(key, ChangeOutcome.SHUT_DOWN)
            raise

    def turn(self) -> bool:
        """Apply one batch of changes, and send its effects; return False if there was nothing to do.

        An exception is a bug outside of any one change; the work in hand is resynchronized.
        """
        self._wake.clear()
        try:
            return self._turn(self._now())
        except Exception as error:
            self._schedule_resync_of_turn(error)
            raise

    def rebuild_unconfirmed(self) -> None:
        """Rebuild the tables whose effects have not been confirmed by an audit for CONFIRM_WITHIN_S.

        Some of the effects may not have arrived. To be called periodically.
        """
        now_s = self._now()
        overdue = []
        for key, waiting in self.model.unconfirmed.items():
            if now_s - waiting.since_s < CONFIRM_WITHIN_S:
                break
            overdue.append(key)
        for key in overdue:
            self.model.wait_for_confirmation(key, now_s)
            if key not in self.parked:
                cause = f"what its table was sent was not confirmed in {CONFIRM_WITHIN_S:.0f} s"
                self.submit(RevisionBroken(key, cause, LOST))

    def _turn(self, now_s: float) -> bool:
        self._unpark(now_s)
        if len(self._resync):
            self._resynchronize(now_s)
        renewing = self._first_being_rebuilt() if self.parked else ""
        if len(self.queue) == 0 and not self._effects and not self._orders and not renewing:
            return False
        self._before_batch()
        if renewing:
            self._rebuild_next_part(renewing, now_s)
        if self._first_due == 0:
            self._first_due = len(self.queue)
        if self._waiting_since_s is not None:
            self.queue_wait.observe(now_s - self._waiting_since_s)
        settled: list[tuple[FoldKey, ChangeOutcome]] = []
        until_s = now_s + CHANGES_BATCH_S * (1 + len(self.queue) // CHANGES_BATCH_STEP)
        while changes := self.queue.take(CHANGES_AT_ONCE):
            self._in_hand.extend(changes)
            for change in changes:
                outcome = self._apply(change, now_s)
                if outcome is not None and self._completions:
                    settled.append((fold_key(change), outcome))
            if len(self._in_hand) >= CHANGES_PER_BATCH_MAX or self._now() >= until_s:
                break
        self._waiting_since_s = now_s if len(self.queue) else None
        self.batches_total += 1
        self.changes_total += len(self._in_hand)
        effects = len(self._effects)
        try:
            self._deliver()
        finally:
            for key, outcome in settled:
                self._set_outcome(key, outcome)
            self.processing.observe(self._now() - now_s)
        log.debug("%d changes, %d effects", len(self._in_hand), effects)
        self._in_hand = []
        return True

    def _apply(self, change: Change, now_s: float) -> ChangeOutcome | None:
        """Apply one change and return its outcome; None if it was parked."""
        reduction: Reduction | None = None
        try:
            parked = self.parked.get(change.key)
            if parked is not None:
                if parked.changes.put(change):
                    return None
                self._drop(change)
                return ChangeOutcome.REFUSED
            reduction = self._reduce(self.model, change, now_s)
            commit(self.model, reduction)
            self._effects.extend(reduction.effects)
            self._orders.extend(reduction.probes)
            if reduction.renewal is not None:
                self.parked[change.key] = Parked(now_s, self._superseded, renewal=reduction.renewal)
            return self._record_result(change, reduction)
        except Exception as error:
            self._set_aside(change, error, now_s)
            if reduction is not None:  # the written records are valid, but may be incomplete, or their effects not sent
                self._resync.add(change.key, f"its records were written in part: {error!r}")
            return ChangeOutcome.SET_ASIDE

    def _record_result(self, change: Change, reduction: Reduction) -> ChangeOutcome:
        """Count and log the result of a change, queue its rest if it has one, and return its outcome."""
        key = change.key
        for kind, description in reduction.mismatches:
            self.mismatch_totals[kind] = self.mismatch_totals.get(kind, 0) + 1
            log.warning("%s: the audit repaired a mismatch (%s): %s", key, kind, description)
        if reduction.again is not None:
            self.queue.put_rest(reduction.again)
        for transition in reduction.illegal:
            self.illegal_totals[transition] = self.illegal_totals.get(transition, 0) + 1
            log.error("internal error: %r led to an illegal transition, which was rejected: %r", change, transition)
        for address, older, newer in reduction.ousted:
            log.info("%s: pod %s has taken over the address %s; draining pod %s", key, newer, address, older)
        if type(change) is RevisionGone:
            self.supervision.forget(key)
        if reduction.stale:
            self.stale_total += 1
            return ChangeOutcome.REFUSED
        if reduction.refused:
            self.refused_total += 1
            return ChangeOutcome.REFUSED
        return _APPLIED

    def _deliver(self) -> None:
        """Send effects and orders, each also if the other fails."""
        try:
            if self._effects:
                self._send(self._effects)
        finally:
            if self._orders:
                self._probe(self._orders)
        self._effects, self._orders = [], []

    # --- revisions that are rebuilt in many turns ---

    def _first_being_rebuilt(self) -> str:
        """Return the first revision that is being rebuilt; empty if there is none."""
        for key, parked in self.parked.items():
            if parked.renewal is not None:
                return key
        return ""

    def _rebuild_next_part(self, key: str, now_s: float) -> None:
        parked = self.parked[key]
        renewal = parked.renewal
        assert renewal is not None
        change = renewal.change
        try:
            reduction = rebuild_next_part(self.model, renewal, now_s)
            commit(self.model, reduction)
            self._effects.extend(reduction.effects)
            self._orders.extend(reduction.probes)
            if renewal.is_complete:
                parked.renewal = None
            self._record_result(change, reduction)
        except Exception as error:  # rebuild again from the beginning, later
            parked.lost, parked.renewal = RevisionBroken(key, change.cause), None
            backoff_s = self.supervision.panicked(key, change, error, now_s)
            parked.until_s = max(parked.until_s, now_s + backoff_s)
            log.error("%s could not be rebuilt; next attempt in %.1f s", key, backoff_s, exc_info=error)

    # --- lost changes ---

    def _schedule_resync(self, key: str, error: Exception) -> None:
        """Have the next turn resynchronize a revision of which a change may be lost."""
        log.error("a change of %s may be lost: it is rebuilt, and its source submits it again", key, exc_info=error)
        self._resync.add(key, repr(error))
        self._mend_queues()
        self._wake.set()

    def _schedule_resync_of_turn(self, error: Exception) -> None:
        """Have the next turn resynchronize all revisions in the hands of a turn that failed."""
        lost = [self._unparking] if self._unparking else []
        lost.extend([item.key for item in (*self._in_hand, *self.queue.taken, *self._effects, *self._orders)])
        for key in dict.fromkeys(lost):
            self._resync.add(key, f"the state worker failed: {error!r}")
        for change in self._in_hand:
            self._set_outcome(fold_key(change), ChangeOutcome.SET_ASIDE)
        self._in_hand, self._unparking, self._effects, self._orders = [], "", [], []
        self._mend_queues()

    def _mend_queues(self) -> None:
        self.queue.mend()
        for parked in self.parked.values():
            parked.changes.mend()

    def _resynchronize(self, now_s: float) -> None:
        for key, cause in self._resync.due(now_s):
            try:
                if key in self.model.revisions:
                    self._submit(RevisionBroken(key, cause))
                else:
                    self._effects.append(DropRevision(key))
                    self._orders.append(SetProbes(key, ()))
                self._source_dirty("", key)
                self._end_lost(key)
            except Exception as error:
                backoff_s = self.supervision.panicked(key, "asking for all of it", error, now_s)
                self._resync.postpone(key, now_s + backoff_s)
                log.exception("%s could not be resynchronized; next attempt in %.1f s", key, backoff_s)
            else:
                self._resync.done(key)

    def _end_lost(self, key: str) -> None:
        """Set the outcome of the awaited changes of a revision that are in no queue any more."""
        parked = self.parked.get(key)
        for fold in [fold for fold in self._completions if fold[0] == key]:
            if fold not in self.queue and (parked is None or fold not in parked.changes):
                self._set_outcome(fold, ChangeOutcome.SET_ASIDE)

    # --- backoffs ---

    def _set_aside(self, change: Change, error: Exception, now_s: float) -> None:
        key = change.key
        backoff_s = self.supervision.panicked(key, change, error, now_s)
        if key in self.parked:
            self._resync.add(key, f"what waited was lost: {error!r}")
        self.parked[key] = Parked(now_s + backoff_s, self._superseded, change)
        log.error(
            "%s: a change raised an exception and was set aside; changes of this revision resume in %.1f s: %r",
            *(key, backoff_s, change),
            exc_info=error,
        )

    def _park_if_rebuilt_recently(self, key: str, change: RevisionBroken) -> None:
        """Count a rebuild; if there was one a short time before, park the revision for the backoff first."""
        parked = self.parked.get(key)
        if parked is not None and (parked.renewal is None or fold_key(change) in parked.changes):
            return  # it will be rebuilt after the backoff
        now_s = self._now()
        self.rebuilds_total += 1
        backoff_s = self.supervision.panicked(key, change, change.cause, now_s)
        is_repeated = self.supervision.in_a_row(key, now_s) > 1
        if parked is not None:
            parked.until_s = max(parked.until_s, now_s + backoff_s)  # the rebuild under way is not enough
        elif is_repeated:
            self.parked[key] = Parked(now_s + backoff_s, self._superseded)
        wait = f"in {backoff_s:.1f} s" if is_repeated else "at once"
        log.error("%s is rebuilt from the model %s: %s", key, wait, change.cause)

    def _unpark(self, now_s: float) -> None:
        for key in [key for key, parked in self.parked.items() if parked.is_over(now_s)]:
            self._unparking = key
            parked = self.parked.pop(key)
            queued = self.queue.take_of(key)
            self._put_all(self.queue, parked.take_all(queued, key in self.model.revisions))
            self._unparking = ""
            if isinstance(parked.lost, OF_SOURCES):
                self._request_resubmission(parked.lost)

    def _park_older(self, key: str, parked: Parked) -> None:
        """Move older changes of a parked revision from the queue to its parked ones, before a newer one."""
        self._put_all(parked.changes, self.queue.take_of(key))

    def _put_all(self, queue: ChangeQueue, changes: list[Change]) -> None:
        # All are put before any is dropped: a change that a source submits again is newer than each of them.
        for change in [change for change in changes if not queue.put(change)]:
            self._set_outcome(fold_key(change), ChangeOutcome.REFUSED)
            self._drop(change)

    def _drop(self, change: Change) -> None:
        """Count a change for which the queue has no place, and have its source submit it again."""
        self.dropped_total += 1
        self._request_resubmission(change)

    def _request_resubmission(self, lost: Change) -> None:
        """Request the source of a lost change to submit the current state."""
        try:
            self._source_dirty(getattr(lost, "source", ""), lost.key)
        except Exception as error:
            self._schedule_resync(lost.key, error)

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
        self._set_outcome(key, ChangeOutcome.SUPERSEDED)

    def _set_outcome(self, key: FoldKey, outcome: ChangeOutcome) -> None:
        for future in self._completions.pop(key, ()):
            if not future.done():
                future.set_result(outcome)
