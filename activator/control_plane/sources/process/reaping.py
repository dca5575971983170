"""The activator's end of the pipe to the reaper (`reaper.py`), which cleans up when the activator ends."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
from pathlib import Path

log = logging.getLogger("activator.process")


class Reaping:
    """The pipe to the reaper. When it closes, because of `close` or of a crash, the reaper kills every listed group."""

    def __init__(self, reaper: subprocess.Popen[str] | None, mark: str) -> None:
        self._reaper = reaper
        self.mark = mark
        self.groups: set[int] = set()  # process groups, and sessions, that our programs lead

    @classmethod
    def start(cls) -> Reaping:
        """Start the reaper; to be called before the event loop exists."""
        mark = secrets.token_hex(8)
        script = Path(__file__).with_name("reaper.py")
        reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), mark],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return cls(reaper, mark)

    def born(self, group: int) -> None:
        self.groups.add(group)
        self._report(f"+{group}\n")

    def exited(self, group: int) -> None:
        self.groups.discard(group)
        self._report(f"-{group}\n")

    def folder(self, path: str) -> None:
        """Add a folder that the reaper is to remove."""
        self._report(f"={path}\n")

    def engine(self, path: str) -> None:
        """Add the socket of a container engine that creates containers with the activator's mark."""
        self._report(f"+{path}\n")

    def close(self) -> None:
        """Make the reaper kill all groups that are still listed, and wait until it has ended."""
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait()

    def _report(self, line: str) -> None:
        if self._reaper is None or self._reaper.stdin is None:
            return
        try:
            self._reaper.stdin.write(line)
            self._reaper.stdin.flush()
        except OSError as error:
            log.error("the reaper exited (%s): local programs may survive if the activator is killed", error)
            self._reaper = None
