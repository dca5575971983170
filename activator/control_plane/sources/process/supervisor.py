"""Local processes as pods: started, asked whether they are ready, watched, stopped by group.

Rules
  1. A process is a pod with an identity of its own; what takes its place after a crash is another pod.
  2. "Ready" means that it answered: its port accepts, or its readiness path answers well; or, without a connection of
     ours, that it wrote the line of `readiness.log`, or that `readiness.command` ended with 0. It is on 127.0.0.1, or
     on ::1 where it listens there alone. A fixed port must have been free before, and belong to the program after
     (`ports.py`).
  3. It is stopped only when the data plane reports that it has no request any more: first withdrawn, then the
     signal of `process.stop` to the group, SIGKILL after its grace.
  4. Failed starts are repeated with a growing backoff; after `CRASHES_MAX` in a row the revision is reported as failed
     with the cause, and after the next backoff one more start may be tried when a request asks for it.
  5. Every group is known to the reaper from the moment it exists, so that nothing is left behind when we are killed.
  6. One that can sleep is put to sleep where it would be stopped, and woken where one would be started. While it sleeps
     it is no pod, is not asked, and its end is no crash. One that does not wake is ended, as a failed start.
  7. What counts in a group, or has GPUs, counts until nothing of it is alive (`departure.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from activator.config.file import readiness_probe
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.programs import log_file_of
from activator.config.specs import DRAIN_TIMEOUT_S, ProbeSpec
from activator.control_plane.groups.group import ProgramCounts
from activator.control_plane.probes.probe import PROBE_TIMEOUT_S, Ask, Question, ask
from activator.control_plane.sources.process.causes import cause_of
from activator.control_plane.sources.process.departure import has_gone, mark_of
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess, Rest, counts_of
from activator.control_plane.sources.process.gpus import GpuPool
from activator.control_plane.sources.process.launch import Launch
from activator.control_plane.sources.process.once import listens, room_for, until_ended, until_over, verdict_on
from activator.control_plane.sources.process.output import READ_BYTES, Pace
from activator.control_plane.sources.process.places import Places, holders
from activator.control_plane.sources.process.ports import (
    PORT_STEP_S,
    PORT_WAIT_S,
    foreign_holder,
    holder,
    is_taken,
)
from activator.control_plane.sources.process.program_log import LOG_CLOSE_S, FileSettings, ProgramLog, Terminal
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.sleep import put_to_sleep, stops_by_signal, wake
from activator.control_plane.state.supervision import TASK
from activator.messages import Change, Listed, PodGone, PodSeen, PodStatus, PodTaken, RevisionFailed, RevisionRecovered
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner, pause, wait_for

STARTING_MAX: Final = 4  # processes of one revision that start at the same time
CRASHES_MAX: Final = 5  # failed starts in a row before a revision is reported as failed
CRASH_BACKOFF_INITIAL_S: Final = 0.1
CRASH_BACKOFF_MAX_S: Final = 30.0
COMMAND_TIMEOUT_S: Final = 10.0  # of one run of `readiness.command`
READINESS_STEP_MIN_S: Final = 0.002  # readiness is asked in steps from this up to the configured interval …
READINESS_STEP_SHARE: Final = 0.05  # … of this share of the time since the start

log = logging.getLogger("activator.process")

SOURCE = "process"
_DRAIN_SLACK_S = 5.0  # over the data plane's own drain timeout, whose end is reported


class ProcessSupervisor:
    """Keeps as many processes of each revision as are wanted.

    `panicked(key, what, error, now_s)` is called with errors of ours and returns how long to wait.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        now: Now,
        reaping: Reaping,
        panicked: Callable[[str, object, object, float], float],
    ) -> None:
        self._tasks = tasks
        self._panicked = panicked
        self.ready_changed: Callable[[str, int], None] = _nobody  # so many processes of a revision are ready now
        self.changed: Callable[[str, str], None] = _nothing  # a process of a revision, which counts in this group
        self.grace_of: Callable[[str], float | None] = _no_grace  # of a group: how long requests may still run
        self.gpus = GpuPool()
        self._submit = submit
        self._now = now
        self._reaping = reaping
        self._fleets: dict[str, Fleet] = {}
        self._leaving: dict[str, LocalProcess] = {}  # of revisions that were dropped
        self._born = 0
        self._places = Places(reaping)
        self._closed = False
        self._terminal = Terminal()
        self.first_start: tuple[float, float] | None = None  # when the first process was started and was ready

    # --- what is wanted ---

    def set_revision(self, key: str, revision: Revision) -> None:
        """A revision that is run by processes; a changed command applies to processes started from now on."""
        assert revision.process is not None
        fleet = self._fleets.get(key)
        if fleet is None:
            fleet = self._fleets[key] = Fleet(key, revision, ProgramLog(self._terminal, self._now))
        else:
            fleet.revision = revision
        fleet.log.configure(revision.process.logs.show, _log_file(key, revision.process))

    def drop_revision(self, key: str) -> None:
        """The revision is gone; its processes may finish their requests in their own time."""
        fleet = self._fleets.pop(key, None)
        if fleet is not None:
            for process in list(fleet.processes.values()):
                self._leaving[process.identity] = process
                self._stop(process)
            if not fleet.processes:
                fleet.log.close()

    def grant(self, key: str, count: int, may_sleep: bool = True) -> None:
        """From now on, keep so many processes; what is too many is put to sleep where it can be and may be."""
        fleet = self._fleets.get(key)
        if fleet is not None and not self._closed:
            fleet.wanted, fleet.may_sleep = count, may_sleep
            self._reconcile(fleet)

    def stop_asleep(self, key: str, count: int) -> None:
        """Stop so many of those that sleep."""
        fleet = self._fleets.get(key)
        for process in [] if fleet is None else fleet.asleep()[:count]:
            self._stop(process)

    def stop_all(self, key: str) -> None:
        """Stop what there is now, asleep or not; what is wanted further is started anew."""
        fleet = self._fleets.get(key)
        for process in [] if fleet is None else list(fleet.processes.values()):
            self._stop(process)

    def restart(self, key: str) -> None:
        """Others in the place of those that there are, at once; these finish the requests that they have."""
        self.stop_all(key)
        fleet = self._fleets.get(key)
        if fleet is not None and not self._closed:
            self._reconcile(fleet)

    def move(self, key: str, home: str, anew: bool) -> None:
        """From now on its processes count in this group: those that there are as well, unless they are begun `anew`."""
        fleet = self._fleets.get(key)
        if fleet is None:
            return
        fleet.home = home
        if anew:
            fleet.wanted = 0
            self.stop_all(key)
        else:
            for process in fleet.processes.values():
                process.home = home

    def counts(self, key: str, group: str) -> ProgramCounts:
        """The processes of a revision that count in this group, also of one that was dropped."""
        fleet = self._fleets.get(key)
        processes = [] if fleet is None else list(fleet.processes.values())
        processes.extend(one for one in self._leaving.values() if one.key == key)
        may_start = fleet is not None and self._now() >= fleet.not_before_s
        return counts_of(processes, fleet, group, may_start)

    def drained(self, key: str, identity: str) -> None:
        """The data plane: this pod has no request any more."""
        fleet = self._fleets.get(key)
        process = self._leaving.get(identity) or (None if fleet is None else fleet.processes.get(identity))
        if process is not None:
            process.drained.set()

    def taken(self, taken: PodTaken) -> None:
        """The data plane: this pod has got its one request; when that is over it is no pod any more (`once.py`)."""
        fleet = self._fleets.get(taken.key)
        process = self._leaving.get(taken.identity) or (None if fleet is None else fleet.processes.get(taken.identity))
        if process is None:
            return
        process.taken.set()
        process.failed_for = taken.failure or process.failed_for
        if fleet is not None:
            fleet.crashes = 0
        if taken.is_over:
            self._submit(PodGone(taken.key, SOURCE, taken.identity))

    def relist(self, key: str) -> None:
        """Submit again what there is of this revision, even if that is nothing."""
        fleet = self._fleets.get(key)
        running = [] if fleet is None else [one for one in fleet.running() if not one.taken.is_set()]
        pods = [PodSeen(key, SOURCE, process.identity, process.address, process.status) for process in running]
        self._submit(Listed(key, SOURCE, tuple(pods)))
        failure = "" if fleet is None else fleet.failure
        self._submit(RevisionFailed(key, failure) if failure else RevisionRecovered(key))

    async def close(self) -> None:
        """Stop everything; returns when every process has ended."""
        self._closed = True
        everything = [process for fleet in self._fleets.values() for process in fleet.processes.values()]
        everything.extend(self._leaving.values())
        for process in everything:
            process.drained.set()
            self._stop(process)
        while any(fleet.processes for fleet in self._fleets.values()) or self._leaving:
            await pause(0.01)
        self._places.close()
        for fleet in self._fleets.values():
            fleet.log.close(LOG_CLOSE_S)
        self._terminal.close()

    def log_of(self, key: str) -> ProgramLog | None:
        """What the programs of a revision have written."""
        fleet = self._fleets.get(key)
        return None if fleet is None else fleet.log

    def fleet(self, key: str) -> Fleet | None:
        """The processes of a revision; None: it has no program."""
        return self._fleets.get(key)

    def statistics(self) -> dict[str, dict[str, int]]:
        """For /debug."""
        return {
            key: {
                "wanted": fleet.wanted,
                "processes": len(fleet.processes),
                "starting": fleet.starting(),
                **({"sleeping": len(fleet.asleep())} if fleet.asleep() else {}),
                "crashes": fleet.crashes,
            }
            for key, fleet in self._fleets.items()
        }

    # --- towards it ---

    def _reconcile(self, fleet: Fleet) -> None:
        try:
            self._move_towards(fleet)
        except Exception as error:  # no free port, say: while the load stays the same nothing else would look again
            fleet.not_before_s = self._now() + self._went_wrong(fleet, "processes", error)
            self._tasks.start("restart", self._after_backoff(fleet))

    def _went_wrong(self, fleet: Fleet, what: str, error: Exception) -> float:
        backoff_s = self._panicked(f"{TASK}processes of {fleet.key}", what, error, self._now())
        log.error("an error of ours with %s of %s; again in %.1f s", what, fleet.key, backoff_s, exc_info=error)
        return backoff_s

    def _move_towards(self, fleet: Fleet) -> None:
        running = fleet.running()
        missing = fleet.wanted - len(running)
        if missing > 0:
            self._add(fleet, missing)
            return
        # Those that are not ready yet go first, those that say that they are busy last; else the youngest.
        running.reverse()
        by_rank = sorted(running, key=lambda process: (process.ready, process.busy))
        for process in by_rank[: len(running) - fleet.wanted]:
            if fleet.may_sleep and process.ready and process.sleep is not None:
                self._put_to_sleep(process)
            else:
                self._stop(process)

    def _add(self, fleet: Fleet, missing: int) -> None:
        if self._now() < fleet.not_before_s:
            return
        asleep = fleet.asleep()
        for process in asleep[max(len(asleep) - missing, 0) :]:
            process.rest = Rest.WAKING
            process.wake_asked.set()
            missing -= 1
        if fleet.is_once():
            missing = min(missing, room_for(fleet))
        if missing and not self._is_being_left(fleet.fixed_port):
            for _ in range(min(missing, STARTING_MAX - fleet.starting())):
                if not self._start(fleet):
                    return

    def _put_to_sleep(self, process: LocalProcess) -> None:
        process.ready = False
        process.rest = Rest.FALLING_ASLEEP
        process.sleep_asked.set()
        self._submit(PodGone(process.key, SOURCE, process.identity))
        self.ready_changed(process.key, self._fleets[process.key].ready())
        self.changed(process.key, process.home)

    def _start(self, fleet: Fleet) -> bool:
        """Whether there is one more: it may have to wait for a GPU, and is started when one comes free."""
        self._born += 1
        drain_s = max(DRAIN_TIMEOUT_S, float(fleet.revision.timeouts.total))  # as RevisionSpec.drain_timeout_s
        settings = fleet.revision.process
        assert settings is not None
        identity = f"{fleet.key}#{self._born}"
        gpus = self.gpus.take(settings.gpus, identity)
        if gpus is None:
            return False
        try:
            place = self._places.take(settings, self._born)
        except BaseException:
            self.gpus.give_back(identity)
            raise
        if place is None:
            self.gpus.give_back(identity)
            return False
        process = LocalProcess(fleet.key, identity, place, drain_s, settings, partial(fleet.log.line, identity))
        process.home, process.gpus = fleet.home, gpus
        fleet.processes[process.identity] = process
        self._submit(PodSeen(fleet.key, SOURCE, process.identity, process.address, PodStatus.PENDING))
        self._tasks.start(f"process {process.identity}", self._live(fleet, process))
        return True

    def _stop(self, process: LocalProcess) -> None:
        if not process.stopping:
            process.stopping = True
            process.stop_asked.set()
            self._submit(PodGone(process.key, SOURCE, process.identity))
            self._count_ready(process)
            self.changed(process.key, process.home)

    def _count_ready(self, process: LocalProcess) -> None:
        fleet = self._fleets.get(process.key)
        if fleet is not None and process.ready:
            self.ready_changed(fleet.key, fleet.ready())

    # --- one process from start to end ---

    async def _live(self, fleet: Fleet, process: LocalProcess) -> None:
        cause = ""
        try:
            cause = await self._start_and_watch(fleet, process)
        except ConfigError as error:
            cause = error.problems[0] + (f" ({len(error.problems)} mistakes)" if error.problems[1:] else "")
            fleet.crashes = max(fleet.crashes, CRASHES_MAX - 1)
        except OSError as error:
            cause = _why_no_start(fleet.revision, error)
            fleet.crashes = max(fleet.crashes, CRASHES_MAX - 1)  # it would not be otherwise the next time
        except Exception as error:
            self._went_wrong(fleet, process.identity, error)
            cause = f"an internal error ({error!r})"
            process.signal_group(signal.SIGKILL)
        finally:
            try:
                await self._until_gone(process)
                await self._places.remove_folder(process.place)
            finally:
                self._remove_exited(fleet, process)
        if cause and not process.stopping and not self._closed:
            self._crashed(fleet, process, cause)
        self._reconcile_if_known(fleet)
        self.changed(process.key, process.home)

    async def _start_and_watch(self, fleet: Fleet, process: LocalProcess) -> str:
        """Returns why the process ended, or an empty string when it was asked to."""
        place = process.place
        if place.is_chosen and (place.problem or place.taken or await self._stays_taken(place.port)):
            fleet.crashes = max(fleet.crashes, CRASHES_MAX - 1)
            if place.problem:
                return place.problem
            if place.taken:
                return f"no port is free: {await asyncio.to_thread(holders, place.taken)}; set other ports (`port`)"
            by = await asyncio.to_thread(holder, place.port)
            return f"port {place.port} is in use by {by}: end that program, or set another `port`"
        child = await self._spawn(fleet.revision, process)
        exited = asyncio.ensure_future(child.wait())  # noqa: TID251 - awaited below, in every case
        readers = [
            self._tasks.start("output", self._read_output(process, name, stream))
            for name, stream in (("stderr", child.stderr), ("stdout", child.stdout))
            if stream is not None
        ]
        asked = asyncio.ensure_future(process.stop_asked.wait())  # noqa: TID251 - cancelled below
        ready: asyncio.Task[str] = self._tasks.start("readiness", self._wait_ready(fleet, process))
        try:
            await asyncio.wait({exited, asked, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not exited.done() and not asked.done():
                if cause := ready.result():
                    fleet.crashes = max(fleet.crashes, CRASHES_MAX - 1)  # requests have waited as long as agreed
                    return cause
                fleet.start_s = self._now() - process.started_s
                self._became_ready(fleet, process)
                if process.is_once:
                    await self._serve_once(fleet, process, exited, asked)
                elif cause := await self._run_and_rest(fleet, process, exited, asked):
                    return cause
            if exited.done():
                if process.rest is Rest.ASLEEP:
                    log.info("%s ended while it slept", process.identity)
                    return ""
                await asyncio.wait(readers, timeout=0.2)
                if process.is_once and process.ready:
                    return await verdict_on(process, exited.result())
                return cause_of(exited.result(), process.output.lines())
            await self._wind_down(process, exited)
            return ""
        finally:
            ready.cancel()
            asked.cancel()
            process.signal_group(signal.SIGKILL)  # what the program left behind in its group
            await exited
            await asyncio.wait(readers, timeout=0.2)
            for reader in readers:
                reader.cancel()

    async def _spawn(self, revision: Revision, process: LocalProcess) -> asyncio.subprocess.Process:
        settings = revision.process
        assert settings is not None
        launch = process.launch = Launch(settings, process.place, self._reaping.mark, process.identity, process.gpus)
        process.place.make_folder(settings)
        child = await launch.start(settings.command, asyncio.subprocess.PIPE)
        process.child = child
        self._reaping.born(child.pid)
        process.started_s = self._now()
        log.info("started %s on %s, process %d", process.identity, process.place.shown, child.pid)
        return child

    async def _run_and_rest(
        self, fleet: Fleet, process: LocalProcess, exited: asyncio.Future[int], asked: asyncio.Future[Any]
    ) -> str:
        """From ready until it has exited or is to be stopped. Why it is to be ended; empty: that was asked for."""
        while True:
            if not await _first_of(process.sleep_asked, exited, asked):
                return ""
            process.sleep_asked.clear()
            problem = await self._fall_asleep(fleet, process, exited, asked)
            if problem:
                log.warning("%s does not sleep, and is stopped: %s", process.identity, problem)
                self._stop(process)
            if exited.done() or process.stopping:
                return ""
            limit_s = 0.0 if process.sleep is None else float(process.sleep.for_)
            if not await _first_of(process.wake_asked, exited, asked, limit_s or None):
                if not exited.done():
                    self._stop(process)  # it has slept for as long as it may
                return ""
            process.wake_asked.clear()
            began_s = self._now()
            problem = await self._wake(process)
            if problem:
                return f"the program does not wake: {problem}"
            fleet.wake_s = self._now() - began_s
            if exited.done() or process.stopping:
                return ""
            process.rest = Rest.AWAKE
            log.info("%s is awake", process.identity)
            self._became_ready(fleet, process)

    async def _serve_once(
        self, fleet: Fleet, process: LocalProcess, exited: asyncio.Future[int], asked: asyncio.Future[Any]
    ) -> None:
        """From ready until it has had its request and has exited, or is to be stopped."""
        is_over = await until_over(process, exited, asked)
        if process.stopping:
            return
        process.rest = Rest.SPENT
        self._submit(PodGone(process.key, SOURCE, process.identity))  # the data plane then says all that it knows
        self._reconcile_if_known(fleet)  # the next one may be started
        self.changed(process.key, process.home)
        if is_over:
            process.carries = False
            await until_ended(process, exited, asked)
            if not exited.done():
                self._stop(process)

    async def _fall_asleep(
        self, fleet: Fleet, process: LocalProcess, exited: asyncio.Future[int], asked: asyncio.Future[Any]
    ) -> str:
        """Let it finish its requests, then put it to sleep; why that did not succeed."""
        grace_s = self.grace_of(process.home)
        if not await _first_of(process.drained, exited, asked, grace_s or process.drain_timeout_s + _DRAIN_SLACK_S):
            if exited.done() or process.stopping:
                return ""
            process.carries = False  # it is stopped at once
            return "its requests have not ended in time"
        process.carries = False
        process.drained.clear()
        settings = process.sleep
        assert settings is not None
        problem = await put_to_sleep(process, settings, self._run_beside)
        if problem or exited.done() or process.stopping:
            return problem
        process.rest = Rest.ASLEEP
        log.info("%s sleeps", process.identity)
        if process.home != fleet.home:
            self._stop(process)  # it was begun in another group
        self._reconcile_if_known(fleet)  # one may be wanted again
        self.changed(process.key, process.home)
        return ""

    async def _wake(self, process: LocalProcess) -> str:
        settings = process.sleep
        assert settings is not None
        return await wake(process, settings, self._run_beside)

    async def _until_gone(self, process: LocalProcess) -> None:
        if process.child is not None and (process.home or process.gpus):
            mark = mark_of(self._reaping.mark, process.identity)
            await has_gone(process.child.pid, mark, lambda: self._closed)

    async def _stays_taken(self, port: int) -> bool:
        began_s = self._now()
        while is_taken(port):
            if self._now() - began_s >= PORT_WAIT_S:
                return True
            await pause(PORT_STEP_S)
        return False

    async def _wait_ready(self, fleet: Fleet, process: LocalProcess) -> str:
        """Returns why it does not get ready, or an empty string when it is."""
        settings = fleet.revision.process
        assert settings is not None
        timeout_s = float(fleet.revision.timeouts.startup)
        if settings.readiness.log:
            if not await wait_for(process.output.ready, timeout_s):
                return f"the program wrote no line with {settings.readiness.log!r} within {timeout_s:g} s"
            process.address = process.place.address
            return await self._served_by_another(process)
        interval_s = float(settings.readiness.interval)
        if settings.readiness.command:
            return await self._wait_command(process, settings.readiness.command, interval_s, timeout_s)
        probe = readiness_probe(fleet.revision)
        began_s = self._now()
        waited_s = 0.0
        while waited_s < timeout_s:
            if await _answers(process, probe):
                return await self._served_by_another(process)
            process.address = process.place.address
            # In proportion to what has passed: the wait for the next look never adds more than that share to a start.
            await pause(min(max(waited_s * READINESS_STEP_SHARE, READINESS_STEP_MIN_S), interval_s))
            waited_s = self._now() - began_s
        return f"the program did not answer on {process.place.shown} within {timeout_s:g} s"

    async def _wait_command(
        self, process: LocalProcess, command: list[str], interval_s: float, timeout_s: float
    ) -> str:
        """Ask a command until it ends with 0; as `_wait_ready`."""
        began_s = self._now()
        while self._now() - began_s < timeout_s:
            if await self._run_beside(process, command, min(COMMAND_TIMEOUT_S, timeout_s)) == 0:
                process.address = process.place.address
                return await self._served_by_another(process)
            await pause(interval_s)
        return f"{command[0]} (`readiness.command`) did not end with exit code 0 within {timeout_s:g} s"

    async def _run_beside(self, process: LocalProcess, command: list[str], timeout_s: float) -> int | None:
        """Run a command as the program is run; its exit code, None if it took too long or could not be started."""
        assert process.launch is not None
        try:
            child = await process.launch.start(command, asyncio.subprocess.DEVNULL)
        except OSError as error:
            log.warning("%s: cannot start %s: %s", process.identity, command[0], error.strerror)
            return None
        self._reaping.born(child.pid)
        try:
            return await asyncio.wait_for(child.wait(), timeout_s)
        except TimeoutError:
            log.warning("%s: %s took longer than %g s, and was ended", process.identity, command[0], timeout_s)
            return None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            await child.wait()
            self._reaping.exited(child.pid)

    async def _served_by_another(self, process: LocalProcess) -> str:
        """The cause, when what answered is not the program: only a fixed port can be taken meanwhile by plan."""
        place = process.place
        if not place.is_chosen or process.child is None:
            return ""
        # It looks through /proc, which may take some milliseconds.
        by = await asyncio.to_thread(foreign_holder, place.port, process.child.pid, self._reaping.mark)
        return f"port {place.port} is served by {by}, not by the program: end it, or set another `port`" if by else ""

    def _became_ready(self, fleet: Fleet, process: LocalProcess) -> None:
        process.ready = process.carries = True
        if self.first_start is None:
            self.first_start = (process.started_s, self._now())
        if not process.is_once:  # else with its request: many that end before it are no success
            fleet.crashes = 0
        fleet.not_before_s = 0.0
        if fleet.failure:
            fleet.failure = ""
            self._submit(RevisionRecovered(fleet.key))
        self._submit(PodSeen(fleet.key, SOURCE, process.identity, process.address, PodStatus.READY))
        self._count_ready(process)
        self._reconcile(fleet)
        self.changed(process.key, process.home)

    async def _wind_down(self, process: LocalProcess, exited: asyncio.Future[int]) -> None:
        """Let it finish its requests, then end it."""
        drained = asyncio.ensure_future(process.drained.wait())  # noqa: TID251 - cancelled below
        if process.carries:
            grace_s = self.grace_of(process.home)
            timeout_s = process.drain_timeout_s + _DRAIN_SLACK_S if grace_s is None else grace_s
            waits: set[asyncio.Future[Any]] = {drained, exited}
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        if process.sleep is not None and stops_by_signal(process.sleep) and process.rest is not Rest.AWAKE:
            process.signal_group(signal.SIGCONT)  # or it could not react to what comes now
        until_s = self._now() + float(process.stop.grace)
        if process.stop.command:
            code = await self._run_beside(process, process.stop.command, float(process.stop.grace))
            if code:
                log.warning("%s: %s (`stop.command`) ended with %d", process.identity, process.stop.command[0], code)
        else:
            process.signal_group(signal.Signals[process.stop.signal])
        await asyncio.wait({exited}, timeout=max(until_s - self._now(), 0.0))

    async def _read_output(self, process: LocalProcess, name: str, stream: asyncio.StreamReader) -> None:
        """Until it ends; at a bounded rate."""
        pace = Pace(self._now)
        try:
            while data := await stream.read(READ_BYTES):
                lines = process.output.feed(name, data)
                await pause(pace.wait_s(len(data), lines))  # 0: others have their turn
        finally:
            process.output.end(name)

    def _remove_exited(self, fleet: Fleet, process: LocalProcess) -> None:
        if process.child is not None:
            self._reaping.exited(process.child.pid)
        fleet.processes.pop(process.identity, None)
        self._leaving.pop(process.identity, None)
        self._places.give_back(process.place)
        if self.gpus.give_back(process.identity):
            for other in list(self._fleets.values()):
                if other is not fleet and other.wants_gpus():
                    self._reconcile_if_known(other)
        if not process.stopping:
            self._submit(PodGone(fleet.key, SOURCE, process.identity))
            self._count_ready(process)
        if self._fleets.get(fleet.key) is not fleet and not fleet.processes:
            fleet.log.close()
        if process.place.is_chosen:
            for other in list(self._fleets.values()):
                if other is not fleet and other.may_use(process.place.port):
                    self._reconcile_if_known(other)  # it waited for the port

    def _crashed(self, fleet: Fleet, process: LocalProcess, cause: str) -> None:
        log.warning("%s: %s", process.identity, cause)
        fleet.crashes += 1
        backoff_s = min(CRASH_BACKOFF_INITIAL_S * 2.0 ** (fleet.crashes - 1), CRASH_BACKOFF_MAX_S)
        fleet.not_before_s = self._now() + backoff_s
        if fleet.crashes >= CRASHES_MAX and not any(one.ready for one in fleet.running()):
            fleet.failure = cause
            self._submit(RevisionFailed(fleet.key, cause))
        self._tasks.start("restart", self._after_backoff(fleet))

    async def _after_backoff(self, fleet: Fleet) -> None:
        # A loop's timer may fire some milliseconds early, and while the load stays the same nothing else looks again.
        while (left_s := fleet.not_before_s - self._now()) > 0.0:
            await pause(left_s)
        if fleet.failure:
            fleet.failure = ""
            self._submit(RevisionRecovered(fleet.key))  # the next request may try again
        self._reconcile_if_known(fleet)
        self.changed(fleet.key, fleet.home)

    def _reconcile_if_known(self, fleet: Fleet) -> None:
        if self._fleets.get(fleet.key) is fleet and not self._closed:
            self._reconcile(fleet)

    def _is_being_left(self, port: int | None) -> bool:
        """Whether a process of ours that is about to end has this fixed port; its end reconciles again."""
        if port is None:
            return False
        ours = [process for fleet in self._fleets.values() for process in fleet.processes.values()]
        return any(process.stopping and process.place.port == port for process in [*ours, *self._leaving.values()])


async def _answers(process: LocalProcess, probe: ProbeSpec) -> bool:
    if process.is_once:
        return listens(process.address)
    return await ask(Question(process.address, probe), PROBE_TIMEOUT_S) is Ask.ANSWERED


def _nobody(key: str, count: int) -> None:
    pass


def _nothing(key: str, group: str) -> None:
    pass


def _no_grace(group: str) -> float | None:
    return None


async def _first_of(
    event: asyncio.Event, exited: asyncio.Future[int], asked: asyncio.Future[Any], timeout_s: float | None = None
) -> bool:
    """Whether the event came first, before the program exited, was to be stopped, or the time was up."""
    waits = asyncio.ensure_future(event.wait())  # noqa: TID251 - cancelled below
    try:
        both: set[asyncio.Future[Any]] = {waits, exited, asked}
        await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return event.is_set() and not exited.done() and not asked.done()
    finally:
        waits.cancel()


def missing_program(command: list[str]) -> str | None:
    """The first word of the command if nothing of that name can be run here."""
    return None if shutil.which(command[0]) is not None else command[0]


def _why_no_start(revision: Revision, error: OSError) -> str:
    assert revision.process is not None
    return f"cannot start {revision.process.command[0]}: {error.strerror or error}"


def _log_file(key: str, process: Process) -> FileSettings | None:
    if not process.logs.file:
        return None
    try:
        path = log_file_of(process, os.environ)
    except ConfigError as error:
        log.error("%s: the output is not written to a file: %s", key, error.problems[0])
        return None
    return FileSettings(path, int(process.logs.max_size), process.logs.keep)
