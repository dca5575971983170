"""The addresses of processes on this machine: a free port each, a configured port, or a Unix socket.

Rules
  1. No two processes have the same address, also not while one of them ends.
  2. Each copy has its own port of a configured range. A port on which another program listens is skipped, and logged
     once until it is free again. If other programs have all ports, the start fails and names them; if some belong to
     programs of the activator, it waits.
  3. A Unix socket is in a folder of its own (0700) that only its process uses: no other user of the machine can
     connect, and files of an earlier run are in another folder. The folder is removed when the process has ended, or by
     the reaper if the activator was killed.
  4. A Unix socket with a configured path is for one copy. If another program listens on it, the start fails. A stale
     socket file is removed before a start because most programs do not replace it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from typing import Final

from activator.config.model.programs import Process
from activator.config.programs import owner_of, socket_of
from activator.control_plane.sources.process.ports import holder, is_taken, listens
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.errors import ConfigError
from activator.runtime.local_listeners import LOOPBACK_4, LOOPBACK_6, Listening, listening
from activator.runtime.sockets import join_address
from activator.runtime.unix_address import UNIX, UNIX_PATH_BYTES_MAX
from activator.runtime.unix_sockets import take_over

HOLDERS_NAMED_MAX: Final = 3  # programs that an error text names

log = logging.getLogger("activator.process")


class ProgramAddress:
    """The address of one process: a port or the path of a Unix socket. `is_chosen`: as configured, or from a range."""

    def __init__(self, port: int = 0, path: str = "", is_chosen: bool = False) -> None:
        self.port = port
        self.path = path
        self.is_chosen = is_chosen
        self.taken: tuple[int, ...] = ()  # all ports of the range, if other programs have all of them
        self.problem = ""  # why there is no address

    @property
    def address(self) -> str:
        """The address at which it listens; ::1 if it listens only there, because `localhost` means ::1 first."""
        if self.path:
            return f"{UNIX}{self.path}"
        port = self.port
        only_6 = listening(LOOPBACK_6, port) is Listening.YES and listening(LOOPBACK_4, port) is Listening.NO
        return join_address(LOOPBACK_6 if only_6 else LOOPBACK_4, port)

    @property
    def shown(self) -> str:
        """The address for log lines and error texts."""
        return self.path or f"port {self.port}"

    @property
    def has_folder(self) -> bool:
        """True if its socket is in a folder of its own."""
        return bool(self.path) and not self.is_chosen

    def is_taken(self) -> bool:
        """Return True if a program listens on the address."""
        return listens(self.first_address) if self.path else is_taken(self.port)

    def remove_stale_socket(self) -> None:
        """Remove the socket file that an earlier copy has left. Raises OSError or StartError."""
        if self.path and self.is_chosen:
            take_over(self.path)

    @property
    def first_address(self) -> str:
        """The address before the process listens."""
        return f"{UNIX}{self.path}" if self.path else join_address(LOOPBACK_4, self.port)

    def fill(self, word: str) -> str:
        """Return a word of a command with its placeholders replaced."""
        if self.path:
            return word.replace("{socket}", self.path)
        return word.replace("{port}", str(self.port))

    def variables(self) -> dict[str, str]:
        return {"SOCKET": self.path} if self.path else {"PORT": str(self.port)}

    def make_folder(self, settings: Process) -> None:
        """Create the folder of the Unix socket. Raises OSError or ConfigError."""
        if self.has_folder:
            folder = os.path.dirname(self.path)
            os.mkdir(folder, 0o700)
            if settings.user:
                os.chown(folder, *owner_of(settings))


class AddressAllocator:
    """The addresses of all processes."""

    def __init__(self, reaping: Reaping, environ: Mapping[str, str] = os.environ) -> None:
        self._reaping = reaping
        self._environ = environ
        self._used: set[int] = set()
        self._passed_over: set[int] = set()  # ports of ranges that other programs have, and that have been logged
        self._search_from: dict[int, int] = {}  # first port of a range → where its next search begins
        self._folder = ""

    def reserve(self, settings: Process, number: int) -> ProgramAddress | None:
        """Reserve an address; None if another process has to end first. `number`: unique to the process."""
        if settings.wants_socket():
            reserved = ProgramAddress(is_chosen=True)
            try:
                reserved.path = socket_of(settings, self._environ)
                return reserved if reserved.path else ProgramAddress(path=self._new_socket_path(number))
            except ConfigError as error:
                reserved.problem = error.problems[0]
            except OSError as error:
                reserved.problem = f"there is no place for its Unix socket: {error.filename}: {error.strerror}"
            return reserved
        ports = settings.ports()
        if ports is None:
            return ProgramAddress(self.free_port())
        if len(ports) == 1:
            return ProgramAddress(ports[0], is_chosen=True)
        return self._take_from_range(ports)

    def leave_folder(self) -> None:
        """Leave the common folder to the next process of the activator: `close` does not remove it."""
        self._folder = ""

    @property
    def folder(self) -> str:
        """The common folder of the Unix sockets; empty if there is none."""
        return self._folder

    def use_folder(self, folder: str) -> None:
        """Use the common folder of a former process of the activator."""
        self._folder = folder

    def adopt(self, port: int, path: str, is_chosen: bool) -> ProgramAddress:
        """Register and return the address that a program has already, which was handed over."""
        if port:
            self._used.add(port)
        return ProgramAddress(port, path, is_chosen)

    def release(self, released: ProgramAddress) -> None:
        if not released.taken:  # else the port is another program's, or another process has it by now
            self._used.discard(released.port)

    async def remove_folder(self, released: ProgramAddress) -> None:
        """Remove the folder of the socket after the process has ended, with everything in it."""
        if released.has_folder:
            await asyncio.to_thread(shutil.rmtree, os.path.dirname(released.path), ignore_errors=True)

    def close(self) -> None:
        """Remove the common folder after all processes have ended."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def free_port(self) -> int:
        """Reserve a port that the kernel assigns and that no other program has."""
        while True:
            with socket.socket() as sock:
                sock.bind((LOOPBACK_4, 0))
                port: int = sock.getsockname()[1]
            if port not in self._used and listening(LOOPBACK_6, port) in {Listening.NO, None}:
                self._used.add(port)
                return port

    def _take_from_range(self, ports: range) -> ProgramAddress | None:
        """Reserve a free port of the range; None if a program of the activator has to end before one is free."""
        ours = [port for port in ports if port in self._used]
        first = self._search_from.get(ports[0], ports[0])
        for port in [*(other for other in ports if other >= first), *(other for other in ports if other < first)]:
            if port in self._used:
                continue
            if not is_taken(port):
                self._passed_over.discard(port)
                self._used.add(port)
                # A port that turns out to be unusable is not tried again at once.
                self._search_from[ports[0]] = port + 1
                return ProgramAddress(port, is_chosen=True)
            if port not in self._passed_over:
                self._passed_over.add(port)
                log.warning("port %d of %d-%d is in use by another program; skipping it", port, ports[0], ports[-1])
        if ours:
            return None
        busy = ProgramAddress(ports[0], is_chosen=True)
        busy.taken = tuple(ports)
        return busy

    def _new_socket_path(self, number: int) -> str:
        """Return the path of a new Unix socket; create the common folder if there is none. Raises OSError."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="activator-", dir=self._base_folder())
            os.chmod(self._folder, 0o711)  # a program of another user has to reach its own folder in it
            self._reaping.add_folder(self._folder)
        path = os.path.join(self._folder, str(number), "socket")
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, "the path is too long: set TMPDIR to a shorter folder", path)
        return path

    def _base_folder(self) -> str:
        """Return the folder of the service, the runtime folder of the user, or the one for temporary files."""
        service = self._environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        user = self._environ.get("XDG_RUNTIME_DIR", "") if os.geteuid() != 0 else ""  # only that user can enter it
        for folder in (service, user):
            if folder and os.access(folder, os.W_OK | os.X_OK):
                return folder
        return tempfile.gettempdir()


def holders(ports: tuple[int, ...]) -> str:
    """Return which programs have these ports, for an error text, as far as /proc shows them."""
    named = [f"{port} by {holder(port)}" for port in ports[:HOLDERS_NAMED_MAX]]
    rest = len(ports) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")
