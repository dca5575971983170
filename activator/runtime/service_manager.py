"""systemd, where it has started us: sockets that it has opened, and what it is told (sd_listen_fds(3), sd_notify(3)).

Rules
  1. Sockets are ours only if LISTEN_PID is this process. The variables are taken out of the environment: programs that
     we start must not take them for theirs.
  2. Telling never waits and never fails the program: what systemd cannot be told is logged once.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final

FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START
DESCRIPTORS_MAX: Final = 256

log = logging.getLogger("activator")


class ServiceManager:
    """`environ` and `process`: this process's own. `sockets`: those that listen and were passed."""

    def __init__(self, environ: MutableMapping[str, str], process: int) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog(environ, process)  # within which `alive` must be told; 0.0: nobody waits for it
        self.sockets = _sockets(environ, process)
        self._is_silent = False  # it could not be told

    def ready(self, status: str) -> None:
        """Requests are served, after the start or a reload. `status`: one line for people."""
        self._tell(f"READY=1\nSTATUS={status}")

    def reloading(self, monotonic_ns: int) -> None:
        """`ready` follows."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns // 1000}")

    def stopping(self, most_s: float) -> None:
        """What is in flight is finished, for so long at the most."""
        self._tell(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={int(most_s * 1e6)}")

    def alive(self) -> None:
        """For the watchdog."""
        self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        # An abstract address begins with a null byte, which a variable cannot have.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), address)
        except OSError as error:
            if not self._is_silent:
                log.warning("systemd cannot be told %s: %s", text.partition("\n")[0], error.strerror)
            self._is_silent = True


def _watchdog(environ: MutableMapping[str, str], process: int) -> float:
    usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not usec.isdecimal() or (pid and pid != str(process)):
        return 0.0
    return int(usec) / 1e6


def _sockets(environ: MutableMapping[str, str], process: int) -> list[socket.socket]:
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(process) or not count.isdecimal():
        return []
    found = []
    for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + min(int(count), DESCRIPTORS_MAX)):
        try:
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and sock.type == socket.SOCK_STREAM:
                found.append(sock)
            else:
                log.warning("descriptor %d, which systemd passed, does not listen: it is not used", descriptor)
        except OSError as error:
            log.warning("descriptor %d, which systemd passed, is not usable: %s", descriptor, error.strerror)
    return found
