"""What members say to each other: plain data, batched by link and turn (workers/frames.py).

Rules
  1. A link delivers in order or ends; what was under way on a link that ended is never delivered. The link that comes
     after it begins with `Register` messages and `Registered`.
  2. Every message carries the epoch of the sender's registration with its receiver, or of the receiver's with the
     sender. A borrower acts on nothing that is not of its present epoch.
  3. `slot` numbers one slot of the revision in the hands of one borrower, `request` one of its waiting requests.
  4. These are classes of the compiled world, and nobody changes one: up to four are made for each request that another
     member grants, and made, read and dropped they cost a tenth of structs that are read by name.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.runtime.clock import NEVER


@mypyc_attr(allow_interpreted_subclasses=True)
class Plain:
    """Equal to whatever has the same fields."""

    def fields(self) -> tuple[object, ...]:
        """What it was made from, in order."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.fields()!r}"


@mypyc_attr(allow_interpreted_subclasses=True)
class MemberMessage(Plain):
    """Base of all of them. `key` of the revision; empty where it is about none."""

    def __init__(self, epoch: int, key: str) -> None:
        self.epoch = epoch
        self.key = key

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key)


# --- from a borrower to the owner -----------------------------------------------------------------------------------


@final
class HeldSlot(Plain):
    """A slot that the borrower has, and of which pod."""

    def __init__(self, slot: int, identity: str, address: str) -> None:
        self.slot = slot
        self.identity = identity
        self.address = address

    def fields(self) -> tuple[object, ...]:
        return (self.slot, self.identity, self.address)


@final
class WaitingRequest(Plain):
    """A request that waits. `number` is its place in the owner's line, where it had one; 0: it has just arrived.

    The other fields are what the line's discipline and the policy look at (throttle/waiters.py). `failed_at`: the
    identity of the pod that has just failed it: any other is better.
    """

    def __init__(
        self,
        request: int,
        number: int = 0,
        waited_s: float = 0.0,
        pick_key: int = 0,
        exempt: bool = False,
        level: int = 0,
        share: bytes = b"",
        charge: int = 1,
        timeout_s: float = NEVER,
        deadline_s: float = NEVER,
        failed_at: str = "",
    ) -> None:
        self.request = request
        self.number = number
        self.waited_s = waited_s
        self.pick_key = pick_key
        self.exempt = exempt
        self.level = level
        self.share = share
        self.charge = charge
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s
        self.failed_at = failed_at

    def is_ordinary(self) -> bool:
        """It has just arrived, and wants nothing in particular."""
        return (
            self.number == 0
            and self.pick_key == 0
            and not self.exempt
            and self.level == 0
            and self.charge == 1
            and len(self.share) == 0
            and len(self.failed_at) == 0
            and self.timeout_s == NEVER
            and self.deadline_s == NEVER
        )

    def fields(self) -> tuple[object, ...]:
        return (
            self.request,
            self.number,
            self.waited_s,
            self.pick_key,
            self.exempt,
            self.level,
            self.share,
            self.charge,
            self.timeout_s,
            self.deadline_s,
            self.failed_at,
        )


@final
class Register(MemberMessage):
    """All that the borrower has of one revision, and all that wait there; what the owner knew of it is void."""

    def __init__(self, epoch: int, key: str, slots: tuple[HeldSlot, ...], waiting: tuple[WaitingRequest, ...]) -> None:
        super().__init__(epoch, key)
        self.slots = slots
        self.waiting = waiting

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slots, self.waiting)


@final
class Registered(MemberMessage):
    """The borrower has registered all that it has of every revision of the receiver."""


@final
class Want(MemberMessage):
    """A slot is wanted."""

    def __init__(self, epoch: int, key: str, waiting: WaitingRequest) -> None:
        super().__init__(epoch, key)
        self.waiting = waiting

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.waiting)


@final
class Cancel(MemberMessage):
    """The request does not wait any more. If a slot was granted meanwhile, it comes back by itself."""

    def __init__(self, epoch: int, key: str, request: int) -> None:
        super().__init__(epoch, key)
        self.request = request

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request)


@final
class Released(MemberMessage):
    """A request has ended at its pod, and the slot comes back; `latency_s` as in `RevisionThrottler.release`."""

    def __init__(self, epoch: int, key: str, slot: int, latency_s: float, succeeded: bool) -> None:
        super().__init__(epoch, key)
        self.slot = slot
        self.latency_s = latency_s
        self.succeeded = succeeded

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot, self.latency_s, self.succeeded)


@final
class Returned(MemberMessage):
    """Slots come back that no request has used since they were lent, or used last."""

    def __init__(self, epoch: int, key: str, slots: tuple[int, ...]) -> None:
        super().__init__(epoch, key)
        self.slots = slots

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slots)


@final
class TrialOver(MemberMessage):
    """The request in this slot does not keep other trials of the pod any more."""

    def __init__(self, epoch: int, key: str, slot: int) -> None:
        super().__init__(epoch, key)
        self.slot = slot

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot)


@final
class Suspected(MemberMessage):
    """The pod of this slot takes no connections."""

    def __init__(self, epoch: int, key: str, slot: int) -> None:
        super().__init__(epoch, key)
        self.slot = slot

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot)


# --- from the owner to a borrower -----------------------------------------------------------------------------------


@final
class Queued(MemberMessage):
    """The request stands in the owner's line, with this number."""

    def __init__(self, epoch: int, key: str, request: int, number: int) -> None:
        super().__init__(epoch, key)
        self.request = request
        self.number = number

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request, self.number)


@final
class Granted(MemberMessage):
    """A slot of this pod. `lends`: it, and every other one that the borrower has, may be used again until `Recall`."""

    def __init__(
        self,
        epoch: int,
        key: str,
        request: int,
        number: int,
        slot: int,
        identity: str,
        address: str,
        lends: bool,
        trial: bool,
    ) -> None:
        super().__init__(epoch, key)
        self.request = request
        self.number = number
        self.slot = slot
        self.identity = identity
        self.address = address
        self.lends = lends
        self.trial = trial

    def fields(self) -> tuple[object, ...]:
        return (
            self.epoch,
            self.key,
            self.request,
            self.number,
            self.slot,
            self.identity,
            self.address,
            self.lends,
            self.trial,
        )


@final
class Refused(MemberMessage):
    """The request does not wait any more; `reason` is the value of a `Reason`."""

    def __init__(self, epoch: int, key: str, request: int, reason: str, detail: str) -> None:
        super().__init__(epoch, key)
        self.request = request
        self.reason = reason
        self.detail = detail

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request, self.reason, self.detail)


@final
class Recall(MemberMessage):
    """Requests wait: every slot that is idle comes back now, and every other one when its request has ended."""


@final
class Revoked(MemberMessage):
    """The slot was taken back, for a reason that is about the pod: its request is to end."""

    def __init__(self, epoch: int, key: str, slot: int, reason: str, detail: str) -> None:
        super().__init__(epoch, key)
        self.slot = slot
        self.reason = reason
        self.detail = detail

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot, self.reason, self.detail)
