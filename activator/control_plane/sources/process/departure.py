"""Proof that nothing of a program is left: only then what it held counts as free.

A program has gone when no process of its group is alive, and none that carries its mark in its environment: a child
that made a session of its own may hold a GPU for longer than its parent. What is left is killed, again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from activator.control_plane.sources.process.reaper import kill, living
from activator.runtime.tasks import pause

PROGRAM_MARK: Final = "ACTIVATOR_PROGRAM"
LOOK_INITIAL_S: Final = 0.005
LOOK_MAX_S: Final = 0.5
TOLD_AFTER_S: Final = 10.0  # something that cannot be killed is said once: it waits in the kernel, for a device say

log = logging.getLogger("activator.process")


def mark_of(reaper_mark: str, identity: str) -> str:
    """The value of the variable; no other program has it."""
    return f"{reaper_mark}/{identity}"


async def has_gone(group: int, mark: str, is_closing: Callable[[], bool]) -> None:
    """Returns when nothing is left of the program that led this process group.

    While the activator closes, after TOLD_AFTER_S at the latest: then the reaper goes on.
    """
    entry = f"{PROGRAM_MARK}={mark}\0".encode()  # with the end of the variable: #1 is not #10
    step_s, waited_s = LOOK_INITIAL_S, 0.0
    while True:
        # It reads through /proc, which may take some milliseconds.
        left = await asyncio.to_thread(living, {group}, entry)
        if not left or (waited_s >= TOLD_AFTER_S and is_closing()):
            return
        for process in left:
            kill(process)
        if waited_s < TOLD_AFTER_S <= waited_s + step_s:
            log.error("%s: processes %s cannot be killed: what they hold counts as used", mark, left)
        await pause(step_s)
        waited_s += step_s
        step_s = min(step_s * 2.0, LOOK_MAX_S)
