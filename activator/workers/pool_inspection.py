"""The admin port's queries about worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from activator.runtime.clock import Now
from activator.runtime.errors import NoWorkerError
from activator.runtime.profiler import ProfilerBusyError
from activator.workers.inspection import Inspection
from activator.workers.lifecycle import WorkerLifecycle
from activator.workers.messages import GetCapture, GetProfile, GetRequests, GetSnapshot, GetTasks, ToWorker
from activator.workers.pending_queries import GATHER_S, PendingQueries
from activator.workers.snapshots import merged
from activator.workers.worker_process import WorkerProcess, WorkerSlot

PROFILE_SLACK_S: Final = 5.0  # time for the answer after the length of the profile


class PoolInspection(Inspection):
    """The queries about worker processes."""

    def __init__(self, lifecycle: WorkerLifecycle, queries: PendingQueries, now: Now) -> None:
        self._lifecycle = lifecycle
        self._queries = queries
        self._now = now

    async def gather_snapshot(self) -> None:
        await self._queries.query_all(self._lifecycle.taking_part(), GetSnapshot, GATHER_S)

    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        by_place = {worker.place: worker.snapshot for worker in self._lifecycle.taking_part()}
        if only:
            by_place = {place: {only: shown[only]} for place, shown in by_place.items() if only in shown}
        return merged(by_place)

    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        worker = self._worker_at(place)
        if not await self._queries.query_all([worker], GetSnapshot, GATHER_S):
            raise NoWorkerError(f"worker {place} does not answer")
        return worker.snapshot

    async def last_requests(self, key: str, count: int) -> dict[int, dict[str, Any]]:
        workers = self._lifecycle.taking_part()
        answers = await asyncio.gather(
            *[self._queries.query(one, lambda number: GetRequests(number, key, count), GATHER_S) for one in workers]
        )
        return {one.place: answer.data for one, answer in zip(workers, answers, strict=True) if answer is not None}

    async def capture_of(self, place: int, number: int) -> dict[str, Any] | None:
        found: dict[str, Any] | None = await self._answer_of(place, lambda one: GetCapture(one, number), GATHER_S)
        return found

    async def tasks_of(self, place: int) -> Any:
        return await self._answer_of(place, GetTasks, GATHER_S)

    async def profile_of(self, place: int, seconds: float) -> Any:
        return await self._answer_of(place, lambda number: GetProfile(number, seconds), seconds + PROFILE_SLACK_S)

    async def _answer_of(self, place: int, make: Callable[[int], ToWorker], limit_s: float) -> Any:
        """Return the answer of one worker. Raises NoWorkerError, or ProfilerBusyError with the problem."""
        answer = await self._queries.query(self._worker_at(place), make, limit_s)
        if answer is None:
            raise NoWorkerError(f"worker {place} does not answer")
        if answer.problem:
            raise ProfilerBusyError(answer.problem)
        return answer.data

    def _worker_at(self, place: int) -> WorkerProcess:
        """Return the worker of a place, or that of a former process. Raises NoWorkerError if it does not take part."""
        if place < 0:
            found = [worker for worker in self._lifecycle.taking_part() if worker.place == place]
            if not found:
                raise NoWorkerError("that process has ended")
            return found[0]
        worker = self._lifecycle.places[place].worker if place < len(self._lifecycle.places) else None
        if worker is None or not worker.begun.is_set():
            raise NoWorkerError(f"there is no worker {place} now: 0 to {len(self._lifecycle.places) - 1}")
        return worker

    def describe(self) -> list[dict[str, Any]]:
        former = [one for one in self._lifecycle.taking_part() if one.is_former]
        return [*map(self._described, self._lifecycle.places), *map(self._described_former, former)]

    def _described(self, place: WorkerSlot) -> dict[str, Any]:
        worker = place.worker
        state = "waiting" if worker is None else "serving" if worker.begun.is_set() else "starting"
        return {
            "worker": place.index,
            "state": state,
            "pid": 0 if worker is None else worker.process,
            "age_s": 0.0 if worker is None else round(self._now() - worker.started_s, 3),
            "restarts": place.restarts_total,
        }

    def _described_former(self, worker: WorkerProcess) -> dict[str, Any]:
        age_s = round(self._now() - worker.started_s, 3)
        return {"worker": worker.place, "state": "finishing", "pid": worker.process, "age_s": age_s, "restarts": 0}
