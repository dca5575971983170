"""Long-lived tasks with names and owners, whose failures are reported.

Rules
  1. Tasks are started only here (the linter checks it), so that the end of every task is detected.
  2. A task that ends with an exception is reported to `on_error` with its name; cancellation is a normal end.
  3. A task that should never end is a step that `keep_running` repeats: an exception is reported, and delays the next
     step. Only cancellation ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import Any, Final

from activator.runtime.backoff import Backoff
from activator.runtime.clock import Timer, until_next

RETRY_INITIAL_S: Final = 0.1  # the first pause after an exception of a step without its own backoff
RETRY_MAX_S: Final = 5.0  # the longest such pause, unless the interval of the task is longer

OnTaskError = Callable[[str, BaseException], None]
Step = Callable[[], Awaitable[None]]


class TaskGroupOwner:
    """The tasks of one part of the program, ended together by `close`."""

    def __init__(self, on_error: OnTaskError) -> None:
        self.on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `coroutine` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep_running(self, name: str, step: Step, backoff: Backoff | None = None) -> asyncio.Task[None]:
        """Run `step` repeatedly as a task of this owner.

        An exception is reported and delays the next step by the backoff; a step that returns resets the backoff.
        """
        if backoff is None:
            backoff = Backoff(RETRY_INITIAL_S, RETRY_MAX_S)
        return self.start(name, _named_after(step, keep_running(step, self._reported(name, backoff), backoff.reset)))

    def repeat(
        self, name: str, interval_s: float, action: Callable[[], None], retry_max_s: float = RETRY_MAX_S
    ) -> asyncio.Task[None]:
        """Call `action` every `interval_s`, as a task of this owner, at the same times as others (`until_next`).

        Exceptions are reported. After several in a row the interval grows, up to `retry_max_s`.
        """
        backoff = Backoff(interval_s, max(interval_s, retry_max_s))
        now = asyncio.get_running_loop().time

        async def step() -> None:
            action()
            await pause(until_next(interval_s, now()))

        async def run() -> None:
            await pause(until_next(interval_s, now()))
            await keep_running(step, self._reported(name, backoff), backoff.reset)

        return self.start(name, _named_after(action, run()))

    async def close(self) -> None:
        """Cancel the tasks that still run, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reported(self, name: str, backoff: Backoff) -> Callable[[Exception], float]:
        """Return a function that reports an exception of the task, and returns the pause before its next step."""

        def failed(error: Exception) -> float:
            pause_s = backoff.next_s()
            _add_note(error, f"the task {name} goes on in {pause_s:.1f} s")
            self.on_error(name, error)
            return pause_s

        return failed

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.on_error(task.get_name(), error)


async def keep_running(
    step: Step,
    failed: Callable[[Exception], float],
    succeeded: Callable[[], None] | None = None,
    wait: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Run `step` repeatedly until cancelled. A step must await a pause or an event, or nothing else could run.

    `failed` reports an exception of a step, and returns the seconds to wait before the next one; `succeeded` is called
    after a step without an exception. `wait` replaces `pause`.
    """
    while True:
        try:
            await step()
        except Exception as error:
            pause_s = failed(error)
        else:
            if succeeded is not None:
                succeeded()
            continue
        await (wait or pause)(pause_s)


async def pause(seconds: float) -> None:
    """Sleep; all tasks sleep by this function."""
    await asyncio.sleep(seconds)


class InterruptibleSleep:
    """A pause of one task that another part of the program can end early."""

    def __init__(self, pause: Callable[[float], Awaitable[None]] = pause) -> None:
        self._pause = pause
        self._timeout: asyncio.Timeout | None = None

    async def __call__(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `end` is called."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                await self._pause(seconds)
        except TimeoutError:
            if self._timeout is None or not self._timeout.expired():
                raise  # The pause itself raised it.
        finally:
            self._timeout = None

    def end(self) -> None:
        """End the pause, if there is one."""
        if self._timeout is not None:
            self._timeout.reschedule(0.0)


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event. Return True if it was set within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
        return True
    except TimeoutError:
        return False


def _add_note(error: Exception, text: str) -> None:
    """Add `text` below the traceback, only once if the same exception is raised repeatedly."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    """Call the running loop's `call_later`, for objects that are made before there is a loop."""
    return asyncio.get_running_loop().call_later(delay_s, callback)


def describe_tasks() -> list[dict[str, str]]:
    """Return every task of the running loop, and where it waits."""
    return sorted((_described(task) for task in asyncio.all_tasks()), key=lambda shown: shown["name"])


def _named_after(function: Callable[..., object], coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Give `coroutine` the name of the function that it repeats, for `describe_tasks`."""
    if isinstance(coroutine, CoroutineType):
        coroutine.__qualname__ = getattr(function, "__qualname__", coroutine.__qualname__)
    return coroutine


def _described(task: asyncio.Task[Any]) -> dict[str, str]:
    stack = task.get_stack(limit=1)
    at = f"{stack[0].f_code.co_qualname}, line {stack[0].f_lineno}" if stack else ""
    return {"name": task.get_name(), "coroutine": getattr(task.get_coro(), "__qualname__", ""), "at": at}
