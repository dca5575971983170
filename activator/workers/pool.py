"""All workers as one data plane: the parent's side.

Rules
  1. A worker has a place (0 … n - 1), and a number that no other worker has or had. The place has listening sockets;
     the next worker of the place serves the connections that are waiting in them.
  2. A worker that has ended (lifecycle.py) has no connection to any pod, so its slots may be granted to others.
  3. While a place has no worker because the next one is delayed, another worker serves its sockets.
  4. Messages to a worker are sent in order, and bounded (runtime/wire.py): a worker that does not read is killed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Final

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.data_plane.ownership.view import View
from activator.members.data_planes import GroupSide
from activator.members.handshake import SessionKeys
from activator.members.lives import Lives
from activator.members.messages import RevisionLives
from activator.messages import (
    Command,
    Drain,
    Drained,
    DropRevision,
    Effect,
    FromData,
    RevisionEnded,
    RevisionStatistics,
    SentRevision,
)
from activator.runtime.certificates import CERTIFICATE_CHECK_S
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.telemetry.metrics.request_counts import RequestReader, WorkersRequests
from activator.workers.fan_out import FanOut
from activator.workers.figures import WorkerTotals
from activator.workers.fork_server import Zygote
from activator.workers.lifecycle import WORKER_START_S, WORKER_WATCH_S, WorkerLifecycle, WorkerListener
from activator.workers.messages import (
    AllowGrants,
    Answer,
    ApplyClusterSettings,
    CheckCertificates,
    FromWorker,
    GetStatistics,
    Join,
    Link,
    Listening,
    Members,
    Reconfigure,
    RequestsCounted,
    Retire,
    SetLogLevel,
    Snapshot,
    SocketClosed,
    Statistics,
    ToWorker,
    Unlinked,
    WorkerAlive,
    WorkerCounts,
    WorkerStarted,
    from_worker,
)
from activator.workers.pending_queries import GATHER_S, PendingQueries
from activator.workers.pool_inspection import PoolInspection
from activator.workers.socket_assignment import SocketAssignment
from activator.workers.sockets import SharedSockets, SocketChange
from activator.workers.worker_members import WorkerMembers
from activator.workers.worker_process import WorkerProcess
from activator.workers.workers import ListenerPlan, Released, Workers
from lb.rng import Rng

STATISTICS_INTERVAL_S: Final = 1.0  # interval of the workers' reports; a crash loses at most so much
JOIN_S: Final = 5.0  # for the workers of a former process to report their loads
RELISTEN_S: Final = 2.0  # delay before a worker that could not read a certificate gets the socket again

log = logging.getLogger("activator")


class WorkerPool(Workers, WorkerListener):
    """The workers of one parent.

    `receive` gets their reports, for the control plane. `tables` yields the revisions that a worker that joins must be
    sent. `environment` and `zygote`: as in `Forking`.
    """

    def __init__(
        self,
        config: Config,
        count: int,
        now: Now,
        receive: Callable[[FromData], None],
        tables: Callable[[], Iterator[SentRevision]],
        rng: Rng,
        tasks: TaskGroupOwner,
        environment: dict[str, str],
        log_level: str,
        zygote: Zygote | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings: ClusterSettings | None = None
        self._log_levels: dict[str, str] = {}  # set since the last reload
        self._now = now
        self._tables = tables
        self._tasks = tasks
        self._group: GroupSide | None = None
        self._lifecycle = WorkerLifecycle(config, count, self, now, rng, environment, log_level, zygote)
        self._members = WorkerMembers(self._send_to_all)
        self._sockets = SharedSockets(count)
        self._assignment = SocketAssignment(self._sockets, self._lifecycle, now)
        self._fan_out = FanOut(self._send_to, receive, Lives())
        self._figures = WorkerTotals(lambda statistics: receive(RevisionEnded(statistics)))
        self._requests = WorkersRequests()
        self._queries = PendingQueries()
        self.inspection = PoolInspection(self._lifecycle, self._queries, now)
        self._may_grant = True
        self._is_serving = False

    # --- life ---

    async def start(self) -> None:
        await self._lifecycle.start()
        self._tasks.repeat("workers", WORKER_WATCH_S, self._lifecycle.watch)
        self._tasks.repeat("statistics", STATISTICS_INTERVAL_S, self._request_statistics)
        self._tasks.repeat("certificates", CERTIFICATE_CHECK_S, self._check_certificates)

    async def serve(self) -> None:
        self._is_serving = True
        self._assignment.assign()
        until_s = self._now() + WORKER_START_S
        for place in self._lifecycle.places:  # a worker may be replaced during the wait
            while place.worker is None or not place.worker.listening.is_set():
                if self._now() >= until_s:
                    raise StartError(f"worker {place.index} was not listening {WORKER_START_S:g} s after its start")
                await pause(0.005)
        log.info("serving on %s (%d workers)", ", ".join(self.addresses), len(self._lifecycle.places))

    async def close(self) -> None:
        await self._lifecycle.end()
        self._sockets.close()
        await self._lifecycle.close()

    # --- the hand-over between processes of the activator ---

    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        return self._sockets.listening()

    async def release(self, reaper: int) -> Released:
        found = await self._lifecycle.release(reaper)
        self._sockets.close()
        return found._replace(epoch=self._members.epoch)

    @property
    def last_number(self) -> int:
        return self._lifecycle.last_number

    def lives(self) -> RevisionLives:
        return self._fan_out.lives.announced()

    def await_former(self, number: int) -> None:
        """Give workers higher numbers than those of a former process, and publish no view before these take part."""
        self._lifecycle.last_number = number
        self._members.is_held = True

    def continue_lives(self, lives: RevisionLives) -> None:
        """Give revisions the incarnation numbers that they have in a former process."""
        self._fan_out.lives.learn(lives)

    async def take_in(self, former: Released, dropped: list[str]) -> None:
        """Make the workers of a former process members; return when they take part.

        To be called once the state worker has settled. `dropped`: revisions that only the former process had.
        """
        workers = [self._lifecycle.take_in(one.number, one.process, one.pidfd, one.socket) for one in former.workers]
        self._members.epoch = former.epoch
        self._members.is_held = False
        self._members.publish(self._lifecycle.taking_part())
        for worker in workers:
            for key in dropped:
                worker.send(DropRevision(key))
            worker.send(Join())
        until_s = self._now() + JOIN_S
        for worker in workers:
            while not worker.joined.is_set() and not worker.ended.is_set() and self._now() < until_s:
                await pause(0.002)

    def retire_former(self) -> None:
        """Make the workers of a former process leave new clients to those of this one, and end after their last."""
        for worker in self._lifecycle.taking_part():
            if worker.is_former:
                worker.send(Retire())

    def kill_former(self, but: int) -> None:
        """Kill the workers of former processes, except for the process `but`."""
        for worker in self._lifecycle.taking_part():
            if worker.is_former and worker.process != but:
                worker.kill()

    # --- messages of the control plane ---

    def apply(self, effects: list[Effect]) -> None:
        self._figures.applied(effects, self._fan_out.workers)
        self._fan_out.apply(effects)
        if self._group is not None:
            self._group.lives_changed()

    def execute(self, command: Command) -> None:
        self._fan_out.execute(command)
        if isinstance(command, Drain):
            self._lifecycle.is_ending = True
            self._sockets.close()
            self._fan_out.drain_begins()

    def write_out(self) -> None:
        pass  # the parent has no client connections

    def _send_to(self, number: int, messages: list[Effect | Command]) -> None:
        worker = self._lifecycle.by_number[number]
        for message in messages:
            worker.send(message)

    # --- the group of replicas ---

    def join(self, group: GroupSide) -> None:
        self._group = group
        self._members.join(group)
        self._lifecycle.replica = group.replica
        self._fan_out.use_lives(group.lives)

    def adopt_view(self, view: View) -> None:
        self._send_to_all(Members(view.epoch, view.members, tuple(view.unproven_replicas), view.follows, view.is_next))

    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        for worker in self._lifecycle.taking_part():
            if worker.member == own:
                worker.send(Link(other, keys), [sock.detach()])
                return
        sock.close()  # the worker has ended

    def allow_grants(self, allowed: bool) -> None:
        self._may_grant = allowed
        self._send_to_all(AllowGrants(allowed))

    def ownership(self) -> tuple[int, int]:
        """Return the sums of the last reports of the workers, at most STATISTICS_INTERVAL_S old."""
        return self._figures.ownership()

    # --- configuration ---

    @property
    def addresses(self) -> list[str]:
        return self._sockets.addresses

    def plan(self, wanted: list[str | Listener]) -> ListenerPlan:
        return self._sockets.plan(wanted)

    def change(self, plan: ListenerPlan) -> None:
        assert isinstance(plan, SocketChange)
        self._sockets.change(plan)
        if self._is_serving:
            self._sockets.check_certificates()
            self._send_to_all(CheckCertificates())
            self._assignment.assign()

    def reconfigure(self, config: Config) -> None:
        self._lifecycle.config = config
        self._log_levels.clear()
        for worker in self._lifecycle.own():  # a former one may have another version
            worker.send(Reconfigure(config))

    def apply_cluster_settings(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._send_to_all(ApplyClusterSettings(settings))

    def set_log_level(self, part: str, level: str) -> None:
        self._log_levels[part] = level
        self._send_to_all(SetLogLevel(part, level))

    def _send_to_all(self, message: ToWorker) -> None:
        for worker in self._lifecycle.taking_part():
            worker.send(message)

    def _check_certificates(self) -> None:
        if self._sockets.check_certificates():
            self._send_to_all(CheckCertificates())

    # --- figures ---

    async def gather_statistics(self) -> None:
        await self._queries.query_all(
            self._lifecycle.taking_part(), lambda number: GetStatistics(number, everything=True), GATHER_S
        )

    def counts(self) -> WorkerCounts:
        return self._figures.counts()

    def revision_statistics(self) -> Iterator[RevisionStatistics]:
        return self._figures.revisions()

    def requests(self) -> RequestReader | None:
        return self._requests

    def _request_statistics(self) -> None:
        self._send_to_all(GetStatistics(0, everything=False))
        self._requests.forget_others(self._figures.revision_keys())

    # --- events of the workers ---

    def received(self, worker: WorkerProcess, data: memoryview) -> None:
        for message in from_worker(data):
            try:
                self._process(worker, message)
            except Exception as error:
                self.failed(worker, error)

    def failed(self, worker: WorkerProcess, error: Exception) -> None:
        log.error("a message of worker %d could not be processed", worker.place, exc_info=error)

    def begun(self, worker: WorkerProcess) -> None:
        workers = self._lifecycle.taking_part()
        for other in workers:
            if other is not worker:
                self._members.link(worker, other)
        self._members.publish(workers)
        if not self._may_grant:
            worker.send(AllowGrants(False))
        if self._settings is not None:
            worker.send(ApplyClusterSettings(self._settings))
        for part, level in self._log_levels.items():
            worker.send(SetLogLevel(part, level))
        self._fan_out.joined(worker.number, self._tables())
        if self._is_serving and not self._lifecycle.is_ending:
            self._assignment.assign()

    def ended(self, worker: WorkerProcess) -> None:
        self._queries.worker_ended(worker.number)
        if worker.begun.is_set():
            self._members.publish(self._lifecycle.taking_part())
            self._fan_out.ended(worker.number)
            self._figures.worker_ended(worker.number)
            self._requests.worker_ended(worker.number)

    def vacant(self) -> None:
        self._assignment.assign()

    def _former_drained(self, worker: WorkerProcess, message: Drained) -> None:
        """End a worker of a former process that has drained; a drain that this cuts short is not reported again."""
        if not worker.is_over:
            self._lifecycle.end_former(worker)
            self._fan_out.receive(worker.number, message)

    def _process(self, worker: WorkerProcess, message: FromWorker) -> None:
        if isinstance(message, WorkerAlive):
            return
        if isinstance(message, WorkerStarted):
            self._lifecycle.begun(worker)
        elif isinstance(message, Listening):
            worker.listens_awaited -= 1
            if worker.listens_awaited == 0:
                worker.listening.set()
        elif isinstance(message, SocketClosed):
            worker.given.discard(message.number)
            self._loop.call_later(RELISTEN_S, self._assignment.assign)
        elif isinstance(message, Unlinked):
            self._members.unlinked(worker, message.number, self._lifecycle.taking_part())
        elif isinstance(message, Statistics):
            self._figures.reported(worker.number, message.revisions)
            if message.complete:
                self._figures.counted(worker.number, message.counts)
                self._queries.answered(message.query, worker.number)
        elif isinstance(message, RequestsCounted):
            self._requests.received(worker.number, message.series)
        elif isinstance(message, Answer):
            self._queries.answered(message.query, worker.number, message)
        elif isinstance(message, Snapshot):
            worker.snapshot = message.revisions
            self._queries.answered(message.query, worker.number)
        elif isinstance(message, RevisionEnded):
            self._figures.revision_ended(worker.number, message)
        elif isinstance(message, Drained) and worker.is_former:
            self._former_drained(worker, message)
        else:
            self._fan_out.receive(worker.number, message)
