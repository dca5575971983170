"""The metrics of groups: what their budgets are used for, swaps, evictions, and how long revisions wait for the turn.

Groups and resources are named in the file, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from activator.control_plane.groups.group import Group
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.policy import Eviction
from activator.telemetry.metrics.families import Family, Kind, Row

EVICTIONS = tuple(reason.value for reason in Eviction)


class GroupFigures(NamedTuple):
    """Of one moment."""

    groups: list[Group]

    @classmethod
    def of(cls, groups: Groups) -> GroupFigures:
        return cls(list(groups.groups.values()))


def _of_group(name: str, kind: Kind, text: str, read: Callable[[Group], float]) -> Family[GroupFigures]:
    def rows(it: GroupFigures) -> Iterable[Row]:
        return [((group.rule.name,), float(read(group))) for group in it.groups]

    return Family(name, kind, text, rows, ("group",), ((),))


def _of_resource(name: str, text: str, read: Callable[[Group], tuple[int, ...]]) -> Family[GroupFigures]:
    def rows(it: GroupFigures) -> Iterable[Row]:
        for group in it.groups:
            for resource, amount in zip(group.rule.resources, read(group)):
                yield (group.rule.name, resource), float(amount)

    return Family(name, Kind.GAUGE, text, rows, ("group", "resource"), ((), ()))


def _evictions(it: GroupFigures) -> Iterable[Row]:
    for group in it.groups:
        for reason, count in group.eviction_totals.items():
            yield (group.rule.name, reason.value), float(count)


GROUP_FAMILIES: tuple[Family[GroupFigures], ...] = (
    _of_resource(
        "activator_revision_group_budget", "How much of a resource a group has.", lambda group: group.rule.budget
    ),
    _of_resource(
        "activator_revision_group_used",
        "How much of it programs hold that start, run, leave or sleep.",
        lambda group: group.used(),
    ),
    _of_group(
        "activator_revision_group_waiting_revisions",
        Kind.GAUGE,
        "Revisions with requests that wait for the turn.",
        lambda group: sum(state.wait is not None for state in group.members.values()),
    ),
    _of_group(
        "activator_revision_group_swaps",
        Kind.COUNTER,
        "Programs that were loaded where others had to leave.",
        lambda group: group.swaps_total,
    ),
    _of_group(
        "activator_revision_group_turns",
        Kind.COUNTER,
        "Times that a revision had waited for the turn and got it, or waited no longer.",
        lambda group: group.waits_total,
    ),
    _of_group(
        "activator_revision_group_turn_wait_seconds",
        Kind.COUNTER,
        "Seconds that revisions have waited for the turn.",
        lambda group: group.waited_s_total,
    ),
    Family(
        "activator_revision_group_evictions",
        Kind.COUNTER,
        "Programs that had to leave: demand (idle, and another revision has a request), overtaken (busy, and its turn "
        "was over), spare (one of several), budget (it was lowered), asleep (what it kept was needed).",
        _evictions,
        ("group", "reason"),
        ((), EVICTIONS),
    ),
)
