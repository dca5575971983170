"""A revision that the labels of a container describe.

`activator.enable=true` declares it. The short names in SHORT stand for the most common keys; every other key of a
revision is `activator.` and its path, as in `activator.timeouts.total=10m`. They are read and checked as the file is.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from activator.config.file import from_tree
from activator.config.model.revision import Revision
from activator.config.tree import Item, value_item
from activator.runtime.errors import ConfigError, one_line

PREFIX: Final = "activator."
ENABLE: Final = PREFIX + "enable"
SHORT: Final = {
    "host": "hosts",
    "path": "match.path",
    "concurrency": "container_concurrency",
    "port": "container.port",
    "idle_timeout": "container.idle",
    "health": "container.readiness.http_get",
}
# The activator sets these itself; such a container is not a revision.
OURS: Final = frozenset({"enable", "instance", "owner", "identity", "revision"})
LABELS_MAX: Final = 100
VALUE_CHARS_MAX: Final = 4096

_LISTS: Final = ("hosts", "aliases", "upgrades")  # may be written with commas


def is_enabled(labels: Mapping[str, str]) -> bool:
    """Return True if the container declares a revision."""
    return labels.get(ENABLE) == "true"


def revision_of(name: str, labels: Mapping[str, str], policy_names: AbstractSet[str] | None = None) -> Revision:
    """Return the revision of the container `name`. Raises ConfigError; each problem names the label."""
    problems: list[str] = []
    where = f"container {one_line(name)}"
    root = Item(where, entries={"name": Item(where, text=name)})
    own_labels = {key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)}
    if len(own_labels) > LABELS_MAX:
        raise ConfigError([f"{where}: has more than {LABELS_MAX} labels that begin with {PREFIX}"])
    for label in sorted(own_labels.keys() - OURS):
        _put(root, label, own_labels[label], f"{where}, label {PREFIX}{one_line(label)}", problems)
    entries = root.entries
    assert entries is not None
    container = entries.setdefault("container", Item(where, entries={}))
    if container.entries is not None:
        container.entries["existing"] = Item(where, text=name)
    file = Item(where, entries={"revisions": Item(where, elements=[root])})
    try:
        config = from_tree(file, where, problems, policy_names)
    except ConfigError as error:
        raise ConfigError([problem.replace("revisions[0].", "") for problem in error.problems]) from None
    return config.revisions[0]


def _put(root: Item, label: str, value: str, where: str, problems: list[str]) -> None:
    """Add the value of a label to the tree, at the path that the label names."""
    path = SHORT.get(label, label)
    if len(value) > VALUE_CHARS_MAX:
        problems.append(f"{where}: found {len(value)} characters, expected at most {VALUE_CHARS_MAX}")
        return
    *parents, last = path.split(".")
    item = root
    for key in parents:
        entries = item.entries
        if entries is None:
            problems.append(f"{where}: another label gives `{key}` as a whole: use one of the two")
            return
        item = entries.setdefault(key, Item(where, entries={}))
    if item.entries is None:
        problems.append(f"{where}: another label gives a value above it: use one of the two")
        return
    item_of_value = value_item(where, value)
    if path in _LISTS and item_of_value.text is not None:
        item_of_value = Item(where, elements=[Item(where, text=part.strip()) for part in value.split(",")])
    item.entries[last] = item_of_value
