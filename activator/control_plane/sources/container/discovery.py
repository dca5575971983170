"""Revisions that the labels of containers declare: a list of containers becomes revisions, and problems with reasons.

No I/O. Rules
  1. A container counts if it has the label `activator.enable=true` and was not made by an activator.
  2. Revisions of the file win over labels. Of two containers that claim one name, or one host with the same `match`,
     the older one wins; the other is left out, and a warning is logged.
  3. A container with invalid labels is left out; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from activator.config.labels import is_enabled, revision_of
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.creation import INSTANCE_LABEL
from activator.runtime.errors import ConfigError

DISCOVERED_MAX: Final = 2_000  # revisions; the oldest ones are used

_NAME_MAX: Final = 253


class Found(NamedTuple):
    """One container that is a revision."""

    name: str
    id: str
    is_running: bool
    revision: Revision

    @property
    def key(self) -> str:
        return f"{self.revision.namespace}/{self.revision.name}"


class Discovered(NamedTuple):
    """Revisions by key; `problems` by the name of the container that is left out."""

    found: dict[str, Found]
    problems: dict[str, str]


def discovered(listed: Any, taken: Mapping[str, Revision], policy_names: AbstractSet[str]) -> Discovered:
    """Return the declared revisions. `listed`: the engine's list of containers; `taken`: the file's revisions."""
    containers = [container for container in listed if isinstance(container, dict)] if isinstance(listed, list) else []
    found: dict[str, Found] = {}
    problems: dict[str, str] = {}
    claims = {claim: "the file" for revision in taken.values() for claim in _claims(revision)}
    for container in sorted(containers, key=_age):
        name, labels = _name(container), container.get("Labels")
        if not name or not isinstance(labels, dict) or not is_enabled(_texts(labels)) or INSTANCE_LABEL in labels:
            continue
        try:
            revision = revision_of(name, _texts(labels), policy_names)
        except ConfigError as error:
            more = f" ({len(error.problems)} mistakes)" if error.problems[1:] else ""
            problems[name] = error.problems[0] + more
            continue
        candidate = Found(name, str(container.get("Id", "")), container.get("State") in {"running", "paused"}, revision)
        why = _refusal(candidate, taken, found, claims)
        if why:
            problems[name] = f"container {name}: {why}"
            continue
        found[candidate.key] = candidate
        claims.update(dict.fromkeys(_claims(revision), f"the container {name}, which is older,"))
    return Discovered(found, problems)


def _refusal(
    candidate: Found,
    taken: Mapping[str, Revision],
    found: Mapping[str, Found],
    claims: Mapping[tuple[str, object], str],
) -> str:
    """Return why the candidate is left out; empty if it is not."""
    if len(found) >= DISCOVERED_MAX:
        return f"there are {DISCOVERED_MAX} older ones already"
    named = {revision.container.existing for revision in taken.values() if revision.container is not None}
    if candidate.name in named:
        return "the file has it as `existing` already: remove its label, or that revision"
    if candidate.key in taken:
        return f"the file has a revision {candidate.key}: set the label activator.name"
    if candidate.key in found:
        other = found[candidate.key].name
        return f"the container {other} is the revision {candidate.key} already: set the label activator.name"
    for claim in _claims(candidate.revision):
        if claim in claims:
            return f"{claims[claim]} has the host {claim[0]} already: it is left out"
    return ""


def _claims(revision: Revision) -> Iterable[tuple[str, object]]:
    """Return the claims of a revision; two revisions with a common claim conflict unless they share by `weight`."""
    if revision.weight is not None or revision.aliases:
        return []
    return [(host.lower().removesuffix("."), _match(revision)) for host in revision.hosts]


def _match(revision: Revision) -> object:
    return None if revision.match is None else repr(revision.match)


def _age(container: Mapping[str, Any]) -> tuple[int, str]:
    """Return the sort key: the creation time, and the identity."""
    created = container.get("Created")
    return (created if isinstance(created, int) else 0), str(container.get("Id", ""))


def _name(container: Mapping[str, Any]) -> str:
    names = container.get("Names")
    first = names[0] if isinstance(names, list) and names else ""
    return str(first).removeprefix("/")[:_NAME_MAX]


def _texts(labels: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in labels.items()}
