"""The processes of one revision, and what is known of each of them."""

from __future__ import annotations

import asyncio
import os

from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.launch import Launch
from activator.control_plane.sources.process.output import OnLine, Output
from activator.control_plane.sources.process.program_log import ProgramLog
from activator.messages import PodStatus
from activator.runtime.local_listeners import LOOPBACK_4
from activator.runtime.sockets import join_address


class LocalProcess:
    """One process; `stopping` from the moment it is not wanted any more."""

    def __init__(
        self, key: str, identity: str, port: int, drain_timeout_s: float, settings: Process, on_line: OnLine
    ) -> None:
        self.key = key
        self.identity = identity
        self.port = port
        self.drain_timeout_s = drain_timeout_s
        self.stop = settings.stop  # as it was configured when the process was started
        self.address = join_address(LOOPBACK_4, port)
        self.is_port_fixed = False
        self.ready = False
        self.stopping = False
        self.drained = asyncio.Event()
        self.stop_asked = asyncio.Event()
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
        self.wanted = 0
        self.processes: dict[str, LocalProcess] = {}
        self.crashes = 0  # failed starts in a row
        self.failure = ""  # why it cannot start; empty: it can, or may try
        self.not_before_s = 0.0  # the crash backoff

    @property
    def fixed_port(self) -> int | None:
        return None if self.revision.process is None else self.revision.process.port

    def running(self) -> list[LocalProcess]:
        return [process for process in self.processes.values() if not process.stopping]

    def starting(self) -> int:
        return sum(not process.ready for process in self.running())

    def ready(self) -> int:
        return sum(process.ready for process in self.running())
