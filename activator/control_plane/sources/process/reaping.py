"""The activator's end of the pipe to the reaper (`reaper.py`), which cleans up when the activator ends."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
from pathlib import Path

log = logging.getLogger("activator.process")


class Reaping:
    """The pipe to the reaper. When it closes, because of `close` or of a crash, the reaper kills every listed group."""

    def __init__(self, reaper: subprocess.Popen[str] | None, mark: str) -> None:
        self._reaper = reaper  # None: it was started by a former process of the activator, or there is none
        self._pipe = None if reaper is None else reaper.stdin
        self.mark = mark
        self._queued: list[str] | None = None  # lines to report in `report_queued`; None: lines are reported at once
        self.is_shared = False  # a later process of the activator has the pipe, too
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

    @classmethod
    def continued(cls, descriptor: int, mark: str) -> Reaping:
        """Share the reaper of a former process of the activator by the writing end of its pipe; -1: it has exited."""
        reaping = cls(None, mark)
        if descriptor < 0:
            log.error("there is no reaper: local programs may survive if the activator is killed")
            return reaping
        reaping._pipe = os.fdopen(descriptor, "w")
        reaping._queued = []
        return reaping

    def report_queued(self) -> None:
        """Report the queued lines and all later ones: this process is the activator now, and will not be given up."""
        queued, self._queued = self._queued, None
        for line in queued or ():
            self._report(line)

    @property
    def process(self) -> int:
        """The process ID of the reaper; 0 if a former process of the activator has started it, or there is none."""
        return 0 if self._reaper is None else self._reaper.pid

    @property
    def descriptor(self) -> int:
        """The descriptor of the pipe; -1 without a reaper."""
        return -1 if self._pipe is None else self._pipe.fileno()

    def add_group(self, group: int) -> None:
        self.groups.add(group)
        self._report(f"+{group}\n")

    def adopt_group(self, group: int) -> None:
        """Register a group of a former process of the activator; the reaper knows it already."""
        self.groups.add(group)

    def remove_group(self, group: int) -> None:
        self.groups.discard(group)
        self._report(f"-{group}\n")

    def add_folder(self, path: str) -> None:
        """Add a folder that the reaper is to remove."""
        self._report(f"={path}\n")

    def add_engine(self, path: str) -> None:
        """Add the socket of a container engine that creates containers with the activator's mark."""
        self._report(f"+{path}\n")

    def close(self) -> None:
        """Make the reaper kill all groups that are still listed, and wait until it has ended.

        If another process of the activator has the pipe, too, the reaper continues until that one closes it.
        """
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            if self._reaper is not None and not self.is_shared:
                self._reaper.wait()

    def _report(self, line: str) -> None:
        if self._queued is not None:
            self._queued.append(line)
        if self._pipe is None or self._queued is not None:
            return
        try:
            self._pipe.write(line)
            self._pipe.flush()
        except OSError as error:
            log.error("the reaper exited (%s): local programs may survive if the activator is killed", error)
            self._pipe = self._reaper = None
