"""Looks at a program that has started until it is ready: by a command beside it, or by asking it.

The steps grow with the time that has passed, so that the wait for the next look never adds more than that share to a
start. A line of the output needs no looks (`Output.ready`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from activator.control_plane.sources.process.unit import Unit
from activator.runtime.clock import PAUSE_S, Now
from activator.runtime.tasks import pause, wait_for

COMMAND_TIMEOUT_S: Final = 10.0  # of one run of `readiness.command`
READINESS_STEP_MIN_S: Final = 0.002  # readiness is asked in steps from this up to the configured interval …
READINESS_STEP_SHARE: Final = 0.05  # … of this share of the time since the start; …
PORT_STEP_SHARE: Final = 0.005  # … where only the kernel is asked whether it listens, which takes 50 us: of this …
PORT_STEP_LOOKS: Final = 10.0  # … and never less than so many looks take: the kernel goes through all listeners


class StartTimer:
    """The time since a start, without the pauses of this process, in which the program may have stood still as well.

    A pause is seen where a wait takes PAUSE_S longer than it was to take, as by the timing wheel (runtime/clock.py).
    """

    def __init__(self, now: Now) -> None:
        self._now = now
        self._began_s = now()

    def elapsed_s(self) -> float:
        return self._now() - self._began_s

    async def pause(self, seconds: float) -> None:
        asked_s = self._now()
        await pause(seconds)
        self._leave_out(self._now() - asked_s - seconds)

    async def wait_for(self, event: asyncio.Event, seconds: float) -> bool:
        """Return whether the event was set within the time."""
        asked_s = self._now()
        is_set = await wait_for(event, seconds)
        self._leave_out(self._now() - asked_s - seconds)
        return is_set

    def _leave_out(self, late_s: float) -> None:
        if late_s > PAUSE_S:
            self._began_s += late_s


async def until_answered(
    look: Callable[[], Awaitable[bool]],
    interval_s: float,
    timeout_s: float,
    now: Now,
    step_share: float = READINESS_STEP_SHARE,
) -> bool:
    """Return whether a look succeeded in time."""
    timer = StartTimer(now)
    waited_s = 0.0
    while waited_s < timeout_s:
        if await look():
            return True
        took_s = timer.elapsed_s() - waited_s
        await timer.pause(min(step_s(waited_s, took_s, step_share), interval_s))
        waited_s = timer.elapsed_s()
    return False


def step_s(waited_s: float, took_s: float, step_share: float) -> float:
    """Until the next look, after so long, where the last look took `took_s`."""
    of_looks_s = PORT_STEP_LOOKS * took_s if step_share == PORT_STEP_SHARE else 0.0  # a slow answer is no cost of ours
    return max(waited_s * step_share, of_looks_s, READINESS_STEP_MIN_S)


async def until_command(unit: Unit, command: list[str], interval_s: float, timeout_s: float, now: Now) -> bool:
    """Return whether the command ended with 0 in time."""
    timer = StartTimer(now)
    while timer.elapsed_s() < timeout_s:
        if await unit.run_beside(command, min(COMMAND_TIMEOUT_S, timeout_s)) == 0:
            return True
        await timer.pause(interval_s)
    return False


async def until_set(event: asyncio.Event, timeout_s: float, now: Now) -> bool:
    """Return whether the event was set in time."""
    timer = StartTimer(now)
    while (left_s := timeout_s - timer.elapsed_s()) > 0.0:
        if await timer.wait_for(event, min(left_s, PAUSE_S)):
            return True
    return event.is_set()
