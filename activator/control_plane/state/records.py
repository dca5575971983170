"""What the control plane knows of one pod, and of one revision with its pods; frozen."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import force_setattr

from activator.config.specs import RevisionSpec
from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.tally import Tally
from activator.messages import PUSH, PodStatus
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING, UNLIMITED

# Before Python 3.12 a look at a member of an Enum is a call, 120 ns, and a pod's record takes a dozen with each change.
_PENDING: Final = PodStatus.PENDING
_READY: Final = PodStatus.READY
_NOT_READY: Final = PodStatus.NOT_READY
_DRAINING: Final = PodStatus.DRAINING


class PodRecord(msgspec.Struct, frozen=True):
    """One pod: what each source claims of it, and what we found out ourselves."""

    identity: str
    address: str
    claims: dict[str, PodStatus]  # by source
    probe: bool  # a source asked us to find out whether it answers
    proven: bool = False  # it has answered
    quarantined: bool = False
    recovering: bool = False
    cause: str = ""  # why it is in quarantine, or was before its trial; for people
    strikes: int = 0  # connections in a row that were silent or broke
    weight: int = 1
    limit: int = -1  # how many requests it may carry; -1: what the revision says; 0: it is not ours
    restarts: int = -1  # of its program, the most that a source has reported; -1: none has
    doubted: bool = False  # its program was started anew, and it has not been asked since
    ousted_by: str = ""  # the pod that has its address now (addresses.py); empty: it has it itself
    unplaced: bool = False  # every slot of the table is held
    epoch: int = 0  # of its state (messages.py): what is reported of it names the one that it is about
    since_s: float = 0.0  # of its state
    first_seen_s: float = 0.0  # when a source first reported it
    pushed_s: float = 0.0  # when it last said something of itself; 0.0: it does not count (any more)
    slot_state: int = EMPTY  # what `state` returns; written with the record, and only then

    def __post_init__(self) -> None:
        force_setattr(self, "slot_state", self._state())

    def state(self) -> int:
        """The state of the pod's slot, as `lb.tracker` has it.

        A pod's own report overrides what others say of whether it is ready; any source may say that it goes.
        """
        return self.slot_state

    def _state(self) -> int:
        claims = self.claims
        statuses = claims.values()
        if not claims or self.ousted_by or _DRAINING in statuses:
            return DRAINING
        own = claims.get(PUSH)
        if own is _NOT_READY or (own is None and _NOT_READY in statuses):
            return NOT_READY
        if self.quarantined:
            return QUARANTINED
        if self.recovering:
            return RECOVERING
        if own is _PENDING:
            return PENDING
        if self.doubted:
            return PENDING
        if self.proven or _READY in statuses:
            return READY
        return PENDING

    def contends(self) -> bool:
        """Whether it may have its address: it is there, and no source says that it goes."""
        return len(self.claims) > 0 and _DRAINING not in self.claims.values()

    def wants_probe(self) -> bool:
        if not self.probe and not self.quarantined and not self.doubted:
            return False
        state = self.state()
        if state == PENDING:
            return (self.probe or self.doubted) and self.claims.get(PUSH) is not _PENDING
        return state == QUARANTINED

    def is_listed(self) -> bool:
        """Whether a source asserts it that is not the pod itself."""
        return any(source != PUSH for source in self.claims)

    def ages(self) -> bool:
        """Whether time alone may change what is known of it."""
        if self.pushed_s > 0.0:
            return True
        return _NOT_READY in self.claims.values() and self.state() == NOT_READY


class RevisionRecord(msgspec.Struct, frozen=True):
    """One revision; `pods` and `addresses` are written item by item in `commit` and read everywhere else."""

    spec: RevisionSpec
    pods: dict[str, PodRecord]
    failure: str = ""  # why it cannot start, while it cannot
    retry_s: float = 0.0  # when the next start may be tried; 0: not known
    tally: Tally = msgspec.field(default_factory=Tally)  # of `pods`, and written with them
    addresses: AddressIndex = msgspec.field(default_factory=AddressIndex)

    def limit_of(self, pod: PodRecord) -> int:
        """How many requests the pod may carry at once."""
        return min(pod.limit if pod.limit >= 0 else self.spec.container_concurrency or UNLIMITED, UNLIMITED)
