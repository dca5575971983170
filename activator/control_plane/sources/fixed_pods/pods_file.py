"""Fixed pods from a file that another program writes: read when it changes, and applied as a whole or not at all.

Rules
  1. The file is checked every PODS_FILE_CHECK_S, in a thread, because a file system may hang. It may be replaced or
     written in place.
  2. A list whose end is recognizable takes effect at once: JSON, YAML in brackets, or YAML whose last line is `...`.
     The beginning of any other YAML list is also a valid list, so such a file has to be unchanged for
     PODS_FILE_QUIET_S. The same holds for a file with a mistake, before the mistake is reported. Once a file has ended
     with `...`, every later version has to.
  3. A file that is missing, too large or not a list of pods changes nothing: its present pods stay, and one line is
     logged. An empty list is valid: no pods.
  4. An entry has the form of an entry of `pods`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import yaml

from activator.config.checks import split_address
from activator.config.model.pods import Pod
from activator.config.zones import EXPECTED as ZONE_EXPECTED
from activator.config.zones import is_zone
from activator.control_plane.sources.fixed_pods.name_watch import Wait
from activator.runtime.clock import Now
from activator.runtime.units import KIB, MIB
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_address import problem_with as problem_with_unix

PODS_FILE_CHECK_S: Final = 1.0
PODS_FILE_QUIET_S: Final = 3.0  # without a change: the writer has finished
PODS_FILE_BYTES_MAX: Final = 4 * MIB
PODS_FILE_YAML_BYTES_MAX: Final = 256 * KIB  # it is parsed in Python, at about 100 KiB a second
PODS_FILE_PODS_MAX: Final = 20_000

Entries = list[str | Pod]
FileState = tuple[int, int, int]  # inode, size, and the time of the last change in nanoseconds

_END_OF_YAML: Final = b"..."

log = logging.getLogger("activator.state")


class PodsFileError(Exception):
    """A mistake in a file of pods, as one line."""


class Contents(NamedTuple):
    """One reading of the file. `problem`: why it is not a list of pods. `state` is None if it could not be read."""

    state: FileState | None
    entries: Entries
    problem: str = ""
    shows_end: bool = True  # no prefix of it would have been a valid list
    has_last_line: bool = False  # its last line is `...`


def read_pods(text: bytes) -> Entries:
    """Parse a file in JSON or YAML. Raises PodsFileError."""
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        decoded = _from_yaml(text)
    if not isinstance(decoded, list):
        raise PodsFileError(f"found {_kind(decoded)}, expected a list of pods")
    if len(decoded) > PODS_FILE_PODS_MAX:
        raise PodsFileError(f"found {len(decoded)} pods, expected at most {PODS_FILE_PODS_MAX}")
    entries: Entries = []
    for number, item in enumerate(decoded, 1):
        try:
            entry = item if isinstance(item, str) else msgspec.convert(item, Pod)
        except msgspec.ValidationError as error:
            raise PodsFileError(f"entry {number}: {error}") from None
        problem = problem_with(entry)
        if problem:
            raise PodsFileError(f"entry {number}: {problem}")
        entries.append(entry)
    return entries


def problem_with(entry: str | Pod) -> str:
    """Return why this is not an entry of `pods`, as one line; empty if it is one."""
    address, srv, zone = (entry, "", "") if isinstance(entry, str) else (entry.address, entry.srv, entry.zone)
    if bool(address) == bool(srv):
        return "set either `address` or `srv`"
    if not is_zone(zone):
        return f"found a `zone` of another form, expected {ZONE_EXPECTED}"
    if is_unix(address):
        problem = problem_with_unix(address)
        return problem and f"{address}: {problem}"
    if address and split_address(address) is None:
        return f'found "{address}", expected host:port such as 127.0.0.1:8080, or unix:/path'
    return ""


def _from_yaml(text: bytes) -> object:
    if len(text) > PODS_FILE_YAML_BYTES_MAX:
        limit = PODS_FILE_YAML_BYTES_MAX >> 10
        raise PodsFileError(f"it is not JSON, and YAML may have {limit} KiB at most: write a larger file as JSON")
    try:
        # Not with libyaml, which recurses in C without a bound.
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        detail = " ".join(str(getattr(error, "problem", "") or error).split())
        raise PodsFileError(f"it is neither JSON nor YAML: {detail}{where}") from None


def _kind(decoded: object) -> str:
    return "nothing" if decoded is None else "a mapping" if isinstance(decoded, dict) else f'"{str(decoded)[:40]}"'


class PodsFile:
    """The pods of one file. `changed` is called after each new list and each new problem.

    `wall_clock` gives Unix seconds: a file that was last changed long before the first reading is complete.
    """

    def __init__(
        self, label: str, path: str, changed: Callable[[], None], now: Now, wait: Wait, wall_clock: Now
    ) -> None:
        self.label = label
        self.entries: Entries = []
        self.problem = ""
        self.failing_since_s = 0.0
        self._path = path
        self._changed = changed
        self._now = now
        self._wait = wait
        self._wall_clock = wall_clock
        self._read: Contents | None = None  # the last reading
        self._wants_last_line = False  # its writer ends each list with `...`
        self._complete_s = 0.0  # the time from which it counts as complete
        self._applied: Contents | None = None  # the reading that took effect, or whose problem was reported

    async def step(self) -> None:
        """Check the file, and wait until the next check."""
        await self.check()
        await self._wait(asyncio.Event(), PODS_FILE_CHECK_S)

    async def check(self) -> None:
        """Read the file if it has changed, and apply the content once it is complete."""
        reading = await asyncio.to_thread(_read_if_changed, self._path, self._read)
        now_s = self._now()
        if reading is not self._read:
            before, self._read = self._read, reading
            if reading.shows_end:
                self._complete_s = now_s
            elif before is None:
                self._complete_s = now_s + PODS_FILE_QUIET_S - self._unchanged_s(reading)
            elif not _is_replaced_by_the_same(before, reading):
                self._complete_s = now_s + PODS_FILE_QUIET_S
        if reading is self._applied:
            if self.problem:
                self._changed()  # the time since the first failure may matter
        elif now_s >= self._complete_s:
            is_first = self._applied is None
            self._applied = reading
            if reading.problem:
                self._record_problem(reading.problem)
            elif self._wants_last_line and not reading.shows_end:
                self._record_problem(
                    "the end marker `...` is missing, which the file had before: the file may be truncated"
                )
            else:
                self._wants_last_line = reading.has_last_line
                self._accept(reading.entries, is_first)

    def _unchanged_s(self, reading: Contents) -> float:
        """Return for how long the file had not been changed when it was read; at most PODS_FILE_QUIET_S."""
        if reading.state is None:
            return 0.0
        changed_s = reading.state[2] / 1e9
        return min(max(self._wall_clock() - changed_s, 0.0), PODS_FILE_QUIET_S)

    def _accept(self, entries: Entries, is_first: bool) -> None:
        if self.problem or is_first or entries != self.entries:
            log.info("%s: %d pods", self.label, len(entries))
        self.problem = ""
        self.entries = entries
        self._changed()

    def _record_problem(self, problem: str) -> None:
        if not self.problem:
            self.failing_since_s = self._now()
        if problem != self.problem:
            kept = f"; its {len(self.entries)} pods stay" if self.entries else ""
            log.warning("%s: %s%s", self.label, problem, kept)
        self.problem = problem
        self._changed()


def _read_if_changed(path: str, known: Contents | None) -> Contents:
    """Read the file; return `known` itself if it has not changed.

    A file with a mistake is always read again: its writer may correct it without a change of size and time.
    """
    reading = _read(path, known)
    return known if known is not None and reading == known else reading


def _read(path: str, known: Contents | None) -> Contents:
    try:
        with open(path, "rb") as file:
            state = _state_of(file.fileno())
            if known is not None and state == known.state and not known.problem:
                return known
            text = file.read(PODS_FILE_BYTES_MAX + 1)
            is_torn = _state_of(file.fileno()) != state
    except OSError as error:
        return Contents(None, [], f"it cannot be read: {(error.strerror or str(error)).lower()}")
    if len(text) > PODS_FILE_BYTES_MAX:
        return Contents(None, [], f"it is larger than {PODS_FILE_BYTES_MAX >> 20} MiB")
    try:
        entries = read_pods(text)
    except PodsFileError as error:
        return Contents(state, [], str(error), shows_end=False)
    has_last_line = text.strip().splitlines()[-1:] == [_END_OF_YAML]
    return Contents(state, entries, "", not is_torn and (has_last_line or _is_in_brackets(text)), has_last_line)


def _is_replaced_by_the_same(before: Contents, after: Contents) -> bool:
    """Return True if another file with the same list was renamed into the place of the one that was read before."""
    if before.state is None or after.state is None or before.problem or after.problem:
        return False
    return before.state[0] != after.state[0] and before.entries == after.entries


def _state_of(file: int) -> FileState:
    status = os.fstat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _is_in_brackets(text: bytes) -> bool:
    whole = text.strip()
    return whole.startswith(b"[") and whole.endswith(b"]")
