"""The choice of the hot modules: compiled by mypyc, or the same sources as plain Python.

Rules
  1. This module runs before any other of `lb` and `activator` (both packages import it first), so it is never compiled
     and uses only the standard library.
  2. `ACTIVATOR_COMPILE=0` at import selects plain Python, even if there are compiled files beside the sources.
  3. In a checkout, compiled files hide edits of their sources. The build writes a stamp with the hash of every file
     that it read; if a hash does not match, the import fails with the command to run. An installed package has no
     stamp, because its files are not edited.
  4. A process that began in plain Python stays there: compiled files that a build creates while it runs are not mixed
     with the sources that it has imported.
  5. The build installs the witness module last and removes it first, so that an incomplete build counts as none.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

PACKAGES: Final = ("activator", "lb")
VARIABLE: Final = "ACTIVATOR_COMPILE"
STAMP_NAME: Final = ".compiled"  # in lb/: a line "<sha256> <path>" per file; lines with "#" belong to the build
WITNESS: Final = "table"  # all modules are compiled or none, so one module of lb/ represents all


class StaleBuildError(ImportError):
    """The compiled files of a checkout do not match its sources."""


class PlainFinder:
    """A finder of our modules as .py files only, placed before Python's own finders, which prefer compiled files."""

    def __init__(self) -> None:
        self._finders: dict[str, FileFinder] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or fullname.partition(".")[0] not in PACKAGES:
            return None
        for entry in path:
            finder = self._finders.get(entry)
            if finder is None:
                finder = FileFinder(entry, (SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES))
                self._finders[entry] = finder
            spec = finder.find_spec(fullname, target)
            if spec is not None:
                return spec
        return None

    def invalidate_caches(self) -> None:
        for finder in self._finders.values():
            finder.invalidate_caches()


def enter() -> bool:
    """Select the compiled or the plain Python modules for this process. Return True if compiled.

    Raises StaleBuildError if the compiled files of a checkout do not match its sources.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get(VARIABLE) == "0" or not _is_compiled(here):
        if not any(isinstance(finder, PlainFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, PlainFinder())
        return False
    root = os.path.dirname(here)
    if os.path.exists(os.path.join(root, "setup.py")):
        changed = stale_file(root)
        if changed is not None:
            raise StaleBuildError(
                f"the compiled files are older than {changed}: run `make build`, or set {VARIABLE}=0 for plain Python"
            )
    return True


def stale_file(root: str) -> str | None:
    """Return the first file of the checkout `root` that has changed since it was compiled; None if all match."""
    try:
        with open(os.path.join(root, "lb", STAMP_NAME), encoding="utf-8") as stamp:
            lines = stamp.read().splitlines()
    except OSError:
        return os.path.join("lb", STAMP_NAME)
    for line in lines:
        if line.startswith("#"):
            continue
        expected, _, path = line.partition(" ")
        if file_hash(os.path.join(root, path)) != expected:
            return path
    return None


def file_hash(path: str) -> str:
    """Return the SHA-256 of a file in hexadecimal; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _is_compiled(folder: str) -> bool:
    """Return True if the folder, lb/, has a compiled witness module."""
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    finder = FileFinder(folder, (ExtensionFileLoader, suffixes))
    return finder.find_spec(f"lb.{WITNESS}") is not None
