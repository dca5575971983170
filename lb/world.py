"""Which world this is: the hot modules compiled by mypyc, or the same sources as plain Python.

Rules
  1. This runs before any other module of `lb` and `activator` (both packages call it first), so it is never compiled
     itself and needs nothing but the standard library.
  2. `ACTIVATOR_COMPILE=0` at import gives plain Python, even where compiled files lie beside the sources.
  3. In a checkout, compiled files hide edits of their sources. The build leaves a stamp with the hash of everything it
     read; where that no longer agrees with the files, the import fails and says how to go on. An installed package has
     no stamp: nobody edits it.
  4. A process that began in plain Python stays there: compiled files that appear while it runs (a build behind it) are
     not loaded beside the sources that it has imported already.
  5. The build puts the witness in place last and removes it first, so that a build which was cut short counts as none.
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
STAMP_NAME: Final = ".compiled"  # in lb/: a line "<sha256> <path>" per file read; lines with "#" are the builder's
WITNESS: Final = "table"  # compiling is all or nothing, so one module of lb/ stands for all


class StaleBuildError(ImportError):
    """The compiled files of a checkout are not those of its sources."""


class PlainFinder:
    """Finds our modules as .py only; put before Python's own finders, which prefer compiled files."""

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
    """Settle which world this process is in; True if it is the compiled one.

    Raises StaleBuildError: a compiled file of a checkout is older than its source.
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
    """The first file that is not what the compiled files in the checkout `root` were made from; None if all are."""
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
    """SHA-256 of a file in hexadecimal; empty where there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _is_compiled(folder: str) -> bool:
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    finder = FileFinder(folder, (ExtensionFileLoader, suffixes))
    return finder.find_spec(f"lb.{WITNESS}") is not None
