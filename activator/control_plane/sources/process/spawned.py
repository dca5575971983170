"""A process that was started: its pipes and its end.

It is started by `subprocess`, because asyncio would pass sockets as standard output and error, which a program cannot
open by name (`/dev/stderr`), and further descriptors of the activator.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, cast

import uvloop

from activator.runtime.units import KIB

BUFFER_BYTES_MAX: Final = 64 * KIB  # read from a pipe, and not yet returned by `read`


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

    def leave(self) -> None:
        """Leave the process to another process of the activator: `wait` returns, and its end is not reported.

        This process still waits for the end of one that it has started itself.
        """
        self.close()
        self._ended.set()

    def _set_ended(self, code: int | None) -> None:
        self.returncode = code
        self._ended.set()


class ChildHandle(RunningProcess):
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
            pidfd = watch(process.pid)
        except OSError:
            threading.Thread(target=self._wait, name=f"end of {process.pid}", daemon=True).start()
        else:
            self._loop.add_reader(pidfd, self._may_have_ended, pidfd)

    def _may_have_ended(self, pidfd: int) -> None:
        code = self._process.poll()
        if code is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._set_ended(code)

    def _wait(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        code = self._process.wait()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_ended, code)


class TakenOver(RunningProcess):
    """A process that an earlier process of the activator started. Only its parent learns its exit code.

    `pidfd` is owned by this object.
    """

    def __init__(self, pid: int, pidfd: int, pipes: Sequence[OutputPipe]) -> None:
        super().__init__(pid, pipes)
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._on_end)

    def leave(self) -> None:
        super().leave()
        self._close_pidfd()

    def _on_end(self) -> None:
        self._close_pidfd()
        self._set_ended(None)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class PipeReader(asyncio.Protocol):
    """The data of one pipe, read by one task. Reading pauses while more than BUFFER_BYTES_MAX are buffered."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._is_suspended = False
        self._is_paused = False
        self._transport: asyncio.ReadTransport | None = None

    async def read(self, limit: int = -1) -> bytes:
        """Return the next data, `limit` bytes at most; empty at the end. Without `limit`: everything up to the end."""
        while not self._has_ended and (limit < 0 or not self._data):
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._data if limit < 0 else self._data[:limit])
        del self._data[: len(data)]
        self._pause_or_resume()
        return data

    def suspend(self) -> bytes:
        """Stop reading until `resume`. Return the data that are still buffered."""
        self._is_suspended = True
        self._pause_or_resume()
        data = bytes(self._data)
        self._data.clear()
        return data

    def resume(self) -> None:
        """Continue after `suspend`."""
        self._is_suspended = False
        self._pause_or_resume()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._arrived.set()
        self._pause_or_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._transport = None
        self._arrived.set()

    def _pause_or_resume(self) -> None:
        """Pause or resume reading."""
        transport = self._transport
        is_paused = self._is_suspended or len(self._data) > BUFFER_BYTES_MAX
        if transport is None or transport.is_closing() or is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()


class OutputPipe:
    """The pipe of one stream of a process; `writing_end` is open until the process has it.

    `reading`: the reading end of a pipe that exists already, and belongs to this object; the process has the other end.

    libuv closes the descriptor of a pipe, and uvloop then closes the file object. In between a thread may have opened
    another file under the same number, so with uvloop the file object must not own the descriptor.
    """

    def __init__(self, name: str, reading: int | None = None) -> None:
        self.name = name
        self.reader = PipeReader()
        self._transport: asyncio.ReadTransport | None = None
        self.writing_end = -1
        if reading is None:
            reading, self.writing_end = os.pipe()
        self._reading = io.FileIO(reading, closefd=not isinstance(asyncio.get_running_loop(), uvloop.Loop))

    async def connect(self, owner: tuple[int, int] | None) -> None:
        """Connect the reading end. `owner`: the user and group that must be able to open it by name. Raises OSError."""
        if owner is not None:
            os.fchown(self.writing_end, *owner)
        if self.writing_end >= 0:
            os.fchmod(self.writing_end, 0o622)  # also for a user that the program becomes (`su`)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: self.reader, self._reading)

    def suspend(self) -> tuple[int, bytes]:
        """Stop reading. Return a new descriptor of the reading end, and the data that are still buffered.

        If the stream has ended, the descriptor reads as end of file. Raises OSError.
        """
        if self._transport is None or self._transport.is_closing():
            reading, end = os.pipe()
            os.close(end)
        else:
            reading = os.dup(self._reading.fileno())
        return reading, self.reader.suspend()

    def resume(self) -> None:
        """Continue to read after `suspend`."""
        self.reader.resume()

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
) -> ChildHandle:
    """Start a program as the leader of a session, with pipes for its output. Raises OSError."""
    with ExitStack() as undo, ExitStack() as ends:
        pipes = []
        for name in ("stderr", "stdout"):
            pipe = OutputPipe(name)
            undo.callback(pipe.close)
            ends.callback(os.close, pipe.writing_end)
            await pipe.connect(owner)
            pipes.append(pipe)
        error, out = pipes
        spawned = ChildHandle(_start(command, variables, directory, out.writing_end, error.writing_end), pipes)
        undo.pop_all()
    return spawned


def spawn_silent(command: Sequence[str], variables: Mapping[str, str], directory: str | None) -> ChildHandle:
    """Start a program as `spawn` does, and discard its output. Raises OSError."""
    return ChildHandle(_start(command, variables, directory, subprocess.DEVNULL, subprocess.DEVNULL))


def _start(
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
