"""The processes of one revision, and what is known of each of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from enum import Enum

from activator.config.model.programs import LIFETIME_REQUEST, Process
from activator.config.model.revision import Revision
from activator.control_plane.groups.group import ProgramCounts
from activator.control_plane.sources.process.launch import Launch
from activator.control_plane.sources.process.output import OnLine, Output
from activator.control_plane.sources.process.places import Place
from activator.control_plane.sources.process.program_log import ProgramLog
from activator.messages import PodStatus


class Rest(Enum):
    """Between running and stopped."""

    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"  # it finishes its requests, and is then put to sleep
    ASLEEP = "asleep"
    WAKING = "waking"
    SPENT = "spent"  # it has had its one request, and ends by itself


class LocalProcess:
    """One process; `stopping` from the moment it is not wanted any more."""

    def __init__(
        self, key: str, identity: str, place: Place, drain_timeout_s: float, settings: Process, on_line: OnLine
    ) -> None:
        self.key = key
        self.identity = identity
        self.place = place
        self.drain_timeout_s = drain_timeout_s
        self.stop = settings.stop  # as it was configured when the process was started
        self.sleep = settings.sleep  # likewise
        self.address = place.first_address
        self.ready = False
        self.busy = False  # it says that it works without a request
        self.stopping = False
        self.rest = Rest.AWAKE
        self.home = ""  # the group that it counts in
        self.gpus: tuple[str, ...] = ()  # that it has to itself
        self.carries = False  # it was ready, and its requests may not have ended yet
        self.is_once = settings.lifetime == LIFETIME_REQUEST
        self.taken = asyncio.Event()  # `is_once`: its one request has been sent to it …
        self.failed_for = ""  # … and has failed for this reason
        self.drained = asyncio.Event()
        self.stop_asked = asyncio.Event()
        self.sleep_asked = asyncio.Event()
        self.wake_asked = asyncio.Event()
        self.launch: Launch | None = None  # how it was started
        self.child: asyncio.subprocess.Process | None = None
        self.output = Output(settings.readiness.log, on_line)
        self.started_s = 0.0

    @property
    def status(self) -> PodStatus:
        return PodStatus.READY if self.ready else PodStatus.PENDING

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all its descendants that kept its group."""
        if self.child is not None:
            try:
                os.killpg(self.child.pid, number)
            except ProcessLookupError:
                pass


class Fleet:
    """The processes of one revision."""

    def __init__(self, key: str, revision: Revision, log: ProgramLog) -> None:
        self.key = key
        self.revision = revision
        self.log = log
        self.home = ""  # the group that its processes count in
        self.wanted = 0
        self.may_sleep = True  # what is too many is put to sleep where it can be
        self.start_s = 0.0  # how long the last start took
        self.wake_s = 0.0  # how long the last wake took
        self.processes: dict[str, LocalProcess] = {}
        self.crashes = 0  # failed starts in a row
        self.failure = ""  # why it cannot start; empty: it can, or may try
        self.not_before_s = 0.0  # the crash backoff

    @property
    def fixed_port(self) -> int | None:
        """The one port that its program has, if it is one."""
        ports = None if self.revision.process is None else self.revision.process.ports()
        return ports[0] if ports is not None and len(ports) == 1 else None

    def may_use(self, port: int) -> bool:
        """Whether the file gives this port to its program."""
        ports = None if self.revision.process is None else self.revision.process.ports()
        return ports is not None and port in ports

    def is_once(self) -> bool:
        """Its processes end by themselves after one request."""
        return self.revision.process is not None and self.revision.process.lifetime == LIFETIME_REQUEST

    def wants_gpus(self) -> bool:
        return self.revision.process is not None and self.revision.process.gpus > 0

    def running(self) -> list[LocalProcess]:
        """That start, run or are being woken."""
        return [process for process in self.processes.values() if not process.stopping and _is_wanted(process)]

    def asleep(self) -> list[LocalProcess]:
        """That can be woken; the one that has slept for the shortest time last."""
        return [one for one in self.processes.values() if one.rest is Rest.ASLEEP and not one.stopping]

    def starting(self) -> int:
        return sum(not process.ready for process in self.running())

    def ready(self) -> int:
        return sum(process.ready for process in self.running())


def counts_of(processes: Iterable[LocalProcess], fleet: Fleet | None, home: str, may_start: bool) -> ProgramCounts:
    """Of those that count in the group `home`; of a revision that was dropped there is no fleet."""
    started = ready = leaving = falling_asleep = sleeping = stopping_asleep = 0
    for process in processes:
        if process.home != home:
            continue
        if process.stopping:
            stopping_asleep += process.rest is Rest.ASLEEP
            leaving += process.rest is not Rest.ASLEEP
        elif process.rest is Rest.ASLEEP:
            sleeping += 1
        elif process.rest is Rest.SPENT:
            leaving += 1
        elif process.rest is Rest.FALLING_ASLEEP:
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
    return process.rest in {Rest.AWAKE, Rest.WAKING}
