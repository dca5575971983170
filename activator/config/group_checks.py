"""Checks of groups beyond the types of values: members, whether their needs can ever fit, and sleep.

Part of `checks.py`, with its rules. In a file that passes, every revision can be loaded.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, NamedTuple

from activator.config.edge_checks import check_positive, program_key
from activator.config.key_path import KeyPath
from activator.config.model.file import Config
from activator.config.model.groups import AFFINITY, GPU_MEMORY, GPUS, GROUP_DISCIPLINES, MEMORY, Group
from activator.config.model.kinds import Size
from activator.config.model.revision import Revision
from activator.config.model.sleep import Sleep
from activator.config.specs import key_of
from activator.runtime.units import GIB, KIB, MIB

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_RESOURCE: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


class _Declared(NamedTuple):
    """A revision of the file. `program`: the key of its program; empty if it has none."""

    at: KeyPath
    revision: Revision
    program: str

    def amount(self, resource: str) -> int:
        """Return the amount that one of its programs needs."""
        if resource != GPUS:
            return self.revision.needs.get(resource, 0)
        return 0 if self.revision.program is None else self.revision.program.gpus

    def kept(self) -> int:
        """Return the number of programs that are never evicted for others."""
        program, least = self.revision.program, self.revision.scaling.min
        return least if program is None else max(program.min_scale or least, int(program.pinned))

    @property
    def needs(self) -> tuple[KeyPath, ...]:
        """The keys with its amounts."""
        return self.at["needs"], self.at[self.program]["gpus"]


class GroupChecker:
    """The checks of all groups of a file, after those of its revisions."""

    def __init__(self, root: KeyPath, config: Config) -> None:
        self._root = root
        self._config = config
        self._revisions: dict[str, _Declared] = {}
        self._group_of: dict[str, str] = {}  # path of the group, by key of the revision

    def check(self) -> None:
        for at, revision in self._root["revisions"].each(self._config.revisions):
            if not at["name"].is_unread:
                key = f"{revision.namespace}/{revision.name}"
                self._revisions[key] = _Declared(at, revision, program_key(at, revision))
        names: dict[str, str] = {}
        for at, group in self._root["groups"].each(self._config.groups):
            self._check_group(at, group, names)
        self._check_gpus()
        for key, known in self._revisions.items():
            if known.revision.needs and key not in self._group_of:
                advice = "`needs` has no effect without a group: name the revision in `members` of one, or remove it"
                known.at["needs"].advise(advice, beside=(self._root["groups"],))
            program = known.revision.program
            if program is not None and program.sleep is not None:
                _check_sleep(known.at[known.program]["sleep"], program.sleep, known)

    # --- one group ---

    def _check_group(self, at: KeyPath, group: Group, names: dict[str, str]) -> None:
        if not at["name"].is_unread:
            _check_name(at, group.name, names)
        members = self._check_members(at, group)
        if group.discipline not in GROUP_DISCIPLINES:
            at["discipline"].found(" or ".join(GROUP_DISCIPLINES))
        elif group.discipline != AFFINITY and "overtaken_at_most" in at:
            advice = f"`overtaken_at_most` has no effect with `discipline: {group.discipline}`: remove one of the two"
            at["overtaken_at_most"].advise(advice)
        if group.measured and not {MEMORY, GPU_MEMORY} & group.budget.keys():
            advice = (
                f"`measured` has no effect without a budget of `{MEMORY}` or `{GPU_MEMORY}`: name it so, or remove it"
            )
            at["measured"].advise(advice)
        if group.exclusive:
            _check_exclusive(at, members)
        elif "budget" not in at:
            advice = "set `budget`, how much there is of what, or `exclusive: true`"
            at.advise(advice, beside=(at["exclusive"],))
        else:
            _check_budget(at["budget"], group.budget, str(at), members)

    def _check_members(self, at: KeyPath, group: Group) -> dict[str, _Declared]:
        """Return the valid members."""
        valid: dict[str, _Declared] = {}
        if not group.members:
            at["members"].found("at least one revision", "an empty list")
        for entry_at, name in at["members"].each(group.members):
            key = key_of(name)
            known = self._revisions.get(key)
            if known is None:
                problem = f'there is no revision "{name}": name one of `revisions`, as `name` or `namespace/name`'
            elif not known.program:
                problem = (
                    f'"{name}" has no `process` or `container`: only programs of this machine can be loaded and evicted'
                )
            elif key in self._group_of:
                problem = f'"{name}" is a member of {self._group_of[key]} already: name it in one group'
            else:
                self._group_of[key] = str(at)
                valid[name] = known
                continue
            entry_at.advise(problem, beside=() if known else (self._root["revisions"],))
        return valid

    def _check_gpus(self) -> None:
        """Check that the listed GPUs suffice for all groups, and then for each revision without a group."""
        listed, at = [str(gpu) for gpu in self._config.gpus], self._root["gpus"]
        seen: set[str] = set()
        for entry_at, gpu in at.each(listed):
            if gpu in seen:
                entry_at.advise(f'"{gpu}" is in the list already: list each GPU once')
            elif not gpu or "," in gpu:
                entry_at.found("the number or the name of one GPU")
            seen.add(gpu)
        free = len(listed)
        for entry_at, group in self._root["groups"].each(self._config.groups):
            free -= group.budget.get(GPUS, 0)
            if free < 0:
                advice = f"the groups share {len(listed) - free} GPUs, and `gpus` of the file lists {len(listed)}"
                entry_at["budget"][GPUS].advise(advice, beside=(at,))
                return
        for key, known in self._revisions.items():
            count = known.amount(GPUS)
            if not count or (key in self._group_of and listed):
                continue
            wanted, entry_at = count * max(known.kept(), 1), known.at[known.program]["gpus"]
            if not listed:
                entry_at.advise("list the GPUs of this machine as `gpus: [0, 1]` at the top of the file", beside=(at,))
            elif wanted > free:
                entry_at.advise(f"it needs {wanted} GPUs, and {free} are listed that no group has", beside=(at,))


def _check_name(at: KeyPath, name: str, names: dict[str, str]) -> None:
    if _NAME.fullmatch(name) is None:
        at["name"].found("letters, digits, `.`, `_` and `-`, at both ends a letter or digit")
    elif name == GPUS:
        advice = f'"{GPUS}" is the group of the revisions with `gpus` that are in no other: use another name'
        at["name"].advise(advice)
    elif name in names:
        at["name"].advise(f'"{name}" is the name of {names[name]} already: use each name once')
    names.setdefault(name, str(at))


def _check_exclusive(at: KeyPath, members: dict[str, _Declared]) -> None:
    """Check an exclusive group: its members have no needs, and none is always loaded beside others."""
    if "budget" in at:
        at["budget"].advise("set `budget` or `exclusive`, not both")
    for name, known in members.items():
        if known.revision.needs:
            advice = f"`needs` has no effect in {at}, which is exclusive: remove it, or give the group a budget"
            known.at["needs"].advise(advice)
        if known.amount(GPUS):
            advice = f"`exclusive` says nothing of GPUs: set `budget: {{{GPUS}: N}}` in {at} in its place"
            known.at[known.program]["gpus"].advise(advice)
        if known.kept() and len(members) > 1:
            advice = f'"{name}" is always loaded (`min_scale`, `pinned`), so the other members never could be'
            at["exclusive"].advise(advice)


def _check_budget(at: KeyPath, budget: dict[str, Size], path: str, members: dict[str, _Declared]) -> None:
    if not budget:
        at.found("at least one resource", "none")
    for resource, amount in budget.items():
        if _RESOURCE.fullmatch(resource) is None:
            at.found("names of small letters, digits and underscores", f'"{resource}"')
        elif amount <= 0:
            at[resource].found("more than 0")
    for known in members.values():
        _check_needs(at, known, budget, path)
    for resource, amount in budget.items():
        if amount > 0:
            _check_sums(at[resource], resource, amount, members)


def _check_needs(at: KeyPath, known: _Declared, budget: dict[str, Size], path: str) -> None:
    if not any(known.amount(resource) for resource in budget):
        advice = f"set `needs`: what one of its programs takes of the budget of {path} ({', '.join(budget)})"
        known.at.advise(advice, beside=(at, *known.needs))
    for resource in known.revision.needs:
        entry_at = known.at["needs"][resource]
        if resource == GPUS:
            entry_at.advise(f"GPUs are counted by `{known.program}.gpus`: set that in the place of `needs.{GPUS}`")
        elif resource not in budget:
            have = ", ".join(budget) or "nothing"
            entry_at.advise(f"{path} has no budget of it, only of {have}: add it there, or remove it", beside=(at,))
    if known.amount(GPUS) and GPUS not in budget:
        advice = f"{path} has no budget of GPUs: add `{GPUS}` to it"
        known.at[known.program]["gpus"].advise(advice, beside=(at,))


def _check_sums(at: KeyPath, resource: str, budget: int, members: dict[str, _Declared]) -> None:
    """Check that each member fits into the budget, alone and beside those that are always loaded."""
    shown = partial(_as_written, resource)
    kept = {name: known.kept() * known.amount(resource) for name, known in members.items()}
    for name, known in members.items():
        needed = known.amount(resource)
        if needed > budget:
            at.advise(f'"{name}" needs {shown(needed)}, more than the {shown(budget)} that there are')
            return
    total = sum(kept.values())
    if total > budget:
        at.advise(f"what is always loaded (`min_scale`, `pinned`) needs {shown(total)}, more than {shown(budget)}")
        return
    for name, known in members.items():
        others = total - kept[name]
        if max(known.amount(resource), kept[name]) + others > budget:
            advice = (
                f'"{name}" could never be loaded: it needs {shown(known.amount(resource))}, and what is always '
                f"loaded (`min_scale`, `pinned`) leaves {shown(budget - others)} of {shown(budget)}"
            )
            at.advise(advice)
            return


# --- sleep ------------------------------------------------------------------------------------------------------------


def _check_sleep(at: KeyPath, sleep: Sleep, known: _Declared) -> None:
    actions = [key for key in ("http_post", "command", "signal") if getattr(sleep, key)]
    if len(actions) != 1 and at.is_whole:
        found = " and ".join(f"`{action}`" for action in actions) or "none"
        at.found("one of `http_post`, `command` and `signal`", found)
        return
    if at.sets("http_post") and not sleep.http_post.startswith("/"):
        at["http_post"].found("a path that begins with /")
    if sleep.signal not in {"", "SIGSTOP"}:
        at["signal"].found("SIGSTOP")
    check_positive(at, sleep, "timeout")
    _check_wake(at, sleep)
    for resource, amount in sleep.needs.items():
        if resource == GPUS or not known.amount(resource):
            advice = f"it needs none of `{resource}` when it runs (`needs` of the revision): remove it"
            at["needs"][resource].advise(advice, beside=known.needs)
        elif amount > known.amount(resource):
            advice = f"it needs {_as_written(resource, known.amount(resource))} when it runs: set less, or the same"
            at["needs"][resource].advise(advice)


def _check_wake(at: KeyPath, sleep: Sleep) -> None:
    wake = sleep.wake
    if sleep.signal:
        if wake:
            at["wake"].advise("`wake` has no effect with `signal`: SIGCONT wakes it. Remove `wake`")
    elif not wake:
        advice = "`wake` is required: the path that gets a POST, or the command, that wakes it"
        at.advise(advice, beside=(at["wake"],))
    elif isinstance(wake, str) and wake[:1] != "/":
        at["wake"].found("a path that begins with /, or a list: a command")


def _as_written(resource: str, amount: int) -> str:
    """Return an amount as a file has it: 24GiB."""
    units = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
    fitting = (
        None
        if resource == GPUS
        else next((unit for unit in units if amount >= unit[1] and amount % unit[1] == 0), None)
    )
    return str(amount) if fitting is None else f"{amount // fitting[1]}{fitting[0]}"
