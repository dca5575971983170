"""What the program asks of the data planes that serve for it, be it one in its own process or many in theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.members.data_planes import GroupDataPlanes
from activator.messages import Command, Effect, RevisionStatistics
from activator.telemetry.metrics.request_counts import RequestReader
from activator.workers.messages import WorkerCounts


class ListenerPlan(Protocol):
    """A change of what is served on: to be made by `change`, or given up."""

    def discard(self) -> None: ...


class Workers(GroupDataPlanes):
    """`apply`, `execute` and `write_out` are the data plane's end of the control plane's messages."""

    @abstractmethod
    async def start(self) -> None:
        """There are workers, to which effects can be sent. Raises StartError."""

    @abstractmethod
    async def serve(self) -> None:
        """Accept on what is wanted, from now on. Raises StartError."""

    @abstractmethod
    async def close(self) -> None:
        """To be called when all have drained."""

    @abstractmethod
    def apply(self, effects: list[Effect]) -> None: ...

    @abstractmethod
    def execute(self, command: Command) -> None: ...

    @abstractmethod
    def write_out(self) -> None: ...

    # --- configuration ---

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """What is served on, as bound."""

    @abstractmethod
    def plan(self, wanted: list[str | Listener]) -> ListenerPlan:
        """Open what is new; `change` or `discard` the outcome before the loop turns. Raises StartError."""

    @abstractmethod
    def change(self, plan: ListenerPlan) -> None: ...

    @abstractmethod
    def reconfigure(self, config: Config) -> None:
        """The file was read again, and is taken."""

    @abstractmethod
    def settle(self, settings: ClusterSettings) -> None:
        """The cluster says something new of logs and traces."""

    @abstractmethod
    def set_log_level(self, part: str, level: str) -> None: ...

    # --- figures ---

    @abstractmethod
    async def gather_statistics(self) -> None:
        """Ask for `counts` and `revision_statistics`; who does not answer in time is read as of the last time."""

    @abstractmethod
    async def gather_snapshot(self) -> None:
        """Ask for `snapshot`, likewise."""

    @abstractmethod
    def counts(self) -> WorkerCounts: ...

    @abstractmethod
    def revision_statistics(self) -> Iterator[RevisionStatistics]: ...

    @abstractmethod
    def requests(self) -> RequestReader | None:
        """As Knative's metrics distinguish them; None: they are counted in this process."""

    @abstractmethod
    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        """All revisions, or the one of this key, as plain data, by key."""

    @abstractmethod
    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        """What one worker has. Raises NoWorkerError."""

    @abstractmethod
    async def tasks_of(self, place: int) -> Any:
        """What runs in one worker beside its requests. Raises NoWorkerError."""

    @abstractmethod
    async def profile_of(self, place: int, seconds: float) -> Any:
        """Where one worker spends its time, for so long. Raises NoWorkerError, or ProfilerBusyError."""

    @abstractmethod
    def describe(self) -> list[dict[str, Any]]:
        """The processes beside this one, as plain data."""
