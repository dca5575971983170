"""Tasks that should never end: repeated, reported once for each exception, delayed by it, ended by their owner."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable

import pytest

from activator.runtime.backoff import Backoff
from activator.runtime.tasks import TaskGroupOwner, describe_tasks, keep_running
from tests.manual_clock import ManualClock

Outcomes = list[str]


class Scripted:
    """A step that does what a script says, letter by letter: `.` returns, `x` raises; at the end it is cancelled."""

    def __init__(self, script: str) -> None:
        self._script = list(script)
        self.clock = ManualClock(0.0)
        self.happened: Outcomes = []

    async def step(self) -> None:
        if not self._script:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        if self._script.pop(0) == "x":
            raise RuntimeError("injected")
        self.happened.append("held")

    def failed(self, backoff: Backoff) -> Callable[[Exception], float]:
        def report(error: Exception) -> float:
            self.happened.append(repr(error))
            return backoff.next_s()

        return report

    async def wait(self, seconds: float) -> None:
        self.happened.append(f"{seconds:g} s")
        self.clock.pass_time(seconds)


def run(script: str) -> Outcomes:
    one, backoff = Scripted(script), Backoff(1.0, 4.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_running(one.step, one.failed(backoff), backoff.reset, one.wait))
    return one.happened


ERROR = "RuntimeError('injected')"


def test_each_exception_is_reported_once_and_delays_the_next_step_longer_and_longer() -> None:
    assert run("xxxx") == [ERROR, "1 s", ERROR, "2 s", ERROR, "4 s", ERROR, "4 s"]


def test_a_step_that_held_is_followed_at_once_and_resets_the_backoff() -> None:
    assert run(".xx..x") == ["held", ERROR, "1 s", ERROR, "2 s", "held", "held", ERROR, "1 s"]


def test_an_owner_reports_with_the_name_and_the_pause_and_ends_the_task() -> None:
    reported: list[tuple[str, str]] = []
    enough = asyncio.Event()

    def on_error(name: str, error: BaseException) -> None:
        reported.append((name, "".join(traceback.format_exception(error)).splitlines()[-1]))
        if len(reported) == 3:
            enough.set()

    error = RuntimeError("always the same")

    async def step() -> None:
        await asyncio.sleep(0)
        raise error

    async def main() -> bool:
        owner = TaskGroupOwner(on_error)
        task = owner.keep_running("one of ours", step, Backoff(0.0, 0.0))
        assert task.get_name() == "one of ours"
        assert ("one of ours", step.__qualname__) in {(one["name"], one["coroutine"]) for one in describe_tasks()}
        await enough.wait()
        await owner.close()
        return task.cancelled()

    assert asyncio.run(main())
    assert reported[:3] == [("one of ours", "the task one of ours goes on in 0.0 s")] * 3
    assert len(error.__notes__) == 1, "an exception that is raised again is not noted again"


def test_what_is_repeated_begins_with_a_pause_and_goes_on_after_an_exception() -> None:
    reported: list[str] = []
    looks: list[int] = []
    enough = asyncio.Event()

    def look() -> None:
        looks.append(len(reported))
        if len(looks) % 2:
            raise RuntimeError("injected")
        if len(looks) == 6:
            enough.set()

    async def main() -> None:
        owner = TaskGroupOwner(lambda name, error: reported.append(f"{name}: {error}"))
        owner.repeat("looks", 0.001, look, retry_max_s=0.001)
        assert not looks
        await enough.wait()
        await owner.close()
        assert len(looks) == 6, "closed"

    asyncio.run(main())
    assert looks == [0, 1, 1, 2, 2, 3]
    assert reported == ["looks: injected"] * 3
