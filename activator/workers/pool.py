"""The parent's side of its workers: they are started, watched, replaced, and ended as one.

Rules
  1. A worker has a place (0 … n - 1), and a number that no other one has or had. Its place has the listening sockets;
     the worker that comes after it in the place serves what waits there.
  2. A worker has ended when the kernel says so of its process (pidfd): then it has no descriptor any more, so no
     connection to any pod, and what it had may be given to others.
  3. One that says nothing for `limits.worker_stall` is ended. One that ends is replaced at once; of a place whose
     workers end again and again, the next one waits, and its sockets are served by another worker meanwhile.
  4. Everything that is sent to a worker is sent in order, and bounded (runtime/wire.py): one that does not read is
     ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.data_plane.ownership.view import MemberName, View
from activator.members.data_planes import GroupSide
from activator.members.handshake import SessionKeys
from activator.members.lives import Lives
from activator.members.messages import DataPlaneName
from activator.members.numbers import seat_of, worker_number, worker_place
from activator.members.proof import started_at
from activator.messages import Command, Drain, Effect, FromData, RevisionEnded, RevisionStatistics, SentRevision
from activator.runtime.backoff import grown_s
from activator.runtime.certificates import CERTIFICATE_CHECK_S
from activator.runtime.clock import Now
from activator.runtime.errors import NoWorkerError, StartError
from activator.runtime.profiler import ProfilerBusyError
from activator.runtime.tasks import TaskGroupOwner, pause, wait_for
from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX, Wire, pair
from activator.telemetry.metrics.request_counts import RequestReader, WorkersRequests
from activator.workers.fan_out import FanOut
from activator.workers.figures import Figures
from activator.workers.fork_server import Template
from activator.workers.forking import Forking, ForkListener
from activator.workers.messages import (
    Alive,
    AllowGrants,
    AskSnapshot,
    AskStatistics,
    AskTasks,
    Begin,
    Begun,
    End,
    FromWorker,
    Link,
    Listen,
    Listening,
    LookAtCertificates,
    Members,
    Reconfigure,
    RequestsCounted,
    SetLogLevel,
    Settle,
    Snapshot,
    SocketGiven,
    Statistics,
    TakeProfile,
    Told,
    ToWorker,
    Unlinked,
    Unserved,
    WorkerCounts,
    from_worker,
)
from activator.workers.peers import first_slot
from activator.workers.questions import Questions
from activator.workers.snapshots import together
from activator.workers.sockets import PlacedSocket, SharedSockets, SocketChange
from activator.workers.worker_process import Place, WorkerProcess
from activator.workers.workers import ListenerPlan, Workers
from lb.rng import Rng

WORKER_START_S: Final = 20.0  # from the fork until it has begun
WORKER_WATCH_S: Final = 0.25  # how often it is looked at whether workers are alive
WORKER_STABLE_S: Final = 10.0  # a worker that lived for so long did not crash in a loop
WORKER_BACKOFF_INITIAL_S: Final = 0.1  # before the third worker in a row that ends soon
WORKER_BACKOFF_MAX_S: Final = 30.0
WORKER_CLOSE_S: Final = 6.0  # for the last lines of logs and the last spans
STATISTICS_INTERVAL_S: Final = 1.0  # how often workers report what they have counted: what a crash can lose
GATHER_S: Final = 1.0  # how long a scrape waits for workers
PROFILE_SLACK_S: Final = 5.0  # beyond its own length
RELISTEN_S: Final = 2.0  # after which a socket is given again to a worker that could not read its certificate
RETRY_S: Final = 1.0  # after which it is tried again what the system has not allowed

log = logging.getLogger("activator")


class WorkerPool(Workers, ForkListener):
    """`receive` is the control plane's end of the messages; `tables` says what a worker that comes must know;
    `environment` of the workers' processes, and what they are forked from, where it is there already.
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
        template: Template | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._settings: ClusterSettings | None = None
        self._log_levels: dict[str, str] = {}  # set since the last reload
        self._now = now
        self._tables = tables
        self._rng = rng
        self._tasks = tasks
        self._log_level = log_level
        self._places = [Place(index) for index in range(count)]
        self._by_number: dict[int, WorkerProcess] = {}  # that have not ended
        self._numbers = 0
        self._epoch = 0
        self._sockets = SharedSockets(count)
        self._group: GroupSide | None = None
        self._lives = Lives()
        self._fan_out = FanOut(self._send_all, receive, self._lives)
        self._figures = Figures(lambda statistics: receive(RevisionEnded(statistics)))
        self._requests = WorkersRequests()
        self._questions = Questions()
        self._may_grant = True
        self._watched_s = now()  # when hanging workers were last looked for
        self._is_serving = False
        self._is_ending = False
        self._ending: dict[int, int] = {}  # places of workers that have ended, until it is known how
        self._forking = Forking(self, environment, template)

    # --- life ---

    async def start(self) -> None:
        self._forking.start()
        for place in self._places:
            self._start(place)
        first = [place.worker for place in self._places if place.worker is not None]
        if len(first) < len(self._places):
            raise StartError("the workers cannot be started; the reason stands above")
        until_s = self._now() + WORKER_START_S
        for worker in first:
            while not worker.begun.is_set():
                if worker.ended.is_set():
                    raise StartError(f"worker {worker.place} could not start; its reason stands above")
                if self._now() >= until_s:
                    raise StartError(f"worker {worker.place} did not start in {WORKER_START_S:g} s")
                await pause(0.005)
        self._watched_s = self._now()
        self._tasks.repeat("workers", WORKER_WATCH_S, self._watch)
        self._tasks.repeat("statistics", STATISTICS_INTERVAL_S, self._collect)
        self._tasks.repeat("certificates", CERTIFICATE_CHECK_S, self._look_at_certificates)

    async def serve(self) -> None:
        self._is_serving = True
        self._listen()
        until_s = self._now() + WORKER_START_S
        for place in self._places:  # whoever has the place by then
            while place.worker is None or not place.worker.listening.is_set():
                if self._now() >= until_s:
                    raise StartError(f"worker {place.index} does not listen after {WORKER_START_S:g} s")
                await pause(0.005)
        log.info("serving on %s (%d workers)", ", ".join(self.addresses), len(self._places))

    async def close(self) -> None:
        self._is_ending = True
        workers = list(self._by_number.values())
        for worker in workers:
            worker.send(End())
        until_s = self._now() + WORKER_CLOSE_S
        for worker in workers:
            await wait_for(worker.ended, max(until_s - self._now(), 0.0))
        for worker in list(self._by_number.values()):
            log.warning("worker %d has not ended in %g s and is killed", worker.place, WORKER_CLOSE_S)
            worker.kill()
            await wait_for(worker.ended, 1.0)
        self._sockets.close()
        await self._forking.close()

    # --- messages of the control plane ---

    def apply(self, effects: list[Effect]) -> None:
        self._figures.applied(effects, self._fan_out.workers)
        self._fan_out.apply(effects)
        if self._group is not None:
            self._group.lives_changed()

    def execute(self, command: Command) -> None:
        self._fan_out.execute(command)
        if isinstance(command, Drain):
            self._is_ending = True  # nobody is replaced any more
            self._sockets.close()
            self._fan_out.drain_begins()

    def write_out(self) -> None:
        pass  # nothing is written here

    def _send_all(self, number: int, messages: list[Effect | Command]) -> None:
        worker = self._by_number[number]
        for message in messages:
            worker.send(message)

    # --- the group of replicas ---

    def join(self, group: GroupSide) -> None:
        self._group = group
        self._fan_out.use(group.lives)

    def adopt_view(self, view: View) -> None:
        self._tell(Members(view.epoch, view.members, tuple(view.unproven_replicas), view.follows))

    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        for worker in self._begun():
            if worker.member == own:
                worker.send(Link(other, keys), [sock.detach()])
                return
        sock.close()  # it has ended meanwhile

    def allow_grants(self, allowed: bool) -> None:
        self._may_grant = allowed
        self._tell(AllowGrants(allowed))

    def ownership(self) -> tuple[int, int]:
        """As of the last reports of the workers, at most STATISTICS_INTERVAL_S old."""
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
            self._sockets.look_at_certificates()
            self._tell(LookAtCertificates())
            self._listen()

    def reconfigure(self, config: Config) -> None:
        self._config = config
        self._log_levels.clear()
        self._tell(Reconfigure(config))

    def settle(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._tell(Settle(settings))

    def set_log_level(self, part: str, level: str) -> None:
        self._log_levels[part] = level
        self._tell(SetLogLevel(part, level))

    def _tell(self, message: ToWorker) -> None:
        for worker in self._begun():
            worker.send(message)

    def _look_at_certificates(self) -> None:
        if self._sockets.look_at_certificates():
            self._tell(LookAtCertificates())

    # --- figures ---

    async def gather_statistics(self) -> None:
        await self._questions.ask_all(self._begun(), lambda number: AskStatistics(number, everything=True), GATHER_S)

    async def gather_snapshot(self) -> None:
        await self._questions.ask_all(self._begun(), AskSnapshot, GATHER_S)

    def counts(self) -> WorkerCounts:
        return self._figures.counts()

    def revision_statistics(self) -> Iterator[RevisionStatistics]:
        return self._figures.revisions()

    def requests(self) -> RequestReader | None:
        return self._requests

    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        by_place = {worker.place: worker.snapshot for worker in self._begun()}
        if only:
            by_place = {place: {only: shown[only]} for place, shown in by_place.items() if only in shown}
        return together(by_place)

    async def snapshot_of(self, place: int) -> dict[str, dict[str, Any]]:
        worker = self._at(place)
        if not await self._questions.ask_all([worker], AskSnapshot, GATHER_S):
            raise NoWorkerError(f"worker {place} does not answer")
        return worker.snapshot

    async def tasks_of(self, place: int) -> Any:
        return await self._told(place, AskTasks, GATHER_S)

    async def profile_of(self, place: int, seconds: float) -> Any:
        return await self._told(place, lambda number: TakeProfile(number, seconds), seconds + PROFILE_SLACK_S)

    async def _told(self, place: int, make: Callable[[int], ToWorker], limit_s: float) -> Any:
        told = await self._questions.ask(self._at(place), make, limit_s)
        if told is None:
            raise NoWorkerError(f"worker {place} does not answer")
        if told.problem:
            raise ProfilerBusyError(told.problem)
        return told.data

    def _at(self, place: int) -> WorkerProcess:
        worker = self._places[place].worker if 0 <= place < len(self._places) else None
        if worker is None or not worker.begun.is_set():
            raise NoWorkerError(f"there is no worker {place} now: 0 to {len(self._places) - 1}")
        return worker

    def describe(self) -> list[dict[str, Any]]:
        return [self._described(place) for place in self._places]

    def _described(self, place: Place) -> dict[str, Any]:
        worker = place.worker
        state = "waiting" if worker is None else "serving" if worker.begun.is_set() else "starting"
        return {
            "worker": place.index,
            "state": state,
            "pid": 0 if worker is None else worker.process,
            "age_s": 0.0 if worker is None else round(self._now() - worker.started_s, 3),
            "restarts": place.restarts_total,
        }

    def _collect(self) -> None:
        self._tell(AskStatistics(0, everything=False))
        self._requests.forget_others(self._figures.revision_keys())

    # --- workers ---

    def _begun(self) -> list[WorkerProcess]:
        return [worker for worker in self._by_number.values() if worker.begun.is_set() and not worker.ended.is_set()]

    def _start(self, place: Place) -> None:
        try:
            self._fork(place)
        except OSError as error:  # no descriptors, or the fork server is just ending
            log.error("worker %d cannot be started, again in %g s: %s", place.index, RETRY_S, error)
            place.waits_until_s = self._now() + RETRY_S
            self._loop.call_later(RETRY_S, self._start_later, place)

    def _fork(self, place: Place) -> None:
        """Raises OSError."""
        own, others = pair()
        number = self._numbers + 1
        try:
            self._forking.fork(number, others)
        except OSError:
            own.close()
            raise
        finally:
            others.close()
        self._numbers = number
        member = number if self._group is None else worker_number(self._group.replica, number)
        worker = WorkerProcess(number, member, place.index, self._now())
        place.worker = self._by_number[number] = worker
        worker.wire = Wire(
            own,
            lambda data, _: self._received(worker, data),
            lambda: self._wire_closed(worker),
            lambda error: self._failed(worker, error),
        )
        first = 0 if self._group is None else first_slot(os.urandom)
        worker.send(Begin(member, place.index, self._config, self._rng.below(1 << 30), self._log_level, first))

    def _take_in(self, worker: WorkerProcess) -> None:
        """It takes part once it is ready, and its end will be known: before that it must have no slots."""
        if not worker.is_ready or worker.pidfd < 0 or worker.begun.is_set():
            return
        worker.begun.set()
        others = [one for one in self._begun() if one is not worker]
        for other in others:
            self._link(worker, other)
        self._publish()
        if not self._may_grant:
            worker.send(AllowGrants(False))
        if self._settings is not None:
            worker.send(Settle(self._settings))
        for part, level in self._log_levels.items():
            worker.send(SetLogLevel(part, level))
        self._fan_out.joined(worker.number, self._tables())
        if self._is_serving and not self._is_ending:
            self._listen()

    def _link(self, one: WorkerProcess, other: WorkerProcess) -> None:
        if one.ended.is_set() or other.ended.is_set():
            return
        try:
            end, other_end = pair()
        except OSError as error:  # no descriptors: the two wait for each other meanwhile
            log.error("workers %d and %d cannot be linked, again in %g s: %s", one.place, other.place, RETRY_S, error)
            self._loop.call_later(RETRY_S, self._link, one, other)
            return
        one.send(Link(other.member), [end.detach()])
        other.send(Link(one.member), [other_end.detach()])

    def _publish(self) -> None:
        """Who the workers are; in a group it is the group that makes a view of it."""
        if self._group is not None:
            self._group.set_data_planes(tuple([self._named(worker) for worker in self._begun()]))
            return
        self._epoch += 1
        members = tuple([MemberName(worker.member, worker.place) for worker in self._begun()])
        self._tell(Members(self._epoch, members))

    def _named(self, worker: WorkerProcess) -> DataPlaneName:
        assert self._group is not None, "names are for the group"
        place = worker_place(seat_of(self._group.replica), worker.place)
        try:
            started = started_at(worker.process)
        except OSError:  # it has just ended, or the kernel does not say: its end cannot be seen by other replicas
            started = 0
        return DataPlaneName(worker.member, place, worker.process, started)

    def _listen(self) -> None:
        """Each worker has the sockets of its place; those of places without a worker are with the first one."""
        workers = self._begun()
        if not workers or self._is_ending:
            return
        vacant = [place.index for place in self._places if place.worker is None and place.waits_until_s > self._now()]
        for worker in workers:
            places = [worker.place, *(vacant if worker is workers[0] else [])]
            self._give_sockets(worker, places)

    def _give_sockets(self, worker: WorkerProcess, places: list[int]) -> None:
        sockets = self._sockets.of_places(places)
        wanted = {one.number for one in sockets}
        new = [one for one in sockets if one.number not in worker.given]
        if not new and worker.given == wanted:
            return
        for begin in range(0, max(len(new), 1), DESCRIPTORS_AT_ONCE_MAX):
            some = new[begin : begin + DESCRIPTORS_AT_ONCE_MAX]
            try:
                descriptors = _duplicates(some)
            except OSError as error:
                log.error("worker %d cannot be given its sockets, again in %g s: %s", worker.place, RETRY_S, error)
                self._loop.call_later(RETRY_S, self._listen)
                return
            coming = {one.number for one in some}
            worker.given |= coming
            there = [one for one in sockets if one.number in worker.given]
            named = tuple([SocketGiven(one.number, one.wanted, one.number in coming) for one in there])
            worker.listens_awaited += 1
            worker.listening.clear()
            worker.send(Listen(named), descriptors)
        worker.given &= wanted

    def _received(self, worker: WorkerProcess, data: memoryview) -> None:
        worker.heard_s = self._now()
        for message in from_worker(data):
            try:
                self._act(worker, message)
            except Exception as error:
                self._failed(worker, error)

    def _act(self, worker: WorkerProcess, message: FromWorker) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Begun):
            worker.is_ready = True
            self._take_in(worker)
        elif isinstance(message, Listening):
            worker.listens_awaited -= 1
            if worker.listens_awaited == 0:
                worker.listening.set()
        elif isinstance(message, Unserved):
            worker.given.discard(message.number)
            self._loop.call_later(RELISTEN_S, self._listen)
        elif isinstance(message, Unlinked):
            self._unlinked(worker, message.number)
        elif isinstance(message, Statistics):
            self._figures.reported(worker.number, message.revisions)
            if message.complete:
                self._figures.counted(worker.number, message.counts)
                self._questions.answered(message.question, worker.number)
        elif isinstance(message, RequestsCounted):
            self._requests.received(worker.number, message.series)
        elif isinstance(message, Told):
            self._questions.answered(message.question, worker.number, message)
        elif isinstance(message, Snapshot):
            worker.snapshot = message.revisions
            self._questions.answered(message.question, worker.number)
        elif isinstance(message, RevisionEnded):
            self._figures.revision_ended(worker.number, message)
        else:
            self._fan_out.receive(worker.number, message)

    def _unlinked(self, worker: WorkerProcess, member: int) -> None:
        for other in self._begun():
            if other.member == member:
                self._link(worker, other)
                return
        if self._group is not None:
            self._group.unlinked(worker.member, member)

    def _wire_closed(self, worker: WorkerProcess) -> None:
        """It is about to end; or it does not read, or says what cannot be understood."""
        worker.kill()

    def _failed(self, worker: WorkerProcess, error: Exception) -> None:
        log.error("a message of worker %d could not be dealt with", worker.place, exc_info=error)

    def _ended(self, worker: WorkerProcess) -> None:
        """Its process has ended: it has nothing any more."""
        if worker.ended.is_set():
            return
        if worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
            self._ending[worker.number] = worker.place
        worker.close()
        del self._by_number[worker.number]
        self._questions.worker_ended(worker.number)
        place = self._places[worker.place]
        place.worker = None
        if worker.begun.is_set():
            self._publish()
            self._fan_out.left(worker.number)
            self._figures.worker_ended(worker.number)
            self._requests.worker_ended(worker.number)
        if not self._is_ending:
            self._replace(place, worker)

    def _replace(self, place: Place, former: WorkerProcess) -> None:
        now_s = self._now()
        place.restarts_total += 1
        lived_s = now_s - former.started_s
        place.short_lives = place.short_lives + 1 if lived_s < WORKER_STABLE_S else 0
        delay_s = 0.0
        if place.short_lives > 1:
            delay_s = grown_s(WORKER_BACKOFF_INITIAL_S, place.short_lives - 2, WORKER_BACKOFF_MAX_S)
        if delay_s == 0.0:
            self._start(place)
            return
        log.error(
            "worker %d has ended %d times in a row within %g s of its start; the next is started in %g s",
            *(place.index, place.short_lives, WORKER_STABLE_S, delay_s),
        )
        place.waits_until_s = now_s + delay_s
        self._loop.call_later(delay_s, self._start_later, place)
        self._listen()  # others serve what comes meanwhile

    def _start_later(self, place: Place) -> None:
        place.waits_until_s = 0.0
        if not self._is_ending and place.worker is None:
            self._start(place)

    def _watch(self) -> None:
        """End those that hang. While the parent itself had no time, nobody could be heard."""
        stall_s = float(self._config.limits.worker_stall)
        now_s = self._now()
        lost_s = max(now_s - self._watched_s - 2.0 * WORKER_WATCH_S, 0.0)
        self._watched_s = now_s
        for worker in list(self._by_number.values()):
            worker.heard_s += lost_s
            limit_s = stall_s if worker.begun.is_set() else max(stall_s, WORKER_START_S)
            if limit_s > 0.0 and now_s - worker.heard_s > limit_s and not worker.is_killed:
                log.error("worker %d has said nothing for %.1f s and is ended", worker.place, limit_s)
                worker.kill()
                if worker.pidfd < 0:
                    self._forking.restart()  # it was never forked

    # --- what the fork server says ---

    def forked(self, number: int, process: int, pidfd: int) -> None:
        worker = self._by_number.get(number)
        if worker is None:  # given up meanwhile: its wire is closed, and it leaves by itself
            os.close(pidfd)
            return
        worker.forked(process, pidfd)
        self._loop.add_reader(pidfd, self._ended, worker)
        self._take_in(worker)

    def not_forked(self, number: int, reason: str) -> None:
        worker = self._by_number.get(number)
        if worker is not None:
            log.error("worker %d cannot be started: %s", worker.place, reason)
            self._ended(worker)

    def exited(self, number: int, process: int, how: str) -> None:
        worker = self._by_number.get(number)
        place = self._ending.pop(number, -1) if worker is None else worker.place
        if not self._is_ending:
            log.error("worker %d (process %d) %s", place, process, how)

    def forks_lost(self) -> None:
        self._ending.clear()
        for worker in [one for one in self._by_number.values() if one.pidfd < 0]:
            self._ended(worker)  # it does not take part yet; if it is there, it leaves when its wire is closed


def _duplicates(sockets: list[PlacedSocket]) -> list[int]:
    """Descriptors of them; all or none. Raises OSError."""
    made: list[int] = []
    try:
        made.extend(os.dup(one.socket.fileno()) for one in sockets)
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    return made
