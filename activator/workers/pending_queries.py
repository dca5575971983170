"""Queries to workers, each with a time limit for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from activator.runtime.tasks import wait_for
from activator.workers.messages import Answer, ToWorker
from activator.workers.worker_process import WorkerProcess

GATHER_S: Final = 1.0  # time that a scrape waits for the workers' answers


class _PendingQuery:
    """A query to several workers, with those that have not answered yet."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.unanswered = set(workers)
        self.result: Answer | None = None
        self.answered = asyncio.Event()
        self.answer(0)  # without workers, all have answered

    def answer(self, worker: int) -> None:
        """Stop waiting for this worker."""
        self.unanswered.discard(worker)
        if not self.unanswered:
            self.answered.set()


class PendingQueries:
    """The queries that have not been answered yet. `make(query)` returns the message of a query with this number."""

    def __init__(self) -> None:
        self._pending: dict[int, _PendingQuery] = {}
        self._last = 0

    async def query_all(self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float) -> bool:
        """Query several workers; return True if each has answered within `limit_s`, or has ended."""
        pending = await self._query(workers, make, limit_s)
        return pending.answered.is_set()

    async def query(self, worker: WorkerProcess, make: Callable[[int], ToWorker], limit_s: float) -> Answer | None:
        """Query one worker, and return its answer; None if it has not answered within `limit_s`."""
        pending = await self._query([worker], make, limit_s)
        return pending.result

    def answered(self, query: int, worker: int, answer: Answer | None = None) -> None:
        """Store an answer. A late one is dropped."""
        pending = self._pending.get(query)
        if pending is not None:
            pending.result = answer
            pending.answer(worker)

    def worker_ended(self, worker: int) -> None:
        """Stop waiting for a worker that has ended."""
        for pending in self._pending.values():
            pending.answer(worker)

    async def _query(
        self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float
    ) -> _PendingQuery:
        self._last += 1
        query = self._last
        pending = self._pending[query] = _PendingQuery(worker.number for worker in workers)
        for worker in workers:
            worker.send(make(query))
        try:
            await wait_for(pending.answered, limit_s)
        finally:
            del self._pending[query]
        return pending
