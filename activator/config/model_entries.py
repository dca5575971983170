"""The expansion of `models`: each entry becomes one of `revisions`, and those that share a budget a group.

Rules
  1. The tree is expanded before it is read, so that the revisions of models are read and checked as all others are.
  2. If `rewrite_model` is another name than the entry's, the entry's name becomes an alias: it is replaced, too.
  3. Items keep their place in the file (`Item.moved_from`), so that a message names the key that the user wrote.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Final

from activator.config.model.models import (
    MODEL_HEALTH_PATH,
    MODEL_IDLE_S,
    MODEL_STARTUP_S,
    MODEL_TOTAL_S,
    MODELS_GROUP,
)
from activator.config.tree import Item

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_REVISION_KEYS: Final = (
    "aliases",
    "rewrite_model",
    "set_params",
    "strip_params",
    "container_concurrency",
    "needs",
    "queue",
    "record",
)  # keys that a revision has under the same name
_PROCESS_KEYS: Final = ("port", "idle", "readiness", "preload", "directory", "environment", "stop", "hooks")


def expand_models(root: Item, problems: list[str]) -> None:
    """Add the revisions and the group of `models` to the tree; what cannot be expanded is left to the reader."""
    models = (root.entries or {}).get("models")
    if root.entries is None or models is None or not models.entries:
        return
    revisions = root.entries.setdefault("revisions", Item(models.where, elements=[]))
    groups = root.entries.setdefault("groups", Item(models.where, elements=[]))
    if revisions.elements is None or groups.elements is None:
        return
    grouped = _members_of(groups.elements)
    group = next((declared for declared in groups.elements if _text(declared, "name") == MODELS_GROUP), None)
    members: list[Item] = []
    own_names = revision_names(models.entries)
    if "" in models.entries:
        problems.append(f"{models.entries[''].key_where}: models: found an empty name, expected that of a model")
    for name, entry in models.entries.items():
        if not name:
            continue
        path, own_name = f"models.{name}", own_names[name]
        revision = _revision_of(name, own_name, entry, path, problems)
        if revision is None:
            continue
        revisions.elements.append(revision)
        needs = (revision.entries or {}).get("needs")
        if own_name in grouped or (needs is None and _text(entry, "exclusive") == "false"):
            continue
        grouped.add(own_name)
        members.append(Item(entry.where, text=own_name))
        if needs is not None and group is None and revision.entries is not None:
            problems.append(
                f"{needs.where}: {path}.needs: declare the budget that it needs a part of, in `groups`: "
                f"`{{name: {MODELS_GROUP}, budget: {{gpu_memory: 24GiB}}}}`"
            )
            del revision.entries["needs"]
    if group is not None and group.entries is not None:
        if "members" not in group.entries and members:
            group.entries["members"] = Item(group.where, elements=members)
        elif "members" in group.entries and group.entries["members"].elements is not None:
            group.entries["members"].elements.extend(members)
    elif len(members) > 1:
        entries = {
            "name": Item(models.where, text=MODELS_GROUP),
            "members": Item(models.where, elements=members),
            "exclusive": Item(models.where, text="true"),
        }
        groups.elements.append(_moved(Item(models.where, entries=entries), "models"))


def revision_names(models: Iterable[str]) -> dict[str, str]:
    """Return the name of each model's revision: the model's, with a dash in place of other characters.

    A name that would occur twice gets a number.
    """
    names: dict[str, str] = {}
    used: dict[str, int] = {}  # the last number of each name
    for model in models:
        base = name = _NOT_IN_NAMES.sub("-", model).strip("-._") or "model"
        while name in used:
            used[base] += 1
            name = f"{base}-{used[base]}"
        used[name] = 1
        names[model] = name
    return names


def _revision_of(name: str, own_name: str, entry: Item, path: str, problems: list[str]) -> Item | None:
    """Return the revision of a model; None if its command cannot be read."""
    where = entry.where
    keys = entry.entries or {}
    command = _command_of(entry, path, problems)
    if command is None:
        return None
    process = {
        "command": command,
        "readiness": Item(where, entries={"http_get": Item(where, text=MODEL_HEALTH_PATH)}),
        "idle": Item(where, text=f"{MODEL_IDLE_S:g}s"),
        "max_scale": Item(where, text="1"),
    }
    process.update({key: _moved(keys[key], f"{path}.{key}") for key in _PROCESS_KEYS if key in keys})
    startup = Item(where, text=f"{MODEL_STARTUP_S:g}s")
    if "startup" in keys:
        startup = _moved(keys["startup"], f"{path}.startup")
    model_name = _moved(Item(entry.key_where, text=name), path)
    aliases = keys.get("aliases", Item(where, elements=[]))
    is_rewritten = _text(entry, "rewrite_model") not in ("", name) and aliases.elements is not None
    json = Item(where, entries={"model": Item(where, elements=[] if is_rewritten else [model_name])})
    entries = {
        "name": _moved(Item(entry.key_where, text=own_name), path),
        "hosts": Item(where, elements=[_moved(Item(where, text="*"), path)]),
        "match": Item(where, entries={"json": json}),
        "timeouts": Item(where, entries={"startup": startup, "total": Item(where, text=f"{MODEL_TOTAL_S:g}s")}),
        "process": _moved(Item(where, entries=process), path),
    }
    entries.update({key: _moved(keys[key], f"{path}.{key}") for key in _REVISION_KEYS if key in keys})
    if is_rewritten:
        others = [_moved(alias, f"{path}.aliases[{number}]") for number, alias in enumerate(aliases.elements or [])]
        entries["aliases"] = _moved(Item(aliases.where, elements=[model_name, *others]), f"{path}.aliases")
    return _moved(Item(where, entries=entries), path)


def _command_of(entry: Item, path: str, problems: list[str]) -> Item | None:
    """Return the command of a model as a list; None if there is none, or if it is not one line of words."""
    item = entry
    if entry.entries is not None:
        if "command" not in entry.entries:
            return None
        item, path = entry.entries["command"], f"{path}.command"
    if item.elements is not None:
        return _moved(item, path) if item is not entry else None
    if item.text is None:
        return None
    lines = [line for line in item.text.replace("\\\n", "\n").split("\n") if not line.lstrip().startswith("#")]
    try:
        words = shlex.split("\n".join(lines))
    except ValueError as error:
        problems.append(f"{item.where}: {path}: found a command with {_in_words(error)}, expected words as in a shell")
        return None
    return _moved(Item(item.where, elements=[Item(item.where, text=word) for word in words]), path)


def _in_words(error: ValueError) -> str:
    """Return what `shlex` found."""
    return "a quote that is not closed" if "quotation" in str(error) else "a backslash at its end"


def _moved(item: Item, path: str) -> Item:
    """Return the item, which messages name by this path from now on."""
    item.moved_from = path
    return item


def _members_of(groups: list[Item]) -> set[str]:
    """Return the names of the revisions that groups name."""
    lists = [(group.entries or {}).get("members") for group in groups]
    names = [member.text or "" for members in lists if members is not None for member in members.elements or []]
    return {name.removeprefix("default/") for name in names}


def _text(item: Item, key: str) -> str:
    child = (item.entries or {}).get(key)
    return "" if child is None else child.text or ""
