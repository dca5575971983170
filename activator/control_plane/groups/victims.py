"""Who has to leave: the least valuable by recency and the cost of loading, and no more than necessary.

A program is worth the seconds that it takes to have it back, for each second since it was last used. Those in use have
no such figure; they come after all that are idle. What is pinned, or guaranteed by a minimum, is never chosen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.groups.draft import Draft, Drafts
from activator.control_plane.groups.policy import Eviction

USED_AGO_MIN_S: Final = 0.001
COST_MIN_S: Final = 0.001  # of a program whose start was never measured

# In which order they go.
_IDLE: Final = 0  # among them those that sleep
_SPARE: Final = 1
_TURN_OVER: Final = 2
_BUSY: Final = 3  # only where the budget itself was lowered
_LOADING: Final = 4
_KEPT: Final = 5


class _Unit(NamedTuple):
    """One program that could go."""

    rank: int
    value: float
    key: str
    draft: Draft
    is_asleep: bool
    eviction: Eviction


def make_room(drafts: Drafts, claimant: Draft, over_after_s: float) -> bool:
    """Take away what `claimant`, for which a program is reserved, needs; False: that is not possible, nothing changed.

    `over_after_s`: the turn of a revision is over if the request that it would serve next came later than that.
    """
    units = []
    for draft in drafts.all:
        if draft is not claimant:
            units.extend(_running_units(draft, drafts.view.now_s, over_after_s))
        units.extend(_sleeping_units(draft, drafts.view.now_s, draft is claimant))
    return _take(drafts, sorted(units, key=_order))


def shrink(drafts: Drafts) -> None:
    """Take away what exceeds a budget that was lowered."""
    units = []
    for draft in drafts.all:
        units.extend(_sleeping_units(draft, drafts.view.now_s, False))
        value = _value(draft, drafts.view.now_s)
        for left in range(draft.grant):  # 0: its last one
            if left < draft.member.floor:
                rank = _KEPT
            elif draft.is_idle:
                rank = _IDLE
            elif left > 0:
                rank = _SPARE
            else:
                rank = _LOADING if draft.is_loading else _BUSY
            units.append(_Unit(rank, value, draft.member.key, draft, False, Eviction.BUDGET))
    _take(drafts, sorted(units, key=_order), all_at_worst=True)


def _order(unit: _Unit) -> tuple[int, float, str]:
    return unit.rank, unit.value, unit.key


def _running_units(draft: Draft, now_s: float, over_after_s: float) -> list[_Unit]:
    member = draft.member
    if draft.is_idle:
        rank, least, eviction = _IDLE, member.floor, Eviction.DEMAND
    elif not draft.is_loading and draft.next_arrival_s(now_s) > over_after_s:
        rank, least, eviction = _TURN_OVER, member.floor, Eviction.OVERTAKEN
    else:
        rank, least, eviction = _SPARE, max(member.floor, 1), Eviction.SPARE
    value = _value(draft, now_s)
    units = [_Unit(rank, value, member.key, draft, False, eviction)] * max(draft.grant - least, 0)
    if rank == _TURN_OVER and len(units) > 1:  # its spare ones go before the last
        units[1:] = [unit._replace(rank=_SPARE, eviction=Eviction.SPARE) for unit in units[1:]]
    return units


def _sleeping_units(draft: Draft, now_s: float, is_claimant: bool) -> list[_Unit]:
    member = draft.member
    if member.asleep is None or not any(member.asleep):
        return []
    value = max(member.start_s, COST_MIN_S) / max(now_s - member.used_s, USED_AGO_MIN_S)
    count = member.sleeping - draft.stopped_asleep - (1 if is_claimant else 0)
    return [_Unit(_IDLE, value, member.key, draft, True, Eviction.ASLEEP)] * max(count, 0)


def _value(draft: Draft, now_s: float) -> float:
    member = draft.member
    cost_s = member.start_s if member.asleep is None else member.wake_s
    return max(cost_s, COST_MIN_S) / max(now_s - member.used_s, USED_AGO_MIN_S)


def _take(drafts: Drafts, units: list[_Unit], all_at_worst: bool = False) -> bool:
    taken: list[_Unit] = []
    for unit in units:
        if drafts.fits_soon():
            break
        _apply(unit, 1)
        taken.append(unit)
    stopped = _stop_instead(drafts, taken)
    if not drafts.fits_soon() and not all_at_worst:
        for draft in stopped:
            draft.sleeps = True
        for unit in taken:
            _apply(unit, -1)
        return False
    kept = []
    for unit in reversed(taken):  # the most valuable first: the last of them may have made it superfluous
        _apply(unit, -1)
        if not drafts.fits_soon():
            _apply(unit, 1)
            kept.append(unit)
    for unit in kept:
        unit.draft.eviction = unit.eviction
    return True


def _stop_instead(drafts: Drafts, taken: list[_Unit]) -> list[Draft]:
    """What sleeps holds too much: stop some of what would be put to sleep."""
    stopped: list[Draft] = []
    for unit in taken:
        if drafts.fits_soon():
            break
        if not unit.is_asleep and unit.draft.sleeps:
            unit.draft.sleeps = False
            stopped.append(unit.draft)
    return stopped


def _apply(unit: _Unit, sign: int) -> None:
    if unit.is_asleep:
        unit.draft.stopped_asleep += sign
    else:
        unit.draft.grant -= sign
