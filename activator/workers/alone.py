"""One data plane in the process of the control plane: what `workers: 1` means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from activator.config.model import Config, Tls
from activator.control_plane.sources.knative.cluster_settings import ClusterSettings
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listeners import ListenerChange, Listeners
from activator.messages import Command, Effect, RevisionStatistics
from activator.runtime.errors import NoWorkerError
from activator.runtime.tasks import TaskGroupOwner
from activator.telemetry.switchboard import Telemetry
from activator.workers.messages import WorkerCounts
from activator.workers.workers import ListenerPlan, Workers

NONE: Final = "there are no workers beside this process (`workers: 1`)"


class OneWorker(Workers):
    """`telemetry` is the program's own."""

    def __init__(self, data: DataPlane, telemetry: Telemetry, tasks: TaskGroupOwner) -> None:
        self._data = data
        self._telemetry = telemetry
        self._listeners = Listeners(tasks)

    async def start(self) -> None:
        pass

    async def serve(self) -> None:
        await self._listeners.serve(self._data.start())

    async def close(self) -> None:
        pass

    def apply(self, effects: list[Effect]) -> None:
        self._data.apply(effects)

    def execute(self, command: Command) -> None:
        self._data.execute(command)

    def write_out(self) -> None:
        self._data.write_out()

    @property
    def addresses(self) -> list[str]:
        return self._listeners.addresses

    def plan(self, wanted: list[str | Tls]) -> ListenerPlan:
        return self._listeners.plan(wanted)

    def change(self, plan: ListenerPlan) -> None:
        assert isinstance(plan, ListenerChange)
        self._listeners.change(plan)

    def reconfigure(self, config: Config) -> None:
        pass  # its telemetry is the program's

    def settle(self, settings: ClusterSettings) -> None:
        pass

    def set_log_level(self, part: str, level: str) -> None:
        pass

    async def gather_statistics(self) -> None:
        pass

    async def gather_snapshot(self) -> None:
        pass

    def counts(self) -> WorkerCounts:
        return WorkerCounts(
            self._data.statistics(), self._telemetry.access_log.lost_total, self._telemetry.traces.totals
        )

    def revision_statistics(self) -> Iterator[RevisionStatistics]:
        return self._data.revision_statistics()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        return self._data.snapshot()

    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        raise NoWorkerError(NONE)

    async def tasks_of(self, place: int) -> Any:
        raise NoWorkerError(NONE)

    async def profile_of(self, place: int, seconds: float) -> Any:
        raise NoWorkerError(NONE)

    def describe(self) -> list[dict[str, Any]]:
        return []
