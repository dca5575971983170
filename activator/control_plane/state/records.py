"""The records of one pod, and of one revision with its pods; frozen."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import force_setattr

from activator.config.specs import RevisionSpec
from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.tally import Tally
from activator.messages import PUSH, PodStatus
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING, UNLIMITED

# Before Python 3.12 access to a member of an Enum is a call, 120 ns; each change of a record takes a dozen of them.
_PENDING: Final = PodStatus.PENDING
_READY: Final = PodStatus.READY
_NOT_READY: Final = PodStatus.NOT_READY
_DRAINING: Final = PodStatus.DRAINING


class PodRecord(msgspec.Struct, frozen=True):
    """One pod: what each source reports of it, and what the activator has observed."""

    identity: str
    address: str
    claims: dict[str, PodStatus]  # by source
    probe: bool  # a source asks the activator to probe it
    proven: bool = False  # it has answered
    quarantined: bool = False
    recovering: bool = False
    cause: str = ""  # why it is in quarantine, or was before its trial; shown to people
    strikes: int = 0  # connections in a row that timed out or broke
    weight: int = 1
    limit: int = -1  # requests it may have at once; -1: as the revision configures; 0: another replica has all of it
    restarts: int = -1  # restarts of its program, the largest number reported; -1: none has been
    doubted: bool = False  # its observations may be of another program, and it has not been probed since
    ousted_by: str = ""  # the pod that has its address now (addresses.py); empty: it has it
    is_aside: bool = False  # an operator has taken it out of service
    unplaced: bool = False  # the table has no free slot for it
    epoch: int = 0  # counts its states (messages.py); reports name the epoch they are about
    since_s: float = 0.0  # time of the last change of its state
    first_seen_s: float = 0.0  # when a source first reported it
    pushed_s: float = 0.0  # time of its last own report; 0.0: there is none that counts
    zone: str = ""  # empty: not known
    slot_state: int = EMPTY  # what `state` returns; set only when the record is created

    def __post_init__(self) -> None:
        force_setattr(self, "slot_state", self._state())

    def state(self) -> int:
        """Return the state of the pod's slot, one of `lb.tracker`.

        A pod's own report overrides other sources on readiness; any source may report that it terminates.
        """
        return self.slot_state

    def _state(self) -> int:
        claims = self.claims
        statuses = claims.values()
        if not claims or self.ousted_by or self.is_aside or _DRAINING in statuses:
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
        """Return True if it may have its address: it is in service, and sources report it, none as terminating."""
        return len(self.claims) > 0 and not self.is_aside and _DRAINING not in self.claims.values()

    def wants_probe(self) -> bool:
        if not self.probe and not self.quarantined and not self.doubted:
            return False
        state = self.state()
        if state == PENDING:
            return (self.probe or self.doubted) and self.claims.get(PUSH) is not _PENDING
        return state == QUARANTINED

    def is_listed(self) -> bool:
        """Return True if a source other than the pod itself reports it."""
        return any(source != PUSH for source in self.claims)

    def ages(self) -> bool:
        """Return True if its state may change by time alone."""
        if self.pushed_s > 0.0:
            return True
        return _NOT_READY in self.claims.values() and self.state() == NOT_READY


class RevisionRecord(msgspec.Struct, frozen=True):
    """One revision; `pods` and `addresses` are written item by item in `commit` and read everywhere else."""

    spec: RevisionSpec
    pods: dict[str, PodRecord]
    failure: str = ""  # why it cannot start; empty if it can
    retry_s: float = 0.0  # when the next start may be tried; 0: unknown
    tally: Tally = msgspec.field(default_factory=Tally)  # counts of `pods`, written with them
    addresses: AddressIndex = msgspec.field(default_factory=AddressIndex)

    def limit_of(self, pod: PodRecord) -> int:
        """Return how many requests the pod may have at once."""
        return min(pod.limit if pod.limit >= 0 else self.spec.container_concurrency or UNLIMITED, UNLIMITED)

    def is_far(self, pod: PodRecord) -> bool:
        """Return True if the pod is known to be in another zone than the one that the revision prefers."""
        return self.spec.balancing.zone not in ("", pod.zone) and pod.zone != ""
