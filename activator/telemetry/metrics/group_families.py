"""The metrics of groups: budgets and their use, swaps, evictions, and how long revisions wait for their turn.

The configuration file names groups and resources, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from activator.control_plane.groups.group import BudgetGroup
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.policy import Eviction
from activator.telemetry.metrics.families import Family, Kind, Row

EVICTIONS = tuple(reason.value for reason in Eviction)


class GroupFigures(NamedTuple):
    """The groups at one time."""

    groups: list[BudgetGroup]

    @classmethod
    def of(cls, groups: Groups) -> GroupFigures:
        return cls(list(groups.groups.values()))


def _of_group(name: str, kind: Kind, text: str, read: Callable[[BudgetGroup], float]) -> Family[GroupFigures]:
    def rows(figures: GroupFigures) -> Iterable[Row]:
        return [((group.rule.name,), float(read(group))) for group in figures.groups]

    return Family(name, kind, text, rows, ("group",), ((),))


def _of_resource(name: str, text: str, read: Callable[[BudgetGroup], tuple[int, ...]]) -> Family[GroupFigures]:
    def rows(figures: GroupFigures) -> Iterable[Row]:
        for group in figures.groups:
            for resource, amount in zip(group.rule.resources, read(group)):
                yield (group.rule.name, resource), float(amount)

    return Family(name, Kind.GAUGE, text, rows, ("group", "resource"), ((), ()))


def _evictions(figures: GroupFigures) -> Iterable[Row]:
    for group in figures.groups:
        for reason, count in group.eviction_totals.items():
            yield (group.rule.name, reason.value), float(count)


GROUP_FAMILIES: tuple[Family[GroupFigures], ...] = (
    _of_resource(
        "activator_revision_group_budget", "The budget of a group, by resource.", lambda group: group.rule.budget
    ),
    _of_resource(
        "activator_revision_group_used",
        "The part of the budget that starting, running, stopping and sleeping programs use, by resource.",
        lambda group: group.used(),
    ),
    _of_group(
        "activator_revision_group_waiting_revisions",
        Kind.GAUGE,
        "Revisions with queued requests that wait for a turn.",
        lambda group: sum(state.wait is not None for state in group.members.values()),
    ),
    _of_group(
        "activator_revision_group_swaps",
        Kind.COUNTER,
        "Programs that were loaded after others had been evicted.",
        lambda group: group.swaps_total,
    ),
    _of_group(
        "activator_revision_group_turns",
        Kind.COUNTER,
        "Completed waits for a turn, whether the turn was granted or the wait was cancelled.",
        lambda group: group.waits_total,
    ),
    _of_group(
        "activator_revision_group_turn_wait_seconds",
        Kind.COUNTER,
        "Seconds that revisions have waited for their turn.",
        lambda group: group.waited_s_total,
    ),
    Family(
        "activator_revision_group_evictions",
        Kind.COUNTER,
        "Evicted programs by reason: demand (idle, and another revision had a request), overtaken (busy, and its turn "
        "was over), spare (one of several), budget (it was lowered), asleep (its resources were needed).",
        _evictions,
        ("group", "reason"),
        ((), EVICTIONS),
    ),
)
