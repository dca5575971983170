"""Who made a container, written in a label of it, and whether that run of an activator is known to have ended.

A container is removed only if its maker is proven to have ended: the machine was booted anew, or there is no such
process any more. A maker in another container is seen by the engine alone: its hostname is the id of its container, so
it has ended if that container does not run, or if it is our own container, where we run now.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from activator.runtime.process_stat import STARTED, stat_fields

CONTAINER_ID: Final = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")

IsRunning = Callable[[str], Awaitable[bool]]  # of a container, by its id


class Owner(NamedTuple):
    """One run of a program."""

    boot: str
    namespace: str  # of processes: their numbers mean something only there
    process: int
    started: str  # in clock ticks since the boot
    host: str

    @property
    def label(self) -> str:
        return "/".join([self.boot, self.namespace, str(self.process), self.started, self.host])


def this_owner() -> Owner:
    """This process. Raises OSError where there is no /proc."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    process = os.getpid()
    return Owner(boot, namespace, process, _started(process), socket.gethostname().replace("/", "-"))


def parse_owner(label: str) -> Owner | None:
    """None: nobody that we know."""
    parts = label.split("/")
    if len(parts) != 5 or not (parts[2].isascii() and parts[2].isdecimal()) or not parts[0] or not parts[1]:
        return None
    return Owner(parts[0], parts[1], int(parts[2][:10]), parts[3], parts[4])


async def has_ended(owner: Owner, here: Owner, is_running: IsRunning) -> bool:
    """Whether that is proven."""
    if owner.boot != here.boot:
        # Another boot of this machine, or another machine that shares the engine: its host tells.
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
