"""What replicas of one group say to each other about the group: plain data.

Rules
  1. A link delivers in order, or ends and loses what was under way; whoever has a new one introduces itself first.
  2. Of one epoch there is one view: the epoch names who proposed it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

LOADS_MAX: Final = 500  # revisions in one message, some 60 bytes each and the name
LOADS_PROTOCOL: Final = 2  # the first version of the protocol that has them


class DataPlaneName(msgspec.Struct, frozen=True, array_like=True):
    """A data plane of a replica, as `data_plane.ownership.view.MemberName` has it, and its process (proof.py).
    `drains`: it takes no new clients, and is to own nothing.
    """

    number: int
    place: int
    process: int = 0
    started: int = 0
    drains: bool = False


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """A replica and its data planes. `writes`: it may write objects of the cluster.

    `machine`, `process` and `started` name its process (proof.py); `pod` is the UID of its pod in a cluster, else
    empty. All are empty where the sender knows no more than the number.
    """

    number: int
    data_planes: tuple[DataPlaneName, ...] = ()
    writes: bool = False
    machine: str = ""
    process: int = 0
    started: int = 0
    pod: str = ""


class GroupView(msgspec.Struct, frozen=True, array_like=True):
    """The replicas that serve as one; and those that may still use slots, though they are not among them."""

    epoch: int = 0
    replicas: tuple[Replica, ...] = ()
    unproven: tuple[int, ...] = ()


class RevisionLives(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of revisions that were dropped and came back (members/lives.py). `dropped`: those that the next revision
    of a name that is not here will have.
    """

    present: dict[str, int] = {}
    dropped: dict[str, int] = {}


class Introduction(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Who the sender is; again when its data planes change. `accepted`: the last view that it has accepted. `known`:
    replicas that may live, so that whoever is on the machine of one can prove its end.
    """

    replica: Replica
    accepted: GroupView
    takes_part: bool  # it may be in a view from now on
    ended: tuple[int, ...]  # the last replicas whose end is proven
    lives: RevisionLives
    known: tuple[Replica, ...] = ()


class LivesChanged(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is new of them since the introduction."""

    lives: RevisionLives


class Beat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender's loop turns. The epochs of the view that it has accepted, and of the one in which it acts; how many
    revisions its data planes own, and for how many of them they cannot grant slots yet.
    """

    accepted: int
    effective: int
    owned: int = 0
    held: int = 0


class Propose(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender wants this view."""

    view: GroupView


class Accept(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The receiver's proposal is accepted, and no earlier one any more. `known`: replicas that may live."""

    epoch: int
    known: tuple[Replica, ...]


class Commit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All members of this view have accepted it: it takes effect."""

    epoch: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It is proven that this replica has ended."""

    replica: int


class Suspected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender does not reach this replica, and asks the receiver, which may be on its machine, if it has ended."""

    replica: Replica


class Leave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender has nothing in flight, and sends nothing more. The end of a connection without it proves nothing."""


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class RevisionLoad(msgspec.Struct, frozen=True, array_like=True):
    """The traffic of one revision at the sender (`activator.messages.Load`); totals count since its start."""

    key: str
    in_flight: Count
    queued: Count
    requests_total: Count
    concurrency: Count
    request_seconds: Seconds


class Loads(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the replica that decides on these revisions, LOADS_MAX at most. Since version 2 of the protocol."""

    loads: Annotated[tuple[RevisionLoad, ...], msgspec.Meta(max_length=LOADS_MAX)]


GroupMessage = Introduction | LivesChanged | Beat | Propose | Accept | Commit | Ended | Suspected | Leave | Loads

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(GroupMessage)


def encode(message: GroupMessage) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes | memoryview) -> GroupMessage:
    """Raises msgspec.DecodeError for anything else."""
    message: GroupMessage = _DECODER.decode(data)
    return message
