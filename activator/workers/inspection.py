"""The interface of the admin port's queries about workers: revisions, requests, tasks and profiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Inspection(ABC):
    """The admin port's queries about workers. A worker is named by its place."""

    @abstractmethod
    async def gather_snapshot(self) -> None:
        """Update `snapshot`. A worker that does not answer in time keeps its last one."""

    @abstractmethod
    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        """Return all revisions, or the one of this key, as plain data, by key."""

    @abstractmethod
    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        """Return the snapshot of one worker. Raises NoWorkerError."""

    @abstractmethod
    async def last_requests(self, key: str, count: int) -> dict[int, dict[str, Any]]:
        """Return what `DataPlane.last_requests` returns in each worker, by its place.

        `wall_s`: the time of day there, if it is another process. A worker that does not answer in time is left out.
        """

    @abstractmethod
    async def capture_of(self, place: int, number: int) -> dict[str, Any] | None:
        """Return a capture of one worker; None if there is none. Raises NoWorkerError."""

    @abstractmethod
    async def tasks_of(self, place: int) -> Any:
        """Return the tasks of one worker's loop. Raises NoWorkerError."""

    @abstractmethod
    async def profile_of(self, place: int, seconds: float) -> Any:
        """Profile one worker for this time. Raises NoWorkerError or ProfilerBusyError."""

    @abstractmethod
    def describe(self) -> list[dict[str, Any]]:
        """Return the worker processes, as plain data."""
