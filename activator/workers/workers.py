"""The interface of the program to its data planes: one in its own process, or many in worker processes."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.members.data_planes import GroupDataPlanes
from activator.members.messages import RevisionLives
from activator.messages import Command, Effect, RevisionStatistics
from activator.telemetry.metrics.request_counts import RequestReader
from activator.workers.inspection import Inspection
from activator.workers.messages import WorkerCounts


class ReleasedWorker(NamedTuple):
    """A data plane that continues as a worker of a later process, at the other end of `socket`.

    `number`: as a member; `process`: its PID; `group`: its process group, if the reaper knows it; else 0. The receiver
    owns `socket` and `pidfd`.
    """

    number: int
    process: int
    group: int
    socket: socket.socket
    pidfd: int


class Released(NamedTuple):
    """All data planes of this process. `epoch`: that of their last view."""

    workers: list[ReleasedWorker]
    epoch: int


class ListenerPlan(Protocol):
    """A planned change of the listeners: to be made by `Workers.change`, or discarded."""

    def discard(self) -> None: ...


class Workers(GroupDataPlanes):
    """All data planes. `apply`, `execute` and `write_out` take the messages of the control plane."""

    inspection: Inspection  # the admin port's queries

    @abstractmethod
    async def start(self) -> None:
        """Start the workers, so that effects can be sent to them. Raises StartError."""

    @abstractmethod
    async def serve(self) -> None:
        """Accept connections on the planned listeners, from now on. Raises StartError."""

    @abstractmethod
    async def close(self) -> None:
        """End the workers. To be called when all have drained."""

    @abstractmethod
    def apply(self, effects: list[Effect]) -> None: ...

    @abstractmethod
    def execute(self, command: Command) -> None: ...

    @abstractmethod
    def write_out(self) -> None: ...

    # --- the hand-over to a later process of the activator ---

    @abstractmethod
    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        """Return the configured address and the sockets of each listener."""

    @property
    @abstractmethod
    def last_number(self) -> int:
        """The highest number of a data plane as a member so far."""

    @abstractmethod
    def lives(self) -> RevisionLives:
        """Return the incarnation numbers of the revisions."""

    @abstractmethod
    async def release(self, reaper: int) -> Released:
        """Make every data plane a worker of a later process, which gets the returned sockets. Raises OSError.

        `reaper`: the pipe to the reaper, which ends nothing while a data plane has it; -1 without a reaper.
        """

    # --- configuration ---

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """The addresses of the listeners, as bound."""

    @abstractmethod
    def plan(self, wanted: list[str | Listener]) -> ListenerPlan:
        """Open the new listeners; `change` or `discard` the result before the loop turns. Raises StartError."""

    @abstractmethod
    def change(self, plan: ListenerPlan) -> None: ...

    @abstractmethod
    def reconfigure(self, config: Config) -> None:
        """Use a configuration that was reloaded."""

    @abstractmethod
    def apply_cluster_settings(self, settings: ClusterSettings) -> None:
        """Use the cluster's new settings of logs and traces."""

    @abstractmethod
    def set_log_level(self, part: str, level: str) -> None: ...

    # --- figures ---

    @abstractmethod
    async def gather_statistics(self) -> None:
        """Update `counts` and `revision_statistics`. A worker that does not answer in time keeps its last figures."""

    @abstractmethod
    def counts(self) -> WorkerCounts: ...

    @abstractmethod
    def revision_statistics(self) -> Iterator[RevisionStatistics]: ...

    @abstractmethod
    def requests(self) -> RequestReader | None:
        """Return the counts of requests for Knative's metrics; None if they are counted in this process."""
