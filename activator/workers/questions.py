"""Questions to workers, each with an answer or an end of the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from activator.runtime.tasks import wait_for
from activator.workers.messages import Told, ToWorker
from activator.workers.worker_process import WorkerProcess


class _Asked:
    """Of several workers."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.open = set(workers)
        self.told: Told | None = None
        self.answered = asyncio.Event()
        self.answer(0)

    def answer(self, worker: int) -> None:
        self.open.discard(worker)
        if not self.open:
            self.answered.set()


class Questions:
    """Those that are open."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._last = 0

    async def ask_all(self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float) -> bool:
        """Whether each has answered in time, or has ended."""
        asked = await self._ask(workers, make, limit_s)
        return asked.answered.is_set()

    async def ask(self, worker: WorkerProcess, make: Callable[[int], ToWorker], limit_s: float) -> Told | None:
        """What it has told; None: it has not answered."""
        asked = await self._ask([worker], make, limit_s)
        return asked.told

    def answered(self, question: int, worker: int, told: Told | None = None) -> None:
        """An answer has come; too late, it is nobody's."""
        asked = self._asked.get(question)
        if asked is not None:
            asked.told = told
            asked.answer(worker)

    def worker_ended(self, worker: int) -> None:
        """It will not answer."""
        for asked in self._asked.values():
            asked.answer(worker)

    async def _ask(self, workers: list[WorkerProcess], make: Callable[[int], ToWorker], limit_s: float) -> _Asked:
        self._last += 1
        question = self._last
        asked = self._asked[question] = _Asked(worker.number for worker in workers)
        for worker in workers:
            worker.send(make(question))
        try:
            await wait_for(asked.answered, limit_s)
        finally:
            del self._asked[question]
        return asked
