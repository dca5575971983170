"""The checks of `activator check` on this machine: whether the local programs of a file can start here.

A start does not need them: a missing program may exist when the first request comes, and is reported if not.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from activator.config.edge_checks import element_at, item_at
from activator.config.engine_look import EngineLook
from activator.config.engines import engine_path
from activator.config.model.containers import Container
from activator.config.model.file import Config
from activator.config.model.programs import Process
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
    for place, revision in enumerate(config.revisions):
        for key, named in (("waiting_page", revision.waiting_page), ("fallback", revision.fallback)):
            if named is not None and named.file:
                found = item_at(item_at(element_at(item_at(root, "revisions"), place), key), "file")
                _check_page(found, named.file, f"revisions[{place}].{key}.file", problems)
        if revision.process is not None:
            item = item_at(element_at(item_at(root, "revisions"), place), "process")
            _check(item, revision.process, f"revisions[{place}].process", environ, problems)
    problems.extend(_ContainerChecks(config, environ).problems(root))
    return problems


class _ContainerChecks:
    """The checks of containers: each engine is queried once, and its problem reported once."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._engines: dict[str, EngineLook | None] = {}  # None: it cannot be used, which has been reported

    def problems(self, root: Item) -> list[str]:
        found: list[str] = []
        containers = self._config.containers
        if containers.discover:
            self._engine(containers.engine, item_at(item_at(root, "containers"), "discover").where, "containers", found)
        for place, revision in enumerate(self._config.revisions):
            if revision.container is not None:
                item = item_at(element_at(item_at(root, "revisions"), place), "container")
                self._check(item, revision.container, f"revisions[{place}].container", found)
        return found

    def _check(self, item: Item, container: Container, path: str, problems: list[str]) -> None:
        for key, look in (
            ("env_file", partial(container_variables, container, self._environ)),
            ("volumes", partial(volumes_of, container, self._environ)),
        ):
            try:
                look()
            except ConfigError as error:
                problems.extend(f"{item_at(item, key).where}: {path}.{key}: {problem}" for problem in error.problems)
        if container.logs.file:
            try:
                log_file_of(container, self._environ)
            except ConfigError as error:
                problems.extend(f"{item_at(item, 'logs').where}: {path}.logs: {problem}" for problem in error.problems)
        engine = self._engine(container.engine or self._config.containers.engine, item.where, path, problems)
        if engine is None:
            return
        try:
            if container.existing and not engine.has_container(container.existing):
                where = item_at(item, "existing").where
                advice = f'there is no container "{container.existing}" at {engine.path}: make it, or correct the name'
                problems.append(f"{where}: {path}.existing: {advice}")
            if container.image and container.pull == "never" and not engine.has_image(container.image):
                where = item_at(item, "image").where
                tool = "podman" if "podman" in engine.path else "docker"
                advice = f"`pull` is never: {tool} pull {container.image}"
                problems.append(f'{where}: {path}.image: there is no image "{container.image}", and {advice}')
        except (OSError, http.client.HTTPException) as error:
            problems.append(f"{item.where}: {path}: the container engine at {engine.path} does not answer: {error}")

    def _engine(self, named: str, where: str, path: str, problems: list[str]) -> EngineLook | None:
        try:
            found = engine_path(named, self._environ)
        except ConfigError as error:
            problems.extend(f"{where}: {path}: {problem}" for problem in error.problems)
            return None
        if found not in self._engines:
            look = EngineLook(found)
            problem = look.problem()
            self._engines[found] = None if problem else look
            if problem:
                problems.append(f"{where}: {path}: {problem}")
        return self._engines[found]


def _check_page(item: Item, file: str, path: str, problems: list[str]) -> None:
    try:
        text_of(file)
    except ConfigError as error:
        problems.extend(f"{item.where}: {path}: {problem}" for problem in error.problems)


def _check(item: Item, process: Process, path: str, environ: Mapping[str, str], problems: list[str]) -> None:
    def attempt(key: str, look: Callable[[], T]) -> T | None:
        try:
            return look()
        except ConfigError as error:
            where = item_at(item, key).where
            problems.extend(f"{where}: {path}.{key}: {problem}" for problem in error.problems)
            return None

    directory = attempt("directory", lambda: directory_of(process, environ))
    if directory is None:
        return
    if attempt("user" if process.user else "cpus", lambda: limits_of(process)) is None:
        return
    if process.logs.file:
        attempt("logs", lambda: log_file_of(process, environ))
    variables = attempt("env_file", lambda: variables_of(process, directory, environ))
    known = {**environ, **process.environment} if variables is None else variables
    attempt("command", lambda: check_program(process.command, directory, known))
    for key, command in (("readiness", process.readiness.command), ("stop", process.stop.command)):
        if command:
            attempt(key, partial(check_program, command, directory, known))
