"""The figures of many workers as those of one data plane.

Rules
  1. A revision lives from its `SetRevision` to its `DropRevision`, whatever incarnations the workers give it.
  2. Totals never fall: what a worker reported is kept when it has ended. Its gauges are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from activator.messages import (
    DropRevision,
    Effect,
    RebuildRevision,
    RevisionEnded,
    RevisionStatistics,
    SetRevision,
)
from activator.workers.messages import WorkerCounts
from activator.workers.sums import lasting, plus


class RevisionTotals:
    """One life of a revision. `number` is its incarnation in the figures."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.by_worker: dict[int, RevisionStatistics] = {}
        self.ended: RevisionStatistics | None = None  # totals of the workers that do not report the revision any more
        self.leaving: set[int] | None = None  # once it was dropped: workers that may still have requests of it
        self._sum: RevisionStatistics | None = None  # kept while no report differs: most revisions are idle

    def reported(self, worker: int, statistics: RevisionStatistics) -> None:
        """Replace the statistics of a worker."""
        if self.by_worker.get(worker) != statistics:
            self.by_worker[worker] = statistics
            self._sum = None

    def sum(self) -> RevisionStatistics | None:
        """Return the sum over all workers; None if no worker has reported it."""
        if self._sum is not None and self._sum.dropped == (self.leaving is not None):
            return self._sum
        parts = [*self.by_worker.values()]
        if self.ended is not None:
            parts.append(self.ended)
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = plus(total, part)
        pods = self._pods()
        by_pod = {pod: figures for pod, figures in total.by_pod.items() if pod in pods}
        self._sum = replace(total, incarnation=self.number, dropped=self.leaving is not None, by_pod=by_pod)
        return self._sum

    def worker_ended(self, worker: int) -> None:
        """Keep the totals of a worker that has ended, or has no request of the revision any more."""
        last = self.by_worker.pop(worker, None)
        self._sum = None
        if last is not None:
            kept = lasting(last)
            kept = kept if self.ended is None else plus(self.ended, kept)
            pods = self._pods() or last.by_pod.keys()  # without other workers, the next one has the same pods
            self.ended = replace(kept, by_pod={pod: one for pod, one in kept.by_pod.items() if pod in pods})
        if self.leaving is not None:
            self.leaving.discard(worker)

    def _pods(self) -> AbstractSet[str]:
        """Return the pods that workers report; the figures of other pods are dropped."""
        return {pod for one in self.by_worker.values() for pod in one.by_pod}


class WorkerTotals:
    """The figures of all workers. `ended` is called with the last figures of a revision that was dropped."""

    def __init__(self, ended: Callable[[RevisionStatistics], None]) -> None:
        self._ended = ended
        self._lives: dict[str, RevisionTotals] = {}
        self._dropped: list[RevisionTotals] = []
        self._life_of: dict[tuple[int, int], RevisionTotals] = {}  # by worker and its incarnation
        self._numbers = 0  # the number of the newest life
        self._counts: dict[int, WorkerCounts] = {}
        self._ended_counts = WorkerCounts()

    # --- events ---

    def applied(self, effects: list[Effect], workers: list[int]) -> None:
        """Begin and end lives, after effects were sent to these workers."""
        for effect in effects:
            if type(effect) is SetRevision or type(effect) is RebuildRevision:
                if effect.key not in self._lives:
                    self._numbers += 1
                    self._lives[effect.key] = RevisionTotals(self._numbers)
            elif type(effect) is DropRevision:
                life = self._lives.pop(effect.key, None)
                if life is not None:
                    life.leaving = set(workers)
                    self._dropped.append(life)

    def reported(self, worker: int, revisions: tuple[RevisionStatistics, ...]) -> None:
        """Replace the figures of revisions that a worker has reported."""
        for one in revisions:
            life = self._life(worker, one)
            if life is not None:
                life.reported(worker, one)

    def counted(self, worker: int, counts: WorkerCounts) -> None:
        """Replace the counts of a worker as a whole."""
        self._counts[worker] = counts

    def revision_ended(self, worker: int, message: RevisionEnded) -> None:
        """Keep the last figures of a worker for a dropped revision."""
        statistics = message.statistics
        life = self._life(worker, statistics)
        self._life_of.pop((worker, statistics.incarnation), None)
        if life is not None:
            life.reported(worker, statistics)
            life.worker_ended(worker)
            self._report_if_ended(life)

    def worker_ended(self, worker: int) -> None:
        """Keep the totals of a worker that has ended."""
        for life in [*self._lives.values(), *self._dropped]:
            life.worker_ended(worker)
            self._report_if_ended(life)
        for name in [name for name in self._life_of if name[0] == worker]:
            del self._life_of[name]
        counts = self._counts.pop(worker, None)
        if counts is not None:
            self._ended_counts = plus(self._ended_counts, lasting(counts))

    # --- queries ---

    def revision_keys(self) -> AbstractSet[str]:
        """Return the keys of the revisions that were not dropped."""
        return self._lives.keys()

    def revisions(self) -> Iterator[RevisionStatistics]:
        """Yield the figures of all lives, as they were reported last."""
        for life in [*self._lives.values(), *self._dropped]:
            total = life.sum()
            if total is not None:
                yield total

    def counts(self) -> WorkerCounts:
        """Return the counts of all workers, including those that have ended."""
        total = self._ended_counts
        for counts in self._counts.values():
            total = plus(total, counts)
        return total

    def ownership(self) -> tuple[int, int]:
        """Return how many revisions the workers own, and for how many of them they cannot grant slots yet."""
        return sum(one.owned for one in self._counts.values()), sum(one.held for one in self._counts.values())

    # --- internal ---

    def _life(self, worker: int, statistics: RevisionStatistics) -> RevisionTotals | None:
        """Return the life that a worker's report is about; None if it is not known."""
        life = self._life_of.get((worker, statistics.incarnation))
        if life is None:
            life = self._matched(worker, statistics)
            if life is not None:
                self._life_of[worker, statistics.incarnation] = life
        return life

    def _matched(self, worker: int, statistics: RevisionStatistics) -> RevisionTotals | None:
        """Return the present life of the reported revision.

        If the revision was dropped, return the newest dropped life whose last figures this worker has not reported.
        """
        if not statistics.dropped:
            return self._lives.get(statistics.key)
        for life in reversed(self._dropped):
            if life.leaving and worker in life.leaving and worker not in life.by_worker:
                return life
        return None

    def _report_if_ended(self, life: RevisionTotals) -> None:
        """Report the last figures of a dropped revision, if no worker has requests of it any more."""
        if life.leaving is None or life.leaving or life not in self._dropped:
            return
        self._dropped.remove(life)
        total = life.sum()
        if total is not None:
            self._ended(total)
