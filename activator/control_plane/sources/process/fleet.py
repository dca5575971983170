"""The processes of one revision, with the state of each."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from enum import Enum

from activator.config.model.containers import Container
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.model.sleep import Sleep
from activator.config.programs import log_file_of
from activator.config.specs import is_once, resolve_program
from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.sources.process.handed import HandedFleet, HandedLine, HandedProgram
from activator.control_plane.sources.process.program_log import FileSettings, HistoryLine, ProgramLog
from activator.control_plane.sources.process.unit import Unit, UnitState
from activator.messages import ObservedPod, PodStatus
from activator.runtime.errors import ConfigError

log = logging.getLogger("activator.process")


class SleepState(Enum):
    """The state of a program between running and stopped."""

    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"  # it finishes its requests and is then put to sleep
    ASLEEP = "asleep"
    WAKING = "waking"
    SPENT = "spent"  # it has had its one request and ends by itself


class LocalProcess:
    """One run of the program; `stopping` is set as soon as it is to end."""

    def __init__(self, key: str, identity: str, unit: Unit, drain_timeout_s: float, sleep: Sleep | None) -> None:
        self.key = key
        self.identity = identity
        self.unit = unit
        self.drain_timeout_s = drain_timeout_s
        self.revision: Revision | None = None  # as it was configured when the program was started
        self.sleep = sleep  # as it was configured when the program was started
        self.is_once = False  # it ends by itself after one request
        self.taken = asyncio.Event()  # `is_once`: its one request has been sent to it
        self.failed_for = ""  # `is_once`: the reason for which its one request has failed
        self.is_handed = False  # a former process of the activator started it
        self.was_ready = False  # it was handed over in this state
        self.is_shown = False  # it has been reported as a pod
        self.ready = False
        self.busy = False  # it reports background work
        self.runs_hooks = False
        self.saves = False  # it has hooks that run before its stop, and has been ready
        self.stopping = False
        self.stopped_for = ""  # why it is to end, for the log
        self.sleep_state = SleepState.AWAKE
        self.home = ""  # the group whose budget it counts against
        self.gpus: tuple[str, ...] = ()  # the GPUs reserved for it
        self.carries = False  # it was ready, and may still have requests
        self.drained = asyncio.Event()
        self.stop_asked = asyncio.Event()
        self.sleep_asked = asyncio.Event()
        self.wake_asked = asyncio.Event()
        self.started_s = 0.0

    async def end(self, is_closing: Callable[[], bool]) -> None:
        """End all of its processes, and remove it."""
        try:
            await self.unit.end()  # it may have failed halfway through its start
        finally:
            await self.unit.remove(bool(self.home or self.gpus), is_closing)

    def unsettled(self) -> str:
        """Return why it cannot be handed over to another process of the activator now; empty if it can."""
        if self.stopping:
            return f"{self.identity} is being stopped"
        if self.sleep_state in {SleepState.FALLING_ASLEEP, SleepState.WAKING}:
            return f"{self.identity} is being put to sleep or woken"
        if self.runs_hooks:
            return f"{self.identity} runs its hooks"
        if self.taken.is_set():
            return f"{self.identity} is at work on its only request"
        why = self.unit.unsettled()
        return f"{self.identity}: {why}" if why else ""

    def state(self) -> UnitState:
        """Return its state for the hand-over."""
        return UnitState(self.gpus, self.started_s, self.ready, self.sleep_state is SleepState.ASLEEP)

    @property
    def status(self) -> PodStatus:
        return PodStatus.READY if self.ready else PodStatus.PENDING

    def seen(self, source: str) -> ObservedPod | None:
        """Return the report of it as a pod; None while it has no address."""
        address = self.unit.address
        return ObservedPod(self.key, source, self.identity, address, self.status) if address else None


class Fleet:
    """The processes of one revision."""

    def __init__(self, key: str, revision: Revision, log: ProgramLog) -> None:
        self.key = key
        self.revision = revision
        self.log = log
        self.home = ""  # the group whose budget its processes count against
        self.wanted = 0  # processes that are to start or run
        self.may_sleep = True  # surplus processes are put to sleep if they can be
        self.start_s = 0.0  # how long the last start took
        self.wake_s = 0.0  # how long the last wake took
        self.processes: dict[str, LocalProcess] = {}  # in any state, by identity
        self.crashes = 0  # failed starts in a row
        self.failure = ""  # why it cannot start; empty if it can, or if another start may be tried
        self.last_failure = ""  # why its last program failed, until one works
        self.not_before_s = 0.0  # the end of the crash backoff

    def configure_log(self, program: Process | Container) -> None:
        """Show the output, and write it to a file, as configured; a file that cannot be named is logged."""
        file = None
        if program.logs.file:
            try:
                path = log_file_of(program, os.environ)
                file = FileSettings(path, int(program.logs.max_size), program.logs.keep)
            except ConfigError as error:
                log.error("%s: the output is not written to a file: %s", self.key, error.problems[0])
        self.log.configure(program.logs.show, file)

    def handed(self, programs: tuple[HandedProgram, ...]) -> HandedFleet:
        """Return the fleet with these programs for another process of the activator."""
        history = tuple([HandedLine(*line) for line in self.log.history.kept()])
        return HandedFleet(
            *(self.key, programs, self.crashes, self.failure, self.not_before_s, self.start_s, self.wake_s, history),
            self.last_failure,
        )

    def restore(self, handed: HandedFleet) -> None:
        """Restore the record of its starts, and its output, from a former process of the activator."""
        self.crashes, self.failure, self.last_failure = handed.crashes, handed.failure, handed.last_failure
        self.not_before_s = handed.not_before_s
        self.start_s, self.wake_s = handed.start_s, handed.wake_s
        self.log.history.restore(
            HistoryLine(line.number, line.at_s, line.process, line.stream, line.text) for line in handed.history
        )

    def forget_failures(self) -> None:
        """Forget the failed starts: a program has started, or has received the one request of its life."""
        self.crashes, self.last_failure = 0, ""

    def count_crash(self, cause: str, process: LocalProcess) -> None:
        """Count a failed program; the count begins again if the revision was changed after that program was started."""
        self.crashes = self.crashes + 1 if process.revision == self.revision else 1
        self.last_failure = cause

    def is_once(self) -> bool:
        """Return True if its programs end by themselves after one request."""
        return is_once(self.revision)

    def wants_gpus(self) -> bool:
        return self.revision.program is not None and self.revision.program.gpus > 0

    def running(self) -> list[LocalProcess]:
        """Return the processes that start, run or are being woken."""
        return [process for process in self.processes.values() if not process.stopping and _is_wanted(process)]

    def asleep(self) -> list[LocalProcess]:
        """Return the sleeping processes that can be woken; the one that fell asleep last is the last."""
        return [
            process
            for process in self.processes.values()
            if process.sleep_state is SleepState.ASLEEP and not process.stopping
        ]

    def falling_asleep(self) -> int:
        """Return how many copies have finished their requests and are being put to sleep."""
        return sum(
            process.sleep_state is SleepState.FALLING_ASLEEP and not process.stopping and not process.carries
            for process in self.processes.values()
        )

    def room(self) -> int:
        """Return how many more copies `max_scale` allows.

        Copies that sleep or fall asleep count. A copy that is being stopped counts only in two cases: it serves one
        request in its life, and may still be at work on that, or its hooks have not ended, and the next copy may need
        the state that they save.
        """
        living = sum(self.is_once() or process.saves or not process.stopping for process in self.processes.values())
        return max(resolve_program(self.revision).max_scale - living, 0)

    def starting(self) -> int:
        return sum(not process.ready for process in self.running())

    def ready(self) -> int:
        return sum(process.ready for process in self.running())


def counts_of(processes: Iterable[LocalProcess], fleet: Fleet | None, home: str, may_start: bool) -> ProgramCounts:
    """Count the processes of the group `home`; `fleet` is None for a revision that was dropped."""
    started = ready = leaving = falling_asleep = sleeping = stopping_asleep = 0
    for process in processes:
        if process.home != home:
            continue
        if process.stopping:
            stopping_asleep += process.sleep_state is SleepState.ASLEEP
            leaving += process.sleep_state is not SleepState.ASLEEP
        elif process.sleep_state is SleepState.ASLEEP:
            sleeping += 1
        elif process.sleep_state is SleepState.SPENT:
            leaving += 1
        elif process.sleep_state is SleepState.FALLING_ASLEEP:
            leaving += 1
            falling_asleep += 1
        else:
            started += 1
            ready += process.ready
    return ProgramCounts(
        started,
        ready,
        leaving,
        falling_asleep,
        sleeping,
        stopping_asleep,
        may_start,
        0.0 if fleet is None else fleet.start_s,
        0.0 if fleet is None else fleet.wake_s,
    )


def _is_wanted(process: LocalProcess) -> bool:
    return process.sleep_state in {SleepState.AWAKE, SleepState.WAKING}
