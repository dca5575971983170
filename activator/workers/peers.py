"""A data plane's links to the other members.

They carry the messages of throttlers (data_plane/ownership) and the loads of revisions without a limit
(data_plane/loads), stored responses, and the quotas of users.

Rules
  1. The parent makes each link, and replaces a link that has ended while both ends are alive.
  2. Messages of one turn of the loop are sent together, at its end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.loads.shared_loads import SharedLoads
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.messages import MemberMessage
from activator.data_plane.plane import DataPlane
from activator.data_plane.quotas.quotas import Quotas
from activator.data_plane.stored_responses.links import StoredResponseLinks
from activator.data_plane.stored_responses.messages import StoredResponsePart, StoredResponseQuery
from activator.runtime.clock import Now
from activator.runtime.wire import FrameSeal, Wire
from activator.workers.frames import decode, encode, pack, unpack
from activator.workers.trace import Recorder, recorder_from_environment

_SLOT_BYTES: Final = 8


def first_slot(random: Callable[[int], bytes]) -> int:
    """Return the number of the first slot of a data plane of a replica.

    It is random, one of 2^62 numbers, because nothing hands out numbers to replicas. Each data plane has the 2^40
    numbers from there, so those of two data planes practically never overlap.
    """
    return int.from_bytes(random(_SLOT_BYTES), "big") >> 2 | 1


class _Link:
    """The link to one other data plane."""

    def __init__(self, number: int, is_sealed: bool) -> None:
        self.number = number
        self.is_sealed = is_sealed  # the other data plane belongs to another replica
        self.outgoing: list[Any] = []  # messages of this turn
        self.wire: Wire | None = None  # None after its end


class Peers:
    """The links of one data plane.

    `unlinked(worker)` is called when a link has ended, `failed` with each error that a message raised.
    """

    def __init__(self, unlinked: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        self.member: Member | None = None  # set before the first link
        self.loads: SharedLoads | None = None  # set before the first link, like the next two
        self.answers: StoredResponseLinks | None = None
        self.quotas: Quotas | None = None
        self.recorder: Recorder | None = None  # records all messages, if set
        self._unlinked = unlinked
        self._failed = failed
        self._links: dict[int, _Link] = {}
        self._unsent: list[_Link] = []  # links with messages of this turn
        self._loop = asyncio.get_running_loop()

    def link(self, worker: int, sock: socket.socket, seal: FrameSeal | None = None) -> None:
        """Add a link to this worker, in place of a former one; with a seal if it belongs to another replica."""
        assert self.member is not None
        self._end_link(worker)
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
        if self.quotas is not None:
            self.quotas.linked(worker)

    def send(self, worker: int, message: Any) -> None:
        """Send a message at the end of this turn, or drop it without a link: a new link starts with a full exchange."""
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
        """End a link at the next turn; the parent replaces it."""
        link = self._links.get(worker)
        if link is not None:
            self._loop.call_soon(self._lost, link)

    def keep_only(self, workers: set[int]) -> None:
        """End the links to all other data planes; these are all that exist."""
        if self.answers is not None:
            self.answers.set_members(workers)
        for worker in [worker for worker in self._links if worker not in workers]:
            self._end_link(worker)

    # --- internal ---

    def _received(self, link: _Link, data: memoryview) -> None:
        """Process a frame of messages; a malformed one ends the link."""
        try:
            messages = decode(data) if link.is_sealed else unpack(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._failed(error)
            self.drop(link.number)  # no message may be skipped: a new link starts with a full exchange
            return
        worker = link.number
        member = self.member
        assert member is not None
        for message in messages:
            try:
                if self.recorder is None and isinstance(message, MemberMessage):
                    member.receive(worker, message)
                else:
                    self._dispatch(worker, message)
            except Exception as error:
                self._failed(error)

    def _dispatch(self, worker: int, message: Any) -> None:
        """Pass a message to its receiver, and record it."""
        if isinstance(message, MemberMessage):
            if self.recorder is not None:
                self.recorder.received(worker, message)
            assert self.member is not None
            self.member.receive(worker, message)
        elif isinstance(message, PodLoads):
            if self.loads is not None:
                self.loads.receive(worker, message)
        elif isinstance(message, StoredResponseQuery | StoredResponsePart):
            if self.answers is not None:
                self.answers.receive(worker, message)
        elif self.quotas is not None:
            self.quotas.receive(worker, message)

    def _lost(self, link: _Link) -> None:
        """Report a link that has ended."""
        if self._links.get(link.number) is link:  # else another link has replaced it
            self._end_link(link.number)
            self._unlinked(link.number)

    def _end_link(self, worker: int) -> None:
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
            if self.quotas is not None:
                self.quotas.unlinked(worker)

    def _flush(self) -> None:
        unsent = self._unsent
        self._unsent = []
        for link in unsent:
            wire = link.wire
            if wire is not None and link.outgoing:
                messages = link.outgoing
                link.outgoing = []
                wire.send_now(encode(messages) if link.is_sealed else pack(messages))


def make_peers(data: DataPlane, number: int, first_slot: int, unlinked: Callable[[int], None], now: Now) -> Peers:
    """Make a data plane the member `number` of a group, and return its links. `first_slot`: as in `Member`."""
    peers = Peers(unlinked, data.failed)
    later = asyncio.get_running_loop().call_later
    member = peers.member = Member(number, peers.send, peers.drop, now, later, first_slot)
    peers.recorder = recorder_from_environment(member, now)
    peers.loads = data.join(member, peers.send)
    peers.answers = data.answer_links
    peers.quotas = data.quotas
    return peers
