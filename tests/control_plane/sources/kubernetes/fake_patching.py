"""Merge patch (RFC 7386) and server-side apply, the latter with maps merged and lists taken whole (as atomic)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Path = tuple[str, ...]

NOT_OWNED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def apply_owned(old: Json, wanted: Json, manager: str, force: bool) -> tuple[Json, set[str]]:
    """`old` with what `manager` wants, and the fields that others own with another value (then nothing is applied).

    What the manager owned and no longer wants is removed, unless somebody else owns it too.
    """
    owners = {entry["manager"]: _fields_of(entry) for entry in old.get("metadata", {}).get("managedFields", [])}
    wants = dict(_leaves(wanted))
    conflicts = {
        ".".join(path)
        for other, owned in owners.items()
        for path in owned
        if other != manager and path in wants and _get(old, path) != wants[path]
    }
    if conflicts and not force:
        return old, conflicts
    new = copy.deepcopy(old)
    for path in owners.get(manager, set()) - set(wants):
        if not any(path in owned for other, owned in owners.items() if other != manager):
            _remove(new, path)
    for path, value in wants.items():
        _set(new, path, copy.deepcopy(value))
    for other in list(owners):
        if other != manager:
            owners[other] = {path for path in owners[other] if path not in wants or _get(old, path) == wants[path]}
    owners[manager] = set(wants)
    new["apiVersion"], new["kind"] = wanted["apiVersion"], wanted["kind"]
    new.setdefault("metadata", {})["name"] = wanted["metadata"]["name"]
    new["metadata"]["managedFields"] = [
        {"manager": name, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": _tree(owned)}
        for name, owned in sorted(owners.items())
        if owned
    ]
    return new, set()


def _leaves(thing: Json, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in thing.items():
        here = (*path, name)
        if isinstance(value, dict) and value:
            yield from _leaves(value, here)
        elif here not in NOT_OWNED:
            yield here, value


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        branch = tree
        for name in path:
            branch = branch.setdefault(f"f:{name}", {})
    return tree


def _fields_of(entry: Json) -> set[Path]:
    def walk(tree: Json, path: Path) -> Iterator[Path]:
        if not tree:
            yield path
        for name, branch in tree.items():
            yield from walk(branch, (*path, name.removeprefix("f:")))

    return set(walk(entry["fieldsV1"], ()))


def _get(thing: Json, path: Path) -> Any:
    value: Any = thing
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _set(thing: Json, path: Path, value: Any) -> None:
    for name in path[:-1]:
        branch = thing.get(name)
        if not isinstance(branch, dict):
            branch = thing[name] = {}
        thing = branch
    thing[path[-1]] = value


def _remove(thing: Json, path: Path) -> None:
    for name in path[:-1]:
        thing = thing.get(name, {})
    thing.pop(path[-1], None)
