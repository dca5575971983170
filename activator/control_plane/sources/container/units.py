"""The factory of container units, with one engine for each configured socket."""

from __future__ import annotations

import os

from activator.config.engines import engine_path
from activator.config.model.containers import HOST_NETWORK, Containers
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.engine import Engine
from activator.control_plane.sources.container.existing import ExistingContainer
from activator.control_plane.sources.container.images import Images
from activator.control_plane.sources.container.managed import ManagedContainer
from activator.control_plane.sources.container.sweeper import Sweeper
from activator.control_plane.sources.container.unit import EngineContext
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.unit import Unit, Units
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner


class _Used:
    """One engine with its images and its sweeper."""

    def __init__(self, path: str, problem: str, tasks: TaskGroupOwner, reaping: Reaping) -> None:
        self.engine = Engine(path, problem)
        self.images = Images(self.engine, tasks)
        self.sweeper = Sweeper(self.engine, reaping.mark)
        if not problem:
            reaping.engine(path)
        self.task = tasks.start("containers", self.sweeper.run())


class ContainerUnits(Units):
    """The factory; `configure` has to be called first."""

    def __init__(self, tasks: TaskGroupOwner, now: Now, wall_clock: Now, reaping: Reaping) -> None:
        self._tasks = tasks
        self._now = now
        self._wall_clock = wall_clock
        self._reaping = reaping
        self._settings = Containers()
        self._used: dict[str, _Used] = {}  # by path of the socket

    def configure(self, settings: Containers) -> None:
        """Set the settings of the units that are made from now on."""
        self._settings = settings

    def engine(self, named: str = "") -> Engine:
        """Return the engine of this name, or the default one."""
        return self._use(named).engine

    def _use(self, named: str) -> _Used:
        path = problem = ""
        try:
            path = engine_path(named or self._settings.engine, os.environ)
        except ConfigError as error:
            problem = error.problems[0]
        used = self._used.get(path or problem)
        if used is None:
            used = self._used[path or problem] = _Used(path, problem, self._tasks, self._reaping)
        return used

    def known(self, revision: Revision) -> None:
        if revision.container is not None:
            self._use(revision.container.engine)  # begins to remove the leftovers of an earlier run

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit:
        settings = revision.container
        assert settings is not None
        used = self._use(settings.engine)
        context = EngineContext(
            *(used.engine, self._tasks, self._now, self._wall_clock),
            *(float(self._settings.patience), self._settings.address),
        )
        claim = self.claim_of(revision)
        if settings.existing:
            return ExistingContainer(context, revision, identity, claim, on_line)
        pull_timeout_s = float(self._settings.pull_timeout)
        return ManagedContainer(
            *(context, used.images, used.sweeper, pull_timeout_s, revision, identity, claim, gpus, on_line)
        )

    def claim_of(self, revision: Revision) -> str:
        settings = revision.container
        if settings is None:
            return ""
        name = settings.existing or settings.name
        if name:
            return f"container {name}"
        return f"port {settings.port}" if settings.network == HOST_NETWORK else ""

    async def close(self) -> None:
        for used in self._used.values():
            used.task.cancel()
            await used.engine.close()
