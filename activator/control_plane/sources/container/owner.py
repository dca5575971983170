"""The run of an activator that has made a container, as written in labels, and whether that run is known to have ended.

A container is removed only if its run is proven to have ended. A run is the process that made the container, and those
that took over from it by upgrades: they all keep one reaper (`process/reaping.py`), which ends after the last of them.
The maker and the reaper have each ended if the machine has been booted again, or no such process exists. A process in
another container is checked through the engine: its hostname is the id of its container, so it has ended if that
container does not run, or if it is the activator's own container.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from activator.control_plane.sources.container.creation import INSTANCE_LABEL, MAKER_LABEL, OWNER_LABEL
from activator.runtime.process_stat import STARTED, STATE, stat_fields

CONTAINER_ID: Final = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")

IsRunning = Callable[[str], Awaitable[bool]]  # true if the container with this id runs


class Owner(NamedTuple):
    """One process of an activator."""

    boot: str
    namespace: str  # the PID namespace, in which the process number is valid
    process: int
    started: str  # clock ticks since the boot
    host: str

    @property
    def label(self) -> str:
        return "/".join([self.boot, self.namespace, str(self.process), self.started, self.host])


class Run:
    """One run of the activator: the process that began it, or one that took over from it.

    `instance` names it. `reaper`: the process ID of the reaper; 0: none is known here.
    """

    def __init__(self, instance: str, reaper: int = 0) -> None:
        self.instance = instance
        self.owns_handed = True  # containers that a former process has handed over may be stopped
        self.known: set[str] = set()  # identities of containers that exist, or may be created, on any engine
        self._owner: Owner | None = None
        self._reaper: Owner | None = None
        self._reaper_process = reaper

    @property
    def owner(self) -> Owner:
        """The process that runs this code. Raises OSError if there is no /proc."""
        if self._owner is None:
            self._owner = owner_of(os.getpid())
        return self._owner

    @property
    def reaper(self) -> str:
        """The label of the reaper; empty if none is known."""
        if self._reaper is None and self._reaper_process:
            try:
                self._reaper = owner_of(self._reaper_process)
            except OSError:
                self._reaper_process = 0  # it has exited, or there is no /proc
        return "" if self._reaper is None else self._reaper.label

    def restore(self, reaper: str) -> None:
        """Continue the run of a former process, which has handed over the label of its reaper."""
        self._reaper = parse_owner(reaper)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its containers."""
        maker = self.owner.label
        return {INSTANCE_LABEL: self.instance, OWNER_LABEL: self.reaper or maker, MAKER_LABEL: maker}

    def has_reaper(self) -> bool:
        """Return True if its reaper lives."""
        return self.reaper != "" and self._reaper is not None and _lives(self._reaper)

    async def is_leftover(self, labels: Mapping[str, Any], is_running: IsRunning) -> bool:
        """Return True if the container with these labels is of another run, which is proven to have ended."""
        owner, maker = (parse_owner(str(labels.get(name, ""))) for name in (OWNER_LABEL, MAKER_LABEL))
        if owner is None or not await has_ended(owner, self.owner, is_running):
            return False
        return maker is None or await has_ended(maker, self.owner, is_running)


def owner_of(process: int) -> Owner:
    """Return a process of this machine and PID namespace. Raises OSError if there is none, or no /proc."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return Owner(boot, namespace, process, _started(process), socket.gethostname().replace("/", "-"))


def parse_owner(label: str) -> Owner | None:
    """Parse a label; None if it is malformed."""
    parts = label.split("/")
    if len(parts) != 5 or not (parts[2].isascii() and parts[2].isdecimal()) or not parts[0] or not parts[1]:
        return None
    return Owner(parts[0], parts[1], int(parts[2][:10]), parts[3], parts[4])


async def has_ended(owner: Owner, own: Owner, is_running: IsRunning) -> bool:
    """Return True if the owner is proven to have ended. `own`: the process that runs this code."""
    if owner.boot != own.boot:
        # Another boot of this machine, or another machine that shares the engine: the host name decides.
        return owner.host == own.host
    if owner.namespace == own.namespace:
        return not _lives(owner)
    if CONTAINER_ID.fullmatch(owner.host) is None:
        return False
    return owner.host == own.host or not await is_running(owner.host)


def _lives(owner: Owner) -> bool:
    try:
        fields = stat_fields(owner.process)
    except OSError:
        return False
    return fields[STARTED].decode("ascii") == owner.started and fields[STATE] not in {b"Z", b"X"}


def _started(process: int) -> str:
    return stat_fields(process)[STARTED].decode("ascii")
