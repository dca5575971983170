"""`activator check` for objects of a cluster: the Activations in a file of Kubernetes objects.

Rules
  1. A file is a manifest if one of its documents has `apiVersion` and `kind`; other files are the activator's own.
  2. Objects of other kinds are skipped: the API server reports their mistakes.
  3. An object without a name is a mistake, and so are two with the same name. Properties of the cluster (whether a
     target exists, which other object has a host) are reported in the status of the applied object.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from activator.config.activation import API_VERSION, KIND, read_spec
from activator.config.tree import Item, read_documents

_KEYS: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


class Checked(NamedTuple):
    """The number of Activations and of objects of other kinds, and the mistakes, each one line."""

    activations: int
    others: int
    problems: list[str]


def check_manifest(text: str, name: str, policy_names: AbstractSet[str] | None) -> Checked | None:
    """Check a manifest; None if the file is not one."""
    problems: list[str] = []
    documents = read_documents(text, name, problems)
    if not any({"apiVersion", "kind"} <= (document.entries or {}).keys() for document in documents):
        return None
    seen: set[str] = set()
    activations = 0
    for document in documents:
        if _text(document, "kind") == KIND:
            activations += 1
            _check(document, policy_names, seen, problems)
    return Checked(activations, len(documents) - activations, problems)


def _check(document: Item, policy_names: AbstractSet[str] | None, seen: set[str], problems: list[str]) -> None:
    entries = document.entries or {}
    version = _text(document, "apiVersion")
    if version != API_VERSION:
        where = entries["apiVersion"].where if "apiVersion" in entries else document.where
        problems.append(f'{where}: apiVersion: found "{version}", expected {API_VERSION}')
    metadata = entries.get("metadata", document)
    name, namespace = _text(metadata, "name"), _text(metadata, "namespace") or "default"
    if not name:
        problems.append(f'{metadata.where}: metadata: found none, expected the key "name"')
    elif f"{namespace}/{name}" in seen:
        problems.append(f"{metadata.where}: metadata.name: the Activation {namespace}/{name} is in the file already")
    seen.add(f"{namespace}/{name}")
    unknown = [key for key in entries if key not in _KEYS]
    problems += [f'{entries[key].key_where}: found the unknown key "{key}", expected "spec"' for key in unknown]
    spec = entries.get("spec")
    if spec is None:
        problems.append(f'{document.where}: found none, expected the key "spec"')
    else:
        read_spec(spec, namespace, name, policy_names, problems)


def _text(item: Item, key: str) -> str:
    child = (item.entries or {}).get(key)
    return (child.text or "") if child is not None else ""
