"""The supervisor of local programs: it runs the wanted number of each revision, and restarts failed ones.

Rules
  1. Each run of a program is a pod with an identity of its own; its replacement after a crash is another pod.
  2. The kind of a program (`unit.py`) makes no difference, and its life (`lifetime.py`) reports its own changes.
  3. A program is first withdrawn as a pod, and stopped when the data plane reports that it has no request.
  4. Failed starts are repeated with a growing backoff; after `CRASHES_MAX` in a row the revision is reported as failed
     with the cause, and after the next backoff a request may start it once more.
  5. A program that can sleep is put to sleep instead of stopped, and woken instead of started. While it sleeps it is
     not a pod, is not probed, and its end is not a crash. If it does not wake, it is ended, as a failed start. A
     request that arrives while a copy falls asleep waits until that copy sleeps, and wakes it.
  6. A program counts in its group, and holds its GPUs, until all of its processes have ended (`Unit.remove`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from activator.config.model.revision import Revision
from activator.config.model.sleep import Sleep
from activator.config.specs import DRAIN_TIMEOUT_S
from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess, SleepState
from activator.control_plane.sources.process.fleets import Fleets
from activator.control_plane.sources.process.giving import GivenPrograms
from activator.control_plane.sources.process.gpus import GpuPool
from activator.control_plane.sources.process.handed import Received
from activator.control_plane.sources.process.lifetime import Lifetime, LifetimeListener
from activator.control_plane.sources.process.program_log import LOG_CLOSE_S, ProgramLog, Terminal
from activator.control_plane.sources.process.unit import Unit, Units
from activator.control_plane.state.supervision import TASK
from activator.messages import Change, PodGone, PodsListed, PodTaken, RevisionFailed, RevisionRecovered
from activator.runtime.backoff import grown_s
from activator.runtime.clock import Now
from activator.runtime.durations import lasting
from activator.runtime.tasks import TaskGroupOwner, pause

STARTING_MAX: Final = 4  # processes of one revision that start at the same time
CRASHES_MAX: Final = 5  # failed starts in a row before a revision is reported as failed
CRASH_BACKOFF_INITIAL_S: Final = 0.1
CRASH_BACKOFF_MAX_S: Final = 30.0

SOURCE = "process"
ROOM: Final = "to make room in its group"  # why a process is stopped

log = logging.getLogger("activator.process")


class ProgramListener(Protocol):
    """The receiver of the supervisor's reports; it also answers `grace_of`."""

    def ready_changed(self, key: str, count: int) -> None:
        """Handle a change of the number of ready processes of the revision, which is `count`."""

    def programs_changed(self, key: str, group: str) -> None:
        """Handle a new state of a process of the revision that counts in the group."""

    def stopped_by_other(self, key: str) -> None:
        """Handle a process of the revision that another program has stopped."""

    def grace_of(self, group: str) -> float | None:
        """Return for how many seconds the requests of a group's program may continue; None: the group sets no limit."""

    def stop_reason(self, key: str, wanted: int) -> str:
        """Return why no more than `wanted` processes of the revision may run, for the log."""


class ProcessSupervisor(LifetimeListener):
    """The supervisor of local programs: it runs the wanted number for each revision. `units` creates them.

    `panicked(key, work, error, now_s)` is called with bugs of the activator and returns how long to wait.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        now: Now,
        units: Units,
        panicked: Callable[[str, object, object, float], float],
        listener: ProgramListener,
    ) -> None:
        self._tasks = tasks
        self._panicked = panicked
        self._listener = listener
        self.gpus = GpuPool()
        self._submit = submit
        self._now = now
        self._units = units
        self.fleets = Fleets()
        self.given = GivenPrograms(self.fleets, units)  # the programs while they are handed over
        self._closed = False
        self.is_frozen = False  # no program is started or stopped, because they are being handed over
        self._received: Received | None = None  # programs that a former process of the activator has handed over
        self._terminal = Terminal()
        self.first_start: tuple[float, float] | None = None  # when the first process was started, and when it was ready

    # --- the wanted state ---

    def set_revision(self, key: str, revision: Revision) -> None:
        """Add or replace a revision with a program; a change applies to the processes that are started from now on."""
        program = revision.program
        assert program is not None
        self._units.prepare(revision)
        fleet = self.fleets.get(key)
        if fleet is None:
            fleet = self.fleets.by_key[key] = Fleet(key, revision, ProgramLog(self._terminal, self._now))
            if self._received is not None:
                self._continue_programs(fleet, self._received)
        else:
            is_other = fleet.revision != revision
            fleet.revision = revision
            if is_other:
                self.forget_failures(key)
        fleet.configure_log(program)

    def drop_revision(self, key: str) -> None:
        """Drop a revision; its processes may finish their requests within their drain timeouts."""
        fleet = self.fleets.by_key.pop(key, None)
        if fleet is not None:
            for process in list(fleet.processes.values()):
                self.fleets.leaving[process.identity] = process
                process.unit.disown()
                self.stop(process)
            if not fleet.processes:
                fleet.log.close()

    def grant(self, key: str, count: int, may_sleep: bool = True) -> None:
        """Set the number of processes; surplus ones are put to sleep if they can be and `may_sleep`."""
        fleet = self.fleets.get(key)
        if fleet is not None:
            fleet.wanted, fleet.may_sleep = count, may_sleep
            self._reconcile(fleet)

    def forget_failures(self, key: str) -> None:
        """Forget the failed starts of a revision, which may have been corrected: it may be started at once."""
        fleet = self.fleets.get(key)
        if fleet is not None and (fleet.crashes or fleet.failure or fleet.not_before_s > self._now()):
            fleet.forget_failures()
            fleet.not_before_s = 0.0
            self._tasks.start("restart", self._reconcile_after_backoff(fleet))

    def stop_asleep(self, key: str, count: int) -> None:
        """Stop `count` of the sleeping processes."""
        fleet = self.fleets.get(key)
        for process in [] if fleet is None else fleet.asleep()[:count]:
            self.stop(process, ROOM)

    def stop_all(self, key: str, why: str = "") -> None:
        """Stop all present processes, including sleeping ones; the wanted number is then started again."""
        for process in self.fleets.of(key):
            self.stop(process, why)

    def restart(self, key: str) -> None:
        """Start replacements of all processes at once; the old ones finish their requests."""
        self.stop_all(key, "by `restart`")
        fleet = self.fleets.get(key)
        if fleet is not None:
            self._reconcile(fleet)

    def move(self, key: str, home: str, restart: bool) -> None:
        """Move a revision into this group; its present processes are moved too or, if `restart`, stopped."""
        fleet = self.fleets.get(key)
        if fleet is None:
            return
        fleet.home = home
        if restart:
            fleet.wanted = 0
            self.stop_all(key)
        else:
            for process in fleet.processes.values():
                process.home = home

    def counts(self, key: str, group: str) -> ProgramCounts:
        """Count the processes of a revision that belong to this group, also of one that was dropped."""
        return self.fleets.counts(key, group, self._now())

    def drained(self, key: str, identity: str) -> None:
        """Record the data plane's report that this pod has no request any more."""
        process = self.fleets.process(key, identity)
        if process is not None:
            process.drained.set()

    def taken(self, taken: PodTaken) -> None:
        """Record the data plane's report about the one request of this pod, which ends the pod (`once.py`)."""
        process = self.fleets.process(taken.key, taken.identity)
        if process is None:
            return
        process.taken.set()
        process.failed_for = taken.failure or process.failed_for
        fleet = self.fleets.get(taken.key)
        if fleet is not None:
            fleet.forget_failures()
        if taken.is_over:
            self._submit(PodGone(taken.key, SOURCE, taken.identity))

    def relist(self, key: str) -> None:
        """Submit the present pods of a revision again, even if there are none."""
        fleet = self.fleets.get(key)
        running = [] if fleet is None else [process for process in fleet.running() if not process.taken.is_set()]
        pods = [pod for process in running if (pod := process.seen(SOURCE)) is not None]
        self._submit(PodsListed(key, SOURCE, tuple(pods)))
        if fleet is not None and fleet.failure:
            self._submit(RevisionFailed(key, fleet.failure, fleet.not_before_s))
        else:
            self._submit(RevisionRecovered(key))

    async def close(self) -> None:
        """Stop everything; return when every process has ended."""
        self._closed = True
        for process in [*self.fleets.processes(), *self.fleets.leaving.values()]:
            process.drained.set()
            process.unit.disown()
            self.stop(process)
        while self.fleets.processes() or self.fleets.leaving:
            await pause(0.01)
        for fleet in self.fleets.all():
            fleet.log.close(LOG_CLOSE_S)
        await self._units.close()
        self._terminal.close()

    # --- the hand-over to another process of the activator ---

    def freeze(self) -> None:
        """Start and stop nothing until `unfreeze`."""
        self.is_frozen = True

    def take_ownership(self, former: Iterable[int]) -> None:
        """Own the programs that were handed over by these processes: until then nothing here ends them."""
        self._units.take_ownership(former)

    def unfreeze(self) -> None:
        """Start and stop programs again, after `freeze`; programs that were given away and not taken are kept."""
        self.is_frozen = False
        if self._received is not None:
            self._received.close()  # a revision that is set from now on is another one
            self._received = None
        self.given.take_back()
        for fleet in self.fleets.all():
            self._listener.programs_changed(fleet.key, fleet.home)  # groups plan first: they decide what may start
        for fleet in self.fleets.all():
            self._reconcile(fleet)

    def record_taken_before(self, identities: Iterable[str]) -> None:
        """Record that these programs received their one request before this process became the activator."""
        for identity in identities:
            key = identity.rpartition("#")[0]
            self.taken(PodTaken(key, identity, False, ""))
            self._submit(PodGone(key, SOURCE, identity))

    def detach(self) -> None:
        """Leave all programs to the process that has taken them."""
        self._closed = True
        self.given.detach()

    def take_over(self, received: Received) -> None:
        """Continue the programs of a former process of the activator when their revisions are set."""
        self._received = received
        self.fleets.born = received.programs.born
        self._units.restore_shared(received.programs)

    def _continue_programs(self, fleet: Fleet, received: Received) -> None:
        handed = received.fleets.pop(fleet.key, None)
        if handed is None:
            return
        fleet.restore(handed)
        settings = fleet.revision.program
        assert settings is not None
        for program in handed.programs:
            identity = program.identity
            unit = self._units.take_over(
                *(fleet.revision, program, received.take(identity), partial(fleet.log.add_line, identity))
            )
            self.gpus.register(program.gpus, identity)
            process = self._new_process(fleet, identity, unit, settings.sleep, program.gpus)
            process.is_handed, process.was_ready = True, program.is_ready
            process.started_s = program.started_s
            if program.is_asleep:
                process.sleep_state = SleepState.ASLEEP
            else:
                self._submit_pod(process)
            self._tasks.start(f"process {identity}", self._run_process(fleet, process))
        if fleet.failure:
            self._submit(RevisionFailed(fleet.key, fleet.failure, fleet.not_before_s))
        if fleet.not_before_s > self._now():
            self._tasks.start("restart", self._reconcile_after_backoff(fleet))

    # --- reconciling ---

    def _reconcile(self, fleet: Fleet) -> None:
        """Start or stop processes; nothing is started for a dropped revision, or while everything is being stopped."""
        if self._closed or self.is_frozen or self.fleets.get(fleet.key) is not fleet:
            return
        try:
            self._start_or_stop(fleet)
        except Exception as error:  # e.g. no free port; while the load stays the same nothing else would try again
            fleet.not_before_s = self._now() + self._internal_error(fleet, "processes", error)
            self._tasks.start("restart", self._reconcile_after_backoff(fleet))

    def _internal_error(self, fleet: Fleet, part: str, error: Exception) -> float:
        backoff_s = self._panicked(f"{TASK}processes of {fleet.key}", part, error, self._now())
        log.error("an internal error with %s of %s; next attempt in %.1f s", part, fleet.key, backoff_s, exc_info=error)
        return backoff_s

    def _start_or_stop(self, fleet: Fleet) -> None:
        running = fleet.running()
        if (missing := fleet.wanted - len(running)) > 0:
            self._wake_or_start(fleet, missing)
            return
        # Stop those that are not ready first and busy ones last; among equals the youngest first.
        running.reverse()
        by_rank = sorted(running, key=lambda process: (process.ready, process.busy))
        for process in by_rank[: len(running) - fleet.wanted]:
            if fleet.may_sleep and process.ready and process.sleep is not None:
                self._put_to_sleep(process)
            else:
                self.stop(process, self._listener.stop_reason(fleet.key, fleet.wanted))

    def _wake_or_start(self, fleet: Fleet, missing: int) -> None:
        if self._now() < fleet.not_before_s:
            return
        asleep = fleet.asleep()
        for process in asleep[max(len(asleep) - missing, 0) :]:
            process.sleep_state = SleepState.WAKING
            process.wake_asked.set()
            missing -= 1
        missing = min(missing - fleet.falling_asleep(), fleet.room())  # one that falls asleep is woken then
        if missing > 0 and not self.fleets.is_about_to_be_free(self._units.claim_of(fleet.revision)):
            for _ in range(min(missing, STARTING_MAX - fleet.starting())):
                if not self._start(fleet):
                    return

    def _put_to_sleep(self, process: LocalProcess) -> None:
        process.ready = False
        process.sleep_state = SleepState.FALLING_ASLEEP
        process.sleep_asked.set()
        self._submit(PodGone(process.key, SOURCE, process.identity))
        self._listener.ready_changed(process.key, self.fleets.by_key[process.key].ready())
        self._listener.programs_changed(process.key, process.home)

    def _start(self, fleet: Fleet) -> bool:
        """Start one more; False if it has to wait for a GPU or a port, whose release reconciles again."""
        settings = fleet.revision.program
        assert settings is not None
        identity = self.fleets.next_identity(fleet.key)
        gpus = self.gpus.assign(settings.gpus, identity)
        if gpus is None:
            return False
        try:
            unit = self._units.make(fleet.revision, identity, gpus, partial(fleet.log.add_line, identity))
        except BaseException:
            self.gpus.release(identity)
            raise
        if unit is None:
            self.gpus.release(identity)
            return False
        process = self._new_process(fleet, identity, unit, settings.sleep, gpus)
        self._submit_pod(process)
        self._tasks.start(f"process {process.identity}", self._run_process(fleet, process))
        return True

    def _new_process(
        self, fleet: Fleet, identity: str, unit: Unit, sleep: Sleep | None, gpus: tuple[str, ...]
    ) -> LocalProcess:
        drain_s = max(DRAIN_TIMEOUT_S, float(fleet.revision.timeouts.total))  # as RevisionSpec.drain_timeout_s
        process = fleet.processes[identity] = LocalProcess(fleet.key, identity, unit, drain_s, sleep)
        process.is_once = fleet.is_once()
        process.home, process.gpus = fleet.home, gpus
        process.revision = fleet.revision
        return process

    def _submit_pod(self, process: LocalProcess) -> None:
        pod = process.seen(SOURCE)
        if pod is not None:
            process.is_shown = True
            self._submit(pod)

    def stop(self, process: LocalProcess, why: str = "") -> None:
        if not process.stopping:
            process.stopping, process.stopped_for = True, why
            process.stop_asked.set()
            self._submit(PodGone(process.key, SOURCE, process.identity))
            self._report_ready(process)
            self._listener.programs_changed(process.key, process.home)

    def _report_ready(self, process: LocalProcess) -> None:
        fleet = self.fleets.get(process.key)
        if fleet is not None and process.ready:
            self._listener.ready_changed(fleet.key, fleet.ready())

    # --- one process from start to end ---

    async def _run_process(self, fleet: Fleet, process: LocalProcess) -> None:
        cause = ""
        try:
            cause = await Lifetime(self, self._tasks, self._now, fleet, process).run()
        except Exception as error:
            self._internal_error(fleet, process.identity, error)
            cause = f"an internal error ({error!r})"
        finally:
            try:
                await process.end(self.is_closing)
            finally:
                self._remove_exited(fleet, process)
        if cause and not process.stopping and not self._closed:
            if process.ready and process.unit.was_stopped():
                log.info("%s was stopped by another program: it is started when a request comes", process.identity)
                self._listener.stopped_by_other(process.key)
            else:
                self._record_crash(fleet, process, cause)
        self._reconcile(fleet)
        self._listener.programs_changed(process.key, process.home)

    # --- reports of a lifetime (`LifetimeListener`) ---

    def grace_of(self, group: str) -> float | None:
        return self._listener.grace_of(group)

    def is_closing(self) -> bool:
        return self._closed

    def failed_for_good(self, fleet: Fleet) -> None:
        fleet.crashes = max(fleet.crashes, CRASHES_MAX - 1)

    def has_started(self, fleet: Fleet, process: LocalProcess) -> None:
        if not process.stopping and not process.is_shown:
            self._submit_pod(process)

    def was_spent(self, fleet: Fleet, process: LocalProcess) -> None:
        self._submit(PodGone(process.key, SOURCE, process.identity))  # the data plane's last report about it follows
        self.has_saved(fleet)
        self._listener.programs_changed(process.key, process.home)

    def has_saved(self, fleet: Fleet) -> None:
        self._reconcile(fleet)  # the next one may be started

    def fell_asleep(self, fleet: Fleet, process: LocalProcess) -> None:
        if process.home != fleet.home:
            self.stop(process)  # it was started in another group
        self._reconcile(fleet)  # one may be wanted again
        self._listener.programs_changed(process.key, process.home)

    def became_ready(self, fleet: Fleet, process: LocalProcess) -> None:
        process.ready = process.carries = True
        if self.first_start is None:
            self.first_start = (process.started_s, self._now())
        if not process.is_once:  # else its request ends the failures: a copy that ends before its request is no success
            fleet.forget_failures()
        fleet.not_before_s = 0.0
        if fleet.failure:
            fleet.failure = ""
            self._submit(RevisionRecovered(fleet.key))
        self._submit_pod(process)
        self._report_ready(process)
        self._reconcile(fleet)
        self._listener.programs_changed(process.key, process.home)

    # --- its end ---

    def _remove_exited(self, fleet: Fleet, process: LocalProcess) -> None:
        fleet.processes.pop(process.identity, None)
        self.fleets.leaving.pop(process.identity, None)
        if self.gpus.release(process.identity):
            for other in self.fleets.all():
                if other is not fleet and other.wants_gpus():
                    self._reconcile(other)
        if not process.stopping:
            self._submit(PodGone(fleet.key, SOURCE, process.identity))
            self._report_ready(process)
        if self.fleets.get(fleet.key) is not fleet and not fleet.processes:
            fleet.log.close()
        if process.unit.claim:
            for other in self.fleets.all():
                if other is not fleet and self._units.may_claim(other.revision, process.unit.claim):
                    self._reconcile(other)  # it waited for the port

    def _record_crash(self, fleet: Fleet, process: LocalProcess, cause: str) -> None:
        fleet.count_crash(cause, process)
        most_s = process.unit.retry_max_s or CRASH_BACKOFF_MAX_S
        backoff_s = grown_s(CRASH_BACKOFF_INITIAL_S, fleet.crashes - 1, most_s)
        fleet.not_before_s = self._now() + backoff_s
        again = f"; next attempt in {lasting(backoff_s)}" if fleet.wanted > len(fleet.running()) else ""
        log.warning("%s: %s%s", process.identity, cause, again)
        if fleet.crashes >= CRASHES_MAX and not any(other.ready for other in fleet.running()):
            fleet.failure = cause
            self._submit(RevisionFailed(fleet.key, cause, fleet.not_before_s))
        self._tasks.start("restart", self._reconcile_after_backoff(fleet))

    async def _reconcile_after_backoff(self, fleet: Fleet) -> None:
        # A timer of the loop may fire some milliseconds early, and while the load stays the same nothing else retries.
        while (left_s := fleet.not_before_s - self._now()) > 0.0:
            await pause(left_s)
        if fleet.failure:
            fleet.failure = ""
            self._submit(RevisionRecovered(fleet.key))  # the next request may start it
        self._reconcile(fleet)
        self._listener.programs_changed(fleet.key, fleet.home)
