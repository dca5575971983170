"""A process that was started: its pipes and its end.

It is started by `subprocess`, because asyncio would pass sockets as standard output and error, which a program cannot
open by name (`/dev/stderr`), and further descriptors of the activator.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import uvloop


class RunningProcess:
    """One process, and our ends of its pipes.

    `returncode` is set when it has ended, and negative for a signal; it stays None if it cannot be known.
    """

    def __init__(self, pid: int, pipes: Sequence[OutputPipe]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.pipes = pipes
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self) -> int | None:
        """Return the exit code when the process has ended; None if it cannot be known."""
        await self._ended.wait()
        return self.returncode

    def close(self) -> None:
        """Close our ends of the pipes, also if a descendant still has the other ends open."""
        for pipe in self.pipes:
            pipe.close()

    def _note(self, code: int | None) -> None:
        self.returncode = code
        self._ended.set()


class Spawned(RunningProcess):
    """A process that was started here; to be created within a running loop.

    `watch(pid)` opens a descriptor that is readable when the process has ended. If that raises OSError (a sandbox does
    not allow it, or no descriptor is free), a thread waits.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pipes: Sequence[OutputPipe] = (),
        watch: Callable[[int], int] = os.pidfd_open,
    ) -> None:
        super().__init__(process.pid, pipes)
        self._process = process
        try:
            watched = watch(process.pid)
        except OSError:
            threading.Thread(target=self._wait, name=f"end of {process.pid}", daemon=True).start()
        else:
            self._loop.add_reader(watched, self._may_have_ended, watched)

    def _may_have_ended(self, watched: int) -> None:
        code = self._process.poll()
        if code is not None:
            self._loop.remove_reader(watched)
            os.close(watched)
            self._note(code)

    def _wait(self) -> None:
        code = self._process.wait()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, code)


class TakenOver(RunningProcess):
    """A process that an earlier process of the activator started. Only its parent learns its exit code.

    `pidfd` is owned by this object.
    """

    def __init__(self, pid: int, pidfd: int, pipes: Sequence[OutputPipe]) -> None:
        super().__init__(pid, pipes)
        self._loop.add_reader(pidfd, self._has_ended, pidfd)

    def _has_ended(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._note(None)


class OutputPipe:
    """The pipe of one stream of a process; the writing end is `end` until the process has it.

    `reading`: the reading end of a pipe that exists already, and belongs to this object; the process has the other end.

    libuv closes the descriptor of a pipe, and uvloop then closes the file object. In between a thread may have opened
    another file under the same number, so with uvloop the file object must not own the descriptor.
    """

    def __init__(self, name: str, reading: int | None = None) -> None:
        self.name = name
        self.reader = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None
        self.end = -1
        self._is_held = False
        if reading is None:
            reading, self.end = os.pipe()
        self._reading = io.FileIO(reading, closefd=not isinstance(asyncio.get_running_loop(), uvloop.Loop))

    async def connect(self, owner: tuple[int, int] | None) -> None:
        """Connect the reading end. `owner`: the user and group that must be able to open it by name. Raises OSError."""
        if owner is not None:
            os.fchown(self.end, *owner)
        if self.end >= 0:
            os.fchmod(self.end, 0o622)  # also for a user that the program becomes (`su`)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.reader), self._reading
        )

    def hold(self) -> int:
        """Stop reading, and return a new descriptor of the reading end. Raises OSError.

        After the end of the stream, the descriptor is at its end, too.
        """
        if self._transport is None or self._transport.is_closing():
            reading, end = os.pipe()
            os.close(end)
            return reading
        found = os.dup(self._reading.fileno())
        self._transport.pause_reading()
        self._is_held = True
        return found

    def resume(self) -> None:
        """Continue to read after `hold`."""
        if self._is_held and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._is_held = False

    def close(self) -> None:
        """Close our end."""
        if self._transport is not None:
            self._transport.close()
            return
        if not self._reading.closefd and not self._reading.closed:
            os.close(self._reading.fileno())
        self._reading.close()


async def spawn(
    command: Sequence[str],
    variables: Mapping[str, str],
    directory: str | None,
    owner: tuple[int, int] | None,
) -> Spawned:
    """Start a program as the leader of a session, with pipes for its output. Raises OSError."""
    with ExitStack() as undo, ExitStack() as ends:
        pipes = []
        for name in ("stderr", "stdout"):
            pipe = OutputPipe(name)
            undo.callback(pipe.close)
            ends.callback(os.close, pipe.end)
            await pipe.connect(owner)
            pipes.append(pipe)
        error, out = pipes
        spawned = Spawned(_started(command, variables, directory, out.end, error.end), pipes)
        undo.pop_all()
    return spawned


def spawn_silent(command: Sequence[str], variables: Mapping[str, str], directory: str | None) -> Spawned:
    """Start a program as `spawn` does, without its output. Raises OSError."""
    return Spawned(_started(command, variables, directory, subprocess.DEVNULL, subprocess.DEVNULL))


def _started(
    command: Sequence[str], variables: Mapping[str, str], directory: str | None, out: int, error: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=error,
        env=variables,
        cwd=directory,
        start_new_session=True,
        close_fds=True,
    )
