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
from typing import Final

import msgspec

from activator.data_plane.answer_messages import AnswerMessage, AskAnswer, TellAnswer
from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.loads.shared_loads import SharedLoads
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.messages import AnyMessage
from activator.data_plane.proxy.answer_links import AnswerLinks
from activator.runtime.wire import FrameSeal, Wire
from activator.workers.trace import Recorder

MEMBER_TICK_S: Final = 0.2  # how often lent slots that nothing uses are looked for
_SLOT_BYTES: Final = 8

Said = AnyMessage | PodLoads | AnswerMessage

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Said])


def first_slot(random: Callable[[int], bytes]) -> int:
    """Of a data plane of a replica: slots of no two of them ever meet, though nobody hands out numbers to replicas.
    Each has 2^40 of them, from one of 2^62 places on.
    """
    return int.from_bytes(random(_SLOT_BYTES), "big") >> 2 | 1


class Peers:
    """`unlinked(worker)`: a link has ended; `failed` is called with what a message raised."""

    def __init__(self, unlinked: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        self.member: Member | None = None  # before the first link
        self.loads: SharedLoads | None = None  # likewise
        self.answers: AnswerLinks | None = None  # likewise
        self.recorder: Recorder | None = None  # where what is said is written down
        self._unlinked = unlinked
        self._failed = failed
        self._wires: dict[int, Wire] = {}
        self._outgoing: dict[int, list[Said]] = {}
        self._loop = asyncio.get_running_loop()

    def link(self, worker: int, sock: socket.socket, seal: FrameSeal | None = None) -> None:
        """There is a link to this worker, in place of a former one; with a seal where it is of another replica."""
        assert self.member is not None
        self._end(worker)
        wire = self._wires[worker] = Wire(
            sock, lambda data, _: self._received(worker, data), lambda: self._lost(worker, wire), self._failed, seal
        )
        if self.recorder is not None:
            self.recorder.linked(worker)
        self.member.linked(worker)
        if self.loads is not None:
            self.loads.linked(worker)
        if self.answers is not None:
            self.answers.linked(worker)

    def send(self, worker: int, message: Said) -> None:
        """What is said to a worker without a link is not heard: its link begins with all that there is."""
        if worker not in self._wires:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        if self.recorder is not None and not isinstance(message, PodLoads | AskAnswer | TellAnswer):
            self.recorder.sent(worker, message)
        self._outgoing.setdefault(worker, []).append(message)

    def drop(self, worker: int) -> None:
        """End a link; the parent makes another one."""
        wire = self._wires.get(worker)
        if wire is not None:
            self._loop.call_soon(self._lost, worker, wire)

    def keep(self, workers: set[int]) -> None:
        """There are these workers, and no others."""
        if self.answers is not None:
            self.answers.keep(workers)
        for worker in [worker for worker in self._wires if worker not in workers]:
            self._end(worker)

    # --- within ---

    def _received(self, worker: int, data: memoryview) -> None:
        assert self.member is not None
        try:
            messages = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._failed(error)
            self.drop(worker)  # whatever it was is not passed over: the next link begins with all that there is
            return
        for message in messages:
            try:
                self._hear(worker, message)
            except Exception as error:
                self._failed(error)
        if self._outgoing:
            self._flush()  # the answers go now: whoever asked waits for them

    def _hear(self, worker: int, message: Said) -> None:
        if isinstance(message, PodLoads):
            if self.loads is not None:
                self.loads.receive(worker, message)
            return
        if isinstance(message, AskAnswer | TellAnswer):
            if self.answers is not None:
                self.answers.receive(worker, message)
            return
        assert self.member is not None
        if self.recorder is not None:
            self.recorder.heard(worker, message)
        self.member.receive(worker, message)

    def _lost(self, worker: int, wire: Wire) -> None:
        if self._wires.get(worker) is wire:  # else there is another one meanwhile
            self._end(worker)
            self._unlinked(worker)

    def _end(self, worker: int) -> None:
        wire = self._wires.pop(worker, None)
        self._outgoing.pop(worker, None)
        if wire is not None:
            wire.close()
            assert self.member is not None
            if self.recorder is not None:
                self.recorder.unlinked(worker)
            self.member.unlinked(worker)
            if self.loads is not None:
                self.loads.unlinked(worker)
            if self.answers is not None:
                self.answers.unlinked(worker)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for worker, messages in outgoing.items():
            wire = self._wires.get(worker)
            if wire is not None:
                wire.send_now(_ENCODER.encode(messages))
