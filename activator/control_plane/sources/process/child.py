"""A program as a process group: started, watched and stopped by signals.

Rules
  1. A program is ready when its port accepts or its readiness path answers with success; or, without any connection,
     when it has written the line of `readiness.log`, or when `readiness.command` has ended with 0. It listens on
     127.0.0.1, on ::1 if it listens only there, or on a Unix socket. A configured port must be free before the start
     and belong to the program afterwards (`addresses.py`, `ports.py`). Nothing connects to a program that takes one
     request (`once.py`).
  2. Every group is reported to the reaper as soon as it exists, so that no process survives a killed activator.
  3. A program is its group and every process that carries its mark: all of them get the grace, and all are killed
     after it (`process_tree.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from activator.config.file import readiness_probe
from activator.config.model.revision import Revision
from activator.config.programs import socket_of
from activator.config.specs import is_once
from activator.control_plane.probes.probe import PROBE_TIMEOUT_S, ProbeOutcome, ProbeRequest, probe_once
from activator.control_plane.sources.process.addresses import AddressAllocator, ProgramAddress, holders
from activator.control_plane.sources.process.causes import cause_of
from activator.control_plane.sources.process.cgroups import Cgroup, Cgroups
from activator.control_plane.sources.process.handed import HandedProgram, HandedPrograms
from activator.control_plane.sources.process.launch import Launch
from activator.control_plane.sources.process.other_port import OtherPort
from activator.control_plane.sources.process.output import READ_BYTES, OnLine, Output, OutputRateLimiter
from activator.control_plane.sources.process.ports import (
    PORT_STEP_S,
    PORT_WAIT_S,
    foreign_holder,
    holder,
    listens,
)
from activator.control_plane.sources.process.process_tree import ProcessTree, mark_of, signal_group
from activator.control_plane.sources.process.readiness import (
    PORT_STEP_SHARE,
    READINESS_STEP_SHARE,
    until_answered,
    until_command,
    until_set,
)
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.spawned import OutputPipe, PipeReader, RunningProcess, TakenOver
from activator.control_plane.sources.process.unit import NotStartedError, Unit, Units, UnitState
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError, StartError
from activator.runtime.local_listeners import LOOPBACK_4
from activator.runtime.sockets import join_address
from activator.runtime.tasks import TaskGroupOwner, pause

log = logging.getLogger("activator.process")

_STREAMS: Final = ("stderr", "stdout")  # the order of their descriptors in a hand-over
_LAST_OUTPUT_S = 0.2  # how long the last lines may take when the program has ended


class ChildProcesses(Units):
    """Process groups of this machine, each with an address of its own."""

    def __init__(self, tasks: TaskGroupOwner, now: Now, reaping: Reaping) -> None:
        self.tasks = tasks
        self.now = now
        self.reaping = reaping
        self.addresses = AddressAllocator(reaping)
        self.cgroups = Cgroups()
        self.owns_handed = False  # programs that were handed over may be ended
        self._made = 0

    def prepare(self, revision: Revision) -> None:
        pass

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        assert revision.process is not None
        self._made += 1
        program_address = self.addresses.reserve(revision.process, self._made)
        if program_address is None:
            return None
        return ChildProcess(self, revision, identity, program_address, gpus, on_line)

    def take_over(self, revision: Revision, program: HandedProgram, descriptors: list[int], on_line: OnLine) -> Unit:
        assert revision.process is not None
        program_address = self.addresses.adopt(program.port, program.path, program.is_chosen)
        child = ChildProcess(self, revision, program.identity, program_address, program.gpus, on_line)
        child.handed = (program, descriptors)
        return child

    def with_shared_state(self, programs: HandedPrograms) -> HandedPrograms:
        return replace(programs, made=self._made, folder=self.addresses.folder, cgroup=self.cgroups.own)

    def restore_shared(self, programs: HandedPrograms) -> None:
        self._made = programs.made
        self.addresses.use_folder(programs.folder)
        if programs.cgroup:
            self.cgroups.use_prepared(programs.cgroup)

    def take_ownership(self, former: Iterable[int]) -> None:
        self.owns_handed = True
        self.cgroups.former.update(former)

    def detach(self) -> None:
        self.addresses.leave_folder()

    def claim_of(self, revision: Revision) -> str:
        ports = None if revision.process is None else revision.process.ports()
        if ports is not None and len(ports) == 1:
            return _claim_on(ProgramAddress(ports[0]))
        return self._claimed_socket(revision)

    def may_claim(self, revision: Revision, claim: str) -> bool:
        ports = None if revision.process is None else revision.process.ports()
        if ports is not None:
            return claim in map(_claim_on, map(ProgramAddress, ports))
        return bool(claim) and claim == self._claimed_socket(revision)

    def _claimed_socket(self, revision: Revision) -> str:
        """Return the claim of a program with a configured socket; empty if it has none, or the path is invalid."""
        try:
            path = "" if revision.process is None else socket_of(revision.process, os.environ)
        except ConfigError:
            return ""
        return _claim_on(ProgramAddress(path=path)) if path else ""

    async def close(self) -> None:
        self.addresses.close()


class ChildProcess(Unit):
    """One process and its descendants."""

    def __init__(
        self,
        owner: ChildProcesses,
        revision: Revision,
        identity: str,
        program_address: ProgramAddress,
        gpus: tuple[str, ...],
        on_line: OnLine,
    ) -> None:
        assert revision.process is not None
        self._owner = owner
        self._revision = revision  # as it was configured when the process was started
        self._settings = revision.process
        self.identity = identity
        self._program_address = program_address
        self.claim = _claim_on(program_address) if program_address.is_chosen else ""
        self.grace_s = float(self._settings.stop.grace)
        self.address = program_address.first_address
        self.output = Output(self._settings.readiness.log, on_line)
        self._gpus = gpus
        self._cgroup: Cgroup | None = None  # the cgroup limits its memory
        self._launch: Launch | None = None  # how it was started
        self.handed: tuple[HandedProgram, list[int]] | None = None  # it runs already: with its descriptors
        self._child: RunningProcess | None = None
        self._tree: ProcessTree | None = None
        self._was_ready = False
        self._has_ended = False
        self._other_port: OtherPort | None = None  # set once it is expected to listen
        self._readers: list[asyncio.Task[None]] = []

    # --- start ---

    async def start(self, stop_asked: asyncio.Event) -> None:
        if self.handed is not None:
            await self._adopt_running(*self.handed)
            return
        settings, program_address, reaping = self._settings, self._program_address, self._owner.reaping
        await self._check_address()
        if settings.memory:
            self._cgroup = await asyncio.to_thread(self._owner.cgroups.create_limited, int(settings.memory))
        self._launch = Launch(settings, program_address, reaping.mark, self.identity, self._gpus, self._cgroup)
        try:
            program_address.remove_stale_socket()
            program_address.make_folder(settings)
            child = await self._launch.start(settings.command)
        except StartError as error:
            raise NotStartedError(f"{program_address.path}: {error}") from None
        except OSError as error:
            raise NotStartedError(f"cannot start {settings.command[0]}: {error.strerror or error}") from None
        self._set_child(child)
        reaping.add_group(child.pid)
        log.info("started %s on %s, process %d", self.identity, program_address.shown, child.pid)
        self._start_reading(child)

    def _set_child(self, child: RunningProcess) -> None:
        self._child, self.leader = child, child.pid
        self._tree = ProcessTree(child.pid, mark_of(self._owner.reaping.mark, self.identity))

    def _start_reading(self, child: RunningProcess) -> None:
        self._readers = [
            self._owner.tasks.start("output", self._read_output(pipe.name, pipe.reader)) for pipe in child.pipes
        ]

    async def _adopt_running(self, program: HandedProgram, descriptors: list[int]) -> None:
        """Set up this object for the running program, and read its output."""
        pidfd, *readings = descriptors
        pipes = [OutputPipe(name, reading) for name, reading in zip(_STREAMS, readings, strict=True)]
        child = TakenOver(program.pid, pidfd, pipes)
        self._set_child(child)
        self._owner.reaping.adopt_group(program.pid)
        self.output.restore(program.lines, program.unfinished)
        if program.is_announced:
            self.output.ready.set()
        self.address, self._was_ready = program.address, program.is_ready
        if program.cgroup:
            self._cgroup = self._owner.cgroups.adopted(program.cgroup)
        mark = self._owner.reaping.mark
        try:
            self._launch = Launch(self._settings, self._program_address, mark, self.identity, self._gpus, self._cgroup)
        except ConfigError as error:
            log.warning("%s runs, but could not be started again: %s", self.identity, error.problems[0])
        for pipe in pipes:
            await pipe.connect(None)
        self._start_reading(child)

    async def _check_address(self) -> None:
        """Raise NotStartedError if the program cannot listen on its address."""
        program_address = self._program_address
        if program_address.problem:
            raise NotStartedError(program_address.problem)
        if program_address.taken:
            holder_names = await asyncio.to_thread(holders, program_address.taken)
            raise NotStartedError(f"no port is free: {holder_names}; set other ports (`port`)")
        if program_address.is_chosen and await self._stays_taken():
            key, name = "socket", "another program"
            if not program_address.path:
                key, name = "port", await asyncio.to_thread(holder, program_address.port)
            used = f"{program_address.shown} is in use by {name}"
            raise NotStartedError(f"{used}: end that program, or set another `{key}`")

    async def _stays_taken(self) -> bool:
        began_s = self._owner.now()
        while self._program_address.is_taken():
            if self._owner.now() - began_s >= PORT_WAIT_S:
                return True
            await pause(PORT_STEP_S)
        return False

    async def _read_output(self, name: str, stream: PipeReader) -> None:
        """Read until the end of the stream, at a bounded rate."""
        limiter = OutputRateLimiter(self._owner.now)
        try:
            while data := await stream.read(READ_BYTES):
                lines = self.output.feed(name, data)
                await pause(limiter.wait_s(len(data), lines))  # 0 still gives the other tasks a turn
        finally:
            self.output.end(name)

    # --- while it runs ---

    async def ready(self, timeout_s: float) -> str:
        if self._was_ready:  # when it was handed over
            return ""
        readiness, now = self._settings.readiness, self._owner.now
        interval_s = float(readiness.interval)
        if readiness.log:
            if not await until_set(self.output.ready, timeout_s, now):
                return f"the program wrote no line with {readiness.log!r} within {timeout_s:g} s"
            self.address = self._program_address.address
        elif readiness.command:
            if not await until_command(self, readiness.command, interval_s, timeout_s, now):
                word = readiness.command[0]
                return f"{word} (`readiness.command`) did not end with exit code 0 within {timeout_s:g} s"
            self.address = self._program_address.address
        elif not await self._answered_in_time(interval_s, timeout_s):
            elsewhere = f"; {hint}" if (hint := self.hint()) else ""
            return f"the program did not answer on {self._program_address.shown} within {timeout_s:g} s{elsewhere}"
        cause = await self._cause_if_served_by_other()
        self._was_ready = not cause
        return cause

    def hint(self) -> str:
        if self._was_ready or self._other_port is None or not self._other_port.found:
            return ""
        return "" if listens(join_address(LOOPBACK_4, self._program_address.port)) else self._other_port.found

    async def _answered_in_time(self, interval_s: float, timeout_s: float) -> bool:
        other_port = self._other_port = OtherPort(self.identity, self._program_address.port, self._tree)
        search = self._owner.tasks.start("other port", other_port.find())
        try:
            return await until_answered(self._answers, interval_s, timeout_s, self._owner.now, self._step_share())
        finally:
            search.cancel()

    def _step_share(self) -> float:
        readiness = self._settings.readiness
        asks_program = bool(readiness.http_get) or readiness.grpc is not None
        return READINESS_STEP_SHARE if asks_program else PORT_STEP_SHARE

    async def _answers(self) -> bool:
        if is_once(self._revision):
            answered = listens(self.address)
        else:
            request = ProbeRequest(self.address, readiness_probe(self._revision))
            answered = await probe_once(request, PROBE_TIMEOUT_S) is ProbeOutcome.ANSWERED
        if not answered:
            self.address = self._program_address.address
        return answered

    async def _cause_if_served_by_other(self) -> str:
        """Return an error text if another process answers on the port; only a configured port can have one."""
        port = self._program_address.port
        if not self._program_address.is_chosen or self._program_address.path or self._child is None:
            return ""
        # The search through /proc may take some milliseconds.
        other = await asyncio.to_thread(foreign_holder, port, self._child.pid, self._owner.reaping.mark)
        return f"port {port} is served by {other}, not by the program: end it, or set another `port`" if other else ""

    async def exited(self) -> None:
        if self._child is not None:
            await self._child.wait()
            self._has_ended = True

    async def cause(self) -> str:
        await self._wait_for_last_output()
        if self._cgroup is not None and self._cgroup.was_exceeded():
            limit = int(self._settings.memory)
            return f"the program was killed because it used more memory than `memory: {limit}` allows"
        if self.exit_code is None:
            return "the program has ended; an earlier process of the activator had started it and has its exit code"
        cause = cause_of(self.exit_code, self.output.lines())
        if self.exit_code == 0 and self._tree is not None:
            await self._tree.until_empty(_LAST_OUTPUT_S, self._owner.now)
            await self._tree.include_hidden(self._owner.reaping.groups)
            if left := await self._tree.described():
                self.left_running = True
                return f"the program put itself into the background (it left {left}): run it in the foreground"
            if not self._was_ready:  # a daemon that hides its environment looks like a program that has ended
                cause += "; if it goes into the background, run it in the foreground"
        return cause

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.returncode

    async def run_beside(self, command: Sequence[str], timeout_s: float) -> int | None:
        if self._launch is None:  # it was handed over, and could not be started again
            return None
        try:
            child = self._launch.start_beside(command)
        except OSError as error:
            log.warning("%s: cannot start %s: %s", self.identity, command[0], error.strerror)
            return None
        self._owner.reaping.add_group(child.pid)
        try:
            return await asyncio.wait_for(child.wait(), timeout_s)
        except TimeoutError:
            log.warning("%s: %s took longer than %g s, and was killed", self.identity, command[0], timeout_s)
            return None
        finally:
            signal_group(child.pid, signal.SIGKILL)
            await child.wait()
            self._owner.reaping.remove_group(child.pid)

    async def signal(self, name: str) -> str:
        if self.is_foreign():
            return "it belongs to another process of the activator"
        self._signal(signal.Signals[name])
        return ""

    # --- the end ---

    def is_foreign(self) -> bool:
        return self.handed is not None and not self._owner.owns_handed and not self._has_ended

    async def stop(self) -> None:
        stop = self._settings.stop
        if self.is_foreign():
            return
        if self._tree is None:
            return
        if stop.command and self._launch is not None:
            code = await self.run_beside(stop.command, self.grace_s)
            if code == 0:
                return
            how = "did not run to its end" if code is None else f"ended with exit code {code}"
            log.warning(
                "%s: %s (`stop.command`) %s: the program gets %s", self.identity, stop.command[0], how, stop.signal
            )
        await self._tree.signal(signal.Signals[stop.signal])
        if stop.command and self._launch is not None:
            await self.until_empty(self.grace_s)

    async def end_rest(self) -> None:
        if self._tree is not None and not self.is_foreign() and await self._tree.living():
            await self._tree.signal(signal.Signals[self._settings.stop.signal])
            await self._tree.until_empty(self.grace_s, self._owner.now)

    async def until_empty(self, timeout_s: float) -> None:
        if self.is_foreign():
            return
        until_s = self._owner.now() + timeout_s
        await super().until_empty(timeout_s)
        if self._tree is not None:
            await self._tree.until_empty(until_s - self._owner.now(), self._owner.now)

    async def end(self) -> None:
        if self.is_foreign():
            self._owner.addresses.release(self._program_address)
            self.detach()
            return
        self._signal(signal.SIGKILL)  # includes what the program left behind in its group
        await self.exited()
        await self._wait_for_last_output()
        for reader in self._readers:
            reader.cancel()
        if self._child is not None:
            self._child.close()

    async def remove(self, holds_resources: bool, is_closing: Callable[[], bool]) -> None:
        try:
            if self._tree is not None:
                await self._tree.end(lambda: not holds_resources or is_closing())
            await self._owner.addresses.remove_folder(self._program_address)
            if self._cgroup is not None:
                self._cgroup.remove()
        finally:
            if self._child is not None:
                self._owner.reaping.remove_group(self._child.pid)
            self._owner.addresses.release(self._program_address)

    def disown(self) -> None:
        pass

    # --- the hand-over to another process of the activator ---

    def unsettled(self) -> str:
        if self._child is None:
            return "it is about to start"
        return "it has just ended" if self._has_ended or self._child.returncode is not None else ""

    def hand_over(self, state: UnitState) -> tuple[HandedProgram, list[int]]:
        child, program_address = self._child, self._program_address
        assert child is not None, "it is settled"
        pipes = {pipe.name: pipe for pipe in child.pipes}
        descriptors = [os.pidfd_open(child.pid)]
        try:
            for name in _STREAMS:
                descriptor, rest = pipes[name].suspend()
                descriptors.append(descriptor)
                self.output.feed(name, rest)
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        port, path = program_address.port, program_address.path
        program = HandedProgram(
            *(self.identity, child.pid, self.address, port, path, program_address.is_chosen, *state),
            self.output.ready.is_set(),
            "" if self._cgroup is None else str(self._cgroup.path),
            self.output.finished_lines(),
            self.output.unfinished(),
        )
        return program, descriptors

    def resume(self) -> None:
        if self._child is not None:
            for pipe in self._child.pipes:
                pipe.resume()

    def detach(self) -> None:
        self.output.drop_unfinished()
        for reader in self._readers:
            reader.cancel()
        if self._child is not None:
            self._child.leave()
        self._readers, self._child, self._tree, self._cgroup, self._launch = [], None, None, None, None
        self._program_address = ProgramAddress()

    async def _wait_for_last_output(self) -> None:
        if self._readers:
            await asyncio.wait(self._readers, timeout=_LAST_OUTPUT_S)

    def _signal(self, number: int) -> None:
        """Send a signal to the process and to those of its descendants that stayed in its group."""
        if self._child is not None:
            signal_group(self._child.pid, number)


def _claim_on(program_address: ProgramAddress) -> str:
    return program_address.shown


def missing_program(command: list[str]) -> str | None:
    """Return the first word of the command if no such program can be run; None if it can."""
    return None if shutil.which(command[0]) is not None else command[0]
