"""What one member says, hears and decides, as events that `tests/simulation/checker.py` judges (docs/simulation.md).

A worker writes them into the folder that OWNERSHIP_TRACE names, a file for each process; without it nothing is
recorded. The simulation hands the same events to the checker at once.

Rules
  1. An event is recorded before what it leads to: `Heard` before the member acts on it, `Sent` before it is sent.
  2. Times are of the machine's monotonic clock, so the files of its processes can be merged by time.
  3. Each event is with the kernel when `write` returns: the file of a process that is killed is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.messages import Granted, MemberMessage
from activator.data_plane.ownership.view import View
from activator.runtime.clock import Now
from activator.workers.frames import plain

FOLDER_VARIABLE: Final = "OWNERSHIP_TRACE"
SUFFIX: Final = ".trace"
LENGTH_BYTES: Final = 4


class Event(msgspec.Struct, frozen=True, tag=True):
    """The base of all events; `tests/simulation/trace_events.py` reads them, and adds those of pods."""

    at_s: float
    member: int


class Adopted(Event, frozen=True, tag=True):
    """The member is in this view."""

    epoch: int
    members: tuple[int, ...]
    unproven: tuple[int, ...]


class Linked(Event, frozen=True, tag=True):
    """There is a link, over which nothing has come yet."""

    peer: int


class Unlinked(Event, frozen=True, tag=True):
    peer: int


class Sent(Event, frozen=True, tag=True):
    peer: int
    message: MemberMessage


class Heard(Event, frozen=True, tag=True):
    peer: int
    message: MemberMessage


class Began(Event, frozen=True, tag=True):
    """The member grants slots of the revision from now on; it has owned it since the view `since`."""

    key: str
    since: int


class Ceased(Event, frozen=True, tag=True):
    """It does not any more."""

    key: str


MemberEvent = Adopted | Linked | Unlinked | Sent | Heard | Began | Ceased

_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)


class Recorder:
    """Of one member. Its methods are called by whoever hands things to it and takes them from it."""

    def __init__(self, member: Member, now: Now, write: Callable[[MemberEvent], None]) -> None:
        self._member = member
        self._now = now
        self._write = write
        self._begun: set[str] = set()

    def adopted(self, view: View) -> None:
        """Before the member is told."""
        self.looked()
        names = tuple([one.number for one in view.members])
        self._write(Adopted(self._now(), self._member.number, view.epoch, names, tuple(sorted(view.unproven))))

    def linked(self, peer: int) -> None:
        self.looked()
        self._write(Linked(self._now(), self._member.number, peer))

    def unlinked(self, peer: int) -> None:
        self.looked()
        self._write(Unlinked(self._now(), self._member.number, peer))

    def sent(self, peer: int, message: MemberMessage) -> None:
        if type(message) is Granted and message.key not in self._begun:
            self.looked()
        self._write(Sent(self._now(), self._member.number, peer, message))

    def heard(self, peer: int, message: MemberMessage) -> None:
        self.looked()
        self._write(Heard(self._now(), self._member.number, peer, message))

    def looked(self) -> None:
        """Which revisions does it grant slots of? Called before what may change it; once more where nothing follows."""
        owned = self._member.owned
        for key in [key for key in self._begun if key not in owned or not owned[key].complete]:
            self._begun.discard(key)
            self._write(Ceased(self._now(), self._member.number, key))
        for key, one in owned.items():
            if one.complete and key not in self._begun:
                self._begun.add(key)
                self._write(Began(self._now(), self._member.number, key, one.since))


class TraceFile:
    """Each event as msgpack (the times of a request may be infinite, which JSON has no word for), behind its length."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        data = _ENCODER.encode(event)
        os.write(self._file, len(data).to_bytes(LENGTH_BYTES, "big") + data)


def recorder_from_environment(member: Member, now: Now) -> Recorder | None:
    """Where the variable is set."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    return Recorder(member, now, TraceFile(os.path.join(folder, f"{member.number}{SUFFIX}")).write)
