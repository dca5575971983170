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


class Spawned:
    """One process; to be created within a running loop. `returncode` is negative for a signal.

    `watch(pid)` opens a descriptor that is readable when the process has ended. If that raises OSError (a sandbox does
    not allow it, or no descriptor is free), a thread waits.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pipes: Sequence[OutputPipe] = (),
        watch: Callable[[int], int] = os.pidfd_open,
    ) -> None:
        self.pid = process.pid
        self.returncode: int | None = None
        self.pipes = pipes
        self._process = process
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            watched = watch(process.pid)
        except OSError:
            threading.Thread(target=self._wait, name=f"end of {process.pid}", daemon=True).start()
        else:
            self._loop.add_reader(watched, self._may_have_ended, watched)

    async def wait(self) -> int:
        """Return the exit code when the process has ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def close(self) -> None:
        """Close our ends of the pipes, also if a descendant still has the other ends open."""
        for pipe in self.pipes:
            pipe.close()

    def _may_have_ended(self, watched: int) -> None:
        code = self._process.poll()
        if code is not None:
            self._loop.remove_reader(watched)
            os.close(watched)
            self._note(code)

    def _note(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    def _wait(self) -> None:
        code = self._process.wait()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, code)


class OutputPipe:
    """The pipe of one stream of a process; the writing end is `end` until the process has it.

    libuv closes the descriptor of a pipe, and uvloop then closes the file object. In between a thread may have opened
    another file under the same number, so with uvloop the file object must not own the descriptor.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reader = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None
        reading, self.end = os.pipe()
        self._reading = io.FileIO(reading, closefd=not isinstance(asyncio.get_running_loop(), uvloop.Loop))

    async def connect(self, owner: tuple[int, int] | None) -> None:
        """Connect the reading end. `owner`: the user and group that must be able to open it by name. Raises OSError."""
        if owner is not None:
            os.fchown(self.end, *owner)
        os.fchmod(self.end, 0o622)  # also for a user that the program becomes (`su`)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.reader), self._reading
        )

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
