"""Merge patch (RFC 7386), JSON Patch (RFC 6902: test, add, replace, remove) and server-side apply.

Apply merges maps, and lists by the keys that `Shape` names; all other lists, and the maps that it names as atomic, are
taken whole. A manager has one entry for what it applied and one for what it wrote otherwise ("Update"), for the object
and for each of its subresources, as in the API. Lists within lists are taken whole, which the API does not always do.
JSON Patch is of objects only, no lists, and as the library of the API server does it: a `test` for null passes where
there is nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
Path = tuple[str, ...]
Owner = tuple[str, str, str]  # the manager, "Apply" or "Update", and the subresource (empty: the object)

MANAGER_LENGTH_MAX = 128

NOT_OWNED = {
    ("apiVersion",),
    ("kind",),
    *(("metadata", name) for name in ("name", "namespace", "uid", "resourceVersion", "managedFields", "generation")),
    ("metadata", "creationTimestamp"),
}


class Shape(NamedTuple):
    """How a kind is merged: `lists` by the fields that tell their items apart, `atomic` maps are one value each."""

    lists: Mapping[Path, tuple[str, ...]] = {("metadata", "ownerReferences"): ("uid",)}
    atomic: frozenset[Path] = frozenset()


PLAIN = Shape()


class _Whole(dict[str, Any]):
    """A map that is one value."""


def _taken_apart(thing: Json, shape: Shape) -> Json:
    """`thing` with its keyed lists as maps by key, and its atomic maps marked. What is not named is shared."""
    for path, keys in shape.lists.items():
        items = _get(thing, path)
        if isinstance(items, list):
            thing = _replaced(thing, path, {_item_key(item, keys): item for item in items})
    for path in shape.atomic:
        value = _get(thing, path)
        if isinstance(value, dict):
            thing = _replaced(thing, path, _Whole(value))
    return thing


def _put_together(thing: Json, shape: Shape) -> Json:
    for path in shape.lists:
        items = _get(thing, path)
        if isinstance(items, dict):
            thing = _replaced(thing, path, [item for item in items.values() if item])
    for path in shape.atomic:
        value = _get(thing, path)
        if isinstance(value, _Whole):
            thing = _replaced(thing, path, dict(value))
    return thing


def _item_key(item: Json, keys: tuple[str, ...]) -> str:
    return "k:" + json.dumps({key: item.get(key, "TCP" if key == "protocol" else None) for key in keys})


def _replaced(thing: Json, path: Path, value: Any) -> Json:
    if len(path) == 1:
        return {**thing, path[0]: value}
    return {**thing, path[0]: _replaced(thing[path[0]], path[1:], value)}


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


def apply_owned(
    old: Json, wanted: Json, manager: str, force: bool, shape: Shape = PLAIN, subresource: str = ""
) -> tuple[Json, dict[str, set[str]]]:
    """`old` with what `manager` wants, and the fields that others own with another value, by manager (then nothing is
    applied).

    What the manager owned and no longer wants is removed, unless somebody else owns it too.
    """
    me = (manager, "Apply", subresource)
    owners = _owners(old)
    before = _taken_apart(old, shape)
    wants = dict(_leaves(_taken_apart(wanted, shape)))
    conflicts: dict[str, set[str]] = {}
    if subresource == "scale" and not any(path in owned for owned in owners.values() for path in wants):
        # As the API has it where no entry of managedFields is about the part that is applied.
        unowned = {path for path in wants if _get(before, path)}
        owners[("before-first-apply", "Update", "")] = owners.get(("before-first-apply", "Update", ""), set()) | unowned
    for other, owned in owners.items():
        for path in owned if other != me else ():
            if path in wants and not _agrees(_get(before, path), wants[path]):
                conflicts.setdefault(other[0], set()).add("." + ".".join(path))
    if conflicts and not force:
        return old, conflicts
    new = copy.deepcopy(before)
    for path in owners.get(me, set()) - set(wants):
        if not any(path in owned for other, owned in owners.items() if other != me):
            _remove(new, path)
    for path, value in wants.items():
        if not _agrees(_get(new, path), value):
            _set(new, path, copy.deepcopy(value))
    for other in list(owners):
        if other != me:
            owners[other] = {
                path for path in owners[other] if path not in wants or _agrees(_get(before, path), wants[path])
            }
    owners[me] = set(wants)
    new["apiVersion"], new["kind"] = wanted["apiVersion"], wanted["kind"]
    new.setdefault("metadata", {})["name"] = wanted["metadata"]["name"]
    new["metadata"]["managedFields"] = _entries(owners)
    return _put_together(new, shape), {}


def _agrees(value: Any, wanted: Any) -> bool:
    """A map without entries is merged: it says that the map is there, not that it is empty."""
    if wanted == {} and not isinstance(wanted, _Whole):
        return isinstance(value, dict)
    return bool(value == wanted)


def taken_over(old: Json, new: Json, manager: str, shape: Shape = PLAIN, subresource: str = "") -> list[Json]:
    """The managedFields after a write that was no apply: its manager owns what it changed."""
    before = dict(_leaves(_taken_apart(old, shape)))
    after = dict(_leaves(_taken_apart(new, shape)))
    touched = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    owners = {owner: owned - touched for owner, owned in _owners(old).items()}
    me = (manager, "Update", subresource)
    owners[me] = owners.get(me, set()) | (touched & after.keys())
    return _entries(owners)


def _owners(thing: Json) -> dict[Owner, set[Path]]:
    entries = thing.get("metadata", {}).get("managedFields", [])
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): _fields_of(entry) for entry in entries
    }


def _entries(owners: dict[Owner, set[Path]]) -> list[Json]:
    return [
        {
            "manager": manager,
            "operation": operation,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(owned),
            **({"subresource": subresource} if subresource else {}),
        }
        for (manager, operation, subresource), owned in sorted(owners.items())
        if owned
    ]


# --- JSON Patch -----------------------------------------------------------------------------------------------------


class PatchError(Exception):
    """An operation that fails."""


def json_patched(thing: Json, operations: list[Json]) -> Json:
    """`thing` after all of them. Raises PatchError."""
    patched = copy.deepcopy(thing)
    for operation in operations:
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = patched
        for name in above:
            place = place.get(name)
            if not isinstance(place, dict):
                raise PatchError(
                    f"{operation['op']} operation does not apply: doc is missing path: {operation['path']}"
                )
        _operate(place, last, operation)
    return patched


def _operate(place: Json, name: str, operation: Json) -> None:
    kind, value = operation["op"], operation.get("value")
    if kind == "test":
        if place.get(name) != value:
            raise PatchError(f"testing path {operation['path']} failed")
    elif kind == "add":
        place[name] = copy.deepcopy(value)
    elif kind in {"replace", "remove"}:
        if name not in place:
            raise PatchError(f"{kind} operation does not apply: doc is missing key: {operation['path']}")
        del place[name]
        if kind == "replace":
            place[name] = copy.deepcopy(value)
    else:
        raise PatchError(f"unexpected kind: {kind}")


def _leaves(thing: Json, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in thing.items():
        here = (*path, name)
        if isinstance(value, dict) and value and not isinstance(value, _Whole):
            yield from _leaves(value, here)
        elif here not in NOT_OWNED:
            yield here, value


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        branch = tree
        for name in path:
            branch = branch.setdefault(name if name.startswith("k:") else f"f:{name}", {})
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
    thing.pop(path[-1], None)  # an item of a list that has nothing left is left out when it is put together
