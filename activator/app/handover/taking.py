"""The new process of an upgrade: it takes over from the process that has started it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

import activator
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
    Serving,
    State,
    out_of_order,
)
from activator.config.model.file import Config
from activator.config.tree import HANDOVER
from activator.control_plane.sources.fixed_pods.source import HandedName
from activator.control_plane.sources.process.handed import Received
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.source import ProcessSource
from activator.runtime import sockets
from activator.runtime.errors import StartError
from activator.runtime.unix_address import UNIX, path_of
from activator.runtime.unix_sockets import remove_file, take_files
from activator.workers.workers import Released, ReleasedWorker

if TYPE_CHECKING:
    from activator.workers.pool import WorkerPool  # only with several workers

ANSWER_S: Final = 60.0  # for each answer of the old process
NUMBERS_LEFT: Final = 1_000  # numbers for workers that the old process starts in the meantime
GROUP_CHECK_S: Final = 5.0  # between two checks whether the workers of the old process have ended


class Inheritance:
    """The connections that a new process inherits, as its environment names them.

    `front`: the connection to the first process, whose PID is `first`; None without one.
    """

    def __init__(self, link: socket.socket, reaping: Reaping, front: socket.socket | None, first: int) -> None:
        self.link = link
        self.reaping = reaping
        self.front = front
        self.first = first


def inheritance(environ: MutableMapping[str, str]) -> Inheritance | None:
    """Return what the process that has started this one hands over; None if it was not started by an upgrade.

    The variable has the descriptors of the connection, of the reaper and of the connection to the front (-1: none), the
    PID of the front, and the mark of programs.
    """
    variable = environ.pop(HANDOVER, "")
    if not variable:
        return None
    link, reaper, front, first, mark = variable.split(":")
    for descriptor in (int(link), int(reaper), int(front)):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    front_link = socket.socket(fileno=int(front)) if int(front) >= 0 else None
    return Inheritance(socket.socket(fileno=int(link)), Reaping.continued(int(reaper), mark), front_link, int(first))


def refuse(environ: MutableMapping[str, str], problem: str) -> None:
    """Report to the process that has started this one by an upgrade, if any, why this one cannot start."""
    given = inheritance(environ)
    if given is not None:
        asyncio.run(_refuse(given, problem))


async def _refuse(given: Inheritance, problem: str) -> None:
    link = Link(given.link)
    try:
        await link.receive(ANSWER_S)  # the end of a process that has not read all resets the connection
    except GoneError:
        return
    link.send(Refused(problem))


def unsupported(config: Config) -> str:
    """Return why a process with this configuration cannot hand over, or take over; empty if it can."""
    if config.members.listen:
        return "`members` is set: restart the replicas one after the other, which loses no request"
    if config.kubernetes is not None:
        return "in a cluster, replicas are replaced by its own means"
    if config.push.listen:
        return "`push` is set: restart the activator"
    return ""


class Takeover:
    """The steps of the new process. Each raises StartError if the old process does not continue."""

    def __init__(self, given: Inheritance) -> None:
        self._link = Link(given.link)
        self._reaping = given.reaping
        self._state: State | None = None
        self._received: Received | None = None
        self._groups: set[int] = set()  # process groups of former workers

    async def begin(self, config: Config, pool: WorkerPool) -> None:
        """Inherit the listening sockets."""
        offer, descriptors = await self._receive()
        if not isinstance(offer, Offer):
            raise StartError(out_of_order(offer))
        if offer.protocol != PROTOCOL:
            raise StartError(
                f"version {activator.__version__} cannot take over from version {offer.version}: restart the activator"
            )
        if problem := unsupported(config):
            raise StartError(problem)
        sockets_given = iter(descriptors)
        sockets.inherit([
            (name, [socket.socket(fileno=next(sockets_given)) for _ in range(count)]) for name, count in offer.sockets
        ])  # fmt: skip
        pool.await_former(offer.number + NUMBERS_LEFT)

    async def take_over(self, config: Config, processes: ProcessSource, pool: WorkerPool) -> None:
        """Report that this process is prepared, and continue the programs when their revisions are set."""
        sockets.close_inherited()  # those of addresses that the new configuration does not have
        keys = tuple(
            [f"{revision.namespace}/{revision.name}" for revision in config.revisions if revision.process is not None]
        )
        containers = tuple(
            [f"{revision.namespace}/{revision.name}" for revision in config.revisions if revision.container is not None]
        )
        self._link.send(Prepared(activator.__version__, keys, containers, config.containers.discover))
        state, descriptors = await self._receive()
        if not isinstance(state, State):
            raise StartError(out_of_order(state))
        self._state = state
        pool.continue_lives(state.lives)
        processes.autoscaler.restore(state.scales)
        processes.groups.restore(state.uses)
        processes.supervisor.freeze()
        self._received = Received(state.programs, descriptors)
        processes.supervisor.take_over(self._received)

    @property
    def has_untaken(self) -> bool:
        """True if programs were handed over whose revisions are not set yet."""
        return self._received is not None and any(fleet.programs for fleet in self._received.fleets.values())

    @property
    def aside(self) -> tuple[tuple[str, str], ...]:
        """The pods that operators have taken out of service, each with its revision."""
        return () if self._state is None else self._state.aside

    @property
    def names(self) -> tuple[HandedName, ...]:
        """The last answers of name servers."""
        return () if self._state is None else self._state.names

    async def commit(self, keys: set[str], listening: set[str], processes: ProcessSource, pool: WorkerPool) -> None:
        """Become the activator. `keys`: all revisions, whose programs run. `listening`: the addresses of listeners."""
        assert self._state is not None, "take_over comes first"
        self._link.send(Adopted())
        commit, descriptors = await self._receive()
        if not isinstance(commit, Commit):
            raise StartError(out_of_order(commit))
        count = len(commit.workers)
        workers = [
            ReleasedWorker(worker.number, worker.process, worker.group, socket.socket(fileno=wire), pidfd)
            for worker, wire, pidfd in zip(commit.workers, descriptors[:count], descriptors[count:], strict=True)
        ]
        supervisor = processes.supervisor
        self._reaping.report_queued()
        supervisor.take_ownership(worker.process for worker in workers)
        supervisor.record_taken_before(commit.taken)
        take_files(commit.files)
        kept = {path_of(address) for address in listening}
        for path in commit.files:
            if path not in kept:  # the new configuration does not have it
                remove_file(f"{UNIX}{path}")
        dropped = [key for key in self._state.keys if key not in keys]
        self._groups = {worker.group for worker in workers if worker.group}
        for group in self._groups:
            self._reaping.adopt_group(group)
        await pool.take_in(Released(workers, commit.epoch), dropped)
        processes.autoscaler.restore(())  # a revision that a reload adds later is another one
        processes.groups.restore(())
        supervisor.unfreeze()

    def serving(self, pool: WorkerPool) -> None:
        """Make the old process stop accepting connections, and report that this one serves."""
        pool.retire_former()
        self._link.send(Serving())

    def refuse(self, problem: str) -> None:
        """Report why this process gives up, before `commit`."""
        self._link.send(Refused(problem))

    def check_groups(self) -> None:
        """Report to the reaper which groups of former workers have ended; called periodically."""
        for group in list(self._groups):
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                self._groups.discard(group)
                self._reaping.remove_group(group)

    async def _receive(self) -> tuple[HandoverMessage, list[int]]:
        try:
            return await self._link.receive(ANSWER_S)
        except GoneError as error:
            raise StartError(f"the upgrade was given up: {error}") from None
