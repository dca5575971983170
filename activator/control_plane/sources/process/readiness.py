"""Looks at a program that has started until it is ready: by a command beside it, or by asking it.

The steps grow with the time that has passed, so that the wait for the next look never adds more than that share to a
start. A line of the output needs no looks (`Output.ready`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from activator.control_plane.sources.process.unit import Unit
from activator.runtime.clock import Now
from activator.runtime.tasks import pause

COMMAND_TIMEOUT_S: Final = 10.0  # of one run of `readiness.command`
READINESS_STEP_MIN_S: Final = 0.002  # readiness is asked in steps from this up to the configured interval …
READINESS_STEP_SHARE: Final = 0.05  # … of this share of the time since the start; …
PORT_STEP_SHARE: Final = 0.005  # … where only the kernel is asked whether it listens, which takes 50 us: of this …
PORT_STEP_LOOKS: Final = 10.0  # … and never less than so many looks take: the kernel goes through all listeners


async def until_answered(
    look: Callable[[], Awaitable[bool]],
    interval_s: float,
    timeout_s: float,
    now: Now,
    step_share: float = READINESS_STEP_SHARE,
) -> bool:
    """Whether a look succeeded in time."""
    began_s = now()
    waited_s = 0.0
    while waited_s < timeout_s:
        if await look():
            return True
        took_s = now() - began_s - waited_s
        await pause(min(step_s(waited_s, took_s, step_share), interval_s))
        waited_s = now() - began_s
    return False


def step_s(waited_s: float, took_s: float, step_share: float) -> float:
    """Until the next look, after so long, where the last look took `took_s`."""
    of_looks_s = PORT_STEP_LOOKS * took_s if step_share == PORT_STEP_SHARE else 0.0  # a slow answer is no cost of ours
    return max(waited_s * step_share, of_looks_s, READINESS_STEP_MIN_S)


async def until_command(unit: Unit, command: list[str], interval_s: float, timeout_s: float, now: Now) -> bool:
    """Whether the command ended with 0 in time."""
    began_s = now()
    while now() - began_s < timeout_s:
        if await unit.run_beside(command, min(COMMAND_TIMEOUT_S, timeout_s)) == 0:
            return True
        await pause(interval_s)
    return False
