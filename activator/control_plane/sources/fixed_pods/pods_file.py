"""Fixed pods from a file that something else writes: read when it changes, all of it or nothing.

Rules
  1. The file is looked at every PODS_FILE_LOOK_S, in a thread, since a file system may hang. It may be replaced or
     written in place: what is not whole is no list, and the next look finds the rest.
  2. A file that is missing, too large or no list of pods changes nothing: the pods that it gave stay, and one line says
     why. An empty list is a list: no pods.
  3. An entry has the form of an entry of `pods`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

import msgspec
import yaml

from activator.config.checks import split_address
from activator.config.model.pods import Pod
from activator.control_plane.sources.fixed_pods.name_watch import Wait
from activator.runtime.clock import Now
from activator.runtime.units import KIB, MIB
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_address import problem_with as problem_with_unix

PODS_FILE_LOOK_S: Final = 1.0
PODS_FILE_BYTES_MAX: Final = 4 * MIB
PODS_FILE_YAML_BYTES_MAX: Final = 256 * KIB  # it is parsed in Python, some 100 KiB a second
PODS_FILE_PODS_MAX: Final = 20_000

Entries = list[str | Pod]
FileState = tuple[int, int, int]

log = logging.getLogger("activator.state")


class PodsFileError(Exception):
    """What is wrong with it, in one line."""


def read_pods(text: bytes) -> Entries:
    """The pods of a file in JSON or YAML. Raises PodsFileError."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = _from_yaml(text)
    if not isinstance(found, list):
        raise PodsFileError(f"found {_kind(found)}, expected a list of pods")
    if len(found) > PODS_FILE_PODS_MAX:
        raise PodsFileError(f"found {len(found)} pods, expected at most {PODS_FILE_PODS_MAX}")
    entries: Entries = []
    for number, one in enumerate(found, 1):
        try:
            entry = one if isinstance(one, str) else msgspec.convert(one, Pod)
        except msgspec.ValidationError as error:
            raise PodsFileError(f"entry {number}: {error}") from None
        problem = problem_with(entry)
        if problem:
            raise PodsFileError(f"entry {number}: {problem}")
        entries.append(entry)
    return entries


def problem_with(entry: str | Pod) -> str:
    """One line, or empty: it is an entry of `pods`."""
    address, srv = (entry, "") if isinstance(entry, str) else (entry.address, entry.srv)
    if bool(address) == bool(srv):
        return "set either `address` or `srv`"
    if is_unix(address):
        problem = problem_with_unix(address)
        return problem and f"{address}: {problem}"
    if address and split_address(address) is None:
        return f'found "{address}", expected host:port such as 127.0.0.1:8080, or unix:/path'
    return ""


def _from_yaml(text: bytes) -> object:
    if len(text) > PODS_FILE_YAML_BYTES_MAX:
        limit = PODS_FILE_YAML_BYTES_MAX >> 10
        raise PodsFileError(f"it is no JSON, and YAML may have {limit} KiB at most: write a larger file as JSON")
    try:
        # Not with libyaml: it recurses in C, without a bound.
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        said = " ".join(str(getattr(error, "problem", "") or error).split())
        raise PodsFileError(f"it is neither JSON nor YAML: {said}{where}") from None


def _kind(found: object) -> str:
    return "nothing" if found is None else "a mapping" if isinstance(found, dict) else f'"{str(found)[:40]}"'


class PodsFile:
    """`changed` is called with each new list, and with each failure that is another one."""

    def __init__(self, label: str, path: str, changed: Callable[[], None], now: Now, wait: Wait) -> None:
        self.label = label
        self.entries: Entries = []
        self.problem = ""
        self.failing_since_s = 0.0
        self._path = path
        self._changed = changed
        self._now = now
        self._wait = wait
        self._state: FileState | None = None  # when it was read last

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await self._wait(asyncio.Event(), PODS_FILE_LOOK_S)

    async def look(self) -> None:
        """Read it if it is another one than before."""
        try:
            state, entries = await asyncio.to_thread(_read_if_changed, self._path, self._state)
        except PodsFileError as error:
            self._failed(str(error))
            return
        if entries is None:
            if self.problem:
                self._changed()  # time alone may make a difference
            return
        if self.problem or self._state is None or entries != self.entries:
            log.info("%s: %d pods", self.label, len(entries))
        self._state = state
        self.problem = ""
        self.entries = entries
        self._changed()

    def _failed(self, problem: str) -> None:
        if not self.problem:
            self.failing_since_s = self._now()
        if problem != self.problem:
            kept = f"; its {len(self.entries)} pods stay" if self.entries else ""
            log.warning("%s: %s%s", self.label, problem, kept)
        self.problem = problem
        self._state = None  # a write that goes on may end within the same state of the file
        self._changed()


def _read_if_changed(path: str, known: FileState | None) -> tuple[FileState, Entries | None]:
    """Raises PodsFileError."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if state == known:
                return state, None
            text = file.read(PODS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PodsFileError(f"it cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(text) > PODS_FILE_BYTES_MAX:
        raise PodsFileError(f"it is larger than {PODS_FILE_BYTES_MAX >> 20} MiB")
    return state, read_pods(text)
