"""The old process of an upgrade: it starts the new one, and hands everything over."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import activator
from activator.app.handover.front_link import FrontLink
from activator.app.handover.messages import (
    PROTOCOL,
    Adopted,
    Commit,
    GoneError,
    HandoverMessage,
    Link,
    Offer,
    Prepared,
    Refused,
    ReleasedName,
    State,
    UpgradeError,
    out_of_order,
)
from activator.app.handover.taking import unsupported
from activator.config.model.file import Config
from activator.config.tree import HANDOVER
from activator.control_plane.plane import ControlPlane
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.unit import CONTAINER
from activator.runtime.clock import Now
from activator.runtime.service_manager import ServiceManager
from activator.runtime.tasks import pause
from activator.runtime.unix_sockets import leave_files, made_paths, take_files
from activator.runtime.wire import pair
from activator.workers.workers import Released, Workers

PREPARE_S: Final = 60.0  # for the new process to start and read its configuration
SETTLE_S: Final = 10.0  # for programs that are being stopped, put to sleep or woken
ADOPT_S: Final = 30.0  # for the new process to build its model
SERVE_S: Final = 30.0  # for the new process to accept connections
EXIT_S: Final = 1.0  # for the exit code of a new process that has closed the connection
SETTLE_STEP_S: Final = 0.02

log = logging.getLogger("activator")


class Successor:
    """The new process. `version` is known once it is prepared."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link) -> None:
        self.process = process
        self.link = link
        self.version = ""

    async def receive(self, timeout_s: float) -> HandoverMessage:
        """Return its next message. Raises UpgradeError."""
        try:
            message, _ = await self.link.receive(timeout_s)
        except GoneError as error:
            until_s = time.monotonic() + EXIT_S
            while (code := self.process.poll()) is None and time.monotonic() < until_s:
                await pause(SETTLE_STEP_S)
            cause = str(error) if code is None else f"it ended with exit code {code}; see its log above"
            raise UpgradeError(f"the new process did not take over: {cause}") from None
        if isinstance(message, Refused):
            raise UpgradeError(message.problem)
        return message


class Giving:
    """The hand-over from this process.

    `moved(process)` is called in the turn in which the data planes move there. `close_state` closes files that only one
    process may use.
    """

    def __init__(
        self,
        config: Config,
        control: ControlPlane,
        workers: Workers,
        reaping: Reaping,
        manager: ServiceManager,
        now: Now,
        moved: Callable[[int], None],
        close_state: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._control = control
        self._supervisor = control.processes.supervisor
        self._workers = workers
        self._reaping = reaping
        self._manager = manager
        self._now = now
        self._moved = moved
        self._close_state = close_state
        self._successor: Successor | None = None
        self._is_aborted = False
        self.is_committed = False  # the new process becomes the activator, whatever happens

    async def run(self, listening: list[tuple[str, list[socket.socket]]], front: FrontLink | None) -> Successor:
        """Hand everything over, and return the new process, which serves. Raises UpgradeError: this one continues.

        `listening`: the name and the sockets of each listener. `front`: the connection to the front, if there is one.
        """
        problem = unsupported(self._config)
        if problem:
            raise UpgradeError(problem)
        successor = self._successor = self._start(front)
        try:
            await self._offer(successor, listening)
            await self._send_state(successor)
            if self._is_aborted:
                raise UpgradeError("the activator is draining")
            self.is_committed = True
            files = made_paths()
            leave_files()  # before the workers' release, which closes the sockets
            try:
                released = await self._workers.release(self._reaping.descriptor)
            except OSError as error:
                take_files(files)
                raise UpgradeError(f"the workers cannot be handed over: {error.strerror}") from None
        except BaseException:
            self.is_committed = False
            successor.process.kill()
            successor.link.close()
            self._supervisor.unfreeze()
            raise
        try:
            await self._commit(successor, released, tuple(files))
        except Exception:  # there is no way back: this process ends after its requests
            log.exception("upgrade: an internal error")
        successor.link.close()
        return successor

    def abort(self) -> None:
        """Give the upgrade up, unless it is committed: the new process is killed, and `run` raises UpgradeError."""
        self._is_aborted = True
        if self._successor is not None:
            self._successor.process.kill()

    def _start(self, front: FrontLink | None) -> Successor:
        """Start the new process with a connection to it, the reaper's and the front's. Raises OSError."""
        own_end, other_end = pair()
        reaper = self._reaping.descriptor
        connection, first = (-1, 0) if front is None else (front.descriptor, front.first)
        passed = [descriptor for descriptor in (other_end.fileno(), reaper, connection) if descriptor >= 0]
        variable = f"{other_end.fileno()}:{reaper}:{connection}:{first}:{self._reaping.mark}"
        try:
            process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, **self._manager.environment(), HANDOVER: variable},
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # signals of a terminal are forwarded by the front
            )
        except OSError:
            own_end.close()
            raise
        finally:
            other_end.close()
        log.info("upgrade: started the new process %d", process.pid)
        return Successor(process, Link(own_end))

    async def _offer(self, successor: Successor, listening: list[tuple[str, list[socket.socket]]]) -> None:
        """Send the listening sockets, and wait until the new process is prepared. Raises UpgradeError."""
        descriptors = [os.dup(sock.fileno()) for _, listener_sockets in listening for sock in listener_sockets]
        counts = tuple([(name, len(listener_sockets)) for name, listener_sockets in listening])
        successor.link.send(Offer(PROTOCOL, activator.__version__, counts, self._workers.last_number), descriptors)
        prepared = await successor.receive(PREPARE_S)
        if not isinstance(prepared, Prepared):
            raise UpgradeError(out_of_order(prepared))
        successor.version = prepared.version
        for key, kind in self._supervisor.given.keys_with_programs():
            in_file = key in prepared.containers or key in prepared.keys
            by_label = prepared.discovers and not in_file and self._control.containers.declares(key)
            if not by_label and key not in (prepared.containers if kind == CONTAINER else prepared.keys):
                raise UpgradeError(f"{key} has running programs, and no `{kind}` in the file any more: reload first")

    async def _send_state(self, successor: Successor) -> None:
        """Send the programs and their state, and wait until they are adopted. Raises UpgradeError."""
        self._supervisor.freeze()
        until_s = self._now() + SETTLE_S
        while problem := self._supervisor.given.unsettled():
            if self._is_aborted or self._now() >= until_s:
                raise UpgradeError(f"{problem}; try again later")
            await pause(SETTLE_STEP_S)
        await self._close_state()
        if problem := self._supervisor.given.unsettled():
            raise UpgradeError(f"{problem}; try again later")
        try:
            programs, descriptors = self._supervisor.given.hand_over()
        except OSError as error:
            raise UpgradeError(f"the programs cannot be handed over: {error.strerror}") from None
        keys = tuple(self._control.worker.model.revisions)
        processes = self._control.processes
        scales, uses = processes.autoscaler.handed(), processes.groups.handed()
        names = self._control.file.fixed_pods.handed()
        state = State(programs, self._workers.lives(), keys, scales, uses, self._control.aside(), names)
        successor.link.send(state, descriptors)
        adopted = await successor.receive(ADOPT_S)
        if not isinstance(adopted, Adopted):
            raise UpgradeError(out_of_order(adopted))

    async def _commit(self, successor: Successor, released: Released, files: tuple[str, ...]) -> None:
        """Make the new process the activator. Its failure from now on does not undo the upgrade."""
        process = successor.process.pid
        self._moved(process)
        taken = self._supervisor.given.taken()
        self._supervisor.detach()
        self._reaping.is_shared = True
        self._manager.main_is(process)
        names = tuple([ReleasedName(worker.number, worker.process, worker.group) for worker in released.workers])
        wires = [worker.socket.detach() for worker in released.workers]
        pidfds = [worker.pidfd for worker in released.workers]
        successor.link.send(Commit(names, released.epoch, files, taken), [*wires, *pidfds])
        try:
            await successor.link.receive(SERVE_S)
        except GoneError as error:
            log.error("upgrade: the new process %d does not serve: %s", process, error)
