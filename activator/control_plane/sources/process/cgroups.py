"""Memory limits of programs, by cgroups of version 2 where the activator may create them (cgroups(7)).

Rules
  1. The cgroups are created below the cgroup in which the activator was started. That one must have the memory
     controller, be writable, and contain only the activator and its descendants, as for a service with `Delegate=yes`.
     Otherwise the reason is logged once, and limits are set by setrlimit(2).
  2. The kernel does not let a cgroup limit its children while it contains processes itself. Before the first limit is
     set, the processes in it are moved to a leaf; all processes that are started later are born there.
  3. A process enters its cgroup before it executes the program (`launcher.py`). A program that exceeds the limit is
     killed as a whole (`memory.oom.group`), and `was_exceeded` reports it.
  4. A cgroup is removed when its program has ended; if processes are left in it, it stays and a warning is logged.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import threading
from pathlib import Path
from typing import ClassVar, Final

OWN_LEAF: Final = "activator"
PREFIX: Final = "program-"
MOVES_MAX: Final = 5  # rounds of moving; a process may start others before it is moved

log = logging.getLogger("activator.process")


class UnusableError(Exception):
    """The reason for which cgroups cannot be used, in a few words."""


class Cgroup:
    """The cgroup of one program."""

    def __init__(self, path: Path, events: str) -> None:
        self.path = path
        self._events = events

    def was_exceeded(self) -> bool:
        """Return True if the kernel has killed the program because it exceeded the limit."""
        try:
            lines = (self.path / self._events).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and not line.endswith(" 0") for line in lines)

    def remove(self) -> None:
        try:
            self.path.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the cgroup %s cannot be removed: %s", self.path, error.strerror)


class Cgroups:
    """The cgroups of all programs. `proc`: the path of /proc; tests override the names to use another controller."""

    CONTROLLER: ClassVar[str] = "memory"
    LIMIT: ClassVar[str] = "memory.max"
    MORE: ClassVar[dict[str, str]] = {"memory.oom.group": "1"}  # further files of the cgroup and their content
    EVENTS: ClassVar[str] = "memory.events"

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.former: set[int] = set()  # processes of the activator that this one has replaced
        self._own: Path | None = None
        self._is_known = False

    @property
    def own(self) -> str:
        """The path of the cgroup below which the others are; empty if there is none."""
        return "" if self._own is None else str(self._own)

    def use_prepared(self, own: str) -> None:
        """Create cgroups below the one that a former process of the activator has prepared."""
        self._own, self._is_known = Path(own), True

    def adopted(self, path: str) -> Cgroup:
        """Return the existing cgroup of a program that was handed over."""
        return Cgroup(Path(path), self.EVENTS)

    def create_limited(self, limit: int) -> Cgroup | None:
        """Create a cgroup with this limit; None: use setrlimit. May be called from any thread."""
        with self._lock:
            own = self._prepared()
        if own is None:
            return None
        cgroup = Cgroup(own / f"{PREFIX}{os.getpid()}-{next(self._numbers)}", self.EVENTS)
        try:
            cgroup.path.mkdir()
            (cgroup.path / self.LIMIT).write_text(str(limit))
            for file, text in self.MORE.items():
                (cgroup.path / file).write_text(text)
        except OSError as error:
            log.warning(
                "the cgroup %s cannot be created: %s; the memory limit is set by setrlimit", cgroup.path, error.strerror
            )
            cgroup.remove()
            return None
        return cgroup

    def _prepared(self) -> Path | None:
        """Return the cgroup below which others can be created; None if there is none. The first call prepares it."""
        if not self._is_known:
            self._is_known = True
            try:
                own = self._find_own()
                self._enable(own)
            except UnusableError as error:
                log.info("`memory` of programs is enforced by setrlimit: %s", error)
            except OSError as error:
                log.info("`memory` of programs is enforced by setrlimit: %s: %s", error.filename, error.strerror)
            else:
                self._own = own
                _remove_empty(own)
                log.info("`memory` of programs is enforced by cgroups below %s", own)
        return self._own

    def _find_own(self) -> Path:
        path = next(
            (line[3:] for line in (self._proc / "self/cgroup").read_text().splitlines() if line.startswith("0::")), ""
        )
        mounts = [line.split() for line in (self._proc / "self/mountinfo").read_text().splitlines()]
        roots = [(words[3], words[4]) for words in mounts if words[words.index("-") + 1] == "cgroup2"]
        if not path or not roots:
            raise UnusableError("there are no cgroups of version 2")
        root, folder = roots[0]
        below = os.path.relpath(path, root)
        if below.startswith(".."):
            raise UnusableError("our cgroup is not visible here")
        own = Path(os.path.normpath(os.path.join(folder, below)))
        if self.CONTROLLER not in (own / "cgroup.controllers").read_text().split():
            raise UnusableError(f"{own} has no controller `{self.CONTROLLER}`")
        return own

    def _enable(self, own: Path) -> None:
        """Enable the controller for the children of `own`. Raises OSError or UnusableError."""
        control = own / "cgroup.subtree_control"
        for _ in range(MOVES_MAX):
            present = self._processes_in(own)
            try:
                control.write_text(f"+{self.CONTROLLER}")
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            self._move_to_leaf(present, own)
        raise UnusableError(f"new processes keep entering {own}")

    def _processes_in(self, own: Path) -> set[int]:
        """Return the processes in the cgroup. Raises UnusableError if one is not a descendant of the activator."""
        ours = _descendants([os.getpid(), *self.former], self._proc)
        present = {int(line) for line in (own / "cgroup.procs").read_text().split()}
        if present - ours:
            raise UnusableError(f"other processes run in {own}: a service with `Delegate=yes` has a cgroup of its own")
        return present

    def _move_to_leaf(self, processes: set[int], own: Path) -> None:
        leaf = own / OWN_LEAF
        leaf.mkdir(exist_ok=True)
        for process in processes:
            try:
                (leaf / "cgroup.procs").write_text(str(process))
            except ProcessLookupError:
                continue


def _remove_empty(own: Path) -> None:
    """Remove the cgroups that an activator which was killed has left, as far as they are empty."""
    for path in own.glob(f"{PREFIX}*"):
        try:
            path.rmdir()
        except OSError:  # a process is still in it, which that activator's reaper kills
            continue


def _descendants(first: list[int], proc: Path) -> set[int]:
    """Return the processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                words = (proc / name / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            children.setdefault(int(words[1]), []).append(int(name))
    descendants, pending = set(), list(first)
    while pending:
        process = pending.pop()
        descendants.add(process)
        pending += children.get(process, [])
    return descendants
