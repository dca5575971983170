"""Checks whether a program that has started is ready, by a command beside it or by a request to it.

The interval grows with the time since the start, so that waiting for the next check adds at most a fixed share to the
duration of a start. A readiness line of the output needs no checks (`Output.ready`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from activator.control_plane.sources.process.unit import Unit
from activator.runtime.clock import PAUSE_S, Now
from activator.runtime.tasks import pause, wait_for

COMMAND_TIMEOUT_S: Final = 10.0  # for one run of `readiness.command`
# The interval between two checks grows from the minimum to the configured one, as a share of the time since the start.
READINESS_STEP_MIN_S: Final = 0.002
READINESS_STEP_SHARE: Final = 0.05
# Whether a port listens is asked of the kernel, which takes 50 us, or longer with many listeners: it goes through all.
PORT_STEP_SHARE: Final = 0.005
PORT_STEP_CHECKS: Final = 10.0  # the least interval, as a multiple of the time that a check takes


class StartTimer:
    """The time since a start, excluding periods in which this process did not run (suspend, SIGSTOP).

    A suspension is detected when a wait takes PAUSE_S longer than requested, as by the timing wheel (runtime/clock.py).
    """

    def __init__(self, now: Now) -> None:
        self._now = now
        self._began_s = now()

    def elapsed_s(self) -> float:
        return self._now() - self._began_s

    async def pause(self, seconds: float) -> None:
        asked_s = self._now()
        await pause(seconds)
        self._leave_out_suspension(self._now() - asked_s - seconds)

    async def wait_for(self, event: asyncio.Event, seconds: float) -> bool:
        """Return whether the event was set within the time."""
        asked_s = self._now()
        is_set = await wait_for(event, seconds)
        self._leave_out_suspension(self._now() - asked_s - seconds)
        return is_set

    def _leave_out_suspension(self, late_s: float) -> None:
        if late_s > PAUSE_S:
            self._began_s += late_s


async def until_answered(
    check: Callable[[], Awaitable[bool]],
    interval_s: float,
    timeout_s: float,
    now: Now,
    step_share: float = READINESS_STEP_SHARE,
) -> bool:
    """Repeat the check until it succeeds; return False if it does not within `timeout_s`."""
    timer = StartTimer(now)
    waited_s = 0.0
    while waited_s < timeout_s:
        if await check():
            return True
        took_s = timer.elapsed_s() - waited_s
        await timer.pause(min(step_s(waited_s, took_s, step_share), interval_s))
        waited_s = timer.elapsed_s()
    return False


def step_s(waited_s: float, took_s: float, step_share: float) -> float:
    """Return the time until the next check, `waited_s` after the start, if the last one took `took_s`."""
    least_s = (
        PORT_STEP_CHECKS * took_s if step_share == PORT_STEP_SHARE else 0.0
    )  # a slow answer of a program costs the activator nothing
    return max(waited_s * step_share, least_s, READINESS_STEP_MIN_S)


async def until_command(unit: Unit, command: list[str], interval_s: float, timeout_s: float, now: Now) -> bool:
    """Repeat the command until it ends with 0; return False if it does not within `timeout_s`."""
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
