"""The choice of programs to evict: those of the least value by recency and reload time, and no more than necessary.

The value of a program is its reload time in seconds per second since it was last used. Programs in use have no such
value; they come after all idle ones. Pinned programs, and those of a guaranteed minimum, are never chosen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.groups.plan_builder import PlanBuilder, PlanEntry
from activator.control_plane.groups.policy import Eviction

USED_AGO_MIN_S: Final = 0.001
COST_MIN_S: Final = 0.001  # for a program whose start was never measured

# The order of eviction.
_IDLE: Final = 0  # includes programs that sleep
_SPARE: Final = 1  # one of several of a revision
_TURN_OVER: Final = 2  # busy, and its turn is over
_BUSY: Final = 3  # only if the budget itself was lowered
_LOADING: Final = 4
_KEPT: Final = 5  # pinned, or of a guaranteed minimum; only if the budget itself was lowered


class _Unit(NamedTuple):
    """One program that could be evicted."""

    rank: int
    value: float
    key: str
    entry: PlanEntry
    is_asleep: bool
    eviction: Eviction


def make_room(builder: PlanBuilder, claimant: PlanEntry, over_after_s: float) -> bool:
    """Evict programs until the reservation of `claimant` fits; if that is impossible, change nothing and return False.

    `over_after_s`: the turn of a revision is over if the request that it would serve next arrived later than that.
    """
    units = []
    for entry in builder.entries:
        if entry is not claimant:
            units.extend(_running_units(entry, builder.view.now_s, over_after_s))
        units.extend(_sleeping_units(entry, builder.view.now_s, entry is claimant))
    return _evict(builder, sorted(units, key=_eviction_order))


def shrink(builder: PlanBuilder) -> None:
    """Evict what exceeds a budget that was lowered."""
    units = []
    for entry in builder.entries:
        units.extend(_sleeping_units(entry, builder.view.now_s, False))
        value = _value(entry, builder.view.now_s)
        for kept in range(entry.grant):  # how many the revision keeps if this one is evicted
            if kept < entry.member.floor:
                rank = _KEPT
            elif entry.is_idle:
                rank = _IDLE
            elif kept > 0:
                rank = _SPARE
            else:
                rank = _LOADING if entry.is_loading else _BUSY
            units.append(_Unit(rank, value, entry.member.key, entry, False, Eviction.BUDGET))
    _evict(builder, sorted(units, key=_eviction_order), even_if_too_few=True)


def _eviction_order(unit: _Unit) -> tuple[int, float, str]:
    return unit.rank, unit.value, unit.key


def _running_units(entry: PlanEntry, now_s: float, over_after_s: float) -> list[_Unit]:
    """Return the programs of a member that may be evicted while they start or run."""
    member = entry.member
    if entry.is_idle:
        rank, least, eviction = _IDLE, member.floor, Eviction.DEMAND
    elif not entry.is_loading and entry.next_arrival_s(now_s) > over_after_s:
        rank, least, eviction = _TURN_OVER, member.floor, Eviction.OVERTAKEN
    else:
        rank, least, eviction = _SPARE, max(member.floor, 1), Eviction.SPARE
    value = _value(entry, now_s)
    units = [_Unit(rank, value, member.key, entry, False, eviction)] * max(entry.grant - least, 0)
    if rank == _TURN_OVER and len(units) > 1:  # its other programs are evicted as spare ones, before the last
        units[1:] = [unit._replace(rank=_SPARE, eviction=Eviction.SPARE) for unit in units[1:]]
    return units


def _sleeping_units(entry: PlanEntry, now_s: float, is_claimant: bool) -> list[_Unit]:
    """Return the sleeping programs of a member that may be stopped; a claimant needs one of its own."""
    member = entry.member
    if member.asleep is None or not any(member.asleep):
        return []
    value = max(member.start_s, COST_MIN_S) / max(now_s - member.used_s, USED_AGO_MIN_S)
    count = member.sleeping - entry.stopped_asleep - (1 if is_claimant else 0)
    return [_Unit(_IDLE, value, member.key, entry, True, Eviction.ASLEEP)] * max(count, 0)


def _value(entry: PlanEntry, now_s: float) -> float:
    """Return the value of one program: seconds of a reload, or of a wake, for each second since its last use."""
    member = entry.member
    cost_s = member.start_s if member.asleep is None else member.wake_s
    return max(cost_s, COST_MIN_S) / max(now_s - member.used_s, USED_AGO_MIN_S)


def _evict(builder: PlanBuilder, units: list[_Unit], even_if_too_few: bool = False) -> bool:
    """Evict units in this order until the plan fits the budget, and no more of them than necessary.

    If all of them do not suffice, evict none and return False, unless `even_if_too_few`.
    """
    taken: list[_Unit] = []
    for unit in units:
        if builder.fits_soon():
            break
        _count_eviction(unit, 1)
        taken.append(unit)
    stopped = _stop_instead_of_sleep(builder, taken)
    if not builder.fits_soon() and not even_if_too_few:
        for entry in stopped:
            entry.sleeps = True
        for unit in taken:
            _count_eviction(unit, -1)
        return False
    kept = []
    for unit in reversed(taken):  # the most valuable first: the last one taken may have made it superfluous
        _count_eviction(unit, -1)
        if not builder.fits_soon():
            _count_eviction(unit, 1)
            kept.append(unit)
    for unit in kept:
        unit.entry.eviction = unit.eviction
    return True


def _stop_instead_of_sleep(builder: PlanBuilder, taken: list[_Unit]) -> list[PlanEntry]:
    """Stop taken programs that would be put to sleep until the plan fits; return the entries that no longer sleep."""
    stopped: list[PlanEntry] = []
    for unit in taken:
        if builder.fits_soon():
            break
        if not unit.is_asleep and unit.entry.sleeps:
            unit.entry.sleeps = False
            stopped.append(unit.entry)
    return stopped


def _count_eviction(unit: _Unit, sign: int) -> None:
    """Count the program as evicted in its entry (`sign` 1), or take that back (-1)."""
    if unit.is_asleep:
        unit.entry.stopped_asleep += sign
    else:
        unit.entry.grant -= sign
