"""The program of a worker: one data plane, its listening sockets and its telemetry, controlled by the parent.

Rules
  1. Messages of the parent are processed in order. If one raises, the error is logged and counted, and the next one is
     processed.
  2. When the parent ends, the worker exits at once: it would get no more reports of pods.
  3. The loop sends a heartbeat every ALIVE_INTERVAL_S.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, get_args

from activator.config.model.listeners import Listener
from activator.data_plane.ownership.view import View
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import ListeningSocket, Server
from activator.members.handshake import Seal
from activator.messages import Command, Drained, Effect, RevisionStatistics
from activator.runtime.certificates import ServerCertificate
from activator.runtime.controller_counts import Controllers
from activator.runtime.errors import StartError
from activator.runtime.memory import MEMORY_CHECK_S, FreedMemory, resident_bytes
from activator.runtime.profiler import Profiler, ProfilerBusyError
from activator.runtime.tasks import TaskGroupOwner, describe_tasks, pause
from activator.runtime.wire import Wire
from activator.telemetry.logs.app_log import LOG_WINDOW_S, AppLog
from activator.telemetry.metrics.request_counts import RequestCounter, RequestCounts
from activator.telemetry.switchboard import Telemetry
from activator.workers.messages import (
    AllowGrants,
    Answer,
    ApplyClusterSettings,
    CheckCertificates,
    FromWorker,
    GetCapture,
    GetProfile,
    GetRequests,
    GetSnapshot,
    GetStatistics,
    GetTasks,
    Join,
    Link,
    Listen,
    Listening,
    Members,
    Reconfigure,
    RequestsCounted,
    Retire,
    Rewire,
    SetLogLevel,
    Snapshot,
    SocketClosed,
    StartWorker,
    Statistics,
    StopWorker,
    ToWorker,
    Unlinked,
    WorkerAlive,
    WorkerCounts,
    WorkerStarted,
    encode,
    to_worker,
)
from activator.workers.peers import Peers, make_peers
from lb.rng import Rng

ALIVE_INTERVAL_S: Final = 0.2  # interval of the heartbeats
STATISTICS_AT_ONCE: Final = 20  # revisions that are reported in one turn, some 20 us each
SERIES_AT_ONCE: Final = 20  # series of Knative's metrics that are reported in one turn, some 20 us each

EXIT_ENDED: Final = 0
EXIT_NOT_STARTED: Final = 3
EXIT_ORPHANED: Final = 5  # the parent has ended

log = logging.getLogger("activator")

_EFFECTS: Final = frozenset(get_args(Effect))
_COMMANDS: Final = frozenset(get_args(Command))


def load() -> None:
    """Import the modules that every worker uses, so that the workers share their memory."""
    import uvloop  # noqa: F401  (the loop of `main`)


def main(descriptor: int) -> int:
    """Serve until the parent sends `StopWorker`, and return the exit code."""
    import uvloop

    return uvloop.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> int:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    worker = Worker(sock)
    return await worker.ended


class Worker:
    """The worker's end of the wire. `sock` is connected to the parent.

    `tasks`: the owner of its tasks, if it has become a worker later (`continue_as`).
    """

    def __init__(self, sock: socket.socket, tasks: TaskGroupOwner | None = None) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._tasks = tasks or TaskGroupOwner(self._task_failed)
        self._may_outlive = tasks is not None  # the parent is a later process of the activator
        self._is_orphan = False
        self._reaper: list[int] = []  # descriptors of the pipe to the reaper, which end with this process
        self._outgoing: list[FromWorker] = []
        self._wire = self._connect(sock)
        self._profiler = Profiler(time.monotonic)
        self._serving: Serving | None = None  # from `StartWorker` on

    def continue_as(self, serving: Serving) -> None:
        """Make a data plane that has served alone one of the workers of the parent."""
        self._serving = serving
        self._tasks.repeat("alive", ALIVE_INTERVAL_S, lambda: self.send(WorkerAlive()))

    # --- messages of and to the parent ---

    def send(self, message: FromWorker) -> None:
        """Send a message at the end of this turn; without a parent drop it, and exit after `Drained`."""
        if self._is_orphan:
            if isinstance(message, Drained):
                self._exit_with(EXIT_ENDED if message.finished else EXIT_ORPHANED)
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self._wire.send_now(encode(outgoing))

    def _orphaned(self) -> None:
        """Exit because the parent has ended; a worker that may outlive it first finishes its requests."""
        if not self._may_outlive or self._serving is None:
            os._exit(EXIT_ORPHANED)
        self._is_orphan = True
        log.error("the process that had taken over has ended: requests in flight are finished, then this one ends too")
        self._serving.data.reject_queued("the process that had taken over has ended")
        self._serving.data.drain_as_configured()

    def _rewire(self, sock: socket.socket) -> None:
        """Continue with another parent."""
        self._flush()
        self._wire.close()
        self._may_outlive = True
        self._wire = self._connect(sock)

    def _connect(self, sock: socket.socket) -> Wire:
        def closed() -> None:
            if wire is self._wire:  # else the former parent has closed its end
                self._orphaned()

        wire = Wire(sock, self._received, closed, self._failed)
        return wire

    def _received(self, data: memoryview, descriptors: list[int]) -> None:
        """Process the messages of a frame; `descriptors` are those of all its messages, in order."""
        unused = deque(descriptors)  # each message takes its own from the left
        effects: list[Effect] = []
        for message in to_worker(data):
            if type(message) in _EFFECTS:
                effects.append(message)  # type: ignore[arg-type]
                continue
            if effects:
                self._apply(effects)
                effects = []
            try:
                self._process(message, unused)
            except Exception as error:
                self._failed(error)
        if effects:
            self._apply(effects)

    def _apply(self, effects: list[Effect]) -> None:
        assert self._serving is not None, "effects before StartWorker"
        self._serving.data.apply(effects)

    def _process(self, message: ToWorker, unused: deque[int]) -> None:
        if isinstance(message, StartWorker):
            self._begin(message)
            return
        serving = self._serving
        assert serving is not None, "StartWorker comes first"
        if type(message) in _COMMANDS:
            serving.data.execute(message)  # type: ignore[arg-type]
        elif isinstance(message, Members):
            serving.adopt(message)
        elif isinstance(message, Link):
            seal = None if message.keys is None else Seal(message.keys)
            serving.peers.link(message.number, socket.socket(fileno=unused.popleft()), seal)
        elif isinstance(message, AllowGrants):
            serving.allow_grants(message.allowed)
        elif isinstance(message, Listen):
            new_sockets = [socket.socket(fileno=unused.popleft()) for one in message.sockets if one.comes]
            self._tasks.start("listeners", serving.listen(message, deque(new_sockets)))
        elif isinstance(message, CheckCertificates):
            serving.check_certificates()
        elif isinstance(message, Reconfigure):
            serving.telemetry.set(message.config)
            serving.data.reconfigure(message.config)
        elif isinstance(message, ApplyClusterSettings):
            serving.telemetry.settle(message.settings)
        elif isinstance(message, SetLogLevel):
            if serving.telemetry.app_log is not None:
                serving.telemetry.app_log.set_level(message.part, message.level)
        elif isinstance(message, Rewire | Join | Retire | StopWorker):
            self._end_or_move(message, unused, serving)
        else:
            self._answer(message, serving)

    def _end_or_move(self, message: Rewire | Join | Retire | StopWorker, unused: deque[int], serving: Serving) -> None:
        """End, or take a step of the move to a later process of the activator."""
        if isinstance(message, StopWorker):
            self._tasks.start("end", self._end(serving))
        elif isinstance(message, Rewire):
            self._rewire(socket.socket(fileno=unused.popleft()))
            self._reaper.extend(unused)
            unused.clear()
        elif isinstance(message, Retire):
            serving.data.retire()
        else:
            for load in serving.data.tables.all_loads():
                self.send(load)
            self.send(WorkerStarted())

    def _answer(self, message: ToWorker, serving: Serving) -> None:
        """Answer a query of the parent."""
        if isinstance(message, GetStatistics):
            self._tasks.start("statistics", serving.report(message))
        elif isinstance(message, GetSnapshot):
            self.send(Snapshot(message.query, serving.data.snapshot()))
        elif isinstance(message, GetRequests):
            found = serving.data.last_requests(message.key, message.count)
            self.send(Answer(message.query, {**found, "wall_s": time.time()}))
        elif isinstance(message, GetCapture):
            self.send(Answer(message.query, serving.data.capture_of(message.number)))
        elif isinstance(message, GetTasks):
            self.send(Answer(message.query, describe_tasks()))
        elif isinstance(message, GetProfile):
            self._tasks.start("profile", self._profile(message))

    def _begin(self, message: StartWorker) -> None:
        """Make the data plane, or exit if it cannot start."""
        try:
            self._serving = make_serving(message, self, self._tasks)
        except StartError as error:
            log.critical("%s", error)
            self._exit_with(EXIT_NOT_STARTED)
            return
        self._tasks.repeat("alive", ALIVE_INTERVAL_S, lambda: self.send(WorkerAlive()))
        self._tasks.repeat("log", LOG_WINDOW_S, self._serving.telemetry.sweep)
        self._tasks.repeat("freed memory", MEMORY_CHECK_S, FreedMemory().check)
        self.send(WorkerStarted())

    async def _end(self, serving: Serving) -> None:
        serving.telemetry.close()
        self._exit_with(EXIT_ENDED)

    async def _profile(self, message: GetProfile) -> None:
        try:
            answer = Answer(message.query, await asyncio.to_thread(self._profiler.take, message.seconds))
        except ProfilerBusyError:
            answer = Answer(message.query, None, "a profile is being taken already")
        self.send(answer)

    def _exit_with(self, code: int) -> None:
        """End the program with this exit code, unless it already ends."""
        if not self.ended.done():
            self.ended.set_result(code)

    # --- defects ---

    def _failed(self, error: Exception) -> None:
        if self._serving is not None:
            self._serving.data.failed(error)
        else:
            log.error("internal error in a worker during its start", exc_info=error)

    def _task_failed(self, name: str, error: BaseException) -> None:
        if self._serving is not None:
            self._serving.data.errors_total += 1
        log.error("the task %s failed", name, exc_info=error)


class Serving:
    """The data plane of a worker, with its links, its telemetry and its listening sockets."""

    def __init__(
        self,
        worker: Worker,
        tasks: TaskGroupOwner,
        data: DataPlane,
        peers: Peers,
        telemetry: Telemetry,
        server: Server,
    ) -> None:
        assert peers.member is not None, "the peers have their member"
        self._worker = worker
        self._tasks = tasks
        self.data = data
        self.peers = peers
        self._member = peers.member
        self.telemetry = telemetry
        self._server = server
        self.counter: RequestCounter | None = None  # set once Knative's metrics have been on
        self._listening: dict[int, ListeningSocket] = {}
        self._listen_lock = asyncio.Lock()
        self._reported: dict[int, tuple[int, int]] = {}  # last reported counts of idle revisions, by incarnation

    def adopt(self, message: Members) -> None:
        """Adopt a view."""
        unproven = frozenset(message.unproven_replicas)
        view = View(message.epoch, message.workers, frozenset(), unproven, message.follows, message.is_next)
        if self.peers.recorder is not None:
            self.peers.recorder.adopted(view)
        self.data.adopt(view)
        self.peers.keep_only({one.number for one in message.workers})

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid that this member grants slots."""
        self.data.allow_grants(allowed)

    # --- listening sockets ---

    async def listen(self, message: Listen, new_sockets: deque[socket.socket]) -> None:
        """Open the new sockets, then close those that are not named."""
        async with self._listen_lock:
            for given in message.sockets:
                if given.comes:
                    await self._open(given.number, given.wanted, new_sockets.popleft())
            named = {given.number for given in message.sockets}
            for number in [number for number in self._listening if number not in named]:
                self._server.close(self._listening.pop(number))
        self._worker.send(Listening())

    async def _open(self, number: int, wanted: str | Listener, sock: socket.socket) -> None:
        certificate = None
        if isinstance(wanted, Listener) and wanted.is_secure():
            try:
                certificate = ServerCertificate(wanted)
            except StartError as error:  # the parent could read it, so the files were replaced just now
                log.error("%s; next attempt at the next check of the certificates", error)
                sock.close()
                self._worker.send(SocketClosed(number))
                return
        sock.setblocking(False)
        listener = self._listening[number] = ListeningSocket(sock, wanted, certificate, sock.family == socket.AF_UNIX)
        await self._server.open(listener)

    def check_certificates(self) -> None:
        """Check the files of the certificates."""
        self._server.check_certificates()

    # --- figures ---

    async def report(self, query: GetStatistics) -> None:
        """Send the statistics in parts, and yield to the loop between them."""
        part: list[RevisionStatistics] = []
        for one in self._revisions(query.everything):
            part.append(one)
            if len(part) == STATISTICS_AT_ONCE:
                self._worker.send(Statistics(query.query, tuple(part), complete=False))
                part = []
                await pause(0.0)
        if self.counter is not None:
            await self._report_requests(self.counter)
        counts = WorkerCounts(
            self.data.statistics(),
            self.telemetry.access_log.lost_total,
            dict(self.telemetry.traces.totals),
            time.process_time(),
            resident_bytes(),
            *self._member.ownership(),
        )
        self._worker.send(Statistics(query.query, tuple(part), complete=True, counts=counts))

    async def _report_requests(self, counter: RequestCounter) -> None:
        counter.requests.forget_others(self.data.tables.throttlers.keys())
        changed = counter.requests.take_changed()
        for begin in range(0, len(changed), SERIES_AT_ONCE):
            part = changed[begin : begin + SERIES_AT_ONCE]
            self._worker.send(RequestsCounted(tuple([RequestCounts.of(key, series) for key, series in part])))
            await pause(0.0)

    def _revisions(self, everything: bool) -> Iterator[RevisionStatistics]:
        """Yield all statistics, or those that may differ from the last report; record the counts of idle revisions."""
        known, self._reported = self._reported, {}
        for throttler in self.data.throttlers():
            incarnation = throttler.incarnation
            counted = (throttler.counters.requests_total, throttler.counters.granted_total)
            if not throttler.has_requests():
                self._reported[incarnation] = counted
                if not everything and known.get(incarnation) == counted:
                    continue
            yield self.data.statistics_of(throttler)


def make_serving(begin: StartWorker, worker: Worker, tasks: TaskGroupOwner) -> Serving:
    """Make a worker's data plane, links and telemetry. Raises StartError if spans cannot be sent as configured."""
    loop = asyncio.get_running_loop()
    now = time.monotonic
    rng = Rng(begin.seed)
    app_log = AppLog(sys.stderr, now, begin.log_level or None, f"worker {begin.place}")
    app_log.install(begin.config.log)
    data = DataPlane(begin.config, now, worker.send, rng, tasks, begin.place == 0)
    peers = make_peers(data, begin.number, begin.first_slot, lambda number: worker.send(Unlinked(number)), now)
    serving: Serving | None = None

    def make_counter() -> RequestCounter:
        assert serving is not None, "it serves first"
        serving.counter = RequestCounter(data.proxy, data.failed)
        return serving.counter

    telemetry = Telemetry(
        *(data.proxy, Controllers(now), app_log, Rng(rng.below(1 << 30)), now, loop.call_soon, loop.call_later),
        *(time.time, time.time_ns, data.failed, make_counter),
        shared=True,
    )
    serving = Serving(worker, tasks, data, peers, telemetry, data.start())
    telemetry.set(begin.config)
    return serving
