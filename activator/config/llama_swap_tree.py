"""Access to the tree of a configuration of llama-swap, and the check of its values' kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from activator.config.tree import NULLS, Item

GROUPS_IN_ROUTING: Final = ("routing", "router", "settings", "groups")
PRELOAD: Final = ("hooks", "on_startup", "preload")
_PARAMS: Final = (("filters", "setParams"), ("filters", "setParamsByID"))
MODEL_ID: Final = "MODEL_ID"  # the macro with the name of the model


def merge(item: Item) -> None:
    """Apply the merge keys (`<<: *base`) of all mappings within the item."""
    stack = [item]
    while stack:
        current = stack.pop()
        merged = current.entries.pop("<<", None) if current.entries is not None else None
        if merged is not None and current.entries is not None:
            for base in [merged, *(merged.elements or [])]:
                for key, value in (base.entries or {}).items():
                    current.entries.setdefault(key, value)
        stack.extend(current.elements or [])
        stack.extend((current.entries or {}).values())


def wrong_kinds(root: Item) -> Iterable[str]:
    """Yield a message for each value that is no list, or no mapping, where llama-swap expects one."""
    lists = [("", ("apiKeys",), root), ("", PRELOAD, root)]
    mappings = [("", ("macros",), root), ("", ("groups",), root), ("", GROUPS_IN_ROUTING, root)]
    for model, entry in (at(root, "models").entries or {}).items():
        prefix = f"models.{model}."
        if entry.entries is None:
            yield f"{entry.where}: models.{model}: found {_kind_of(entry)}, expected a mapping"
        lists += [(prefix, ("aliases",), entry), (prefix, ("env",), entry)]
        mappings += [(prefix, path, entry) for path in (("macros",), ("filters",), *_PARAMS)]
        for key in ("stripParams", "strip_params"):
            value = at(entry, "filters", key)
            if value.entries is not None or value.elements is not None:
                yield f"{value.where}: {prefix}filters.{key}: found {value.describe()}, expected a text"
        for key in ("cmd", "cmdStop", "proxy", "ttl", "checkEndpoint", "useModelName"):
            value = at(entry, key)
            if value.entries is not None or value.elements is not None:
                yield f"{value.where}: {prefix}{key}: found {value.describe()}, expected a text"
    groups = at(root, "groups").entries or at(root, *GROUPS_IN_ROUTING).entries or {}
    lists += [(f"groups.{name}.", ("members",), group) for name, group in groups.items()]
    for prefix, path, item in lists:
        value = at(item, *path)
        if value.text not in (None, *NULLS) or value.entries is not None:
            yield f"{value.where}: {prefix}{'.'.join(path)}: found {_kind_of(value)}, expected a list"
        for number, element in enumerate(value.elements or []):
            named = at(element, "id") if path == ("aliases",) and element.entries is not None else element
            if text_of(named) in NULLS:
                found = "an empty text" if named.text is not None else _kind_of(element)
                expected = "a text, or a mapping with `id`" if path == ("aliases",) else "a text"
                yield f"{element.where}: {prefix}{'.'.join(path)}[{number}]: found {found}, expected {expected}"
    for prefix, path, item in mappings:
        value = at(item, *path)
        if value.text not in (None, *NULLS) or value.elements is not None:
            yield f"{value.where}: {prefix}{'.'.join(path)}: found {_kind_of(value)}, expected a mapping"


def _kind_of(value: Item) -> str:
    """Return the kind of a value, without its text: it may be a secret."""
    return "a text" if value.text is not None else value.describe()


def at(item: Item, *keys: str) -> Item:
    """Return the value below these keys, or an empty item."""
    for key in keys:
        item = (item.entries or {}).get(key) or Item("")
    return item


def text_of(item: Item) -> str:
    """Return the text of a value; empty if it has none."""
    return (item.text or "").strip()


def texts(item: Item) -> dict[str, str]:
    """Return the texts of a mapping."""
    return {key: text_of(child) for key, child in (item.entries or {}).items()}


def groups_of(root: Item) -> dict[str, Item]:
    """Return the groups, which llama-swap ignores beside a matrix that is in use."""
    if is_matrix_used(root):
        return {}
    return at(root, "groups").entries or at(root, *GROUPS_IN_ROUTING).entries or {}


def is_matrix_used(root: Item) -> bool:
    """Return True if a matrix decides which models are loaded together."""
    return text_of(at(root, *GROUPS_IN_ROUTING[:2], "use")) == "matrix"


def aliases_of(model: str, entry: Item) -> list[str]:
    """Return the other names of a model, each once, with their macros: its `aliases`, and those of `setParamsByID`."""
    listed = [
        text_of(element if element.entries is None else at(element, "id"))
        for element in at(entry, "aliases").elements or []
    ]
    names = [*listed, *(at(entry, "filters", "setParamsByID").entries or {})]
    return list(dict.fromkeys(name.replace(f"${{{MODEL_ID}}}", model) for name in names if name))
