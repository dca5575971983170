"""Containers as a source of revisions: those that labels declare, and the state of those that the file names.

It declares the revisions of discovered containers, and gives their programs to the supervisor of all local programs. A
container that was started by something else, or ran before the activator, counts as loaded on demand: it is stopped
when it is idle.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from activator.config.file import resolve_revision
from activator.config.labels import ENABLE
from activator.config.model.file import Config
from activator.config.model.revision import Revision
from activator.config.policy_names import PolicyNames
from activator.config.specs import reroute
from activator.control_plane.sources.container.discovery import Discovered, Found, discovered
from activator.control_plane.sources.container.engine import Engine, EngineError
from activator.control_plane.sources.container.state import state_of
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.container.watcher import Watcher
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.sources.source import Source
from activator.messages import Change, RevisionGone, RevisionSet
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner
from lb.registry import default_name

log = logging.getLogger("activator.container")


class ContainerSource(Source):
    """The source of containers; `programs` runs them, `units` has the engine."""

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        programs: ProcessSource,
        units: ContainerUnits,
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._programs = programs
        self._units = units
        self._config = Config()
        self._file: dict[str, Revision] = {}  # the revisions of the file, by key
        self._found: dict[str, Found] = {}  # revisions that labels declare, by key
        self._submitted: dict[str, RevisionSet] = {}
        self.problems: dict[str, str] = {}  # by container: why it is left out
        self._watcher: Watcher | None = None
        self._task: Any = None
        self._engine: Engine | None = None
        self._is_configured = False
        self._is_list_awaited = False  # discovery was on at the start, and nothing has been listed yet

    async def close(self) -> None:
        self._stop_watching()

    async def close_connections(self) -> None:
        """Close the connections to engines, which another process of the activator uses."""
        await self._units.close()

    def prepare(self, config: Config) -> None:
        """Set the engine, and drop replaced revisions; to be called before other sources get the file's revisions."""
        self._units.configure(config.containers)
        for key in [
            key
            for key in self._found
            if key in {f"{revision.namespace}/{revision.name}" for revision in config.revisions}
        ]:
            self._submitted.pop(key, None)
            self._found.pop(key)

    def configure(self, config: Config) -> None:
        """Apply a configuration; other sources already have the revisions of the file."""
        self._config = config
        # A reload does not make a serving activator unready: its other revisions do not depend on the engine.
        self._is_list_awaited = config.containers.discover and (self._is_list_awaited or not self._is_configured)
        self._is_configured = True
        self._file = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
        wanted = config.containers.discover or bool(self._existing_names())
        if not wanted:
            self._stop_watching()
            self._declare_found(Discovered({}, {}))
            return
        for key, found in self._found.items():
            self._declare(key, found)  # with the settings that now apply to all revisions
        engine = self._units.engine()
        if engine is not self._engine:
            if self._engine is not None:  # the containers of another engine are unknown
                self._is_list_awaited = config.containers.discover
            self._stop_watching()
            self._engine = engine
        if self._watcher is None:
            self._watcher = Watcher(engine, self._tasks, self._refresh)
            self._task = self._tasks.start("discovery of containers", self._watcher.run())
        self._watcher.expedite()

    def declares(self, key: str) -> bool:
        return key in self._submitted

    def pending(self) -> list[str]:
        if not self._is_list_awaited:
            return []
        problem = "" if self._watcher is None else self._watcher.problem
        return ["the first list of containers" + (f": {problem}" if problem else "")]

    def resubmit(self, key: str) -> None:
        self._submit(self._submitted[key])
        self._programs.resubmit(key)

    def _stop_watching(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._watcher = self._engine = None

    def _existing_names(self) -> dict[str, str]:
        """Return the containers that the file names and that are on the watched engine, by key of the revision."""
        return {
            key: revision.container.existing
            for key, revision in self._file.items()
            if revision.container is not None and revision.container.existing and not revision.container.engine
        }

    # --- observed containers ---

    async def _refresh(self) -> None:
        engine = self._engine
        if engine is None:
            return
        if self._config.containers.discover:
            query = {"all": "true", "filters": json.dumps({"label": [f"{ENABLE}=true"]})}
            listed = await engine.call("GET", "/containers/json", query)
            self._declare_found(discovered(listed, self._file, PolicyNames()))
            self._is_list_awaited = False
        else:
            self._declare_found(Discovered({}, {}))
        running = {found.name for found in self._found.values() if found.is_running}
        for name in self._existing_names().values():
            inspected = await self._inspected(engine, name)
            if inspected is not None and state_of(inspected).is_running:
                running.add(name)
        self._load_running({key: found.name for key, found in self._found.items()} | self._existing_names(), running)

    async def _inspected(self, engine: Engine, name: str) -> dict[str, Any] | None:
        try:
            return await engine.inspect("containers", name)
        except EngineError as error:
            log.warning("the container engine does not report the state of %s: %s", name, error)
            return None

    def _load_running(self, by_key: dict[str, str], running: set[str]) -> None:
        """Load the revisions of running containers that the activator has not started."""
        for key, name in by_key.items():
            if name in running and not self._programs.supervisor.fleets.of(key):
                self._programs.load(key, None)  # until it has been idle for long enough

    def _declare_found(self, latest: Discovered) -> None:
        """Declare new and changed revisions, remove those that are gone, and log new problems."""
        for name, problem in latest.problems.items():
            if self.problems.get(name) != problem:
                log.warning("%s", problem)
        for name in self.problems.keys() - latest.problems.keys():
            log.info("the container %s has no problem any more", name)
        self.problems = latest.problems
        before = self._found
        for key in before.keys() - latest.found.keys():
            self._drop(key)
        for key, found in latest.found.items():
            if key not in before or before[key].revision != found.revision:
                self._declare(key, found)
        self._found = dict(latest.found)

    def _declare(self, key: str, found: Found) -> None:
        """Submit the revision if it has changed, and give its program to the supervisor of local programs."""
        revision = found.revision
        try:
            spec = resolve_revision(self._config, revision, default_name)
        except ConfigError as error:  # a page that cannot be read
            log.warning("container %s: %s", found.name, error.problems[0])
            return
        # Behind all of the file: if both match a request, the file's revision is preferred.
        change = RevisionSet(reroute(spec, order=len(self._file) + 1))
        known = self._submitted.get(key)
        if known is None:
            log.info("the container %s is the revision %s for %s", found.name, key, ", ".join(revision.hosts))
        self._submitted[key] = change
        if change != known:
            self._submit(change)
        self._programs.add_revision(key, revision)

    def _drop(self, key: str) -> None:
        log.info("the container of the revision %s was removed", key)
        if self._submitted.pop(key, None) is not None and key not in self._file:
            self._programs.drop_revision(key)
            self._submit(RevisionGone(key))
