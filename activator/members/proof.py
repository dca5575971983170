"""Proofs that processes of this machine have ended, by pidfd: it becomes readable after all descriptors are closed.

Rules
  1. A process is identified by the machine (its boot ID and PID namespace), its PID, and its start time: PIDs are
     reused, start times are not.
  2. Nothing is proven of processes of other machines, or of a process whose start time could not be read.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterable

from activator.members.handshake import Process
from activator.runtime.process_stat import STARTED, stat_fields


def this_process() -> Process:
    """Return the identity of this process. If the kernel hides a part of it, the result matches no machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        machine = f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
        started = started_at(os.getpid())
    except OSError:
        return Process("", os.getpid(), 0)
    return Process(machine, os.getpid(), started)


def started_at(process: int) -> int:
    """Return the start time in clock ticks since the boot. Raises OSError if there is no such process."""
    return int(stat_fields(process)[STARTED])


def have_ended(processes: Iterable[Process]) -> bool:
    """Return True if it is certain that all of these processes of this machine have ended."""
    return all(one.process and one.started and not _may_live(one) for one in processes)


def _may_live(process: Process) -> bool:
    """Return True unless the kernel has no such process, or one that was started at another time."""
    try:
        pidfd = os.pidfd_open(process.process)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        return started_at(process.process) == process.started and not _has_ended(pidfd)
    except OSError:
        return not _has_ended(pidfd)
    finally:
        os.close(pidfd)


class EndOfProcesses:
    """A watch on processes: it calls `ended` once when all have ended, and never if one cannot be watched.

    `label` is for the caller, and not used here.
    """

    def __init__(self, processes: Iterable[Process], label: object, ended: Callable[[], None]) -> None:
        self.label = label
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, Process] = {}  # by pidfd
        self.is_watching = True
        for process in processes:
            if not self._watch(process):
                self.close()
                return
        if not self._watched:
            self._loop.call_soon(self._report_if_all_ended)

    def watches(self, process: Process) -> bool:
        """Return True if this process is watched and has not ended."""
        return any(one == process for one in self._watched.values())

    def close(self) -> None:
        """Stop watching."""
        self.is_watching = False
        for pidfd in self._watched:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._watched.clear()

    # --- internal ---

    def _watch(self, process: Process) -> bool:
        """Watch a process, unless it has ended; return False if its end cannot be noticed."""
        if not process.started:
            return False  # another process with the same PID would look the same
        try:
            pidfd = os.pidfd_open(process.process)
        except ProcessLookupError:
            return True  # it has ended already
        except OSError:  # no descriptors, or not allowed
            return False
        try:
            is_same = started_at(process.process) == process.started
        except OSError:
            is_over = _has_ended(pidfd)  # if not, it is alive, and hidden from this process
            os.close(pidfd)
            return is_over
        if not is_same:
            os.close(pidfd)
            return True
        self._watched[pidfd] = process
        self._loop.add_reader(pidfd, self._one_ended, pidfd)
        return True

    def _one_ended(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        del self._watched[pidfd]
        self._report_if_all_ended()

    def _report_if_all_ended(self) -> None:
        if self.is_watching and not self._watched:
            self.is_watching = False
            self._ended()


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
