"""The factory of container units, with one engine for each configured socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from msgspec.structs import replace

from activator.config.engines import engine_path
from activator.config.model.containers import HOST_NETWORK, Containers
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.context import EngineContext
from activator.control_plane.sources.container.engine import Engine
from activator.control_plane.sources.container.existing import ExistingContainer
from activator.control_plane.sources.container.images import Images
from activator.control_plane.sources.container.managed import ManagedContainer
from activator.control_plane.sources.container.owner import Run
from activator.control_plane.sources.container.sweeper import Sweeper
from activator.control_plane.sources.container.unit import ContainerUnit
from activator.control_plane.sources.process.handed import HandedProgram, HandedPrograms
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.unit import Unit, Units
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner


class _EngineParts:
    """One engine with its images and its sweeper."""

    def __init__(self, path: str, problem: str, tasks: TaskGroupOwner, reaping: Reaping, run: Run) -> None:
        self.engine = Engine(path, problem)
        self.images = Images(self.engine, tasks)
        self.sweeper = Sweeper(self.engine, run)
        self._tasks = tasks
        self._sweeps: asyncio.Task[None] | None = None
        if not problem:
            reaping.add_engine(path)

    def start_sweeping(self) -> None:
        """Start the task that removes leftover containers."""
        self._sweeps = self._tasks.start("containers", self.sweeper.run())

    def stop_sweeping(self) -> None:
        """Stop the task that removes leftover containers."""
        if self._sweeps is not None:
            self._sweeps.cancel()


class ContainerUnits(Units):
    """The factory; `configure` has to be called first."""

    def __init__(self, tasks: TaskGroupOwner, now: Now, wall_clock: Now, reaping: Reaping) -> None:
        self._tasks = tasks
        self._now = now
        self._wall_clock = wall_clock
        self._reaping = reaping
        self._settings = Containers()
        self._run = Run(reaping.mark, reaping.process)
        self._engines: dict[str, _EngineParts] = {}  # by path of the socket
        self._handed: list[ContainerUnit] = []  # units that a former process hands over, until `take_ownership`

    def configure(self, settings: Containers) -> None:
        """Set the settings of the units that are made from now on."""
        self._settings = settings

    def engine(self, named: str = "") -> Engine:
        """Return the engine of this name, or the default one."""
        return self._parts_of(named).engine

    def _parts_of(self, named: str) -> _EngineParts:
        path = problem = ""
        try:
            path = engine_path(named or self._settings.engine, os.environ)
        except ConfigError as error:
            problem = error.problems[0]
        return self._parts_at(path, problem)

    def _parts_at(self, path: str, problem: str = "") -> _EngineParts:
        """Return the parts of the engine at this path, made at the first call; with a problem, it answers no call."""
        parts = self._engines.get(path or problem)
        if parts is None:
            parts = self._engines[path or problem] = _EngineParts(path, problem, self._tasks, self._reaping, self._run)
            if self._run.owns_handed:  # else a former process may have containers that are not known here
                parts.start_sweeping()
        return parts

    def sweeper_of(self, path: str) -> Sweeper:
        """Return the sweeper of the engine whose socket has this path."""
        return self._parts_at(path).sweeper

    def prepare(self, revision: Revision) -> None:
        if revision.container is not None:
            self._parts_of(revision.container.engine)  # begins to remove the leftovers of an earlier run

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit:
        assert revision.container is not None
        parts, is_borrowed = self._parts_of(revision.container.engine), bool(revision.container.existing)
        return self._unit(parts, revision, identity, self.claim_of(revision), gpus, on_line, is_borrowed)

    def take_over(self, revision: Revision, program: HandedProgram, descriptors: list[int], on_line: OnLine) -> Unit:
        assert program.container is not None
        parts = self._parts_at(program.container.engine)
        # The file may describe another kind of container by now.
        is_borrowed, claim = program.container.is_borrowed, program.container.claim
        unit = self._unit(parts, revision, program.identity, claim, program.gpus, on_line, is_borrowed)
        unit.handed = program
        self._handed.append(unit)
        parts.sweeper.expect(program.identity)
        return unit

    def _unit(
        self,
        parts: _EngineParts,
        revision: Revision,
        identity: str,
        claim: str,
        gpus: tuple[str, ...],
        on_line: OnLine,
        is_borrowed: bool,
    ) -> ContainerUnit:
        assert revision.container is not None
        context = EngineContext(
            *(parts.engine, self._tasks, self._now, self._wall_clock),
            *(float(self._settings.patience), self._settings.address, self._run),
        )
        if is_borrowed:
            return ExistingContainer(context, revision, identity, claim, on_line)
        pull_timeout_s = float(self._settings.pull_timeout)
        return ManagedContainer(
            *(context, parts.images, parts.sweeper, pull_timeout_s, revision, identity, claim, gpus, on_line)
        )

    def with_shared_state(self, programs: HandedPrograms) -> HandedPrograms:
        return replace(programs, reaper=self._run.reaper)

    def restore_shared(self, programs: HandedPrograms) -> None:
        self._run.owns_handed = False
        self._run.restore(programs.reaper)

    def take_ownership(self, former: Iterable[int]) -> None:
        self._run.owns_handed = True
        for parts in self._engines.values():
            parts.start_sweeping()
        handed, self._handed = self._handed, []
        for unit in handed:
            unit.resume_output()

    def detach(self) -> None:
        for parts in self._engines.values():
            parts.stop_sweeping()

    def claim_of(self, revision: Revision) -> str:
        settings = revision.container
        if settings is None:
            return ""
        name = settings.existing or settings.name
        if name:
            return f"container {name}"
        return f"port {settings.port}" if settings.network == HOST_NETWORK else ""

    async def close(self) -> None:
        for parts in self._engines.values():
            parts.stop_sweeping()
            await parts.engine.close()
