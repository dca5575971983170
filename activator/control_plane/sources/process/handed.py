"""Running programs that one process of the activator hands over to the next one (app/handover).

Times are monotonic seconds, which all processes of a machine share.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

DESCRIPTORS: Final = 3  # each process has a pidfd, and the reading ends of its standard error and standard output


class HandedContainer(msgspec.Struct, frozen=True):
    """The container in which a program runs. `engine`: the path of its engine's socket."""

    engine: str
    id: str
    claim: str
    is_terminal: bool
    is_started: bool  # the activator has started it; false for an existing one that ran before
    since_s: float | None  # Unix time of the output to read next; None: all of it
    positions: dict[str, tuple[int, int, int]]  # `LogPosition.handed`
    is_borrowed: bool  # it existed before the activator
    began: str  # when it was started, as the engine shows it; empty: unknown


class HandedProgram(msgspec.Struct, frozen=True):
    """One run of a program. `pid` leads its process group; it is 0 if the program runs in a container."""

    identity: str
    pid: int
    address: str
    port: int  # 0: it has a Unix socket
    path: str  # empty without a Unix socket
    is_chosen: bool  # the address, or its range, is configured
    gpus: tuple[str, ...]
    started_s: float
    is_ready: bool
    is_asleep: bool
    is_announced: bool  # it has written the line of `readiness.log`
    cgroup: str  # path of the cgroup that limits its memory; empty: none
    lines: tuple[str, ...]  # its last lines
    unfinished: dict[str, bytes]  # the begun line of each stream
    container: HandedContainer | None = None  # None: it is a process


class HandedLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of the output that `activator logs` shows."""

    number: int
    at_s: float
    process: str
    stream: str
    text: str


class HandedFleet(msgspec.Struct, frozen=True):
    """The programs of one revision, and the record of their starts (`fleet.py`)."""

    key: str
    programs: tuple[HandedProgram, ...]
    crashes: int
    failure: str
    not_before_s: float
    start_s: float
    wake_s: float
    history: tuple[HandedLine, ...]
    last_failure: str = ""  # a former process may not send it


class HandedPrograms(msgspec.Struct, frozen=True):
    """All programs.

    `born`, `made`: the numbers of the last ones. `folder`: that of Unix sockets; empty: none. `cgroup`: the cgroup
    below which those of programs are; empty: none. `reaper`: the label of the reaper on containers; empty: none.
    """

    fleets: tuple[HandedFleet, ...] = ()
    born: int = 0
    made: int = 0
    folder: str = ""
    cgroup: str = ""
    reaper: str = ""


class Received:
    """The programs of a former process of the activator, with their descriptors, in the order of the programs."""

    def __init__(self, programs: HandedPrograms, descriptors: list[int]) -> None:
        self.programs = programs
        self.fleets = {fleet.key: fleet for fleet in programs.fleets}
        handed = [program for fleet in programs.fleets for program in fleet.programs]
        self._containers = {program.identity for program in handed if program.container is not None}
        order = [program.identity for program in handed if program.container is None]
        assert len(descriptors) == DESCRIPTORS * len(order), "the descriptors of each program"
        self._descriptors = {
            identity: descriptors[DESCRIPTORS * index : DESCRIPTORS * (index + 1)]
            for index, identity in enumerate(order)
        }

    def take(self, identity: str) -> list[int]:
        """Return the descriptors of a program, which then belong to the caller; none of one in a container."""
        return [] if identity in self._containers else self._descriptors.pop(identity)

    def close(self) -> None:
        """Close the descriptors that nothing has taken."""
        for descriptors in self._descriptors.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self._descriptors.clear()
