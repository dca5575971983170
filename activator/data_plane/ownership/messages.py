"""What members say to each other: plain data, batched by link and turn.

Rules
  1. A link delivers in order or ends; what was under way on a link that ended is never delivered. The link that comes
     after it begins with `Register` messages and `Registered`.
  2. Every message carries the epoch of the sender's registration with its receiver, or of the receiver's with the
     sender. A borrower acts on nothing that is not of its present epoch.
  3. `slot` numbers one slot of the revision in the hands of one borrower, `request` one of its waiting requests.
"""

from __future__ import annotations

import msgspec


class MemberMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all of them."""

    epoch: int
    key: str  # of the revision; empty where it is about none


# --- from a borrower to the owner -----------------------------------------------------------------------------------


class HeldSlot(msgspec.Struct, frozen=True, array_like=True):
    """A slot that the borrower has, and of which pod."""

    slot: int
    identity: str
    address: str


class WaitingRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that waits. `number` is its place in the owner's line, where it had one; 0: it has just arrived.

    The other fields are what the line's discipline and the policy look at (throttle/waiters.py).
    """

    request: int
    number: int = 0
    waited_s: float = 0.0
    pick_key: int = 0
    exempt: bool = False
    level: int = 0
    share: bytes = b""
    charge: int = 1
    timeout_s: float = float("inf")
    deadline_s: float = float("inf")
    failed_at: str = ""  # the identity of the pod that has just failed it: any other is better


class Register(MemberMessage, frozen=True, tag=True, array_like=True):
    """All that the borrower has of one revision, and all that wait there; what the owner knew of it is void."""

    slots: tuple[HeldSlot, ...]
    waiting: tuple[WaitingRequest, ...]


class Registered(MemberMessage, frozen=True, tag=True, array_like=True):
    """The borrower has registered all that it has of every revision of the receiver."""


class Want(MemberMessage, frozen=True, tag=True, array_like=True):
    """A slot is wanted."""

    waiting: WaitingRequest


class Cancel(MemberMessage, frozen=True, tag=True, array_like=True):
    """The request does not wait any more. If a slot was granted meanwhile, it comes back by itself."""

    request: int


class Released(MemberMessage, frozen=True, tag=True, array_like=True):
    """A request has ended at its pod, and the slot comes back; `latency_s` as in `RevisionThrottler.release`."""

    slot: int
    latency_s: float
    succeeded: bool


class Returned(MemberMessage, frozen=True, tag=True, array_like=True):
    """Slots come back that no request has used since they were lent, or used last."""

    slots: tuple[int, ...]


class TrialOver(MemberMessage, frozen=True, tag=True, array_like=True):
    """The request in this slot does not keep other trials of the pod any more."""

    slot: int


class Suspected(MemberMessage, frozen=True, tag=True, array_like=True):
    """The pod of this slot takes no connections."""

    slot: int


# --- from the owner to a borrower -----------------------------------------------------------------------------------


class Queued(MemberMessage, frozen=True, tag=True, array_like=True):
    """The request stands in the owner's line, with this number."""

    request: int
    number: int


class Granted(MemberMessage, frozen=True, tag=True, array_like=True):
    """A slot of this pod. `lends`: it, and every other one that the borrower has, may be used again until `Recall`."""

    request: int
    number: int
    slot: int
    identity: str
    address: str
    lends: bool
    trial: bool


class Refused(MemberMessage, frozen=True, tag=True, array_like=True):
    """The request does not wait any more; `reason` is the value of a `Reason`."""

    request: int
    reason: str
    detail: str


class Recall(MemberMessage, frozen=True, tag=True, array_like=True):
    """Requests wait: every slot that is idle comes back now, and every other one when its request has ended."""


class Revoked(MemberMessage, frozen=True, tag=True, array_like=True):
    """The slot was taken back, for a reason that is about the pod: its request is to end."""

    slot: int
    reason: str
    detail: str


ToOwner = Register | Registered | Want | Cancel | Released | Returned | TrialOver | Suspected
ToBorrower = Queued | Granted | Refused | Recall | Revoked
AnyMessage = ToOwner | ToBorrower

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[AnyMessage])


def encode(batch: list[AnyMessage]) -> bytes:
    """One turn's messages of one link."""
    return _ENCODER.encode(batch)


def decode(data: bytes | memoryview) -> list[AnyMessage]:
    """Raises msgspec.DecodeError for anything else."""
    return _DECODER.decode(data)
