"""One container as a program: created and removed by the activator, or an existing one that is started and stopped.

Rules
  1. A container that the activator creates has its labels, is known to the sweeper (`sweeper.py`) before the engine is
     asked for it, and is always removed at the end. An existing one is never removed, and is not touched after
     `disown`.
  2. It is watched by long-polling calls of limited length and by inspecting it: an event that the engine missed is
     found by the next inspection. While the engine is unreachable the container counts as running, and its requests
     continue. A start repeats each step that a broken connection has cut, until the engine has been unreachable for
     `containers.patience`.
  3. `readiness.py` decides when a container is ready.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from activator.config.model.containers import Container
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.context import EngineContext
from activator.control_plane.sources.container.creation import address_of, port_of
from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.exec import CommandError, run_command
from activator.control_plane.sources.container.output import OutputReader
from activator.control_plane.sources.container.readiness import ContainerReadiness
from activator.control_plane.sources.container.removal import AWAY_STEP_S, RETRY_AWAY_S
from activator.control_plane.sources.container.state import (
    ContainerState,
    leader_of,
    memory_limit,
    state_of,
)
from activator.control_plane.sources.process.causes import cause_of
from activator.control_plane.sources.process.handed import HandedContainer, HandedProgram
from activator.control_plane.sources.process.output import OnLine, Output
from activator.control_plane.sources.process.unit import CONTAINER, NotStartedError, Unit, UnitState
from activator.runtime.tasks import pause, wait_for

WAIT_S: Final = 30.0  # one waiting call for the end of a container; then it is inspected
POLL_S: Final = 1.0  # between two inspections of a container whose end cannot be waited for
KILLED: Final = 137  # the exit code of a program that SIGKILL ended
KILL_TIMEOUT_S: Final = 5.0
OWN_STEP_S: Final = 0.02  # between two checks whether a container that was handed over belongs to this process
LAST_OUTPUT_S: Final = 1.0  # how long to wait for the last lines after the container has ended

log = logging.getLogger("activator.container")

_PAUSES: Final = {"SIGSTOP": "pause", "SIGCONT": "unpause"}
_PORT_TAKEN: Final = re.compile(r"address already in use|port is already allocated", re.IGNORECASE)

T = TypeVar("T")


class ContainerUnit(Unit):
    """A container of either kind."""

    kind = CONTAINER

    def __init__(self, context: EngineContext, revision: Revision, identity: str, claim: str, on_line: OnLine) -> None:
        assert revision.container is not None
        self.context = context
        self.revision = revision  # as it was configured when the container was started
        self.settings: Container = revision.container
        self.identity = identity
        self.claim = claim
        self.grace_s = float(self.settings.stop.grace)
        self.output = Output(self.settings.readiness.log, on_line)
        self.id = ""  # the engine's id
        self.port: int | None = None  # in the container
        self._last_inspected: dict[str, Any] = {}  # as it was inspected last
        self._ended = asyncio.Event()
        self._inspect_now = asyncio.Event()  # it may have ended: inspect it now
        self._is_started = False  # the activator has started it: an existing one may have run before
        self._is_terminal = False
        self._is_silent = False  # the engine did not answer when it was to be stopped
        self._cause = ""
        self._exit_code: int | None = None
        self._stopping: asyncio.Task[None] | None = None  # the engine's own stop, which ends with SIGKILL
        self._reader: OutputReader | None = None
        self._running: list[asyncio.Task[None]] = []  # the tasks that watch it and read its output
        self.handed: HandedProgram | None = None  # it runs already: a former process of the activator hands it over
        self._was_inspected = asyncio.Event()  # it has been inspected
        self._began = ""  # when it was started, as the engine shows it
        self._is_kept = asyncio.Event()  # it is not being handed over to another process of the activator
        self._is_kept.set()

    @property
    def engine(self) -> Engine:
        return self.context.engine

    # --- start ---

    @abstractmethod
    async def _bring_up(self, stop_asked: asyncio.Event) -> None:
        """Start the container and set `id`; return early if it is no longer needed."""

    async def start(self, stop_asked: asyncio.Event) -> None:
        if self.handed is not None:
            self._adopt_running(self.handed)
            return
        since_s = self.context.wall_clock()
        try:
            await self._retry_while_away(lambda: self.engine.call("GET", "/version"), stop_asked)
            if stop_asked.is_set():
                return
            await self._bring_up(stop_asked)
            if not self.id or stop_asked.is_set():
                return
            inspected = await self._retry_while_away(lambda: self.engine.inspect("containers", self.id), stop_asked)
            if stop_asked.is_set():
                return
        except EngineAwayError as error:
            self.retry_max_s = RETRY_AWAY_S
            raise NotStartedError(str(error)) from None
        except EngineError as error:
            # The next attempt may get another port or find it free, and an engine behind a proxy may be back.
            for_good = _PORT_TAKEN.search(error.message) is None and error.status not in {502, 503, 504}
            raise NotStartedError(f"the container cannot be started: {error.message}", for_good) from None
        if inspected is None:
            raise NotStartedError("the container was removed while it started", for_good=False)
        self._record_inspection(inspected)
        self._set_address()
        if self.settings.memory and not memory_limit(inspected):
            log.warning("%s: the container engine limits no memory: without root it needs cgroups v2", self.identity)
        log.info("started %s, container %s, at %s", self.identity, self.id[:12], self.address or "no address")
        self._start_watching(since_s if self.is_borrowed else None, bool((inspected.get("Config") or {}).get("Tty")))

    def _adopt_running(self, program: HandedProgram) -> None:
        """Set this up for the running container, which is inspected later: a slow engine must not delay requests."""
        container = program.container
        assert container is not None
        self.id, self.address, self._is_started = container.id, program.address, container.is_started
        self.port, self._began = program.port or None, container.began
        self.output.restore(program.lines, program.unfinished)
        if program.is_announced:
            self.output.ready.set()
        reader = self._start_watching(container.since_s, container.is_terminal)
        reader.restore(container.positions)
        if not self.context.run.owns_handed:
            reader.suspend()

    def resume_output(self) -> None:
        """Begin to read its output: this process owns the container, which was handed over, from now on."""
        if self._reader is not None:
            self._reader.resume()

    def _record_inspection(self, inspected: dict[str, Any]) -> None:
        """Record the state in which the container was inspected."""
        self._last_inspected = inspected
        state = state_of(inspected)
        self.leader = leader_of(state, self.id)
        self._began = self._began or state.began
        self._was_inspected.set()

    async def _retry_while_away(
        self, step: Callable[[], Coroutine[Any, Any, T]], stop_asked: asyncio.Event, is_cancelled: bool = True
    ) -> T | None:
        """Return the result of a step of the start; None if the container is no longer needed.

        The step is repeated while the engine is unreachable, for `patience_s` from its first failure; then
        EngineAwayError. `is_cancelled`: a step that is under way is cancelled when the container is no longer needed.
        """
        until_s: float | None = None
        while not stop_asked.is_set():
            try:
                return await (self._unless_stopped(step(), stop_asked) if is_cancelled else step())
            except EngineAwayError as error:
                now_s = self.context.now()
                if until_s is None:
                    until_s = now_s + self.context.patience_s
                    log.info("%s: its start waits: %s", self.identity, error)
                if now_s >= until_s:
                    raise
                await wait_for(stop_asked, min(AWAY_STEP_S, until_s - now_s))
        return None

    def _set_address(self) -> None:
        """Set the port and the address; raise NotStartedError if there is none."""
        if self.port is None:
            self.port = port_of(self.settings, self._last_inspected)
        if self.port is None:
            raise NotStartedError("its image exposes no port, or several: set `container.port`")
        kind = self.settings.address or self.context.address
        self.address = address_of(self.settings, self._last_inspected, self.port, kind)
        if not self.address and state_of(self._last_inspected).is_running:
            raise NotStartedError(
                f"it has no address: its port {self.port} is not published, and it has no IP address of its own"
            )

    def _start_watching(self, since_s: float | None, is_terminal: bool) -> OutputReader:
        reader = self._reader = OutputReader(
            *(self.engine, self.id, self.output, is_terminal, self._ended),
            *(self.context.now, self.context.wall_clock, since_s),
        )
        self._is_terminal = is_terminal
        self._running = [
            self.context.tasks.start("watch", self._until_ended()),
            self.context.tasks.start("output", reader.run()),
        ]
        return reader

    async def _until_ended(self) -> None:
        """Watch the container until it has ended (rule 2)."""
        is_away = is_logged = False
        while not self._ended.is_set():
            try:
                inspected = await self.engine.inspect("containers", self.id)
                if is_away:
                    is_away = False
                    log.info("%s: the container engine answers again", self.identity)
                if self._note_if_ended(inspected):
                    return
                await self._wait_for_change()
            except EngineAwayError as error:
                if not is_away:
                    is_away = True
                    log.warning("%s keeps running, but %s", self.identity, error)
                await self._pause(AWAY_STEP_S)
            except EngineError as error:
                if not is_logged:
                    is_logged = True
                    log.warning("%s: the container engine does not report its state: %s", self.identity, error)
                await self._pause(POLL_S)

    async def _pause(self, seconds: float) -> None:
        """Wait until the next inspection is due."""
        await wait_for(self._inspect_now, seconds)
        self._inspect_now.clear()

    async def _wait_for_change(self) -> None:
        """Wait until the container may have ended."""
        end = asyncio.ensure_future(self._wait_for_end())  # noqa: TID251 - awaited or cancelled below
        expedited = asyncio.ensure_future(self._inspect_now.wait())  # noqa: TID251 - cancelled below
        try:
            await asyncio.wait({end, expedited}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                end.result()
        finally:
            expedited.cancel()
            end.cancel()
            self._inspect_now.clear()

    async def _wait_for_end(self) -> None:
        async with self.engine.streamed("POST", f"/containers/{self.id}/wait") as content:
            await content.readany()

    def _note_if_ended(self, inspected: dict[str, Any] | None) -> bool:
        """Record the inspected state; return True if it shows that the container has ended."""
        if inspected is None:
            self._set_ended("the container was removed by another program", None)
            return True
        state = state_of(inspected)
        if state.is_running or state.is_restarting:
            self._record_inspection(inspected)
            if state.began and state.began != self._began:  # its address may be another one
                self._set_ended("the container was restarted by another program", None)
            return self._ended.is_set()
        self._set_ended(self._cause_in(state), state.exit_code)
        return True

    def _set_ended(self, cause: str, exit_code: int | None) -> None:
        if not self._ended.is_set():
            self._cause, self._exit_code = cause, exit_code
            self._ended.set()

    def _cause_in(self, state: ContainerState) -> str:
        if state.is_oom_killed:
            return f"the program was killed because it used more memory than allowed{self._memory_limit()}"
        return f"the container could not be started: {state.error}" if state.error else ""

    # --- while it runs ---

    async def ready(self, timeout_s: float) -> str:
        if self.handed is not None and self.handed.is_ready:
            return ""
        if not self._running or not self.address:
            await asyncio.Event().wait()  # it has ended already, or was given up before it ran: `exited` returns
        if not self._was_inspected.is_set():  # it was handed over
            began_s = self.context.now()
            await wait_for(self._was_inspected, timeout_s)
            timeout_s = max(timeout_s - (self.context.now() - began_s), 0.0)
        check = ContainerReadiness(self, self.revision, self._last_inspected, self.port, self.context.now)
        return await check.until_ready(timeout_s)

    async def exited(self) -> None:
        if self._running:
            await self._ended.wait()
            await self._is_kept.wait()  # its end is reported by the process that keeps it

    async def cause(self) -> str:
        if self._cause:
            return self._cause
        lines = self.output.lines()
        if self._reader is not None:
            _, late = await asyncio.wait(self._running, timeout=LAST_OUTPUT_S)
            lines = await self._reader.last_lines() if late else self.output.lines()
        code = self._exit_code or 0
        cause = cause_of(128 - code if 128 < code < 160 else code, lines)
        if code == KILLED and self.settings.memory:  # engines may not know the reason (Podman 4.3 with cgroups v1)
            cause += f"; using more memory than allowed{self._memory_limit()} ends a program the same way"
        return cause

    def _memory_limit(self) -> str:
        return f" (`memory: {int(self.settings.memory)}`)" if self.settings.memory else ""

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    async def run_beside(self, command: Sequence[str], timeout_s: float) -> int | None:
        words = [word.replace("{port}", str(self.port)) for word in command]
        try:
            return await run_command(self.engine, self.id, words, timeout_s)
        except CommandError as error:
            if not self._ended.is_set():
                log.debug("%s: %s: %s", self.identity, command[0], error)
            return None

    async def signal(self, name: str) -> str:
        """Send a signal; SIGSTOP and SIGCONT become the engine's pause and unpause, which apply to all processes.

        A pause or unpause that a broken connection has cut is repeated for KILL_TIMEOUT_S: a program that does not wake
        is lost.
        """
        if self.is_foreign():
            return "it belongs to another process of the activator"
        if name not in _PAUSES:
            return await self._command(f"/containers/{self.id}/kill", {"signal": name}, (304, 409))
        until_s, is_repeated = self.context.now() + KILL_TIMEOUT_S, False
        while True:
            try:
                await self.engine.call("POST", f"/containers/{self.id}/{_PAUSES[name]}", timeout_s=KILL_TIMEOUT_S)
                return ""
            except EngineError as error:
                is_done = is_repeated and await self._is_paused() is (name == "SIGSTOP")
                return "" if is_done or error.status in (304, 409) else error.message
            except EngineAwayError as error:
                if self._ended.is_set() or self.context.now() >= until_s:
                    return str(error)
            is_repeated = True
            await pause(AWAY_STEP_S)

    async def _is_paused(self) -> bool | None:
        try:
            inspected = await self.engine.inspect("containers", self.id, KILL_TIMEOUT_S)
        except (EngineAwayError, EngineError):
            return None
        return None if inspected is None else state_of(inspected).is_paused

    # --- the end ---

    async def stop(self) -> None:
        if not self.id or self._ended.is_set() or self.is_foreign():
            return
        inspected = await self._try_inspect()
        if self._is_silent:
            return
        if inspected is not None and state_of(inspected).is_paused:
            await self.signal("SIGCONT")  # a paused program could not react
        self._stopping = self.context.tasks.start(f"stop of {self.identity}", self._ask_to_stop())
        await asyncio.wait({self._stopping}, timeout=self.grace_s)

    async def _ask_to_stop(self) -> None:
        seconds = max(round(self.grace_s), 1)
        try:
            async with asyncio.timeout(self.grace_s + KILL_TIMEOUT_S):
                query = {"t": str(seconds)}
                async with self.engine.streamed("POST", f"/containers/{self.id}/stop", query) as content:
                    await content.readany()
        except (TimeoutError, EngineAwayError) as error:
            log.warning("%s: it could not be stopped properly: %s", self.identity, str(error) or "no answer")
        except EngineError as error:
            if error.status not in (304, 404, 409):
                log.warning("%s: it could not be stopped properly: %s", self.identity, error.message)
        else:
            self._set_ended("", 0)  # the engine reports it; something else may start it again at this moment
        finally:
            self._inspect_now.set()

    async def _try_inspect(self) -> dict[str, Any] | None:
        """Return the inspected container; None if it is gone, or the call failed. Record whether the engine answers."""
        self._is_silent = False
        try:
            return await self.engine.inspect("containers", self.id, KILL_TIMEOUT_S)
        except EngineAwayError as error:
            self._is_silent = True
            log.warning("%s: it cannot be stopped properly: %s", self.identity, error)
        except EngineError as error:
            log.debug("%s: %s", self.identity, error)
        return None

    async def _command(self, target: str, query: dict[str, str] | None, accepted: tuple[int, ...]) -> str:
        """Send the engine a command; return why that failed, or an empty string."""
        try:
            await self.engine.call("POST", target, query, timeout_s=KILL_TIMEOUT_S)
        except EngineAwayError as error:
            return str(error)
        except EngineError as error:
            return "" if error.status in accepted else error.message
        return ""

    async def end_rest(self) -> None:
        pass  # the kernel ends all of a container with its first process

    async def until_empty(self, timeout_s: float) -> None:
        if not self.is_foreign():
            await super().until_empty(timeout_s)

    async def end(self) -> None:
        if self.is_foreign():
            self.detach()
        if self.id and not self._ended.is_set():
            await self._end_now()
        if self._running:
            await asyncio.wait(self._running, timeout=LAST_OUTPUT_S)
        self._ended.set()  # `remove` removes the rest
        for task in self._running:
            task.cancel()

    async def _end_now(self) -> None:
        if self._is_silent:
            return  # `remove` removes it
        if self._stopping is not None:
            await asyncio.wait({self._stopping}, timeout=KILL_TIMEOUT_S)
            if await wait_for(self._ended, AWAY_STEP_S):
                return
        problem = await self._command(f"/containers/{self.id}/kill", {"signal": "SIGKILL"}, (404, 409))
        inspected = await self._try_inspect() if problem else None
        if problem and (inspected is None or state_of(inspected).is_running):
            log.warning("%s: it cannot be killed: %s", self.identity, problem)
            return
        self._inspect_now.set()
        if self._running:
            await wait_for(self._ended, KILL_TIMEOUT_S)

    # --- the hand-over to another process of the activator ---

    def is_foreign(self) -> bool:
        return self.handed is not None and not self.context.run.owns_handed and not self._ended.is_set()

    async def _until_owned(self, is_closing: Callable[[], bool]) -> bool:
        """Wait until this process owns the container, even if that has ended; False if this process closes before."""
        task = asyncio.current_task()
        while self.handed is not None and not self.context.run.owns_handed:
            if is_closing() or (task is not None and task.cancelling()):
                return False
            await pause(OWN_STEP_S)
        return True

    def unsettled(self) -> str:
        if not self._running:
            return "its container is about to start"
        if not self.is_borrowed and not self.context.run.has_reaper():
            return "the reaper has exited, or is unknown, so its container would be taken for a leftover"
        return "it has just ended" if self._ended.is_set() else ""

    def hand_over(self, state: UnitState) -> tuple[HandedProgram, list[int]]:
        assert self._reader is not None, "it is settled"
        self._is_kept.clear()
        since_s, positions = self._reader.suspend()
        container = HandedContainer(
            *(self.engine.path, self.id, self.claim, self._is_terminal, self._is_started, since_s, positions),
            *(self.is_borrowed, self._began),
        )
        program = HandedProgram(
            *(self.identity, 0, self.address, self.port or 0, "", False, *state, self.output.ready.is_set(), ""),
            *(self.output.finished_lines(), self.output.unfinished(), container),
        )
        return program, []

    def resume(self) -> None:
        self._is_kept.set()
        if self._reader is not None:
            self._reader.resume()

    def detach(self) -> None:
        self.output.drop_unfinished()
        for task in self._running:
            task.cancel()
        self._running, self._reader, self.id = [], None, ""

    async def _unless_stopped(self, work: Coroutine[Any, Any, T], stop_asked: asyncio.Event) -> T | None:
        """Return the result of `work`; None if the container is no longer needed: the work is then cancelled."""
        task = asyncio.ensure_future(work)  # noqa: TID251 - awaited or cancelled below
        no_longer_needed = asyncio.ensure_future(stop_asked.wait())  # noqa: TID251 - cancelled below
        try:
            await asyncio.wait({task, no_longer_needed}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            no_longer_needed.cancel()
            task.cancel()
