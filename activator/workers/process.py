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
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.view import View
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import ListeningSocket, Server
from activator.members.handshake import Seal
from activator.messages import Command, Effect, RevisionStatistics
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
    Alive,
    AllowGrants,
    Answer,
    Begin,
    Begun,
    CheckCertificates,
    End,
    FromWorker,
    GetCapture,
    GetProfile,
    GetRequests,
    GetSnapshot,
    GetStatistics,
    GetTasks,
    Link,
    Listen,
    Listening,
    Members,
    Reconfigure,
    RequestsCounted,
    SetLogLevel,
    Settle,
    Snapshot,
    Statistics,
    ToWorker,
    Unlinked,
    Unserved,
    WorkerCounts,
    encode,
    to_worker,
)
from activator.workers.peers import Peers
from activator.workers.trace import recorder_from_environment
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
    """Serve until the parent sends `End`, and return the exit code."""
    import uvloop

    return uvloop.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> int:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    worker = Worker(sock)
    return await worker.ended


class Worker:
    """The worker's end of the wire. `sock` is connected to the parent."""

    def __init__(self, sock: socket.socket) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._tasks = TaskGroupOwner(self._task_failed)
        self._outgoing: list[FromWorker] = []
        self._wire = Wire(sock, self._received, self._orphaned, self._failed)
        self._profiler = Profiler(time.monotonic)
        self._serving: Serving | None = None  # from `Begin` on

    # --- messages of and to the parent ---

    def send(self, message: FromWorker) -> None:
        """Send a message at the end of this turn."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self._wire.send_now(encode(outgoing))

    def _orphaned(self) -> None:
        os._exit(EXIT_ORPHANED)

    def _received(self, data: memoryview, descriptors: list[int]) -> None:
        given = deque(descriptors)
        effects: list[Effect] = []
        for message in to_worker(data):
            if type(message) in _EFFECTS:
                effects.append(message)  # type: ignore[arg-type]
                continue
            if effects:
                self._apply(effects)
                effects = []
            try:
                self._act(message, given)
            except Exception as error:
                self._failed(error)
        if effects:
            self._apply(effects)

    def _apply(self, effects: list[Effect]) -> None:
        assert self._serving is not None, "effects before Begin"
        self._serving.data.apply(effects)

    def _act(self, message: ToWorker, given: deque[int]) -> None:
        if isinstance(message, Begin):
            self._begin(message)
            return
        serving = self._serving
        assert serving is not None, "Begin comes first"
        if type(message) in _COMMANDS:
            serving.data.execute(message)  # type: ignore[arg-type]
        elif isinstance(message, Members):
            serving.adopt(message)
        elif isinstance(message, Link):
            seal = None if message.keys is None else Seal(message.keys)
            serving.peers.link(message.number, socket.socket(fileno=given.popleft()), seal)
        elif isinstance(message, AllowGrants):
            serving.allow_grants(message.allowed)
        elif isinstance(message, Listen):
            comes = [socket.socket(fileno=given.popleft()) for one in message.sockets if one.comes]
            self._tasks.start("listeners", serving.listen(message, deque(comes)))
        elif isinstance(message, CheckCertificates):
            serving.check_certificates()
        elif isinstance(message, Reconfigure):
            serving.telemetry.set(message.config)
            serving.data.reconfigure(message.config)
        elif isinstance(message, Settle):
            serving.telemetry.settle(message.settings)
        elif isinstance(message, SetLogLevel):
            serving.app_log.set_level(message.part, message.level)
        elif isinstance(message, End):
            self._tasks.start("end", self._end(serving))
        else:
            self._answer(message, serving)

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

    def _begin(self, message: Begin) -> None:
        try:
            self._serving = Serving(message, self, self._tasks)
        except StartError as error:
            log.critical("%s", error)
            self._leave(EXIT_NOT_STARTED)
            return
        self._tasks.repeat("alive", ALIVE_INTERVAL_S, lambda: self.send(Alive()))
        self._tasks.repeat("log", LOG_WINDOW_S, self._serving.telemetry.sweep)
        self._tasks.repeat("freed memory", MEMORY_CHECK_S, FreedMemory().check)
        self.send(Begun())

    async def _end(self, serving: Serving) -> None:
        serving.telemetry.close()
        self._leave(EXIT_ENDED)

    async def _profile(self, message: GetProfile) -> None:
        try:
            answer = Answer(message.query, await asyncio.to_thread(self._profiler.take, message.seconds))
        except ProfilerBusyError:
            answer = Answer(message.query, None, "a profile is being taken already")
        self.send(answer)

    def _leave(self, code: int) -> None:
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
    """The parts of a worker that `Begin` makes. Raises StartError if spans cannot be sent as configured."""

    def __init__(self, begin: Begin, worker: Worker, tasks: TaskGroupOwner) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic
        rng = Rng(begin.seed)
        self.app_log = AppLog(sys.stderr, now, begin.log_level or None, f"worker {begin.place}")
        self.app_log.install(begin.config.log)
        self._worker = worker
        self._tasks = tasks
        self.data = DataPlane(begin.config, now, worker.send, rng, tasks, begin.place == 0)
        self.peers = Peers(lambda number: worker.send(Unlinked(number)), self.data.failed)
        self._member = Member(begin.number, self.peers.send, self.peers.drop, now, loop.call_later, begin.first_slot)
        self.peers.member = self._member
        self.peers.recorder = recorder_from_environment(self._member, now)
        self.peers.loads = self.data.join(self._member, self.peers.send)
        self.peers.answers = self.data.answer_links
        self.peers.quotas = self.data.quotas
        self._counter: RequestCounter | None = None  # set once Knative's metrics have been on
        self.telemetry = Telemetry(
            self.data.proxy,
            Controllers(now),
            self.app_log,
            Rng(rng.below(1 << 30)),
            now,
            loop.call_soon,
            loop.call_later,
            time.time,
            time.time_ns,
            self.data.failed,
            self._make_counter,
            shared=True,
        )
        self.telemetry.set(begin.config)
        self._server: Server = self.data.start()
        self._listening: dict[int, ListeningSocket] = {}
        self._turn = asyncio.Lock()
        self._reported: dict[int, tuple[int, int]] = {}  # last reported counts of idle revisions, by incarnation

    def adopt(self, message: Members) -> None:
        """Adopt a view."""
        unproven = frozenset(message.unproven_replicas)
        view = View(message.epoch, message.workers, frozenset(), unproven, message.follows, message.is_next)
        if self.peers.recorder is not None:
            self.peers.recorder.adopted(view)
        self.data.adopt(view)
        self.peers.keep({one.number for one in message.workers})

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid that this member grants slots."""
        self.data.allow_grants(allowed)

    # --- listening sockets ---

    async def listen(self, message: Listen, comes: deque[socket.socket]) -> None:
        """Open the new sockets, then close those that are not named."""
        async with self._turn:
            for given in message.sockets:
                if given.comes:
                    await self._open(given.number, given.wanted, comes.popleft())
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
                self._worker.send(Unserved(number))
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
        if self._counter is not None:
            await self._report_requests(self._counter)
        counts = WorkerCounts(
            self.data.statistics(),
            self.telemetry.access_log.lost_total,
            dict(self.telemetry.traces.totals),
            time.process_time(),
            resident_bytes(),
            *self._member.ownership(),
        )
        self._worker.send(Statistics(query.query, tuple(part), complete=True, counts=counts))

    def _make_counter(self) -> RequestCounter:
        self._counter = RequestCounter(self.data.proxy, self.data.failed)
        return self._counter

    async def _report_requests(self, counter: RequestCounter) -> None:
        counter.requests.forget_others(self.data.tables.throttlers.keys())
        changed = counter.requests.take_changed()
        for begin in range(0, len(changed), SERIES_AT_ONCE):
            part = changed[begin : begin + SERIES_AT_ONCE]
            self._worker.send(RequestsCounted(tuple([RequestCounts.of(key, series) for key, series in part])))
            await pause(0.0)

    def _revisions(self, everything: bool) -> Iterator[RevisionStatistics]:
        known, self._reported = self._reported, {}
        for throttler in self.data.throttlers():
            incarnation = throttler.incarnation
            counted = (throttler.counters.requests_total, throttler.counters.granted_total)
            if not throttler.has_requests():
                self._reported[incarnation] = counted
                if not everything and known.get(incarnation) == counted:
                    continue
            yield self.data.statistics_of(throttler)
