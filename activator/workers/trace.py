"""The messages and decisions of one member, as events that `tests/simulation/checker.py` judges (docs/simulation.md).

A worker writes them into the folder that OWNERSHIP_TRACE names, a file for each process; without the variable nothing
is recorded. The simulation passes the same events to the checker directly.

Rules
  1. An event is recorded before its effects: `Received` before the member acts on it, `Sent` before it is sent.
  2. Times are of the machine's monotonic clock, so the files of its processes can be merged by time.
  3. The kernel has each event when `write` returns, so the file of a killed process is complete.
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
    """The member has adopted this view."""

    epoch: int
    members: tuple[int, ...]
    unproven: tuple[int, ...]


class Linked(Event, frozen=True, tag=True):
    """There is a new link to this peer."""

    peer: int


class Unlinked(Event, frozen=True, tag=True):
    peer: int


class Sent(Event, frozen=True, tag=True):
    peer: int
    message: MemberMessage


class Received(Event, frozen=True, tag=True):
    peer: int
    message: MemberMessage


class Began(Event, frozen=True, tag=True):
    """The member grants slots of the revision from now on. It has owned the revision since the view `since`."""

    key: str
    since: int


class Ceased(Event, frozen=True, tag=True):
    """The member does not grant slots of the revision any more."""

    key: str


MemberEvent = Adopted | Linked | Unlinked | Sent | Received | Began | Ceased

_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)


class Recorder:
    """Records the events of one member. The caller reports each message to and from the member."""

    def __init__(self, member: Member, now: Now, write: Callable[[MemberEvent], None]) -> None:
        self._member = member
        self._now = now
        self._write = write
        self._begun: set[str] = set()

    def adopted(self, view: View) -> None:
        """Record a view, before the member adopts it."""
        self.check_owned()
        names = tuple([one.number for one in view.members])
        self._write(Adopted(self._now(), self._member.number, view.epoch, names, tuple(sorted(view.unproven))))

    def linked(self, peer: int) -> None:
        self.check_owned()
        self._write(Linked(self._now(), self._member.number, peer))

    def unlinked(self, peer: int) -> None:
        self.check_owned()
        self._write(Unlinked(self._now(), self._member.number, peer))

    def sent(self, peer: int, message: MemberMessage) -> None:
        if type(message) is Granted and message.key not in self._begun:
            self.check_owned()
        self._write(Sent(self._now(), self._member.number, peer, message))

    def received(self, peer: int, message: MemberMessage) -> None:
        self.check_owned()
        self._write(Received(self._now(), self._member.number, peer, message))

    def check_owned(self) -> None:
        """Record what the member has begun or ceased to grant. To be called before each event, and after the last."""
        owned = self._member.owned
        for key in [key for key in self._begun if key not in owned or not owned[key].complete]:
            self._begun.discard(key)
            self._write(Ceased(self._now(), self._member.number, key))
        for key, one in owned.items():
            if one.complete and key not in self._begun:
                self._begun.add(key)
                self._write(Began(self._now(), self._member.number, key, one.since_epoch))


class TraceFile:
    """A file of events: each is its length, and msgpack, because JSON has no infinite times."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        data = _ENCODER.encode(event)
        os.write(self._file, len(data).to_bytes(LENGTH_BYTES, "big") + data)


def recorder_from_environment(member: Member, now: Now) -> Recorder | None:
    """Return a recorder if the variable is set."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    return Recorder(member, now, TraceFile(os.path.join(folder, f"{member.number}{SUFFIX}")).write)
