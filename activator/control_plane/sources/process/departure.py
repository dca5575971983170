"""The processes of one program, from its stop signal until none of them is alive.

A program has gone when no process of its group is alive, and none that carries its mark in its environment: a helper or
a daemon that made a session of its own is part of it. All of it gets the stop signal and has the grace. What is left
then is killed, again and again, before what the program held counts as free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Final

from activator.control_plane.sources.process.ports import described
from activator.control_plane.sources.process.reaper import kill, living
from activator.runtime.clock import Now
from activator.runtime.tasks import pause

PROGRAM_MARK: Final = "ACTIVATOR_PROGRAM"
LOOK_INITIAL_S: Final = 0.005
LOOK_MAX_S: Final = 0.5
EMPTY_LOOK_MAX_S: Final = 0.1  # while a program ends by itself: its successor may wait for its port
TOLD_AFTER_S: Final = 10.0  # a process that cannot be killed waits in the kernel, for a device say
NAMED_MAX: Final = 3  # processes that a cause names

log = logging.getLogger("activator.process")


def mark_of(reaper_mark: str, identity: str) -> str:
    """The value of the variable; no other program has it."""
    return f"{reaper_mark}/{identity}"


class Remains:
    """All processes of one program, which leads the process group `group`; `mark` is the value of its variable."""

    def __init__(self, group: int, mark: str) -> None:
        self._group = group
        self._mark = mark
        self._entry = f"{PROGRAM_MARK}={mark}\0".encode()  # with the end of the variable: #1 is not #10

    async def living(self) -> list[int]:
        """Return its processes that are alive; none where /proc does not show them."""
        # It reads through /proc, which may take some milliseconds.
        return await asyncio.to_thread(living, {self._group}, self._entry) or []

    async def signal(self, number: int) -> None:
        """Send a signal to the group, and to what has left the group."""
        signal_group(self._group, number)
        for process in await self.living():
            if _group_of(process) != self._group:
                _signal(process, number)

    async def until_empty(self, timeout_s: float, now: Now) -> None:
        """Return when nothing of the program is alive, or after the time."""
        began_s, step_s = now(), LOOK_INITIAL_S
        while await self.living():
            left_s = timeout_s - (now() - began_s)
            if left_s <= 0.0:
                return
            await pause(min(step_s, left_s))
            step_s = min(step_s * 2.0, EMPTY_LOOK_MAX_S)

    async def described(self) -> str:
        """Name what is alive, for people; empty: nothing is."""
        names = [described(process) for process in await self.living()]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return ", ".join(names[:NAMED_MAX]) + more

    async def end(self, may_give_up: Callable[[], bool]) -> None:
        """Kill the program, and return when nothing of it is alive.

        If `may_give_up()`, returns after TOLD_AFTER_S at the latest: the reaper continues when the activator ends.
        """
        signal_group(self._group, signal.SIGKILL)
        step_s, waited_s = LOOK_INITIAL_S, 0.0
        while left := await self.living():
            if waited_s >= TOLD_AFTER_S and may_give_up():
                return
            for process in left:
                kill(process)
            if waited_s < TOLD_AFTER_S <= waited_s + step_s:
                log.error("%s: processes %s cannot be killed", self._mark, left)
            await pause(step_s)
            waited_s += step_s
            step_s = min(step_s * 2.0, LOOK_MAX_S)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or has become another user
        pass


def _group_of(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0
