"""The checks of `activator check` on this machine: whether the local programs of a file can start here.

A start does not need them: a missing program may exist when the first request comes, and is reported if not.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from activator.config.engine_inspection import EngineInspection
from activator.config.engines import engine_path
from activator.config.key_path import Findings, KeyPath
from activator.config.model.containers import Container
from activator.config.model.file import Config
from activator.config.model.programs import Process
from activator.config.model_entries import expand_models
from activator.config.programs import (
    check_program,
    container_variables,
    directory_of,
    limits_of,
    log_file_of,
    variables_of,
    volumes_of,
)
from activator.config.tree import Item
from activator.config.waiting_checks import text_of
from activator.runtime.errors import ConfigError

T = TypeVar("T")


def machine_problems(config: Config, root: Item, environ: Mapping[str, str]) -> list[str]:
    """Return one line for each mistake, with its place in the file that `root` was read from."""
    problems: list[str] = []
    expand_models(root, problems)
    file = KeyPath(Findings(root, problems))
    for at, revision in file["revisions"].each(config.revisions):
        for key, named in (("waiting_page", revision.waiting_page), ("fallback", revision.fallback)):
            if named is not None and named.file:
                _attempt(at[key]["file"], partial(text_of, named.file))
        if revision.process is not None:
            _check_process(at["process"], revision.process, environ)
    _ContainerChecks(config, environ).check(file)
    folder = os.path.dirname(os.path.abspath(config.state))
    if config.state and not os.access(folder, os.W_OK | os.X_OK):
        file["state"].advise(f"no file can be made in {folder}: create the folder, and let this user write there")
    return problems


def _attempt(at: KeyPath, inspect: Callable[[], T]) -> T | None:
    """Return what `inspect` returns; None, and its problems are reported, if it raises ConfigError."""
    try:
        return inspect()
    except ConfigError as error:
        for problem in error.problems:
            at.advise(problem)
        return None


class _ContainerChecks:
    """The checks of containers: each engine is queried once, and its problem reported once."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._engines: dict[str, EngineInspection | None] = {}  # by socket path; None: unusable, already reported

    def check(self, file: KeyPath) -> None:
        containers, at = self._config.containers, file["containers"]
        if containers.discover:
            self._engine(at, containers.engine, at["discover"].where)
        for entry_at, revision in file["revisions"].each(self._config.revisions):
            if revision.container is not None:
                self._check(entry_at["container"], revision.container)

    def _check(self, at: KeyPath, container: Container) -> None:
        _attempt(at["env_file"], partial(container_variables, container, self._environ))
        _attempt(at["volumes"], partial(volumes_of, container, self._environ))
        if container.logs.file:
            _attempt(at["logs"], partial(log_file_of, container, self._environ))
        engine = self._engine(at, container.engine or self._config.containers.engine)
        if engine is None:
            return
        try:
            if container.existing and not engine.has_container(container.existing):
                advice = f'there is no container "{container.existing}" at {engine.path}: make it, or correct the name'
                at["existing"].advise(advice)
            if container.image and container.pull == "never" and not engine.has_image(container.image):
                tool = "podman" if "podman" in engine.path else "docker"
                advice = f"`pull` is never: {tool} pull {container.image}"
                at["image"].advise(f'there is no image "{container.image}", and {advice}')
        except (OSError, http.client.HTTPException) as error:
            at.advise(f"the container engine at {engine.path} does not answer: {error}")

    def _engine(self, at: KeyPath, address: str, where: str = "") -> EngineInspection | None:
        """Return the engine at an address; None if it cannot be used, which is reported."""
        try:
            path = engine_path(address, self._environ)
        except ConfigError as error:
            for problem in error.problems:
                at.advise(problem, where)
            return None
        if path not in self._engines:
            inspection = EngineInspection(path)
            problem = inspection.problem()
            self._engines[path] = None if problem else inspection
            if problem:
                at.advise(problem, where)
        return self._engines[path]


def _check_process(at: KeyPath, process: Process, environ: Mapping[str, str]) -> None:
    """Check that a process can start on this machine."""
    directory = _attempt(at["directory"], partial(directory_of, process, environ))
    if directory is None:
        return
    if _attempt(at["user" if process.user else "cpus"], partial(limits_of, process)) is None:
        return
    if process.logs.file:
        _attempt(at["logs"], partial(log_file_of, process, environ))
    variables = _attempt(at["env_file"], partial(variables_of, process, directory, environ))
    program_variables = {**environ, **process.environment} if variables is None else variables
    _attempt(at["command"], partial(check_program, process.command, directory, program_variables))
    for key, command in (("readiness", process.readiness.command), ("stop", process.stop.command)):
        if command:
            _attempt(at[key], partial(check_program, command, directory, program_variables))
