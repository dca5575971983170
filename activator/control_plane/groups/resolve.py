"""The groups of the configuration, resolved to rules.

Revisions with `gpus` of their own and without a group share the GPUs that no group has a budget of: they form the group
`gpus`, so that no revision waits for a GPU whose program is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from activator.config.model.file import Config
from activator.config.model.groups import GPUS, OVERTAKEN_AT_MOST_S, Group
from activator.config.model.revision import Revision
from activator.config.specs import key_of
from activator.control_plane.groups.policy import Amounts
from activator.control_plane.groups.rule import GroupRule, MemberRule
from activator.control_plane.scaling.rule import process_rule

NOTHING_MEASURED: Final[Mapping[str, Mapping[str, int]]] = {}


def resolve_groups(config: Config, peaks: Mapping[str, Mapping[str, int]] = NOTHING_MEASURED) -> list[GroupRule]:
    """Return the rules of all groups; the configuration has been checked.

    `peaks`: what a copy of a revision has used at most, by its key and by resource, for groups that count it.
    """
    revisions = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
    rules = []
    grouped: set[str] = set()
    for group in config.groups:
        members = {key_of(name): revisions[key_of(name)] for name in group.members}
        grouped.update(members)
        rules.append(_rule(group, members, peaks if group.measured else NOTHING_MEASURED))
    ungrouped = {
        key: revision
        for key, revision in revisions.items()
        if key not in grouped and revision.program is not None and revision.program.gpus > 0
    }
    if ungrouped:
        free_gpus = len(config.gpus) - sum(int(group.budget.get(GPUS, 0)) for group in config.groups)
        resources, budget = (GPUS,), (free_gpus,)
        rest = {key: _member(revision, resources) for key, revision in ungrouped.items()}
        rules.append(GroupRule(GPUS, resources, budget, rest, overtaken_at_most_s=OVERTAKEN_AT_MOST_S))
    return rules


def _rule(group: Group, members: dict[str, Revision], peaks: Mapping[str, Mapping[str, int]]) -> GroupRule:
    resources = tuple(group.budget)
    budget = tuple(int(group.budget[resource]) for resource in resources)
    declared = {key: _member(one, resources) for key, one in members.items()}
    return GroupRule(
        group.name,
        resources,
        budget,
        _measured(declared, resources, budget, peaks) if peaks else declared,
        group.exclusive,
        group.discipline,
        float(group.overtaken_at_most),
    )


def _measured(
    declared: dict[str, MemberRule],
    resources: tuple[str, ...],
    budget: Amounts,
    peaks: Mapping[str, Mapping[str, int]],
) -> dict[str, MemberRule]:
    """Return the members; needs measured as larger are raised as far as each fits beside those that stay loaded.

    Members that stay loaded keep their declared needs: the file was checked with these.
    """
    stays = {key for key, rule in declared.items() if rule.min or rule.pinned}
    reserved = [
        sum(max(rule.min, 1) * rule.needs[index] for key, rule in declared.items() if key in stays)
        for index in range(len(resources))
    ]
    measured = dict(declared)
    for key in peaks.keys() & declared.keys() - stays:
        rule = declared[key]
        needs = tuple(
            max(need, min(peaks[key].get(resource, 0), total - taken))
            for resource, need, total, taken in zip(resources, rule.needs, budget, reserved)
        )
        measured[key] = replace(rule, needs=needs)
    return measured


def _member(revision: Revision, resources: tuple[str, ...]) -> MemberRule:
    process = revision.program
    assert process is not None
    needs = amounts_of(revision, resources)
    asleep: Amounts | None = None
    if process.sleep is not None:
        kept = needs if process.sleep.signal else (0,) * len(needs)  # the defaults of `sleep.needs`
        asleep = tuple(
            process.gpus if resource == GPUS else int(process.sleep.needs.get(resource, default))
            for resource, default in zip(resources, kept)
        )
    rule = process_rule(revision)
    return MemberRule(needs, asleep, rule.min, process.pinned, rule.max)


def amounts_of(revision: Revision, resources: tuple[str, ...]) -> Amounts:
    """Return what one program of the revision needs of each resource."""
    gpus = 0 if revision.program is None else revision.program.gpus
    return tuple(gpus if resource == GPUS else int(revision.needs.get(resource, 0)) for resource in resources)
