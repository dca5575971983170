"""The life of one program: start, readiness, sleep and wake, stop; or its own end after one request (`once.py`).

The kind of the program (`unit.py`) makes no difference. The supervisor decides how many are wanted, and is notified.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any

from activator.config.model.hooks import Hook, Hooks
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess, SleepState
from activator.control_plane.sources.process.hooks import run_hooks
from activator.control_plane.sources.process.once import cause_if_failed_start, until_exited, until_request_over
from activator.control_plane.sources.process.sleep import put_to_sleep, stops_by_signal, wake
from activator.control_plane.sources.process.unit import NotStartedError
from activator.runtime.clock import Now
from activator.runtime.durations import lasting
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner, pause

log = logging.getLogger("activator.process")

DAEMON_WITHIN_S = 10.0  # a program that puts itself into the background does so within this time of its start
OWN_STEP_S = 0.02  # between two checks whether a program that was handed over belongs to this process
_SLEEPING = frozenset({SleepState.ASLEEP, SleepState.WAKING})
_DRAIN_REPORT_S = 0.5  # the least time for the report that a program has no request, even if its requests have no grace
_DRAIN_SLACK_S = 5.0  # beyond the data plane's drain timeout, so that its report of that comes first


class LifetimeListener(ABC):
    """The owner of the program, which is notified of its changes."""

    @abstractmethod
    def grace_of(self, group: str) -> float | None:
        """Return how long the requests of a group may still run; None: the drain timeout."""

    @abstractmethod
    def is_closing(self) -> bool:
        """Return True if everything is being stopped."""

    @abstractmethod
    def stop(self, process: LocalProcess, why: str = "") -> None:
        """Stop the process; `why` completes "it was stopped" in the log, which has no line without it."""

    @abstractmethod
    def has_started(self, fleet: Fleet, process: LocalProcess) -> None:
        """Handle the start of a process."""

    @abstractmethod
    def became_ready(self, fleet: Fleet, process: LocalProcess) -> None:
        """Handle a process that is ready, for the first time or after a sleep."""

    @abstractmethod
    def was_spent(self, fleet: Fleet, process: LocalProcess) -> None:
        """Handle a process that has served its only request: it is no longer a pod and not part of the scale."""

    @abstractmethod
    def has_saved(self, fleet: Fleet) -> None:
        """Handle a process that is being stopped and has run its hooks before that."""

    @abstractmethod
    def fell_asleep(self, fleet: Fleet, process: LocalProcess) -> None:
        """Handle a process that has fallen asleep."""

    @abstractmethod
    def failed_for_good(self, fleet: Fleet) -> None:
        """Record that the next failure is permanent: another start would fail in the same way."""


class Lifetime:
    """The life of one program; `run` returns why it ended, or an empty string if that was requested."""

    def __init__(
        self, listener: LifetimeListener, tasks: TaskGroupOwner, now: Now, fleet: Fleet, process: LocalProcess
    ) -> None:
        self._listener = listener
        self._tasks = tasks
        self._now = now
        self._fleet = fleet
        self._process = process
        self._unit = process.unit
        revision = fleet.revision if process.revision is None else process.revision
        self._hooks = Hooks() if revision.program is None else revision.program.hooks

    async def run(self) -> str:
        """Run the program until its end. An exception is a bug in the activator; the caller must then end the unit."""
        try:
            await self._unit.start(self._process.stop_asked)
        except ConfigError as error:
            self._listener.failed_for_good(self._fleet)
            return error.problems[0] + (f" ({len(error.problems)} mistakes)" if error.problems[1:] else "")
        except NotStartedError as error:
            if error.for_good:
                self._listener.failed_for_good(self._fleet)
            return error.cause
        if not self._process.is_handed:
            self._process.started_s = self._now()
        self._listener.has_started(self._fleet, self._process)
        return await self._run_started()

    async def _run_started(self) -> str:
        """Run a started program until its end; return why it ended, or an empty string if that was requested."""
        fleet, process, unit = self._fleet, self._process, self._unit
        exited: asyncio.Task[None] = self._tasks.start("exit", unit.exited())
        stop_requested = asyncio.ensure_future(process.stop_asked.wait())  # noqa: TID251 - cancelled below
        ready: asyncio.Task[str] = self._tasks.start("readiness", self._ready())
        try:
            await asyncio.wait({exited, stop_requested, ready}, return_when=asyncio.FIRST_COMPLETED)
            # `stop_requested` is done some turns of the loop after its event; `stopping` is set at once.
            if ready.done() and not exited.done() and not process.stopping:
                if cause := ready.result():
                    await self._until_owned()
                    self._listener.failed_for_good(fleet)  # requests have waited for as long as configured
                    return cause
                if not process.was_ready and process.sleep_state is SleepState.AWAKE:
                    fleet.start_s = self._now() - process.started_s
                    level = logging.DEBUG if process.is_once else logging.INFO
                    log.log(level, "%s: ready after %s", process.identity, lasting(fleet.start_s))
                if process.sleep_state is SleepState.AWAKE:
                    process.saves = bool(self._hooks.before_stop)
                    self._listener.became_ready(fleet, process)
                if process.is_once:
                    await self._serve_once(exited, stop_requested)
                elif cause := await self._run_and_sleep(exited, stop_requested):
                    return cause
            if exited.done():
                if process.sleep_state is SleepState.ASLEEP:
                    if not self._listener.is_closing():  # else it may have been handed over
                        log.info("%s exited while asleep", process.identity)
                    return ""
                cause = await (cause_if_failed_start(process) if process.is_once and process.ready else unit.cause())
                if cause and unit.left_running and self._now() - process.started_s < DAEMON_WITHIN_S:
                    self._listener.failed_for_good(fleet)  # it would do the same the next time
                await unit.end_rest()
                return cause
            ready.cancel()
            await self._drain_and_stop(exited)
            return ""
        finally:
            ready.cancel()
            stop_requested.cancel()
            await unit.end()
            await exited
            if process.stopped_for:
                log.info("%s: stopped %s", process.identity, process.stopped_for)

    async def _ready(self) -> str:
        """Wait until the program is ready, or return why it does not get ready in time; a sleeping program is ready."""
        if self._process.sleep_state in _SLEEPING:
            return ""
        timeout_s = float(self._fleet.revision.timeouts.startup)
        if self._process.is_handed:
            timeout_s = max(timeout_s - (self._now() - self._process.started_s), 0.0)
        until_s = self._now() + timeout_s
        cause = await self._unit.ready(timeout_s)
        if not cause and not self._process.was_ready and self._hooks.after_start and not self._unit.is_foreign():
            try:
                async with asyncio.timeout(max(until_s - self._now(), 0.0)):  # requests wait for no longer than this
                    await self._run_hooks("after_start", self._hooks.after_start)
            except TimeoutError:
                log.warning("%s: `timeouts.startup` ended before `hooks.after_start`", self._process.identity)
        return cause

    async def _until_owned(self) -> None:
        """Wait until the program belongs to this process: until then the former one may continue with it."""
        while self._unit.is_foreign() and not self._process.stopping:
            await pause(OWN_STEP_S)

    async def _run_hooks(self, key: str, hooks: list[Hook]) -> None:
        self._process.runs_hooks = True
        try:
            await run_hooks(self._unit, self._process.identity, key, hooks)
        finally:
            self._process.runs_hooks = False

    async def _serve_once(self, exited: asyncio.Future[None], stop_requested: asyncio.Future[Any]) -> None:
        """Wait until the ready program has received its one request and has exited, or is to be stopped."""
        process = self._process
        is_over = await until_request_over(process, exited, stop_requested)
        if process.stopping:
            return
        process.sleep_state = SleepState.SPENT
        self._listener.was_spent(self._fleet, process)
        if is_over:
            process.carries = False
            await until_exited(process, exited, stop_requested)
            if not exited.done():
                self._listener.stop(process)

    async def _run_and_sleep(self, exited: asyncio.Future[None], stop_requested: asyncio.Future[Any]) -> str:
        """Run, with sleeps, from ready until it exits or is to be stopped; return why it must be ended, if it must."""
        fleet, process = self._fleet, self._process
        while True:
            if process.sleep_state not in _SLEEPING:  # else it was handed over asleep
                if not await _occurs_first(process.sleep_asked, exited, stop_requested):
                    return ""
                process.sleep_asked.clear()
                problem = await self._fall_asleep(exited, stop_requested)
                if problem:
                    log.warning("%s could not be put to sleep, and is stopped: %s", process.identity, problem)
                    self._listener.stop(process)
                if exited.done() or process.stopping:
                    return ""
            limit_s = 0.0 if process.sleep is None else float(process.sleep.for_)
            if not await _occurs_first(process.wake_asked, exited, stop_requested, limit_s or None):
                if not exited.done():
                    self._listener.stop(process, f"after {lasting(limit_s)} asleep")
                return ""
            process.wake_asked.clear()
            began_s = self._now()
            if process.is_handed and not (process.sleep is not None and stops_by_signal(process.sleep)):
                await self._unit.signal("SIGCONT")  # a signal may have put it to sleep, with former settings
            problem = "" if process.sleep is None else await wake(self._unit, process.sleep)
            if problem:
                return f"the program does not wake: {problem}"
            fleet.wake_s = self._now() - began_s
            if exited.done() or process.stopping:
                return ""
            process.sleep_state = SleepState.AWAKE
            process.saves = bool(self._hooks.before_stop)
            log.info("%s is awake", process.identity)
            self._listener.became_ready(fleet, process)

    async def _fall_asleep(self, exited: asyncio.Future[None], stop_requested: asyncio.Future[Any]) -> str:
        """Drain the program and put it to sleep; return the cause of a failure, or an empty string."""
        process = self._process
        limit_s = max(self._drain_limit_s(), _DRAIN_REPORT_S)
        if not await _occurs_first(process.drained, exited, stop_requested, limit_s):
            if exited.done() or process.stopping:
                return ""
            process.carries = False  # it is stopped at once
            return "its requests have not ended in time"
        process.carries = False
        process.drained.clear()
        settings = process.sleep
        assert settings is not None
        problem = await put_to_sleep(self._unit, settings)
        if problem or exited.done() or process.stopping:
            return problem
        process.sleep_state = SleepState.ASLEEP
        log.info("%s sleeps", process.identity)
        self._listener.fell_asleep(self._fleet, process)
        return ""

    def _drain_limit_s(self) -> float:
        """Return how long the requests of the program may still run."""
        grace_s = self._listener.grace_of(self._process.home)
        return self._process.drain_timeout_s + _DRAIN_SLACK_S if grace_s is None else grace_s

    async def _drain_and_stop(self, exited: asyncio.Future[None]) -> None:
        """Drain the program, then stop it."""
        fleet, process = self._fleet, self._process
        drained = asyncio.ensure_future(process.drained.wait())  # noqa: TID251 - cancelled below
        if process.carries:
            either: set[asyncio.Future[Any]] = {drained, exited}
            await asyncio.wait(either, timeout=self._drain_limit_s(), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        if process.saves and process.sleep_state is SleepState.AWAKE and not self._unit.is_foreign():
            hooks = self._tasks.start("hooks", self._run_hooks("before_stop", self._hooks.before_stop))
            await asyncio.wait({hooks, exited}, return_when=asyncio.FIRST_COMPLETED)
            hooks.cancel()
            await asyncio.wait({hooks})
        if process.saves:
            process.saves = False
            self._listener.has_saved(fleet)
        may_be_stopped = process.is_handed or (process.sleep is not None and stops_by_signal(process.sleep))
        if may_be_stopped and process.sleep_state is not SleepState.AWAKE:
            await self._unit.signal("SIGCONT")  # a stopped process could not react to the stop signal
        until_s = self._now() + self._unit.grace_s
        await self._unit.stop()
        await self._unit.until_empty(max(until_s - self._now(), 0.0))


async def _occurs_first(
    event: asyncio.Event,
    exited: asyncio.Future[None],
    stop_requested: asyncio.Future[Any],
    timeout_s: float | None = None,
) -> bool:
    """Return True if the event came first, before the program exited, was to be stopped, or the time was up."""
    occurred = asyncio.ensure_future(event.wait())  # noqa: TID251 - cancelled below
    try:
        awaited: set[asyncio.Future[Any]] = {occurred, exited, stop_requested}
        await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return event.is_set() and not exited.done() and not stop_requested.done()
    finally:
        occurred.cancel()
