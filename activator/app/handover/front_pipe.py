"""The pipe to the first process of a chain of upgrades, which learns by it which process serves."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from activator.app.handover.front import READ_BYTES

_SCRIPT: Final = str(Path(__file__).with_name("front.py"))


class FrontPipe:
    """The writing end of the pipe, and in the first process also the reading end.

    `process` is the PID of the process that serves, as the first process knows it.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self.process = 0
        self._reading = -1
        if descriptor < 0:
            self._reading, descriptor = os.pipe()
        self.descriptor = descriptor
        self._rest = b""

    @property
    def is_first(self) -> bool:
        """True in the first process."""
        return self._reading >= 0

    def serves(self, process: int) -> None:
        """Report that another process serves from now on."""
        self.process = process
        if not self.is_first:
            os.write(self.descriptor, b"%d\n" % process)
            return
        os.close(self.descriptor)
        asyncio.get_running_loop().add_reader(self._reading, self._readable)

    def become_front(self) -> None:
        """Replace this program by the front (front.py); call it after the event loop."""
        os.set_inheritable(self._reading, True)
        sys.stdout.flush()
        sys.stderr.flush()
        words = [sys.executable, "-I", "-S", _SCRIPT, str(self._reading), str(self.process)]
        os.execv(words[0], words)

    def _readable(self) -> None:
        *lines, self._rest = (self._rest + (data := os.read(self._reading, READ_BYTES))).split(b"\n")
        if lines:
            self.process = int(lines[-1])
        if not data:
            asyncio.get_running_loop().remove_reader(self._reading)
