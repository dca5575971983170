"""The messages between the two processes of an upgrade, and their connection.

The processes may have different versions of the program. PROTOCOL is the version of these messages, of those between a
parent and its workers (workers/messages.py), and of those between workers. A change of one of them that an earlier
version cannot read increments it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

import msgspec

from activator.control_plane.groups.groups import HandedUse
from activator.control_plane.scaling.autoscaler import HandedScale
from activator.control_plane.sources.fixed_pods.source import HandedName
from activator.control_plane.sources.process.handed import HandedPrograms
from activator.members.messages import RevisionLives
from activator.messages import Message
from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX, Wire

PROTOCOL: Final = 1


class Offer(Message, frozen=True, tag=True):
    """The first message, from the old process.

    `sockets`: names of listeners, and how many sockets each has; all are sent along in this order.
    `number`: the highest number of a worker so far; the new process gives its workers higher ones.
    """

    protocol: int
    version: str
    sockets: tuple[tuple[str, int], ...]
    number: int


class Refused(Message, frozen=True, tag=True):
    """The new process gives up. `problem` has one line per problem."""

    problem: str


class Prepared(Message, frozen=True, tag=True):
    """The new process is ready to take over.

    `keys`: its revisions with processes; `containers`: those with containers, as its file has them. `discovers`: labels
    of containers declare more.
    """

    version: str
    keys: tuple[str, ...]
    containers: tuple[str, ...] = ()
    discovers: bool = False


class State(Message, frozen=True, tag=True):
    """The programs, with their descriptors, and the incarnation numbers of revisions.

    `keys`: all revisions. `scales`: commands of operators to the autoscaler. `uses`: the last use of members of groups.
    `aside`: pods that operators have drained, each with its revision. `names`: the last answers of name servers; an
    earlier version does not send them.
    """

    programs: HandedPrograms
    lives: RevisionLives
    keys: tuple[str, ...]
    scales: tuple[HandedScale, ...]
    uses: tuple[HandedUse, ...]
    aside: tuple[tuple[str, str], ...]
    names: tuple[HandedName, ...] = ()


class Adopted(Message, frozen=True, tag=True):
    """The new process has built its model, and continues the programs at `Commit`."""


class ReleasedName(msgspec.Struct, frozen=True, array_like=True):
    """A worker of the old process, as `ReleasedWorker`: its number, its PID and the ID of its process group."""

    number: int
    process: int
    group: int


class Commit(Message, frozen=True, tag=True):
    """The new process is the activator now. The socket and the pidfd of each worker are sent along, in this order.

    `epoch`: that of the last view of the workers. `files`: paths of Unix sockets, to be removed at the end. `taken`:
    programs for one request only that have received it since `State`.
    """

    workers: tuple[ReleasedName, ...]
    epoch: int
    files: tuple[str, ...]
    taken: tuple[str, ...]


class Serving(Message, frozen=True, tag=True):
    """The new process accepts connections."""


class More(Message, frozen=True, tag=True):
    """More descriptors of the next message."""


HandoverMessage = Offer | Refused | Prepared | State | Adopted | Commit | Serving | More

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(HandoverMessage)


class UpgradeError(Exception):
    """The reasons for which the old process continues, one per line."""


class GoneError(Exception):
    """The other process has ended, or does not answer."""


class Link:
    """One end of the connection of the two processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._messages: asyncio.Queue[tuple[HandoverMessage, list[int]] | None] = asyncio.Queue()
        self._descriptors: list[int] = []
        self._problem = ""
        self._wire = Wire(sock, self._received, self._closed, self._failed)

    def send(self, message: HandoverMessage, descriptors: list[int] | None = None) -> None:
        """Send a message at once. The descriptors are closed after they were sent."""
        left = descriptors or []
        while len(left) > DESCRIPTORS_AT_ONCE_MAX:
            self._wire.send_now(_ENCODER.encode(More()), left[:DESCRIPTORS_AT_ONCE_MAX])
            left = left[DESCRIPTORS_AT_ONCE_MAX:]
        self._wire.send_now(_ENCODER.encode(message), left)

    async def receive(self, timeout_s: float) -> tuple[HandoverMessage, list[int]]:
        """Return the next message, with its descriptors, which belong to the caller. Raises GoneError."""
        try:
            async with asyncio.timeout(timeout_s):
                received = await self._messages.get()
        except TimeoutError:
            raise GoneError(f"no answer within {timeout_s:g} s") from None
        if received is None:
            self._messages.put_nowait(None)
            raise GoneError(self._problem or "the other process has ended")
        return received

    def close(self) -> None:
        """Close the connection, and the descriptors that nothing has received."""
        self._wire.close()
        while not self._messages.empty():
            received = self._messages.get_nowait()
            self._descriptors.extend([] if received is None else received[1])
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._closed()

    def _received(self, data: memoryview, descriptors: list[int]) -> None:
        self._descriptors.extend(descriptors)
        message: HandoverMessage = _DECODER.decode(data)
        if not isinstance(message, More):
            received, self._descriptors = self._descriptors, []
            self._messages.put_nowait((message, received))

    def _closed(self) -> None:
        self._messages.put_nowait(None)

    def _failed(self, error: Exception) -> None:
        self._problem = f"a message that this version cannot read ({error})"
        self._wire.reset()
        self._closed()


def out_of_order(message: HandoverMessage) -> str:
    """Return the problem with a message that does not fit this step."""
    return f"the other process sent {type(message).__name__} out of order"
