"""The messages between replicas about their group: plain data.

Rules
  1. A link delivers in order, or ends and loses the messages in transit. Both sides of a new link send `Hello` first.
  2. An epoch has one view, because it names its proposer.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.data_plane.ownership.names import MemberName

LOADS_MAX: Final = 500  # revisions in one message, each some 60 bytes in addition to the name
LOADS_PROTOCOL: Final = 2  # the first version of the protocol with `Loads`


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """A replica and its data planes. `writes`: it may write objects of the cluster.

    `machine`, `process` and `started` name its process (proof.py); `pod` is the UID of its pod in a cluster, else
    empty. All are empty if the sender knows only the number.
    """

    number: int
    data_planes: tuple[MemberName, ...] = ()
    writes: bool = False
    machine: str = ""
    process: int = 0
    started: int = 0
    pod: str = ""


class GroupView(msgspec.Struct, frozen=True, array_like=True):
    """The replicas that serve as one, and others that may still use slots (`unproven`)."""

    epoch: int = 0
    replicas: tuple[Replica, ...] = ()
    unproven: tuple[int, ...] = ()


class RevisionLives(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of revisions that were dropped and set again (members/lives.py), by key.

    `dropped` has the numbers that the next revisions of names get that the sender does not have now.
    """

    present: dict[str, int] = {}
    dropped: dict[str, int] = {}

    def since(self, former: RevisionLives) -> RevisionLives:
        """Return the entries that are not in `former`."""
        present = dict(self.present.items() - former.present.items())
        return RevisionLives(present, dict(self.dropped.items() - former.dropped.items()))


class Hello(msgspec.Struct, frozen=True, tag="Introduction", array_like=True):  # the tag is part of the protocol
    """The identity of the sender. Sent at the start of a link, and when its data planes change.

    `accepted` is the last view that it has accepted. `known` are replicas that may be alive, so that a replica on the
    machine of one of them can prove its end.
    """

    replica: Replica
    accepted: GroupView
    takes_part: bool  # the sender may be in a view from now on
    ended: tuple[int, ...]  # the last replicas whose end is proven
    lives: RevisionLives
    known: tuple[Replica, ...] = ()


class LivesChanged(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The changes of the sender's lives since its last `Hello`."""

    lives: RevisionLives


class Heartbeat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A heartbeat, with the epochs of the accepted and of the effective view.

    `owned` counts the revisions that the data planes of the sender own, `held` those of them whose slots they cannot
    grant yet.
    """

    accepted: int
    effective: int
    owned: int = 0
    held: int = 0


class Propose(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A proposed view. `known` are its unproven replicas whose processes are known, as in `Hello`."""

    view: GroupView
    known: tuple[Replica, ...] = ()


class Accept(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender has accepted this epoch, and accepts no earlier one. `known` are replicas that may be alive."""

    epoch: int
    known: tuple[Replica, ...]


class Commit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All members of this view have accepted it: it takes effect."""

    epoch: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A replica whose end is proven."""

    replica: int


class Suspected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A replica that the sender does not reach; the receiver, which may be on its machine, checks if it has ended."""

    replica: Replica


class Leave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender ends: it has no request in flight, and sends nothing more."""


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class RevisionLoad(msgspec.Struct, frozen=True, array_like=True):
    """The traffic of one revision at the sender (`activator.messages.Load`). Totals count from its start."""

    key: str
    in_flight: Count
    queued: Count
    requests_total: Count
    concurrency: Count
    request_seconds: Seconds


class Loads(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Loads for the replica that decides on these revisions, at most LOADS_MAX; since version 2 of the protocol."""

    loads: Annotated[tuple[RevisionLoad, ...], msgspec.Meta(max_length=LOADS_MAX)]


GroupMessage = Hello | LivesChanged | Heartbeat | Propose | Accept | Commit | Ended | Suspected | Leave | Loads

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(GroupMessage)


def encode(message: GroupMessage) -> bytes:
    """Return the message as bytes."""
    return _ENCODER.encode(message)


def decode(data: bytes | memoryview) -> GroupMessage:
    """Return the message in these bytes. Raises msgspec.DecodeError for anything else."""
    message: GroupMessage = _DECODER.decode(data)
    return message
