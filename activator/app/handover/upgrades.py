"""The upgrades of the running program: it may replace an earlier process, and be replaced by a later one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Final, Protocol

import activator
from activator.app.handover.front_link import FrontLink
from activator.app.handover.giving import Giving, Successor
from activator.app.handover.messages import UpgradeError
from activator.app.handover.taking import GROUP_CHECK_S, Inheritance, Takeover
from activator.app.listening import listeners
from activator.app.quota_state import QuotaState
from activator.config.model.file import Config
from activator.control_plane.plane import ControlPlane
from activator.data_plane.server.listener import apply_access
from activator.messages import PodSetAside
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.service_manager import ServiceManager
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.workers.alone import OneWorker
from activator.workers.workers import Workers

if TYPE_CHECKING:
    from activator.control_plane.sources.process.reaping import Reaping
    from activator.workers.pool import WorkerPool

CONTINUE_S: Final = 1.0  # for the programs that were handed over to be pods again
LIST_S: Final = 10.0  # for the first list of containers, whose labels may declare revisions
CONTINUE_STEP_S: Final = 0.002
REOPEN_S: Final = 5.0  # for the state file to be free after a failed upgrade
REOPEN_STEP_S: Final = 0.1

log = logging.getLogger("activator")


class Upgradable(Protocol):
    """The part of the program that upgrades use."""

    config: Config
    control: ControlPlane
    workers: Workers
    is_serving: bool
    draining: bool
    quota_state: QuotaState

    def own_pool(self) -> WorkerPool: ...

    def listening(self) -> list[tuple[str, list[socket.socket]]]: ...

    def disconnect(self) -> None: ...

    def finish(self) -> None: ...

    def stop(self) -> None: ...


class Upgrades:
    """The upgrades of one process: it may replace another one, and be replaced later."""

    def __init__(
        self,
        app: Upgradable,
        reaping: Reaping,
        manager: ServiceManager,
        now: Now,
        tasks: TaskGroupOwner,
        inheritance: Inheritance | None,
    ) -> None:
        self._app = app
        self._reaping = reaping
        self._manager = manager
        self._now = now
        self._tasks = tasks
        self._inheritance = inheritance
        self._takeover: Takeover | None = None  # set if it replaces another process
        self.front: FrontLink | None = None  # set once there are several processes, unless systemd knows the main one
        self.is_possible = False  # this is `activator run`, whose command line can be repeated
        self.is_under_way = False
        self.has_moved = False  # another process is the activator
        self._successor_pid = 0  # the PID of that process
        self._giving: Giving | None = None  # while an upgrade is under way
        self._signals: list[int] = []  # to be forwarded once another process is the activator

    def own_front(self) -> FrontLink | None:
        """Return the front that this process is to become; None if it still serves, or is not the first process."""
        return self.front if self.has_moved and self.front is not None and self.front.is_first else None

    # --- replacing another process ---

    async def begin(self) -> None:
        """Take over the listening sockets, if this process replaces another one. Raises StartError."""
        if self._inheritance is None:
            return
        if self._inheritance.front is not None:
            self.front = FrontLink(self._inheritance.front, self._inheritance.first)
        self._takeover = Takeover(self._inheritance)
        await self._takeover.begin(self._app.config, self._app.own_pool())

    async def take_over(self) -> None:
        """Take over the programs. Raises StartError."""
        if self._takeover is not None:
            await self._takeover.take_over(self._app.config, self._app.control.processes, self._app.own_pool())

    async def commit(self) -> None:
        """Become the activator, in place of the other process. Raises StartError."""
        takeover, control = self._takeover, self._app.control
        if takeover is None:
            return
        supervisor = control.processes.supervisor
        control.file.fixed_pods.restore(takeover.names)
        for key, identity in takeover.aside:
            control.submit(PodSetAside(key, identity, True))
        until_s = self._now() + LIST_S
        while takeover.has_untaken and (why := control.containers.pending()):
            if self._now() >= until_s:
                raise StartError(f"{why[0]} has not come within {LIST_S:g} s")
            await pause(CONTINUE_STEP_S)
        until_s = self._now() + CONTINUE_S
        while not (supervisor.fleets.are_continued() and control.worker.is_settled()) and self._now() < until_s:
            await pause(CONTINUE_STEP_S)
        listening = {*self._app.workers.addresses, self._app.config.admin_address}
        await takeover.commit(set(control.worker.model.revisions), listening, control.processes, self._app.own_pool())
        for listener in listeners(self._app.config):  # the files of Unix sockets are those of this process from now on
            apply_access(listener)

    def serving(self) -> None:
        """Make the other process, if there is one, leave new clients to this one."""
        if self._takeover is not None:
            self._takeover.serving(self._app.own_pool())
            if self.front is not None:
                self.front.watch(self._app.stop)
            self._tasks.repeat("former workers", GROUP_CHECK_S, self._takeover.check_groups)

    def refuse(self, problem: str) -> None:
        """Report why this process does not replace the other one, which continues."""
        if self._takeover is not None:
            self._takeover.refuse(problem)

    def end_former(self) -> None:
        """Kill the processes that this one has replaced, with the requests that they have.

        The first process ends by itself: it has forwarded the signal.
        """
        if self._takeover is not None:
            self._app.own_pool().kill_former(0 if self.front is None else self.front.first)

    # --- being replaced ---

    def ask(self) -> None:
        """Begin an upgrade of the process that serves, for a signal; its outcome is logged."""
        if self.has_moved:
            self.forward(signal.SIGUSR2)
        elif why := self._why_not():
            log.error("upgrade: %s", why)
        else:
            self._tasks.start("upgrade", self.run())

    async def run(self) -> dict[str, Any]:
        """Hand over to a new process. Return the `problems`; without any, also what serves now."""
        return await asyncio.shield(self._tasks.start("upgrade", self._run()))

    async def _run(self) -> dict[str, Any]:
        """Hand over to a new process, or continue. Return the outcome, as `run` does."""
        app = self._app
        why = self._why_not()
        if why:
            return {"problems": [why]}
        self.is_under_way = True
        try:
            successor = await self._hand_over()
        except (UpgradeError, OSError) as error:  # OSError: no descriptor or no memory is left
            problems = str(error).split("\n")
            for problem in problems:
                log.error("upgrade: %s; this process continues", problem)
            return await self._given_up(problems)
        except Exception as error:
            log.exception("upgrade: an internal error; this process continues")
            return await self._given_up([f"an internal error: {error!r}"])
        finally:
            self.is_under_way, self._giving = False, None
        log.info(
            "upgrade: process %d (version %s) serves now; this one finishes its requests",
            *(successor.process.pid, successor.version),
        )
        app.finish()
        return {
            "problems": [],
            "process": successor.process.pid,
            "version": successor.version,
            "former_process": os.getpid(),
            "former_version": activator.__version__,
        }

    def _why_not(self) -> str:
        """Return why no upgrade can begin now; empty if one can."""
        if not self.is_possible:
            return "only `activator run` can be upgraded"
        if not self._app.is_serving:
            return "the activator does not serve yet"
        if self._app.draining:
            return "the activator is draining"
        return "another upgrade is under way" if self.is_under_way or self.has_moved else ""

    async def _hand_over(self) -> Successor:
        """Hand over to a new process. Raises UpgradeError."""
        app = self._app
        if self.front is None and not self._manager.is_managed():
            try:
                self.front = FrontLink()
            except OSError as error:
                raise UpgradeError(f"the first process cannot stay: {error}") from None
        giving = self._giving = Giving(
            *(app.config, app.control, app.workers, self._reaping, self._manager, self._now),
            *(self._moved, app.quota_state.close),
        )
        return await giving.run(app.listening(), self.front)

    async def _given_up(self, problems: list[str]) -> dict[str, Any]:
        """Continue after a failed upgrade. Return its outcome."""
        until_s = self._now() + REOPEN_S
        while self._app.config.state:
            try:
                self._app.quota_state.open()
                break
            except StartError as error:  # the new process may not have ended yet
                if self._now() >= until_s:
                    log.error("%s: the use of quotas is not kept from now on", error)
                    break
            await pause(REOPEN_STEP_S)
        signals, self._signals = self._signals, []
        if signal.SIGTERM in signals:
            self._app.stop()
        return {"problems": problems}

    def forward(self, number: int) -> bool:
        """Send a signal to the process that replaces this one, once it is the activator; False if there is none."""
        if not self.has_moved:
            if self._giving is not None and self._giving.is_committed:
                self._signals.append(number)
                return True
            return False
        process = self._successor_pid if self.front is None else self.front.process
        try:
            os.kill(process, number)
        except ProcessLookupError:
            log.warning("the process %d, which had replaced this one, has ended", process)
        return True

    def stops(self) -> bool:
        """Return True if another process is to end in place of this one.

        An upgrade that is not committed is given up, because this process drains.
        """
        if self.forward(signal.SIGTERM):
            return True
        if self._giving is not None:
            self._giving.abort()
        return False

    async def requests_ended(self) -> None:
        """Wait until the requests of this process have ended."""
        workers = self._app.workers
        if isinstance(workers, OneWorker) and workers.worker is not None:
            await workers.worker.ended

    def _moved(self, process: int) -> None:
        """Note that another process is the activator, and forward to it the signals that came before."""
        self.has_moved, self._successor_pid = True, process
        self._app.disconnect()
        if self.front is not None:
            self.front.serves(process)
        for number in self._signals:
            self.forward(number)
