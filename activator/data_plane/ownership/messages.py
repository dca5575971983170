"""The messages between members about slots: plain data, batched by link and turn (workers/frames.py).

Rules
  1. A link delivers in order or ends; messages in transit on a link that ended are lost. The next link begins with
     `Register` messages and `Registered`.
  2. Every message carries the epoch of the registration of borrower and owner. A borrower ignores messages of another
     epoch than its present one.
  3. `slot` identifies one slot of a borrower, `request` one of its waiting requests.
  4. The classes are compiled, and messages are never modified. Up to four are created for each request that another
     member grants; creating, reading and freeing them costs a tenth of that of structs with fields read by name.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.runtime.clock import NEVER


@mypyc_attr(allow_interpreted_subclasses=True)
class Plain:
    """A value class: objects with the same type and fields are equal."""

    def fields(self) -> tuple[object, ...]:
        """Return the constructor arguments, in order."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.fields()!r}"


@mypyc_attr(allow_interpreted_subclasses=True)
class MemberMessage(Plain):
    """The base class of all messages. `key`: of the revision; empty if the message concerns none."""

    def __init__(self, epoch: int, key: str) -> None:
        self.epoch = epoch
        self.key = key

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key)


# --- from a borrower to the owner -----------------------------------------------------------------------------------


@final
class HeldSlot(Plain):
    """A slot of the borrower, and its pod."""

    def __init__(self, slot: int, identity: str, address: str) -> None:
        self.slot = slot
        self.identity = identity
        self.address = address

    def fields(self) -> tuple[object, ...]:
        return (self.slot, self.identity, self.address)


@final
class WaitingRequest(Plain):
    """A waiting request. `number` is its position in the owner's queue; 0: it has just arrived.

    The other fields are inputs of the discipline and of the policy (throttle/waiters.py). `failed_at`: the identity of
    the pod that has failed the request, which other pods are preferred to.
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
        """Return True if the request has just arrived and has no special fields."""
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
    """All slots and waiting requests of the borrower for one revision, which replace the owner's record."""

    def __init__(self, epoch: int, key: str, slots: tuple[HeldSlot, ...], waiting: tuple[WaitingRequest, ...]) -> None:
        super().__init__(epoch, key)
        self.slots = slots
        self.waiting = waiting

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slots, self.waiting)


@final
class Registered(MemberMessage):
    """The end of a registration: all state of every revision of the receiver has been sent."""


@final
class Want(MemberMessage):
    """A request for a slot."""

    def __init__(self, epoch: int, key: str, waiting: WaitingRequest) -> None:
        super().__init__(epoch, key)
        self.waiting = waiting

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.waiting)


@final
class Cancel(MemberMessage):
    """The end of a request's wait. If a slot has been granted in the meantime, the borrower returns it."""

    def __init__(self, epoch: int, key: str, request: int) -> None:
        super().__init__(epoch, key)
        self.request = request

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request)


@final
class Released(MemberMessage):
    """The end of a request at its pod, which returns the slot; `latency_s` as in `RevisionThrottler.release`."""

    def __init__(self, epoch: int, key: str, slot: int, latency_s: float, succeeded: bool) -> None:
        super().__init__(epoch, key)
        self.slot = slot
        self.latency_s = latency_s
        self.succeeded = succeeded

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot, self.latency_s, self.succeeded)


@final
class Returned(MemberMessage):
    """The return of idle slots: no request has used them since they were lent or since their last request."""

    def __init__(self, epoch: int, key: str, slots: tuple[int, ...]) -> None:
        super().__init__(epoch, key)
        self.slots = slots

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slots)


@final
class TrialOver(MemberMessage):
    """A release of the pod's trial: the request in this slot no longer bars other trials."""

    def __init__(self, epoch: int, key: str, slot: int) -> None:
        super().__init__(epoch, key)
        self.slot = slot

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot)


@final
class Suspected(MemberMessage):
    """A suspicion: the pod of this slot accepts no connections."""

    def __init__(self, epoch: int, key: str, slot: int) -> None:
        super().__init__(epoch, key)
        self.slot = slot

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot)


# --- from the owner to a borrower -----------------------------------------------------------------------------------


@final
class Queued(MemberMessage):
    """The position of a request in the owner's queue."""

    def __init__(self, epoch: int, key: str, request: int, number: int) -> None:
        super().__init__(epoch, key)
        self.request = request
        self.number = number

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request, self.number)


@final
class Granted(MemberMessage):
    """A slot of this pod. `lends`: all slots of the borrower may be reused until `Recall`."""

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
    """The refusal of a waiting request; `reason` is the value of a `Reason`."""

    def __init__(self, epoch: int, key: str, request: int, reason: str, detail: str) -> None:
        super().__init__(epoch, key)
        self.request = request
        self.reason = reason
        self.detail = detail

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.request, self.reason, self.detail)


@final
class Recall(MemberMessage):
    """The end of lending, because requests wait: idle slots are returned now, others after their requests."""


@final
class Revoked(MemberMessage):
    """The loss of a slot for a reason that concerns the pod; its request must end."""

    def __init__(self, epoch: int, key: str, slot: int, reason: str, detail: str) -> None:
        super().__init__(epoch, key)
        self.slot = slot
        self.reason = reason
        self.detail = detail

    def fields(self) -> tuple[object, ...]:
        return (self.epoch, self.key, self.slot, self.reason, self.detail)
