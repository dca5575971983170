"""The connection to the first process of a chain of upgrades, which learns by it which process serves (front.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from activator.app.handover import front
from activator.app.handover.front import FORWARDED, READ_BYTES
from activator.runtime.tasks import pause

log = logging.getLogger("activator")

HANDLED_TURNS: Final = 3  # the event loop reads a signal in one and calls its handler in the next

_PROGRAM: Final = Path(front.__file__).read_text()  # at the start: an upgrade of the package replaces the file


class FrontLink:
    """A process's end of the connection; in the first process, both ends.

    `first` is the PID of the first process, and `process` that of the serving process, as the first process knows it.
    """

    def __init__(self, sock: socket.socket | None = None, first: int = 0) -> None:
        self.process = 0
        self.first = first or os.getpid()
        self._own_end: socket.socket | None = None
        if sock is None:
            self._own_end, sock = socket.socketpair()
            self._signals, self._wakeup = os.pipe()  # now: later there may be no free descriptor
        self._socket = sock
        self._rest = b""

    @property
    def is_first(self) -> bool:
        """True in the first process."""
        return self._own_end is not None

    @property
    def descriptor(self) -> int:
        """The descriptor of the end that later processes have."""
        return self._socket.fileno()

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` if the first process ends before this one."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            loop.remove_reader(self._socket.fileno())
            ended()

        loop.add_reader(self._socket.fileno(), readable)

    def serves(self, process: int) -> None:
        """Report that another process serves from now on."""
        self.process = process
        loop = asyncio.get_running_loop()
        if self._own_end is None:
            loop.remove_reader(self._socket.fileno())
            try:
                self._socket.sendall(b"%d\n" % process)
            except OSError as error:
                log.error("the first process %d cannot be notified: %s", self.first, error.strerror)
            return
        self._socket.close()
        self._own_end.setblocking(False)
        loop.add_reader(self._own_end.fileno(), self._readable, self._own_end)

    async def become_front(self) -> int:
        """Replace this program by the front (front.py); no signal is lost. Call it last.

        If the interpreter has been removed, be the front in this program, and return the exit code.
        """
        assert self._own_end is not None, "only the first process becomes the front"
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()  # `execv` would end its threads in the middle of their work
        loop.remove_reader(self._own_end.fileno())
        self._own_end.setblocking(True)
        self._own_end.set_inheritable(True)
        os.set_inheritable(self._signals, True)
        os.set_blocking(self._wakeup, False)
        # Whichever thread receives a signal writes it into the pipe. A mask alone would not do: libuv's threads, and
        # those that write the output of programs, do not have it.
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for _ in range(HANDLED_TURNS):
            await pause(0.0)  # the loop calls the handlers of signals that came before
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = (self._own_end.fileno(), self.process, self._signals)
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _PROGRAM, *map(str, arguments)])
        except OSError as error:
            log.warning("the activator's memory is kept until its end: %s: %s", sys.executable, error.strerror)
        return front.main(*arguments)

    def _readable(self, own: socket.socket) -> None:
        """Read the PIDs that later processes have sent; the last is that of the serving process."""
        data = own.recv(READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self.process = int(lines[-1])
        if not data:
            asyncio.get_running_loop().remove_reader(own.fileno())
