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
    containers = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    found: dict[str, Found] = {}
    problems: dict[str, str] = {}
    claims = {claim: "the file" for revision in taken.values() for claim in _claims(revision)}
    for one in sorted(containers, key=_age):
        name, labels = _name(one), one.get("Labels")
        if not name or not isinstance(labels, dict) or not is_enabled(_texts(labels)) or INSTANCE_LABEL in labels:
            continue
        try:
            revision = revision_of(name, _texts(labels), policy_names)
        except ConfigError as error:
            more = f" ({len(error.problems)} mistakes)" if error.problems[1:] else ""
            problems[name] = error.problems[0] + more
            continue
        made = Found(name, str(one.get("Id", "")), one.get("State") in {"running", "paused"}, revision)
        why = _refusal(made, taken, found, claims)
        if why:
            problems[name] = f"container {name}: {why}"
            continue
        found[made.key] = made
        claims.update(dict.fromkeys(_claims(revision), f"the container {name}, which is older,"))
    return Discovered(found, problems)


def _refusal(
    made: Found, taken: Mapping[str, Revision], found: Mapping[str, Found], claims: Mapping[tuple[str, object], str]
) -> str:
    if len(found) >= DISCOVERED_MAX:
        return f"there are {DISCOVERED_MAX} older ones already"
    if any(one.container is not None and one.container.existing == made.name for one in taken.values()):
        return "the file has it as `existing` already: remove its label, or that revision"
    if made.key in taken:
        return f"the file has a revision {made.key}: set the label activator.name"
    if made.key in found:
        return f"the container {found[made.key].name} is the revision {made.key} already: set the label activator.name"
    for claim in _claims(made.revision):
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


def _age(one: Mapping[str, Any]) -> tuple[int, str]:
    created = one.get("Created")
    return (created if isinstance(created, int) else 0), str(one.get("Id", ""))


def _name(one: Mapping[str, Any]) -> str:
    names = one.get("Names")
    first = names[0] if isinstance(names, list) and names else ""
    return str(first).removeprefix("/")[:_NAME_MAX]


def _texts(labels: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in labels.items()}
