"""The processes of one program, from its stop signal until none of them is alive.

A program has ended when no process of its group is alive, and none that carries its mark in its environment: a helper
or a daemon that made a session of its own is part of it. A daemon may overwrite its environment (nginx does, to show a
title): such an orphan is a child of the activator that was not started by it (`runtime/orphans.py`). All processes
get the stop signal and the grace. Those left are then killed, repeatedly, before the resources of the program count as
free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from activator.control_plane.sources.process.ports import described
from activator.control_plane.sources.process.reaper import environment, kill, living
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.process_stat import PARENT, STARTED, STATE, stat_fields
from activator.runtime.tasks import pause

PROGRAM_MARK: Final = "ACTIVATOR_PROGRAM"
CHECK_INITIAL_S: Final = 0.005
CHECK_MAX_S: Final = 0.5
EMPTY_CHECK_MAX_S: Final = 0.1  # while a program ends by itself: the next one may wait for its port
REPORT_AFTER_S: Final = 10.0  # a process that cannot be killed waits in the kernel, for example for a device
NAMED_MAX: Final = 3  # processes that a cause lists by name

log = logging.getLogger("activator.process")


def mark_of(reaper_mark: str, identity: str) -> str:
    """Return the value of the variable PROGRAM_MARK, which is unique to the program."""
    return f"{reaper_mark}/{identity}"


class ProcessTree:
    """All processes of one program, which leads the process group `group`; `mark` is the value of its variable."""

    def __init__(self, group: int, mark: str) -> None:
        self.group = group
        self._mark = mark
        self._entry = f"{PROGRAM_MARK}={mark}\0".encode()  # with the terminator of the variable: #1 is not #10
        self._sessions = {group}  # all sessions that processes of the program lead or have led
        self._started = _start_of(group)
        self._unmarked: dict[int, int] = {}  # descendants without the mark, and their start times

    async def living(self) -> list[int]:
        """Return its processes that are alive; none where /proc does not show them."""
        # The search through /proc may take some milliseconds.
        alive = await asyncio.to_thread(_living, set(self._sessions), self._entry, dict(self._unmarked))
        self._sessions.update(_sessions_of(alive))  # a process may overwrite its environment later
        return alive

    async def include_hidden(self, others: AbstractSet[int]) -> None:
        """Count orphans with an overwritten environment as processes of this program, which has just ended.

        They are children of the activator, younger than the program, and not in a session of other programs. `others`
        has the sessions of other programs, and is read after the search, because one may be started during it.
        """
        sessions = _sessions_of(await asyncio.to_thread(_hidden, self._started))
        self._sessions.update(sessions - others)

    async def signal(self, number: int) -> None:
        """Send a signal to the group, and to processes of the program outside of it.

        A descendant belongs to the program even if its environment has no mark (`env -i`) or it is just beginning a
        session of its own.
        """
        below = await asyncio.to_thread(_descendants, set(await self.living()))
        self._unmarked.update({process: _start_of(process) for process in below})
        self._sessions.update(_sessions_of(below))
        signal_group(self.group, number)
        for process in await self.living():
            if _group_of(process) != self.group:
                _signal(process, number)

    async def until_empty(self, timeout_s: float, now: Now) -> None:
        """Return when nothing of the program is alive, or after the time."""
        began_s, steps = now(), Backoff(CHECK_INITIAL_S, EMPTY_CHECK_MAX_S)
        while await self.living():
            left_s = timeout_s - (now() - began_s)
            if left_s <= 0.0:
                return
            await pause(min(steps.next_s(), left_s))

    async def described(self) -> str:
        """Return a list of the living processes for error texts; empty if none is alive."""
        names = [described(process) for process in await self.living()]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return ", ".join(names[:NAMED_MAX]) + more

    async def end(self, may_give_up: Callable[[], bool]) -> None:
        """Kill the program, and return when nothing of it is alive.

        If `may_give_up()`, return after REPORT_AFTER_S at the latest: the reaper continues when the activator ends.
        """
        signal_group(self.group, signal.SIGKILL)
        steps, waited_s = Backoff(CHECK_INITIAL_S, CHECK_MAX_S), 0.0
        while alive := await self.living():
            if waited_s >= REPORT_AFTER_S and may_give_up():
                return
            for process in alive:
                kill(process)
            step_s = steps.next_s()
            if waited_s < REPORT_AFTER_S <= waited_s + step_s:
                log.error("%s: processes %s cannot be killed", self._mark, alive)
            await pause(step_s)
            waited_s += step_s


def _living(sessions: set[int], entry: bytes, unmarked: dict[int, int]) -> list[int]:
    """Return the processes of these sessions, those with this entry in their environment, and those unmarked."""
    alive = living(sessions, entry) or []
    for process, started in unmarked.items():
        try:
            fields = stat_fields(process)
        except OSError:  # it has ended
            continue
        if int(fields[STARTED]) == started and fields[STATE] not in (b"Z", b"X") and process not in alive:
            alive.append(process)
    return alive


def _descendants(ancestors: set[int]) -> list[int]:
    """Return the children of these processes, their children, and so on."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(stat_fields(name)[PARENT])
            except OSError:  # it has ended
                continue
            children.setdefault(parent, []).append(int(name))
    descendants, pending = [], list(ancestors)
    while pending:
        below = children.pop(pending.pop(), [])
        descendants += below
        pending += below
    return descendants


def _hidden(since: int) -> list[int]:
    """Return the activator's children that started at `since` or later and whose environment has no variables."""
    hidden, own = [], os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = stat_fields(name)
            if int(fields[PARENT]) != own or int(fields[STARTED]) < since or fields[STATE] == b"Z":
                continue
            variables = environment(name, fields)
        except OSError:  # it has ended, or belongs to another user
            continue
        if variables is not None and b"=" not in variables:
            hidden.append(int(name))
    return hidden


def _start_of(process: int) -> int:
    """Return the start time of a process in clock ticks of the kernel; if unknown, a time that never comes."""
    try:
        return int(stat_fields(process)[STARTED])
    except OSError:
        return 1 << 62


def _sessions_of(processes: list[int]) -> set[int]:
    sessions, own = set(), os.getsid(0)
    for process in processes:
        try:
            session = os.getsid(process)
        except ProcessLookupError:
            continue
        if session > 0 and session != own:
            sessions.add(session)
    return sessions


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or runs as another user
        pass


def _group_of(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0
