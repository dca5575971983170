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

from activator.control_plane.groups.draft import Draft, Drafts
from activator.control_plane.groups.policy import GroupPolicy, Plan, View, Wait, WaitsFor
from activator.control_plane.groups.victims import make_room, shrink
from activator.runtime.clock import NEVER

_BEFORE_ALL = float("-inf")  # the age of a claim for a guaranteed minimum


class Turns(GroupPolicy):
    """The common part of both policies."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s

    def plan(self, view: View) -> Plan:
        drafts = Drafts(view)
        for draft in drafts.all:
            member = draft.member
            draft.grant = min(member.granted, max(member.wanted, member.floor))
            if not member.may_start:
                draft.grant = min(draft.grant, member.started)  # resources that it cannot use now go to others
        if not drafts.fits_soon():
            shrink(drafts)
        waits: dict[str, Wait] = {}
        open_since_s = self._serve_claims(drafts, waits)
        if open_since_s == NEVER or view.exclusive:
            _add_spare(drafts)
        if open_since_s == NEVER:
            _add_kept(drafts)
        return _plan_of(drafts, waits)

    def _serve_claims(self, drafts: Drafts, waits: dict[str, Wait]) -> float:
        """Serve claims; return the age of the oldest one that could not be served, NEVER if there is none."""
        open_since_s, first = NEVER, ""
        for since_s, key, draft in sorted(_claims(drafts), key=_age):
            if not draft.member.may_start:
                waits[key] = Wait(WaitsFor.BACKOFF)
            elif since_s >= open_since_s + self.patience_s:
                waits[key] = Wait(WaitsFor.BEHIND, (first,))
            elif not self._serve(drafts, draft, since_s):
                waits[key] = Wait(WaitsFor.TURN, _holders(drafts, draft))
                if open_since_s == NEVER:
                    open_since_s, first = since_s, key
            elif draft.reserved:
                waits[key] = Wait(WaitsFor.LEAVING, _leavers(drafts, draft))
        return open_since_s

    def _serve(self, drafts: Drafts, draft: Draft, since_s: float) -> bool:
        """Grant or reserve a program; False if neither is possible."""
        if _grant_one(drafts, draft):
            return True
        draft.reserved += 1
        if drafts.fits_soon() or make_room(drafts, draft, since_s + self.patience_s):
            draft.reserved -= 1
            if not _grant_one(drafts, draft):
                draft.reserved += 1
            return True
        draft.reserved -= 1
        return False


class Affinity(Turns):
    """Serves the requests of a loaded revision together; none is passed over for longer than `overtaken_at_most_s`."""

    name = "affinity"

    def __init__(self, overtaken_at_most_s: float) -> None:
        super().__init__(overtaken_at_most_s)


class Fifo(Turns):
    """Serves the revision whose next request arrived first."""

    name = "fifo"

    def __init__(self) -> None:
        super().__init__(0.0)


def _claims(drafts: Drafts) -> list[tuple[float, str, Draft]]:
    found = []
    for draft in drafts.all:
        member = draft.member
        if draft.grant < member.floor:
            found.append((_BEFORE_ALL, member.key, draft))
        elif draft.grant == 0 and draft.has_queue:
            found.append((member.since_s, member.key, draft))
    return found


def _age(claim: tuple[float, str, Draft]) -> tuple[float, str]:
    return claim[0], claim[1]


def _grant_one(drafts: Drafts, draft: Draft) -> bool:
    stopped_asleep = draft.stopped_asleep
    draft.grant += 1
    draft.keep_asleep()
    if drafts.fits_now() and drafts.fits_soon():
        return True
    draft.grant -= 1
    draft.stopped_asleep = stopped_asleep
    return False


def _add_spare(drafts: Drafts) -> None:
    for draft in drafts.all:
        member = draft.member
        most = member.wanted if member.busy or draft.has_queue else min(member.kept, member.wanted)
        # Not in the plan that evicts one: it would be started again.
        while member.may_start and draft.eviction is None and 0 < draft.grant < most:
            if not _grant_one(drafts, draft):
                break


def _add_kept(drafts: Drafts) -> None:
    for draft in drafts.all:
        member = draft.member
        is_open = draft.grant == 0 and draft.reserved == 0 and draft.eviction is None
        if is_open and member.kept > 0 and member.may_start:
            _grant_one(drafts, draft)


def _holders(drafts: Drafts, claimant: Draft) -> tuple[str, ...]:
    return tuple(one.member.key for one in drafts.all if one is not claimant and one.grant + one.member.leaving > 0)


def _leavers(drafts: Drafts, claimant: Draft) -> tuple[str, ...]:
    return tuple(
        one.member.key
        for one in drafts.all
        if one.grant < one.member.granted or one.member.leaving + one.member.stopping_asleep > 0 or one.stopped_asleep
    )


def _plan_of(drafts: Drafts, waits: dict[str, Wait]) -> Plan:
    served = tuple(one.member.key for one in drafts.all if one.reserved)
    for one in drafts.all:
        if one.grant == 0 and one.has_queue and one.member.key not in waits:  # its turn is over
            waits[one.member.key] = Wait(WaitsFor.BEHIND, served) if one.member.may_start else Wait(WaitsFor.BACKOFF)
    changed = [one for one in drafts.all if one.grant != one.member.granted]
    return Plan(
        grants={one.member.key: one.grant for one in changed},
        stop_asleep={one.member.key: one.stopped_asleep for one in drafts.all if one.stopped_asleep},
        no_sleep=frozenset(one.member.key for one in changed if one.member.asleep is not None and not one.sleeps),
        evictions={one.member.key: one.eviction for one in drafts.all if one.eviction is not None},
        waits=waits,
    )
