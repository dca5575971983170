"""The interface to systemd: socket activation (sd_listen_fds(3)) and notifications (sd_notify(3)).

Rules
  1. Sockets are used only if LISTEN_PID is this process. The variables are removed from the environment, so that
     programs that this process starts do not use them.
  2. Notifications never block, and their failure is not an error of the program: the first one is logged. While systemd
     does not read, the last UNSENT_MAX wait for `flush`, in order; a heartbeat does not wait.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import MutableMapping
from typing import Final

from activator.runtime.tasks import pause

FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START
DESCRIPTORS_MAX: Final = 256
UNSENT_MAX: Final = 16  # notifications that wait for systemd to read; older ones are dropped
FINISH_S: Final = 2.0
FINISH_STEP_S: Final = 0.05
RETRY_S: Final = 1.0  # between two calls of `flush`

log = logging.getLogger("activator")


class ServiceManager:
    """The connection to systemd; `environ` and `process` are those of this process.

    `sockets` are the listening sockets that were passed.
    """

    def __init__(self, environ: MutableMapping[str, str], process: int) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog(environ, process)  # the interval within which `alive` must be called; 0.0: none
        self.sockets = _sockets(environ, process)
        self._unsent: deque[str] = deque(maxlen=UNSENT_MAX)
        self._has_failed = False  # a notification has failed, and was logged

    def ready(self, status: str) -> None:
        """Report that requests are served, after the start or a reload; `status` is one line for people."""
        self._notify(f"READY=1\nSTATUS={status}")

    def is_managed(self) -> bool:
        """Return True if this process was started by systemd, which waits for notifications."""
        return bool(self._address)

    def environment(self) -> dict[str, str]:
        """Return the variables for a process that is to become the main one."""
        if not self._address:
            return {}
        usec = {"WATCHDOG_USEC": str(round(self.watchdog_s * 1e6))} if self.watchdog_s else {}
        return {"NOTIFY_SOCKET": self._address, **usec}

    def main_is(self, process: int) -> None:
        """Report that another process is the main one now."""
        self._notify(f"MAINPID={process}")

    def reloading(self, monotonic_ns: int) -> None:
        """Report the beginning of a reload; `ready` must follow."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns // 1000}")

    def stopping(self, drain_max_s: float) -> None:
        """Report the shutdown, in which requests in flight are served for at most `drain_max_s`."""
        self._notify(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={int(drain_max_s * 1e6)}")

    def alive(self) -> None:
        """Send the heartbeat for the watchdog."""
        self.flush()
        if self._address and not self._unsent:
            self._send("WATCHDOG=1")

    def flush(self) -> None:
        """Send what systemd had no room for."""
        while self._unsent and self._send(self._unsent[0]):
            self._unsent.popleft()

    async def finish(self) -> None:
        """Wait until systemd has room for all notifications, for FINISH_S at most."""
        tries = round(FINISH_S / FINISH_STEP_S)
        while self._unsent and tries > 0:
            await pause(FINISH_STEP_S)
            self.flush()
            tries -= 1

    def _notify(self, text: str) -> None:
        if self._address:
            self._unsent.append(text)
            self.flush()

    def _send(self, text: str) -> bool:
        """Send one notification. Return False if systemd has no room for it now."""
        # An abstract address begins with a null byte, which a variable cannot contain.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), address)
        except OSError as error:
            if not self._has_failed:
                log.warning("systemd could not be notified of %s: %s", text.partition("\n")[0], error.strerror)
            self._has_failed = True
            return not isinstance(error, BlockingIOError)
        return True


def _watchdog(environ: MutableMapping[str, str], process: int) -> float:
    """Return the interval of systemd's watchdog in seconds; 0.0 if there is none for this process."""
    usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not usec.isdecimal() or (pid and pid != str(process)):
        return 0.0
    return int(usec) / 1e6


def _sockets(environ: MutableMapping[str, str], process: int) -> list[socket.socket]:
    """Return the listening sockets that systemd has passed to this process."""
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
                log.warning("descriptor %d, which systemd passed, is not a listening socket: ignored", descriptor)
        except OSError as error:
            log.warning("descriptor %d, which systemd passed, is not usable: %s", descriptor, error.strerror)
    return found
