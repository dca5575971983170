"""The start of a program of a revision: its command line, directory, environment and limits.

They also apply to the commands beside it (`readiness.command`, `stop.command`), and are resolved at each start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from activator.config.model.programs import Process
from activator.config.programs import check_program, directory_of, limits_of, owner_of, variables_of
from activator.control_plane.sources.process.addresses import ProgramAddress
from activator.control_plane.sources.process.cgroups import Cgroup
from activator.control_plane.sources.process.gpus import VARIABLES
from activator.control_plane.sources.process.process_tree import PROGRAM_MARK, mark_of
from activator.control_plane.sources.process.reaper import MARK
from activator.control_plane.sources.process.spawned import ChildHandle, spawn, spawn_silent

_LAUNCHER: Final = str(Path(__file__).with_name("launcher.py"))
_UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}  # output to a pipe is block-buffered otherwise


class Launch:
    """The start of one process, for which these GPUs are reserved. Raises ConfigError if it cannot start."""

    def __init__(
        self,
        settings: Process,
        program_address: ProgramAddress,
        mark: str,
        identity: str = "",
        gpus: Sequence[str] = (),
        cgroup: Cgroup | None = None,
    ) -> None:
        self.directory = directory_of(settings, os.environ)
        configured = variables_of(settings, self.directory, os.environ)
        for command in (settings.command, settings.readiness.command, settings.stop.command):
            if command:
                check_program(command, self.directory, configured)
        self.variables = {**_UNBUFFERED, **configured, **program_address.variables(), MARK: mark}
        if identity:
            self.variables[PROGRAM_MARK] = mark_of(mark, identity)
        if settings.gpus:
            self.variables.update(dict.fromkeys(VARIABLES, ",".join(gpus)))
        self._owner = owner_of(settings) if settings.user else None
        self._program_address = program_address
        limits = limits_of(settings)
        if cgroup is not None:
            limits = [f"cgroup={cgroup.path}", *(limit for limit in limits if not limit.startswith("memory="))]
        self._prefix = [sys.executable, "-I", "-S", _LAUNCHER, *limits, "--"] if limits else []

    async def start(self, command: Sequence[str]) -> ChildHandle:
        """Start the program as the leader of a process group. Raises OSError."""
        return await spawn(self._words(command), self.variables, self.directory or None, self._owner)

    def start_beside(self, command: Sequence[str]) -> ChildHandle:
        """Start a command with the program's environment and limits; its output is discarded. Raises OSError."""
        return spawn_silent(self._words(command), self.variables, self.directory or None)

    def _words(self, command: Sequence[str]) -> list[str]:
        return [*self._prefix, *map(self._program_address.fill, command)]
