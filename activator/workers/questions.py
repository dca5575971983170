"""Questions to workers, each with a time limit for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from activator.runtime.tasks import wait_for
from activator.workers.messages import Answer, ToWorker
from activator.workers.worker_process import WorkerProcess


class _Question:
    """A question to several workers, with those that have not answered yet."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.open = set(workers)
        self.result: Answer | None = None
        self.answered = asyncio.Event()
        self.answer(0)

    def answer(self, worker: int) -> None:
        self.open.discard(worker)
        if not self.open:
            self.answered.set()


class Questions:
    """The open questions."""

    def __init__(self) -> None:
        self._asked: dict[int, _Question] = {}
        self._last = 0

    async def ask_all(self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float) -> bool:
        """Ask several workers. True if each has answered within `limit_s`, or has ended."""
        asked = await self._ask(workers, make, limit_s)
        return asked.answered.is_set()

    async def ask(self, worker: WorkerProcess, make: Callable[[int], ToWorker], limit_s: float) -> Answer | None:
        """Ask one worker, and return its answer; None if it has not answered within `limit_s`."""
        asked = await self._ask([worker], make, limit_s)
        return asked.result

    def answered(self, question: int, worker: int, answer: Answer | None = None) -> None:
        """Take an answer. A late one is dropped."""
        asked = self._asked.get(question)
        if asked is not None:
            asked.result = answer
            asked.answer(worker)

    def worker_ended(self, worker: int) -> None:
        """Stop waiting for a worker that has ended."""
        for asked in self._asked.values():
            asked.answer(worker)

    async def _ask(self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float) -> _Question:
        self._last += 1
        question = self._last
        asked = self._asked[question] = _Question(worker.number for worker in workers)
        for worker in workers:
            worker.send(make(question))
        try:
            await wait_for(asked.answered, limit_s)
        finally:
            del self._asked[question]
        return asked
