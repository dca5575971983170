"""One data plane in the process of the control plane, for `workers: 1`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any, Final

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.plane import DataPlane
from activator.data_plane.quotas.links import ALONE
from activator.data_plane.server.listeners import ListenerChange, Listeners
from activator.members.data_planes import GroupSide
from activator.members.handshake import Seal, SessionKeys
from activator.members.messages import RevisionLives
from activator.members.numbers import seat_of, worker_number, worker_place
from activator.messages import Command, Effect, RevisionStatistics
from activator.runtime.clock import Now
from activator.runtime.errors import NoWorkerError
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.wire import pair
from activator.telemetry.metrics.request_counts import RequestReader
from activator.telemetry.switchboard import Telemetry
from activator.workers.inspection import Inspection
from activator.workers.messages import Unlinked, WorkerCounts
from activator.workers.peers import Peers, first_slot, make_peers
from activator.workers.process import Serving, Worker
from activator.workers.workers import ListenerPlan, Released, ReleasedWorker, Workers

NO_WORKERS: Final = "there are no workers beside this process (`workers: 1`)"


class OneInspection(Inspection):
    """The queries about the only data plane."""

    def __init__(self, data: DataPlane) -> None:
        self._data = data

    async def gather_snapshot(self) -> None:
        pass

    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        return self._data.snapshot(only)

    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        raise NoWorkerError(NO_WORKERS)

    async def last_requests(self, key: str, count: int) -> dict[int, dict[str, Any]]:
        return {0: self._data.last_requests(key, count)}

    async def capture_of(self, place: int, number: int) -> dict[str, Any] | None:
        return None if place else self._data.capture_of(number)

    async def tasks_of(self, place: int) -> Any:
        raise NoWorkerError(NO_WORKERS)

    async def profile_of(self, place: int, seconds: float) -> Any:
        raise NoWorkerError(NO_WORKERS)

    def describe(self) -> list[dict[str, Any]]:
        return []


class OneWorker(Workers):
    """The only data plane. `telemetry` is that of the program."""

    def __init__(self, data: DataPlane, telemetry: Telemetry, tasks: TaskGroupOwner, now: Now) -> None:
        self._data = data
        self.inspection = OneInspection(data)
        self._tasks = tasks
        self._now = now
        self._group: GroupSide | None = None
        self._member: Member | None = None
        self._peers: Peers | None = None
        self._telemetry = telemetry
        self.worker: Worker | None = None  # set once this is a worker of a later process of the activator
        self._listeners = Listeners(tasks)

    async def start(self) -> None:
        pass

    async def serve(self) -> None:
        await self._listeners.serve(self._data.start())

    async def close(self) -> None:
        pass

    def apply(self, effects: list[Effect]) -> None:
        group = self._group
        if group is None:
            self._data.apply(effects)
        else:
            self._data.apply([group.lives.with_life(effect) for effect in effects])
            group.lives_changed()

    # --- the group of replicas ---

    def join(self, group: GroupSide) -> None:
        number = worker_number(group.replica, 1)
        slot = first_slot(os.urandom)
        peers = make_peers(self._data, number, slot, lambda other: group.unlinked(number, other), self._now)
        self._peers, self._member = peers, peers.member
        self._group = group
        group.set_data_planes((MemberName(number, worker_place(seat_of(group.replica), 0)),))

    def adopt_view(self, view: View) -> None:
        assert self._member is not None and self._peers is not None, "it has joined"
        if self._peers.recorder is not None:
            self._peers.recorder.adopted(view)
        self._data.adopt(view)
        self._peers.keep_only({member.number for member in view.members})

    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        assert self._peers is not None, "it has joined"
        self._peers.link(other, sock, Seal(keys))

    def allow_grants(self, allowed: bool) -> None:
        self._data.allow_grants(allowed)

    def ownership(self) -> tuple[int, int]:
        return (0, 0) if self._member is None else self._member.ownership()

    # --- the hand-over ---

    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        return self._listeners.listening()

    @property
    def last_number(self) -> int:
        return ALONE

    def lives(self) -> RevisionLives:
        return RevisionLives({}, {})

    async def release(self, reaper: int) -> Released:
        pidfd = os.pidfd_open(os.getpid())
        own, other_end = pair()
        server = self._data.server
        assert server is not None and self._group is None, "it serves, and in no group"
        worker = self.worker = Worker(own, self._tasks)
        peers = make_peers(self._data, ALONE, 0, lambda other: worker.send(Unlinked(other)), self._now)
        worker.continue_as(Serving(worker, self._tasks, self._data, peers, self._telemetry, server))
        return Released([ReleasedWorker(ALONE, os.getpid(), 0, other_end, pidfd)], 0)

    # --- messages and configuration ---

    def execute(self, command: Command) -> None:
        self._data.execute(command)

    def write_out(self) -> None:
        self._data.write_out()

    @property
    def addresses(self) -> list[str]:
        return self._listeners.addresses

    def plan(self, wanted: list[str | Listener]) -> ListenerPlan:
        return self._listeners.plan(wanted)

    def change(self, plan: ListenerPlan) -> None:
        assert isinstance(plan, ListenerChange)
        self._listeners.change(plan)

    def reconfigure(self, config: Config) -> None:
        self._data.reconfigure(config)  # its telemetry is the program's

    def apply_cluster_settings(self, settings: ClusterSettings) -> None:
        pass

    def set_log_level(self, part: str, level: str) -> None:
        pass

    async def gather_statistics(self) -> None:
        pass

    def counts(self) -> WorkerCounts:
        return WorkerCounts(
            self._data.statistics(), self._telemetry.access_log.lost_total, self._telemetry.traces.totals
        )

    def revision_statistics(self) -> Iterator[RevisionStatistics]:
        return self._data.revision_statistics()

    def requests(self) -> RequestReader | None:
        return None
