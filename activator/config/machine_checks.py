"""What `activator check` looks up on this machine: whether the local programs of a file could start here.

A start does not need it: what is missing then may be there when the first request comes, and is told if not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from activator.config.edge_checks import element_at, item_at
from activator.config.model.file import Config
from activator.config.model.programs import Process
from activator.config.programs import check_program, directory_of, limits_of, log_file_of, variables_of
from activator.config.tree import Item
from activator.config.waiting_checks import text_of
from activator.runtime.errors import ConfigError

T = TypeVar("T")


def machine_problems(config: Config, root: Item, environ: Mapping[str, str]) -> list[str]:
    """One line for each mistake, with its place in the file that `root` was read from."""
    problems: list[str] = []
    for place, revision in enumerate(config.revisions):
        for key, named in (("waiting_page", revision.waiting_page), ("fallback", revision.fallback)):
            if named is not None and named.file:
                found = item_at(item_at(element_at(item_at(root, "revisions"), place), key), "file")
                _check_page(found, named.file, f"revisions[{place}].{key}.file", problems)
        if revision.process is not None:
            item = item_at(element_at(item_at(root, "revisions"), place), "process")
            _check(item, revision.process, f"revisions[{place}].process", environ, problems)
    return problems


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
