"""The life of the workers: they are forked, watched, ended when they hang, and replaced when they have ended.

Rules
  1. A worker takes part once it has reported `WorkerStarted` and its pidfd is known; it gets no slots before that.
  2. A worker has ended when its pidfd becomes readable: then it has no descriptor, so no connection to any pod.
  3. A worker that sends nothing for `limits.worker_stall` is killed. A worker that ends is replaced at once; if the
     workers of a place end soon after their start again and again, the next start is delayed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import ExitStack
from typing import Final, Protocol

from activator.config.model.file import Config
from activator.members.numbers import worker_number
from activator.runtime.backoff import grown_s
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.tasks import pause, wait_for
from activator.runtime.wire import Wire, pair
from activator.workers.fork_server import Zygote
from activator.workers.forking import Forking, ForkListener
from activator.workers.messages import Rewire, StartWorker, StopWorker
from activator.workers.peers import first_slot
from activator.workers.worker_process import WorkerProcess, WorkerSlot
from activator.workers.workers import Released, ReleasedWorker
from lb.rng import Rng

WORKER_START_S: Final = 20.0  # from the fork until the worker has begun
WORKER_WATCH_S: Final = 0.25  # interval of the check for workers that hang
WORKER_STABLE_S: Final = 10.0  # a worker that lived for so long did not crash in a loop
WORKER_BACKOFF_INITIAL_S: Final = 0.1  # delay before the third worker in a row that ends soon
WORKER_BACKOFF_MAX_S: Final = 30.0
WORKER_CLOSE_S: Final = 6.0  # for the last lines of logs and the last spans
RELEASE_S: Final = 1.0  # for the last messages to a worker that another process takes over
RETRY_S: Final = 1.0  # delay before the system is asked again for something that it refused

log = logging.getLogger("activator")


class WorkerListener(Protocol):
    """The recipient of the events of all workers."""

    def received(self, worker: WorkerProcess, data: memoryview) -> None:
        """Process a frame of a worker."""

    def failed(self, worker: WorkerProcess, error: Exception) -> None:
        """Report that a frame of a worker could not be processed."""

    def begun(self, worker: WorkerProcess) -> None:
        """Add a worker to those that take part."""

    def ended(self, worker: WorkerProcess) -> None:
        """Clean up after a worker whose process has ended. Its place is vacant already."""

    def vacant(self) -> None:
        """Serve the sockets of a place whose next worker is delayed."""


class WorkerLifecycle(ForkListener):
    """The processes of `count` places. `environment` and `zygote`: as in `Forking`."""

    def __init__(
        self,
        config: Config,
        count: int,
        listener: WorkerListener,
        now: Now,
        rng: Rng,
        environment: dict[str, str],
        log_level: str,
        zygote: Zygote | None = None,
    ) -> None:
        self.config = config
        self.replica = 0  # number of this replica in its group; 0 outside of a group
        self.places = [WorkerSlot(index) for index in range(count)]
        self.by_number: dict[int, WorkerProcess] = {}  # workers that have not ended
        self.is_ending = False  # no worker is replaced any more
        self._is_released = False  # the workers continue with a later process
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._now = now
        self._rng = rng
        self._log_level = log_level
        self.last_number = 0  # the number of the newest worker
        self._watched_s = now()
        self._ending: dict[int, int] = {}  # places of ended workers whose exit status is not known yet, by number
        self._forking = Forking(self, environment, zygote)

    def taking_part(self) -> list[WorkerProcess]:
        """Return the workers that have begun and have not ended, including those of former processes."""
        return [worker for worker in self.by_number.values() if worker.begun.is_set() and not worker.ended.is_set()]

    def own(self) -> list[WorkerProcess]:
        """Return the workers that take part and that this process has started."""
        return [worker for worker in self.taking_part() if not worker.is_former]

    async def start(self) -> None:
        """Start a worker at each place, and wait until they take part. Raises StartError."""
        self._forking.start()
        for place in self.places:
            self._start(place)
        workers = [place.worker for place in self.places if place.worker is not None]
        if len(workers) < len(self.places):
            raise StartError("not all workers could be started; see the preceding errors")
        until_s = self._now() + WORKER_START_S
        for worker in workers:
            while not worker.begun.is_set():
                if worker.ended.is_set():
                    raise StartError(f"worker {worker.place} could not start; see its error above")
                if self._now() >= until_s:
                    raise StartError(f"worker {worker.place} did not start in {WORKER_START_S:g} s")
                await pause(0.005)
        self._watched_s = self._now()

    # --- the hand-over between processes of the activator ---

    def take_in(self, number: int, process: int, pidfd: int, sock: socket.socket) -> WorkerProcess:
        """Add a worker of a former process. Its place is a negative number, because it serves no new clients."""
        worker = WorkerProcess(number, number, -number, self._now())
        worker.is_former = worker.is_ready = True
        self.by_number[number] = worker
        self._connect(worker, sock)
        self.forked(number, process, pidfd)
        return worker

    def end_former(self, worker: WorkerProcess) -> None:
        """End a worker of a former process, whose last request has ended."""
        worker.is_over = True
        worker.send(StopWorker())

    async def release(self, reaper: int) -> Released:
        """Make all workers continue with a later process; no worker is started or replaced any more. Raises OSError.

        `reaper`: the pipe to the reaper, or -1.
        """
        prepared = []
        with ExitStack() as undo:
            for worker in self.taking_part():
                own, other_end = pair()
                undo.callback(own.close)
                undo.callback(other_end.close)
                pipe = [os.dup(reaper)] if reaper >= 0 and not worker.is_former else []
                pidfd = os.dup(worker.pidfd)
                for descriptor in (*pipe, pidfd):
                    undo.callback(os.close, descriptor)
                group = os.getpgid(worker.process)
                prepared.append(
                    (worker, other_end, pipe, ReleasedWorker(worker.number, worker.process, group, own, pidfd))
                )
            undo.pop_all()
        self.is_ending = self._is_released = True
        for worker, other_end, pipe, _ in prepared:
            worker.send(Rewire(), [other_end.detach(), *pipe])
        workers = [worker for worker, *_ in prepared]
        until_s = self._now() + RELEASE_S
        for worker in list(self.by_number.values()):
            if worker not in workers:
                worker.kill()  # it has not begun
            while not worker.ended.is_set() and self._now() < until_s:  # until it has closed its end
                await pause(0.001)
            self._forget(worker)
        self._forking.abandon()
        return Released([released for *_, released in prepared], 0)

    def _forget(self, worker: WorkerProcess) -> None:
        """Stop watching a worker, and close the wire to it; the process itself continues."""
        if worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
        worker.close()
        self.by_number.pop(worker.number, None)

    async def end(self) -> None:
        """Ask all workers to end, and kill those that have not ended after WORKER_CLOSE_S."""
        self.is_ending = True
        workers = list(self.by_number.values())
        for worker in workers:
            worker.is_over = True
            worker.send(StopWorker())
        until_s = self._now() + WORKER_CLOSE_S
        for worker in workers:
            await wait_for(worker.ended, max(until_s - self._now(), 0.0))
        for worker in list(self.by_number.values()):
            log.warning("worker %d has not ended in %g s and is killed", worker.place, WORKER_CLOSE_S)
            worker.kill()
            await wait_for(worker.ended, 1.0)

    async def close(self) -> None:
        """End the fork server."""
        await self._forking.close()

    def begun(self, worker: WorkerProcess) -> None:
        """Register that the worker has reported `WorkerStarted`."""
        worker.is_ready = True
        worker.joined.set()
        self._begin_if_complete(worker)

    def watch(self) -> None:
        """Kill the workers that hang. Pauses of this process do not count as silence of the workers."""
        stall_s = float(self.config.limits.worker_stall)
        now_s = self._now()
        paused_s = max(now_s - self._watched_s - 2.0 * WORKER_WATCH_S, 0.0)
        self._watched_s = now_s
        for worker in list(self.by_number.values()):
            worker.silent_since_s += paused_s
            limit_s = stall_s if worker.begun.is_set() else max(stall_s, WORKER_START_S)
            if limit_s > 0.0 and now_s - worker.silent_since_s > limit_s and not worker.is_killed:
                log.error("worker %d has sent nothing for %.1f s and is killed", worker.place, limit_s)
                worker.kill()
                if worker.pidfd < 0:
                    self._forking.restart()  # it was never forked

    # --- reports of the fork server ---

    def forked(self, number: int, process: int, pidfd: int) -> None:
        worker = self.by_number.get(number)
        if worker is None:  # it was given up: its wire is closed, so it ends by itself
            os.close(pidfd)
            return
        worker.forked(process, pidfd)
        self._loop.add_reader(pidfd, self._ended, worker)
        self._begin_if_complete(worker)

    def not_forked(self, number: int, reason: str) -> None:
        worker = self.by_number.get(number)
        if worker is not None:
            log.error("worker %d cannot be started: %s", worker.place, reason)
            self._ended(worker)

    def exited(self, number: int, process: int, how: str) -> None:
        worker = self.by_number.get(number)
        place = self._ending.pop(number, -1) if worker is None else worker.place
        if not self.is_ending:
            log.error("worker %d (process %d) %s", place, process, how)

    def forks_lost(self) -> None:
        self._ending.clear()
        for worker in [one for one in self.by_number.values() if one.pidfd < 0]:
            self._ended(worker)  # it does not take part yet; if it was forked, it ends when its wire is closed

    # --- internal ---

    def _start(self, place: WorkerSlot) -> None:
        """Start a worker at this place, now or after RETRY_S."""
        try:
            self._fork(place)
        except OSError as error:  # no descriptors, or the fork server is just ending
            log.error("worker %d cannot be started, again in %g s: %s", place.index, RETRY_S, error)
            place.waits_until_s = self._now() + RETRY_S
            self._loop.call_later(RETRY_S, self._start_later, place)

    def _fork(self, place: WorkerSlot) -> None:
        """Ask the fork server for a worker at this place. Raises OSError."""
        own, other_end = pair()
        number = self.last_number + 1
        try:
            self._forking.fork(number, other_end)
        except OSError:
            own.close()
            raise
        finally:
            other_end.close()
        self.last_number = number
        member = worker_number(self.replica, number) if self.replica else number
        worker = WorkerProcess(number, member, place.index, self._now())
        place.worker = self.by_number[number] = worker
        self._connect(worker, own)
        slot = first_slot(os.urandom) if self.replica else 0
        worker.send(StartWorker(member, place.index, self.config, self._rng.below(1 << 30), self._log_level, slot))

    def _connect(self, worker: WorkerProcess, sock: socket.socket) -> None:
        worker.wire = Wire(
            sock,
            lambda data, _: self._received(worker, data),
            lambda: self._disconnected(worker),
            lambda error: self._listener.failed(worker, error),
        )

    def _disconnected(self, worker: WorkerProcess) -> None:
        """Kill a worker that is about to end, does not read, or has sent a malformed frame.

        A former one may live on as the parent of programs (app/handover/front.py).
        """
        if self._is_released:
            self._forget(worker)
        elif worker.is_former and worker.is_over:
            self._ended(worker)
        else:
            worker.kill()

    def _received(self, worker: WorkerProcess, data: memoryview) -> None:
        worker.silent_since_s = self._now()
        self._listener.received(worker, data)

    def _begin_if_complete(self, worker: WorkerProcess) -> None:
        """Add the worker to those that take part, if it is ready and its pidfd is known (rule 1)."""
        if not worker.is_ready or worker.pidfd < 0 or worker.begun.is_set():
            return
        worker.begun.set()
        self._listener.begun(worker)

    def _ended(self, worker: WorkerProcess) -> None:
        """Clean up after a worker that has ended, and replace it."""
        if worker.ended.is_set():
            return
        if worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
            if not worker.is_former:
                self._ending[worker.number] = worker.place
        worker.close()
        del self.by_number[worker.number]
        if worker.is_former:
            self._listener.ended(worker)
            return
        place = self.places[worker.place]
        place.worker = None
        self._listener.ended(worker)
        if not self.is_ending:
            self._replace(place, worker)

    def _replace(self, place: WorkerSlot, former: WorkerProcess) -> None:
        """Start the next worker of a place, later if several have ended soon after their start."""
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
        self._listener.vacant()

    def _start_later(self, place: WorkerSlot) -> None:
        place.waits_until_s = 0.0
        if not self.is_ending and place.worker is None:
            self._start(place)
