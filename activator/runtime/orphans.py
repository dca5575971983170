"""Adoption and reaping of orphans: descendants of the activator whose parent has ended.

The kernel makes orphans children of process 1, which the activator is in its image, or of a process that has registered
as a subreaper. So a daemon that a program leaves behind is known to be a descendant, even if it hides its environment.
A child that has ended stays in the process table until its parent has waited for it. The activator's own children are
waited for immediately by the code that started them: a child that several consecutive checks find ended and not waited
for is an orphan.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from activator.runtime.process_stat import PARENT, STARTED, STATE, stat_fields

CHECK_S: Final = 1.0
CHECKS: Final = 3  # consecutive checks that find an ended child before it counts as an orphan
REAPED_PER_CHECK_MAX: Final = 1_000
_PR_SET_CHILD_SUBREAPER: Final = 36


class Orphans:
    """The children of this process that have ended and that nothing has waited for."""

    def __init__(self) -> None:
        self._checks: dict[tuple[int, bytes], int] = {}  # by process id and start time: checks that found it ended
        self.reaped_total = 0

    def check(self) -> None:
        """Find children that have ended, and reap those that are orphans."""
        if not _has_ended_child():
            self._checks.clear()
            return
        before = self._checks
        self._checks = {}
        reaped = 0
        for child in _ended_children():
            checks = before.get(child, 0) + 1
            if checks >= CHECKS and reaped < REAPED_PER_CHECK_MAX:
                reaped += _reap(child[0])
            else:
                self._checks[child] = checks
        self.reaped_total += reaped


def adopt() -> bool:
    """Make orphans children of this process. Return False if the kernel refuses."""
    return os.getpid() == 1 or ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _has_ended_child() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # there are no children


def _ended_children() -> list[tuple[int, bytes]]:
    """Return process ID and start time of each child that has ended and was not waited for."""
    own_process = str(os.getpid()).encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = stat_fields(name)
        except OSError:
            continue  # the process has ended
        if fields[STATE] == b"Z" and fields[PARENT] == own_process:
            found.append((int(name), fields[STARTED]))
    return found


def _reap(process: int) -> int:
    """Wait for a child that has ended. Return 1 if it was reaped, else 0."""
    try:
        return int(os.waitpid(process, os.WNOHANG)[0] == process)
    except ChildProcessError:
        return 0
