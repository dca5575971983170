"""How often and for how long a program that starts is checked at."""

from __future__ import annotations

import asyncio

import pytest

from activator.control_plane.sources.process.readiness import (
    PORT_STEP_SHARE,
    READINESS_STEP_SHARE,
    step_s,
    until_answered,
    until_set,
)
from tests.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("waited_s", "took_s", "share", "expected_s"),
    [
        (0.05, 50e-6, PORT_STEP_SHARE, 0.002),
        (1.0, 50e-6, PORT_STEP_SHARE, 0.005),
        (0.05, 324e-6, PORT_STEP_SHARE, 0.00324),  # beside 5,000 listeners
        (0.05, 324e-6, READINESS_STEP_SHARE, 0.0025),
        (1.0, 0.5, READINESS_STEP_SHARE, 0.05),  # a program that answers slowly is asked no less often
    ],
)
def test_the_step(waited_s: float, took_s: float, share: float, expected_s: float) -> None:
    assert step_s(waited_s, took_s, share) == pytest.approx(expected_s)


def advance(clock: ManualClock, seconds: float) -> None:
    clock.now_s += seconds


@pytest.mark.parametrize(("late_s", "checks"), [(60.0, 2), (0.9, 1)])
def test_a_pause_of_the_process_takes_nothing_from_a_start(late_s: float, checks: int) -> None:
    async def story() -> None:
        clock = ManualClock()
        checked: list[float] = []

        async def check() -> bool:
            checked.append(clock.now())
            asyncio.get_running_loop().call_soon(lambda: advance(clock, late_s))  # while it waits for the next check
            return len(checked) == 2

        assert await until_answered(check, 0.1, 0.5, clock.now) == (checks == 2)
        assert len(checked) == checks

    asyncio.run(story())


def test_a_line_that_was_written_before_a_pause_is_seen_behind_it() -> None:
    async def story() -> None:
        clock = ManualClock()
        loop = asyncio.get_running_loop()
        line = asyncio.Event()
        loop.call_soon(lambda: advance(clock, 60.0))
        loop.call_later(0.02, line.set)
        assert await until_set(line, 3.0, clock.now)
        never = asyncio.Event()
        loop.call_soon(lambda: advance(clock, 0.9))
        assert not await until_set(never, 0.1, clock.now)

    asyncio.run(story())
