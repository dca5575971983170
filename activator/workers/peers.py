"""A data plane's links to the others, over which members of one throttler speak (data_plane/ownership), and share the
loads of revisions without a limit (data_plane/loads).

Rules
  1. The parent makes each link, and makes another one for a link that has ended while both live.
  2. What is said in one turn of the loop goes out together, at its end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from activator.data_plane.answers.links import AnswerLinks
from activator.data_plane.answers.messages import AskAnswer, TellAnswer
from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.loads.shared_loads import SharedLoads
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.messages import MemberMessage
from activator.runtime.wire import FrameSeal, Wire
from activator.workers.frames import decode, encode, pack, unpack
from activator.workers.trace import Recorder

MEMBER_TICK_S: Final = 0.2  # how often lent slots that nothing uses are looked for
_SLOT_BYTES: Final = 8


def first_slot(random: Callable[[int], bytes]) -> int:
    """Of a data plane of a replica: slots of no two of them ever meet, though nobody hands out numbers to replicas.
    Each has 2^40 of them, from one of 2^62 places on.
    """
    return int.from_bytes(random(_SLOT_BYTES), "big") >> 2 | 1


class _Link:
    """To one other data plane."""

    def __init__(self, number: int, is_sealed: bool) -> None:
        self.number = number
        self.is_sealed = is_sealed  # it is of another replica
        self.outgoing: list[Any] = []  # what this turn has said
        self.wire: Wire | None = None  # None: it has ended


class Peers:
    """`unlinked(worker)`: a link has ended; `failed` is called with what a message raised."""

    def __init__(self, unlinked: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        self.member: Member | None = None  # before the first link
        self.loads: SharedLoads | None = None  # likewise
        self.answers: AnswerLinks | None = None  # likewise
        self.recorder: Recorder | None = None  # where what is said is written down
        self._unlinked = unlinked
        self._failed = failed
        self._links: dict[int, _Link] = {}
        self._unsent: list[_Link] = []  # that have something to say
        self._loop = asyncio.get_running_loop()

    def link(self, worker: int, sock: socket.socket, seal: FrameSeal | None = None) -> None:
        """There is a link to this worker, in place of a former one; with a seal where it is of another replica."""
        assert self.member is not None
        self._end(worker)
        link = self._links[worker] = _Link(worker, seal is not None)
        link.wire = Wire(
            sock,
            lambda data, _: self._received(link, data),
            lambda: self._lost(link),
            self._failed,
            seal,
            takes_descriptors=False,
        )
        if self.recorder is not None:
            self.recorder.linked(worker)
        self.member.linked(worker)
        if self.loads is not None:
            self.loads.linked(worker)
        if self.answers is not None:
            self.answers.linked(worker)

    def send(self, worker: int, message: Any) -> None:
        """What is said to a worker without a link is not heard: its link begins with all that there is."""
        link = self._links.get(worker)
        if link is None:
            return
        if self.recorder is not None and isinstance(message, MemberMessage):
            self.recorder.sent(worker, message)
        if not link.outgoing:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(link)
        link.outgoing.append(message)

    def drop(self, worker: int) -> None:
        """End a link; the parent makes another one."""
        link = self._links.get(worker)
        if link is not None:
            self._loop.call_soon(self._lost, link)

    def keep(self, workers: set[int]) -> None:
        """There are these workers, and no others."""
        if self.answers is not None:
            self.answers.keep(workers)
        for worker in [worker for worker in self._links if worker not in workers]:
            self._end(worker)

    # --- within ---

    def _received(self, link: _Link, data: memoryview) -> None:
        try:
            messages = decode(data) if link.is_sealed else unpack(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._failed(error)
            self.drop(link.number)  # whatever it was is not passed over: the next link begins with all that there is
            return
        worker = link.number
        member = self.member
        assert member is not None
        for message in messages:
            try:
                if self.recorder is None and isinstance(message, MemberMessage):
                    member.receive(worker, message)
                else:
                    self._hear(worker, message)
            except Exception as error:
                self._failed(error)

    def _hear(self, worker: int, message: Any) -> None:
        if isinstance(message, MemberMessage):
            if self.recorder is not None:
                self.recorder.heard(worker, message)
            assert self.member is not None
            self.member.receive(worker, message)
        elif isinstance(message, PodLoads):
            if self.loads is not None:
                self.loads.receive(worker, message)
        elif isinstance(message, AskAnswer | TellAnswer) and self.answers is not None:
            self.answers.receive(worker, message)

    def _lost(self, link: _Link) -> None:
        if self._links.get(link.number) is link:  # else there is another one meanwhile
            self._end(link.number)
            self._unlinked(link.number)

    def _end(self, worker: int) -> None:
        link = self._links.pop(worker, None)
        if link is not None:
            assert self.member is not None and link.wire is not None
            link.wire.close()
            link.wire = None
            link.outgoing.clear()
            if self.recorder is not None:
                self.recorder.unlinked(worker)
            self.member.unlinked(worker)
            if self.loads is not None:
                self.loads.unlinked(worker)
            if self.answers is not None:
                self.answers.unlinked(worker)

    def _flush(self) -> None:
        unsent = self._unsent
        self._unsent = []
        for link in unsent:
            wire = link.wire
            if wire is not None and link.outgoing:
                said = link.outgoing
                link.outgoing = []
                wire.send_now(encode(said) if link.is_sealed else pack(said))
