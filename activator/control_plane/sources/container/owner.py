"""The maker of a container, as written in a label, and whether that run of an activator is known to have ended.

A container is removed only if its maker is proven to have ended: the machine has been booted again, or the process does
not exist. A maker in another container is checked through the engine: its hostname is the id of its container, so it
has ended if that container does not run, or if it is the activator's own container.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from activator.runtime.process_stat import STARTED, stat_fields

CONTAINER_ID: Final = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")

IsRunning = Callable[[str], Awaitable[bool]]  # true if the container with this id runs


class Owner(NamedTuple):
    """One run of an activator."""

    boot: str
    namespace: str  # the PID namespace, in which the process number is valid
    process: int
    started: str  # clock ticks since the boot
    host: str

    @property
    def label(self) -> str:
        return "/".join([self.boot, self.namespace, str(self.process), self.started, self.host])


def this_owner() -> Owner:
    """Return this process. Raises OSError if there is no /proc."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    process = os.getpid()
    return Owner(boot, namespace, process, _started(process), socket.gethostname().replace("/", "-"))


def parse_owner(label: str) -> Owner | None:
    """Parse a label; None if it is malformed."""
    parts = label.split("/")
    if len(parts) != 5 or not (parts[2].isascii() and parts[2].isdecimal()) or not parts[0] or not parts[1]:
        return None
    return Owner(parts[0], parts[1], int(parts[2][:10]), parts[3], parts[4])


async def has_ended(owner: Owner, here: Owner, is_running: IsRunning) -> bool:
    """Return True if the owner is proven to have ended."""
    if owner.boot != here.boot:
        # Another boot of this machine, or another machine that shares the engine: the host name decides.
        return owner.host == here.host
    if owner.namespace == here.namespace:
        try:
            return _started(owner.process) != owner.started
        except OSError:
            return True
    if CONTAINER_ID.fullmatch(owner.host) is None:
        return False
    return owner.host == here.host or not await is_running(owner.host)


def _started(process: int) -> str:
    return stat_fields(process)[STARTED].decode("ascii")
