"""The judge of executions: what the programs and pods have written down about the requests that came to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

ONCE: Final = "once-"  # the beginning of the ID of a request that is not idempotent
TRIES_MAX: Final = 3  # an idempotent request is sent to two other pods at most
GENERATION: Final = 200_000  # IDs; two generations are remembered


class Executions:
    """The records of one revision's processes, each of which may have `limit` requests at one time (0: any number)."""

    def __init__(self, path: Path, limit: int = 0) -> None:
        self.path = path
        self.limit = limit
        self.total = 0
        self.most = 0  # at one process at one time
        self.repeated = 0  # executions of idempotent requests beyond the first
        self.violations: list[str] = []
        self._offset = 0
        self._rest = b""
        self._now: dict[str, list[int]] = {}  # the processes that had a request, by its ID
        self._before: dict[str, list[int]] = {}

    def poll(self) -> None:
        """Read what was written since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.take(line.decode() for line in lines)

    def take(self, lines: Iterable[str]) -> None:
        """Judge lines of the record."""
        for line in lines:
            words = line.split()
            if words and words[0] == "begin":
                self._begin(words[1], int(words[2]), int(words[3]))

    def executors(self, name: str) -> frozenset[int]:
        """The processes that had the request with this ID."""
        return frozenset([*self._before.get(name, []), *self._now.get(name, [])])

    def _begin(self, name: str, pid: int, count: int) -> None:
        self.total += 1
        self.most = max(self.most, count)
        if self.limit and count > self.limit:
            self.violations.append(f"{count} requests at once at process {pid} of {self.path.name}, with {name}")
        had = self._before.pop(name, self._now.get(name, []))
        self._now[name] = [*had, pid]
        if had:
            self._judge_repetition(name, had, pid)
        if len(self._now) > GENERATION:
            self._before, self._now = self._now, {}

    def _judge_repetition(self, name: str, had: list[int], pid: int) -> None:
        if name.startswith(ONCE):
            self.violations.append(f"{name} was executed again: at process {pid} of {self.path.name}, before at {had}")
        elif len(had) >= TRIES_MAX:
            self.violations.append(f"{name} was executed {len(had) + 1} times by {self.path.name}")
        else:
            self.repeated += 1
