"""Checks of groups beyond the types of values: members, whether their needs can ever fit, and sleep.

Part of `checks.py`, with its rules. In a file that passes, every revision can be loaded.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, NamedTuple

from activator.config.edge_checks import element_at, item_at, program_key
from activator.config.model.groups import AFFINITY, GPUS, GROUP_DISCIPLINES
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item
from activator.runtime.units import GIB, KIB, MIB

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_RESOURCE: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


class _Known(NamedTuple):
    """A revision of the file."""

    item: Item
    values: Values
    path: str

    @property
    def program(self) -> str:
        """Return the key of its program; empty if it has none."""
        return program_key(self.item, self.values)

    @property
    def process(self) -> Values:
        found = self.values.get(self.program)
        return found if isinstance(found, dict) else {}

    def amount(self, resource: str) -> int:
        """Return the amount that one of its programs needs."""
        found = self.process.get("gpus", 0) if resource == GPUS else self.values.get("needs", {}).get(resource, 0)
        return found if isinstance(found, int) else 0

    def kept(self) -> int:
        """Return the number of programs that are never evicted for others."""
        scaling = self.values.get("scaling", {})
        least = self.process.get("min_scale", 0) or (scaling.get("min", 0) if isinstance(scaling, dict) else 0)
        return max(least, 1 if self.process.get("pinned") is True else 0)


class GroupChecker:
    """The checks of all groups of a file, after those of its revisions."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._revisions: dict[str, _Known] = {}
        self._group_of: dict[str, str] = {}  # path of the group, by key of the revision

    def check(self, root: Item, values: Values) -> None:
        for place, revision in enumerate(values.get("revisions", [])):
            if revision is not UNREADABLE and "name" in revision:
                item = element_at(item_at(root, "revisions"), place)
                key = f"{revision.get('namespace', 'default')}/{revision['name']}"
                self._revisions[key] = _Known(item, revision, f"revisions[{place}]")
        names: dict[str, str] = {}
        groups_item = item_at(root, "groups")
        for place, group in enumerate(values.get("groups", [])):
            if group is not UNREADABLE:
                self._check_group(element_at(groups_item, place), group, f"groups[{place}]", names)
        self._check_gpus(root, values)
        for key, known in self._revisions.items():
            if known.values.get("needs") and key not in self._group_of:
                advice = "`needs` has no effect without a group: name the revision in `members` of one, or remove it"
                self._reader.advise(item_at(known.item, "needs"), f"{known.path}.needs", advice)
            if known.process.get("sleep") is not None:
                item = item_at(item_at(known.item, known.program), "sleep")
                self._check_sleep(item, known, f"{known.path}.{known.program}.sleep")

    # --- one group ---

    def _check_group(self, item: Item, group: Values, path: str, names: dict[str, str]) -> None:
        self._check_name(item, group, path, names)
        members = self._check_members(item, group, path)
        discipline = group.get("discipline", AFFINITY)
        if discipline not in GROUP_DISCIPLINES:
            self._reader.found(item_at(item, "discipline"), f"{path}.discipline", " or ".join(GROUP_DISCIPLINES))
        elif discipline != AFFINITY and "overtaken_at_most" in group:
            advice = f"`overtaken_at_most` has no effect with `discipline: {discipline}`: remove one of the two"
            self._reader.advise(item_at(item, "overtaken_at_most"), f"{path}.overtaken_at_most", advice)
        if group.get("exclusive", False) is True:
            self._check_exclusive(item, group, path, members)
        elif "budget" not in (item.entries or {}):
            self._reader.advise(item, path, "set `budget`, how much there is of what, or `exclusive: true`")
        elif "budget" in group:
            self._check_budget(item, group["budget"], path, members)

    def _check_name(self, item: Item, group: Values, path: str, names: dict[str, str]) -> None:
        if "name" not in group:
            return
        name = group["name"]
        if _NAME.fullmatch(name) is None:
            self._reader.found(item_at(item, "name"), f"{path}.name", "letters, digits, dots and dashes")
        elif name == GPUS:
            advice = f'"{GPUS}" is the group of the revisions with `gpus` that are in no other: use another name'
            self._reader.advise(item_at(item, "name"), f"{path}.name", advice)
        elif name in names:
            advice = f'"{name}" is the name of {names[name]} already: use each name once'
            self._reader.advise(item_at(item, "name"), f"{path}.name", advice)
        names.setdefault(name, path)

    def _check_members(self, item: Item, group: Values, path: str) -> dict[str, _Known]:
        """Return the valid members."""
        found: dict[str, _Known] = {}
        members_item = item_at(item, "members")
        if "members" in group and not group["members"]:
            self._reader.found(members_item, f"{path}.members", "at least one revision", "an empty list")
        for place, name in enumerate(group.get("members", [])):
            if name is UNREADABLE:
                continue
            key = name if "/" in name else f"default/{name}"
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
                self._group_of[key] = path
                found[name] = known
                continue
            self._reader.advise(element_at(members_item, place), f"{path}.members[{place}]", problem)
        return found

    def _check_exclusive(self, item: Item, group: Values, path: str, members: dict[str, _Known]) -> None:
        if "budget" in (item.entries or {}):
            self._reader.advise(item_at(item, "budget"), f"{path}.budget", "set `budget` or `exclusive`, not both")
        for name, known in members.items():
            if known.values.get("needs"):
                advice = f"`needs` has no effect in {path}, which is exclusive: remove it, or give the group a budget"
                self._reader.advise(item_at(known.item, "needs"), f"{known.path}.needs", advice)
            if known.amount(GPUS):
                advice = f"`exclusive` says nothing of GPUs: set `budget: {{{GPUS}: N}}` in {path} in its place"
                self._reader.advise(_process_item(known, "gpus"), f"{known.path}.{known.program}.gpus", advice)
            if known.kept() and len(members) > 1:
                advice = f'"{name}" is always loaded (`min_scale`, `pinned`), so the other members never could be'
                self._reader.advise(item_at(item, "exclusive"), f"{path}.exclusive", advice)

    # --- budgets ---

    def _check_budget(self, item: Item, budget: Values, path: str, members: dict[str, _Known]) -> None:
        budget_item = item_at(item, "budget")
        if not budget:
            self._reader.found(budget_item, f"{path}.budget", "at least one resource", "none")
        for resource, amount in budget.items():
            if _RESOURCE.fullmatch(resource) is None:
                expected = "names of small letters, digits and underscores"
                self._reader.found(budget_item, f"{path}.budget", expected, f'"{resource}"')
            elif amount is not UNREADABLE and amount <= 0:
                self._reader.found(item_at(budget_item, resource), f"{path}.budget.{resource}", "more than 0")
        for name, known in members.items():
            self._check_needs(name, known, budget, path)
        for resource, amount in budget.items():
            if amount is not UNREADABLE and amount > 0:
                self._check_sums(item_at(budget_item, resource), resource, amount, path, members)

    def _check_needs(self, name: str, known: _Known, budget: Values, path: str) -> None:
        needs, item = known.values.get("needs", {}), item_at(known.item, "needs")
        if not any(known.amount(resource) for resource in budget):
            advice = f"set `needs`: what one of its programs takes of the budget of {path} ({', '.join(budget)})"
            self._reader.advise(known.item, known.path, advice)
        for resource in needs:
            if resource == GPUS:
                advice = (
                    f"GPUs are counted by `{known.program or 'process'}.gpus`: set that in the place of `needs.{GPUS}`"
                )
                self._reader.advise(item_at(item, resource), f"{known.path}.needs.{resource}", advice)
            elif resource not in budget:
                advice = (
                    f"{path} has no budget of it, only of {', '.join(budget) or 'nothing'}: add it there, or remove it"
                )
                self._reader.advise(item_at(item, resource), f"{known.path}.needs.{resource}", advice)
        if known.amount(GPUS) and GPUS not in budget:
            advice = f"{path} has no budget of GPUs: add `{GPUS}` to it"
            self._reader.advise(_process_item(known, "gpus"), f"{known.path}.{known.program}.gpus", advice)

    def _check_sums(self, item: Item, resource: str, budget: int, path: str, members: dict[str, _Known]) -> None:
        at = f"{path}.budget.{resource}"
        shown = partial(_shown, resource)
        kept = {name: known.kept() * known.amount(resource) for name, known in members.items()}
        for name, known in members.items():
            one = known.amount(resource)
            if one > budget:
                self._reader.advise(
                    item, at, f'"{name}" needs {shown(one)}, more than the {shown(budget)} that there are'
                )
                return
        if sum(kept.values()) > budget:
            total = shown(sum(kept.values()))
            advice = f"what is always loaded (`min_scale`, `pinned`) needs {total}, more than {shown(budget)}"
            self._reader.advise(item, at, advice)
            return
        for name, known in members.items():
            others = sum(amount for other, amount in kept.items() if other != name)
            if max(known.amount(resource), kept[name]) + others > budget:
                advice = (
                    f'"{name}" could never be loaded: it needs {shown(known.amount(resource))}, and what is always '
                    f"loaded (`min_scale`, `pinned`) leaves {shown(budget - others)} of {shown(budget)}"
                )
                self._reader.advise(item, at, advice)
                return

    # --- GPUs ---

    def _check_gpus(self, root: Item, values: Values) -> None:
        listed = [str(gpu) for gpu in values.get("gpus", []) if gpu is not UNREADABLE]
        item = item_at(root, "gpus")
        for place, gpu in enumerate(listed):
            if gpu in listed[:place]:
                advice = f'"{gpu}" is in the list already: list each GPU once'
                self._reader.advise(element_at(item, place), f"gpus[{place}]", advice)
            elif not gpu or "," in gpu:
                self._reader.found(element_at(item, place), f"gpus[{place}]", "the number or the name of one GPU")
        left = len(listed)
        for place, group in enumerate(values.get("groups", [])):
            amount = 0 if group is UNREADABLE else group.get("budget", {}).get(GPUS, 0)
            left -= amount if isinstance(amount, int) else 0
            if left < 0:
                one = item_at(item_at(element_at(item_at(root, "groups"), place), "budget"), GPUS)
                advice = f"the groups share {len(listed) - left} GPUs, and `gpus` of the file lists {len(listed)}"
                self._reader.advise(one, f"groups[{place}].budget.{GPUS}", advice)
                return
        for key, known in self._revisions.items():
            count = known.amount(GPUS)
            if not count or (key in self._group_of and listed):
                continue
            at = f"{known.path}.{known.program}.gpus"
            if not listed:
                advice = "list the GPUs of this machine as `gpus: [0, 1]` at the top of the file"
                self._reader.advise(_process_item(known, "gpus"), at, advice)
            elif count * max(known.kept(), 1) > left:
                advice = f"it needs {count * max(known.kept(), 1)} GPUs, and {left} are listed that no group has"
                self._reader.advise(_process_item(known, "gpus"), at, advice)

    # --- sleep ---

    def _check_sleep(self, item: Item, known: _Known, path: str) -> None:
        sleep = known.process["sleep"]
        ways = [key for key in ("http_post", "command", "signal") if sleep.get(key)]
        unread = (item.entries or {}).keys() - sleep.keys()
        if len(ways) != 1 and not unread:
            found = " and ".join(f"`{way}`" for way in ways) or "none"
            self._reader.found(item, path, "one of `http_post`, `command` and `signal`", found)
            return
        if sleep.get("http_post", "/")[:1] != "/":
            self._reader.found(item_at(item, "http_post"), f"{path}.http_post", "a path that begins with /")
        if sleep.get("signal", "SIGSTOP") not in {"", "SIGSTOP"}:
            self._reader.found(item_at(item, "signal"), f"{path}.signal", "SIGSTOP")
        if sleep.get("timeout", 1.0) <= 0:
            self._reader.found(item_at(item, "timeout"), f"{path}.timeout", "more than 0")
        self._check_wake(item, sleep, path)
        for resource, amount in sleep.get("needs", {}).items():
            if resource == GPUS or not known.amount(resource):
                advice = f"it needs none of `{resource}` when it runs (`needs` of the revision): remove it"
                self._reader.advise(item_at(item_at(item, "needs"), resource), f"{path}.needs.{resource}", advice)
            elif amount is not UNREADABLE and amount > known.amount(resource):
                advice = f"it needs {_shown(resource, known.amount(resource))} when it runs: set less, or the same"
                self._reader.advise(item_at(item_at(item, "needs"), resource), f"{path}.needs.{resource}", advice)

    def _check_wake(self, item: Item, sleep: Values, path: str) -> None:
        wake = sleep.get("wake", "")
        if sleep.get("signal"):
            if wake:
                advice = "`wake` has no effect with `signal`: SIGCONT wakes it. Remove `wake`"
                self._reader.advise(item_at(item, "wake"), f"{path}.wake", advice)
        elif not wake and "wake" not in (item.entries or {}).keys() - sleep.keys():
            self._reader.advise(
                item, path, "`wake` is required: the path that gets a POST, or the command, that wakes it"
            )
        elif isinstance(wake, str) and wake[:1] not in {"/", ""}:
            self._reader.found(item_at(item, "wake"), f"{path}.wake", "a path that begins with /, or a list: a command")


def _shown(resource: str, amount: int) -> str:
    """Return an amount as it would be written."""
    units = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
    found = (
        None if resource == GPUS else next((one for one in units if amount >= one[1] and amount % one[1] == 0), None)
    )
    return str(amount) if found is None else f"{amount // found[1]}{found[0]}"


def _process_item(known: _Known, key: str) -> Item:
    return item_at(item_at(known.item, known.program), key)
