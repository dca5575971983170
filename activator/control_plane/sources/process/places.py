"""Where the processes of this machine listen: a free port each, a port of the file, or a Unix socket.

Rules
  1. No two processes have one place, also not while one of them ends.
  2. Of a range of ports each copy has one. A port that another program listens on is passed over, and said once until
     it is free again. Where all are taken by others the start fails with their names; where some are our own it waits.
  3. A Unix socket stands in a folder of its own (0700) that its process alone uses: nobody else of this machine can
     connect, and what a former life has left is in another folder. The folder is removed when the process has ended,
     and when the activator was killed by the reaper.
  4. A Unix socket whose path the file says is for one copy. What another program listens on is an error; the file of a
     socket on which nobody listens is removed before a start, since most programs do not replace it.
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

HOLDERS_SAID_MAX: Final = 3  # of the programs that have the ports of a range

log = logging.getLogger("activator.process")


class Place:
    """Of one process: a port, or the path of a Unix socket. `is_chosen`: the file says which, or out of which ports."""

    def __init__(self, port: int = 0, path: str = "", is_chosen: bool = False) -> None:
        self.port = port
        self.path = path
        self.is_chosen = is_chosen
        self.taken: tuple[int, ...] = ()  # ports of a range: all are other programs'
        self.problem = ""  # why there is no place at all

    @property
    def address(self) -> str:
        """Where it is asked: some programs know only IPv6, where `localhost` is ::1 first."""
        if self.path:
            return f"{UNIX}{self.path}"
        port = self.port
        only_6 = listening(LOOPBACK_6, port) is Listening.YES and listening(LOOPBACK_4, port) is Listening.NO
        return join_address(LOOPBACK_6 if only_6 else LOOPBACK_4, port)

    @property
    def shown(self) -> str:
        """For people."""
        return self.path or f"port {self.port}"

    @property
    def has_folder(self) -> bool:
        """Its socket stands in a folder of its own."""
        return bool(self.path) and not self.is_chosen

    def is_taken(self) -> bool:
        """Whether somebody listens there."""
        return listens(self.first_address) if self.path else is_taken(self.port)

    def clear(self) -> None:
        """Remove the file of a socket that an earlier copy has left; raises OSError or StartError."""
        if self.path and self.is_chosen:
            take_over(self.path)

    @property
    def first_address(self) -> str:
        """Before it listens."""
        return f"{UNIX}{self.path}" if self.path else join_address(LOOPBACK_4, self.port)

    def fill(self, word: str) -> str:
        """A word of a command with its placeholders replaced."""
        if self.path:
            return word.replace("{socket}", self.path)
        return word.replace("{port}", str(self.port))

    def variables(self) -> dict[str, str]:
        return {"SOCKET": self.path} if self.path else {"PORT": str(self.port)}

    def make_folder(self, settings: Process) -> None:
        """For a Unix socket. Raises OSError or ConfigError."""
        if self.has_folder:
            folder = os.path.dirname(self.path)
            os.mkdir(folder, 0o700)
            if settings.user:
                os.chown(folder, *owner_of(settings))


class Places:
    """Of all processes."""

    def __init__(self, reaping: Reaping, environ: Mapping[str, str] = os.environ) -> None:
        self._reaping = reaping
        self._environ = environ
        self._used: set[int] = set()
        self._passed_over: set[int] = set()  # ports of ranges that others have, which has been said
        self._after: dict[int, int] = {}  # of a range, by its first port: where the next copy begins to look
        self._folder = ""

    def take(self, settings: Process, number: int) -> Place | None:
        """`number`: of the process, which no other has; None: one has to end first."""
        if settings.wants_socket():
            place = Place(is_chosen=True)
            try:
                place.path = socket_of(settings, self._environ)
                return place if place.path else Place(path=self._path(number))
            except ConfigError as error:
                place.problem = error.problems[0]
            except OSError as error:
                place.problem = f"there is no place for its Unix socket: {error.filename}: {error.strerror}"
            return place
        ports = settings.ports()
        if ports is None:
            return Place(self.free_port())
        if len(ports) == 1:
            return Place(ports[0], is_chosen=True)
        return self._out_of(ports)

    def give_back(self, place: Place) -> None:
        if not place.taken:  # those are not ours, or another process's by now
            self._used.discard(place.port)

    async def remove_folder(self, place: Place) -> None:
        """The process has ended; what it has left beside its socket goes, too."""
        if place.has_folder:
            await asyncio.to_thread(shutil.rmtree, os.path.dirname(place.path), ignore_errors=True)

    def close(self) -> None:
        """Every process has ended."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def free_port(self) -> int:
        """Which the kernel gives, and which nobody has."""
        while True:
            with socket.socket() as sock:
                sock.bind((LOOPBACK_4, 0))
                port: int = sock.getsockname()[1]
            if port not in self._used and listening(LOOPBACK_6, port) in {Listening.NO, None}:
                self._used.add(port)
                return port

    def _out_of(self, ports: range) -> Place | None:
        ours = [port for port in ports if port in self._used]
        first = self._after.get(ports[0], ports[0])
        for port in [*(one for one in ports if one >= first), *(one for one in ports if one < first)]:
            if port in self._used:
                continue
            if not is_taken(port):
                self._passed_over.discard(port)
                self._used.add(port)
                self._after[ports[0]] = port + 1  # one that cannot be used after all is not tried again at once
                return Place(port, is_chosen=True)
            if port not in self._passed_over:
                self._passed_over.add(port)
                log.warning(
                    "port %d of %d-%d is in use by another program: it is passed over", port, ports[0], ports[-1]
                )
        if ours:
            return None
        place = Place(ports[0], is_chosen=True)
        place.taken = tuple(ports)
        return place

    def _path(self, number: int) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="activator-", dir=self._base())
            os.chmod(self._folder, 0o711)  # a program of another user has to reach its own within
            self._reaping.folder(self._folder)
        path = os.path.join(self._folder, str(number), "socket")
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, "the path is too long: set TMPDIR to a shorter folder", path)
        return path

    def _base(self) -> str:
        """The folder of the service, of the user who is logged in, or the one for temporary files."""
        service = self._environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        user = self._environ.get("XDG_RUNTIME_DIR", "") if os.geteuid() != 0 else ""  # which only that user can enter
        for folder in (service, user):
            if folder and os.access(folder, os.W_OK | os.X_OK):
                return folder
        return tempfile.gettempdir()


def holders(ports: tuple[int, ...]) -> str:
    """Who has them, as far as that can be seen; it looks through /proc."""
    said = [f"{port} by {holder(port)}" for port in ports[:HOLDERS_SAID_MAX]]
    rest = len(ports) - len(said)
    return ", ".join(said) + (f" and {rest} more" if rest else "")
