"""The policies `affinity` and `fifo`: the turns of revisions, by the arrival of their requests.

Rules
  1. A revision that has a request and no program *claims* one. Claims are handled in the order in which their next
     requests arrived. A claim is granted if it fits; if it does not, idle programs are evicted, then spare ones of
     revisions with several, then those of revisions whose turn is over.
  2. The turn of a busy revision is over when the request that it would serve next arrived more than `patience_s` after
     the claim. So no request is overtaken by one that arrived later by more than that, if both need the same budget;
     and under any load a turn serves at least the requests that arrive in that time. `fifo` is a patience of 0.
  3. The needs of a claim are reserved as soon as enough programs are leaving. Until then free resources may go to later
     claims, but only to those that are later by no more than the patience.
  4. A load that has begun is not cancelled for others.
  5. Additional programs of a busy revision, and programs that only a schedule, a preload or an operator calls for, get
     free resources when no claim is open. They evict no other program.
  6. Nothing else starts a program: an evicted one stays unloaded until a request arrives, even if its load of the last
     minutes still calls for it.
"""

from __future__ import annotations

from activator.control_plane.groups.eviction import make_room, shrink
from activator.control_plane.groups.plan_builder import PlanBuilder, PlanEntry
from activator.control_plane.groups.policy import GroupPolicy, Plan, View, Wait, WaitsFor
from activator.runtime.clock import NEVER

_BEFORE_ALL = float("-inf")  # the arrival of a claim for a guaranteed minimum


class TurnPolicy(GroupPolicy):
    """The common part of both policies."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s

    def plan(self, view: View) -> Plan:
        builder = PlanBuilder(view)
        for entry in builder.entries:
            member = entry.member
            entry.grant = min(member.granted, max(member.wanted, member.floor))
            if not member.may_start:
                entry.grant = min(entry.grant, member.started)  # resources that it cannot use now go to others
        if not builder.fits_soon():
            shrink(builder)
        waits: dict[str, Wait] = {}
        open_since_s = self._serve_claims(builder, waits)
        if open_since_s == NEVER or view.exclusive:
            _grant_additional(builder)
        if open_since_s == NEVER:
            _grant_without_request(builder)
        return _plan_of(builder, waits)

    def _serve_claims(self, builder: PlanBuilder, waits: dict[str, Wait]) -> float:
        """Serve claims; return the arrival of the first one that could not be served, NEVER if there is none."""
        open_since_s, first_key = NEVER, ""
        for since_s, key, entry in sorted(_claims(builder), key=_claim_order):
            if not entry.member.may_start:
                waits[key] = Wait(WaitsFor.BACKOFF)
            elif since_s >= open_since_s + self.patience_s:
                waits[key] = Wait(WaitsFor.BEHIND, (first_key,))
            elif not self._grant_or_reserve(builder, entry, since_s):
                waits[key] = Wait(WaitsFor.TURN, _holding_keys(builder, entry))
                if open_since_s == NEVER:
                    open_since_s, first_key = since_s, key
            elif entry.reserved:
                waits[key] = Wait(WaitsFor.LEAVING, _leaving_keys(builder))
        return open_since_s

    def _grant_or_reserve(self, builder: PlanBuilder, entry: PlanEntry, since_s: float) -> bool:
        """Grant or reserve a program; False if neither is possible."""
        if _grant_one(builder, entry):
            return True
        entry.reserved += 1
        if builder.fits_soon() or make_room(builder, entry, since_s + self.patience_s):
            entry.reserved -= 1
            if not _grant_one(builder, entry):
                entry.reserved += 1
            return True
        entry.reserved -= 1
        return False


class Affinity(TurnPolicy):
    """Serves a loaded revision's requests together; no other's is passed over for longer than `overtaken_at_most_s`."""

    name = "affinity"

    def __init__(self, overtaken_at_most_s: float) -> None:
        super().__init__(overtaken_at_most_s)


class Fifo(TurnPolicy):
    """Serves the revision whose next request arrived first."""

    name = "fifo"

    def __init__(self) -> None:
        super().__init__(0.0)


def _claims(builder: PlanBuilder) -> list[tuple[float, str, PlanEntry]]:
    """Return the open claims, each with the arrival of its request, its key and its entry."""
    claims = []
    for entry in builder.entries:
        member = entry.member
        if entry.grant < member.floor:
            claims.append((_BEFORE_ALL, member.key, entry))
        elif entry.grant == 0 and entry.has_queue:
            claims.append((member.since_s, member.key, entry))
    return claims


def _claim_order(claim: tuple[float, str, PlanEntry]) -> tuple[float, str]:
    return claim[0], claim[1]


def _grant_one(builder: PlanBuilder, entry: PlanEntry) -> bool:
    """Grant one more program if that fits now and later; else change nothing and return False."""
    stopped_asleep = entry.stopped_asleep
    entry.grant += 1
    entry.leave_out_woken()
    if builder.fits_now() and builder.fits_soon():
        return True
    entry.grant -= 1
    entry.stopped_asleep = stopped_asleep
    return False


def _grant_additional(builder: PlanBuilder) -> None:
    """Grant additional programs to revisions that have one, while they fit (rule 5)."""
    for entry in builder.entries:
        member = entry.member
        most = member.wanted if member.busy or entry.has_queue else min(member.kept, member.wanted)
        # A plan that evicts a program of the revision grants it no other: that one would be started again.
        while member.may_start and entry.eviction is None and 0 < entry.grant < most:
            if not _grant_one(builder, entry):
                break


def _grant_without_request(builder: PlanBuilder) -> None:
    """Grant one program to revisions that want it without a request, if it fits (rule 5)."""
    for entry in builder.entries:
        member = entry.member
        is_open = entry.grant == 0 and entry.reserved == 0 and entry.eviction is None
        if is_open and member.kept > 0 and member.may_start:
            _grant_one(builder, entry)


def _holding_keys(builder: PlanBuilder, claimant: PlanEntry) -> tuple[str, ...]:
    """Return the other revisions whose programs run or leave."""
    return tuple(
        entry.member.key
        for entry in builder.entries
        if entry is not claimant and entry.grant + entry.member.leaving > 0
    )


def _leaving_keys(builder: PlanBuilder) -> tuple[str, ...]:
    """Return the revisions whose programs leave or are to be stopped."""
    return tuple(
        entry.member.key
        for entry in builder.entries
        if entry.grant < entry.member.granted
        or entry.member.leaving + entry.member.stopping_asleep > 0
        or entry.stopped_asleep
    )


def _plan_of(builder: PlanBuilder, waits: dict[str, Wait]) -> Plan:
    """Return the changes that the builder has made, with the wait of each queued revision without a program."""
    served = tuple(entry.member.key for entry in builder.entries if entry.reserved)
    for entry in builder.entries:
        if entry.grant == 0 and entry.has_queue and entry.member.key not in waits:  # its turn is over
            waits[entry.member.key] = (
                Wait(WaitsFor.BEHIND, served) if entry.member.may_start else Wait(WaitsFor.BACKOFF)
            )
    changed = [entry for entry in builder.entries if entry.grant != entry.member.granted]
    return Plan(
        grants={entry.member.key: entry.grant for entry in changed},
        stop_asleep={entry.member.key: entry.stopped_asleep for entry in builder.entries if entry.stopped_asleep},
        no_sleep=frozenset(
            entry.member.key for entry in changed if entry.member.asleep is not None and not entry.sleeps
        ),
        evictions={entry.member.key: entry.eviction for entry in builder.entries if entry.eviction is not None},
        waits=waits,
    )
