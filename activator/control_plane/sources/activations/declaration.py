"""Reads what an object declares about a revision: an Activation in its spec, a Service in its annotations.

Rules
  1. Both are read into one `Declaration`. Code behind this module does not distinguish them, except for where the
     status is written.
  2. A mistake is one line that names the object, and the key as its author spelled it. All mistakes are reported, not
     only the first.
  3. An annotation is a key of an Activation's spec in the notation of annotations: `containerConcurrency` is
     `activator.dev/container-concurrency`. A value that is not a scalar is written as YAML.
  4. A Service and a label are named after the revision, so its name must be valid for both.
  5. Quoted text of an author is put on one line, because it is written to the log, to conditions and to clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from activator.config.activation import GROUP, KIND, Declared, Target, camel, item_of, read_spec
from activator.config.tree import Item, read_tree
from activator.control_plane.sources.activations.objects import Activation, AnnotatedService
from activator.kubernetes.objects import KubeObject

PREFIX: Final = f"{GROUP}/"
ENABLED: Final = f"{PREFIX}enabled"
SERVICE: Final = "Service"
PROBLEMS_MAX: Final = 20  # reported of one object
ANNOTATION_ITEMS_MAX: Final = 1_000  # values in one annotation

_SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1035 label
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # RFC 1123 subdomain
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_API_VERSION: Final = re.compile(r"[a-z0-9][-./a-z0-9]{0,252}")

# Annotations of the activator that are not keys of a spec.
_OTHERS: Final = frozenset({ENABLED, f"{PREFIX}reconcile-trigger", f"{PREFIX}activation"})
_LISTS: Final = frozenset({"hosts", "upgrades"})  # may be written with commas
_HTTP2_PROTOCOLS: Final = frozenset({"kubernetes.io/h2c", "h2c", "grpc"})
_HTTP2_NAMES: Final = frozenset({"h2c", "http2", "grpc"})


class Declaration(NamedTuple):
    """The declaration of one object.

    `declared`: None if there are `problems`. `created`: RFC 3339. `is_http2`: a port declares HTTP/2.
    """

    kind: str
    key: str
    uid: str
    created: str
    generation: int
    declared: Declared | None
    problems: tuple[str, ...]
    is_http2: bool = False

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]


def of_activation(activation: Activation, policy_names: AbstractSet[str]) -> Declaration:
    """Read an Activation."""
    metadata = activation.metadata
    where = f"{KIND} {metadata.namespace}/{metadata.name}"
    return _read(KIND, activation, item_of(activation.spec, where), policy_names, False)


def of_service(service: AnnotatedService, policy_names: AbstractSet[str]) -> Declaration | None:
    """Read a Service; return None if it does not declare a revision."""
    annotations = service.metadata.annotations
    if annotations.get(ENABLED) != "true":
        return None
    metadata = service.metadata
    where = f"{SERVICE} {metadata.namespace}/{metadata.name}"
    problems: list[str] = []
    entries = _spec_of(annotations, where, problems)
    entries.setdefault("target", item_of({"name": metadata.name}, where))
    port = service.spec.ports[0] if service.spec.ports else None
    if port is not None:
        entries.setdefault("port", item_of(port.target_port or port.port, where))
    is_http2 = port is not None and (port.app_protocol in _HTTP2_PROTOCOLS or names_http2(port.name or ""))
    return _read(SERVICE, service, Item(where, entries=entries), policy_names, is_http2, problems)


def names_http2(port_name: str) -> bool:
    """Return True if the name of a port means HTTP/2 by the convention of Knative and of service meshes."""
    protocol, _, rest = port_name.partition("-")
    return protocol in _HTTP2_NAMES and not (protocol == "grpc" and rest.split("-")[0] == "web")  # grpc-web is HTTP/1.1


def _read(
    kind: str,
    declaring: KubeObject,
    spec: Item,
    policy_names: AbstractSet[str],
    is_http2: bool,
    problems: list[str] | None = None,
) -> Declaration:
    """Read a spec into a declaration; `problems`: the mistakes found so far, in the annotations that it comes from."""
    metadata = declaring.metadata
    mistakes = [] if problems is None else problems
    declared = read_spec(spec, metadata.namespace, metadata.name, policy_names, mistakes)
    _check_names(metadata.name, declared, spec.where, mistakes)
    if len(mistakes) > PROBLEMS_MAX:
        mistakes = [*mistakes[:PROBLEMS_MAX], f"and {len(mistakes) - PROBLEMS_MAX} more"]
    if mistakes:
        declared = None
    elif declared:
        is_http2 = is_http2 or names_http2(str(declared.activation.port))
    key = f"{metadata.namespace}/{metadata.name}"
    return Declaration(
        kind,
        key,
        metadata.uid,
        metadata.creation_timestamp or "",
        metadata.generation,
        declared,
        tuple("".join(char if char.isprintable() else " " for char in problem) for problem in mistakes),
        is_http2,
    )


def _check_names(name: str, declared: Declared | None, where: str, problems: list[str]) -> None:
    if not _SERVICE_NAME.fullmatch(name):
        problems.append(
            f'{where}: metadata.name: found "{name}", expected at most 63 lower-case letters, digits and "-", '
            "beginning with a letter: a Service is named after it"
        )
    if declared is None:
        return
    target = declared.activation.target
    for key, value, pattern, expected in (
        ("name", target.name, _OBJECT_NAME, "the name of an object"),
        ("kind", target.kind, _KIND, "a kind such as Deployment"),
        ("apiVersion", target.api_version, _API_VERSION, "a group and a version such as apps/v1"),
    ):
        if not pattern.fullmatch(value):
            problems.append(f'{where}: spec.target.{key}: found "{value[:100]}", expected {expected}')


def _spec_of(annotations: Mapping[str, str], where: str, problems: list[str]) -> dict[str, Item]:
    """Return the annotations as the spec of an Activation."""
    entries: dict[str, Item] = {}
    for name in sorted(annotations):
        if not name.startswith(PREFIX) or name in _OTHERS:
            continue
        key = camel(name.removeprefix(PREFIX).replace("-", "_"))
        text = annotations[name]
        if key == "target":
            entries[key] = _target(text, where, problems)
        elif key in _LISTS and not text.lstrip().startswith("["):
            entries[key] = item_of([part.strip() for part in text.split(",") if part.strip()], where)
        elif text.lstrip()[:1] in ("{", "["):
            item = read_tree(text, f"{where}: {name}", {}, problems, ANNOTATION_ITEMS_MAX)
            if item is not None:
                entries[key] = item
        else:
            entries[key] = item_of(text, where)
    return entries


def _target(text: str, where: str, problems: list[str]) -> Item:
    """Read `NAME`, `KIND/NAME` or `GROUP/VERSION/KIND/NAME`."""
    default = Target(name="")
    parts = text.split("/")
    if not 1 <= len(parts) <= 4 or len(parts) == 3 or not all(parts):
        problems.append(
            f'{where}: {PREFIX}target: found "{text[:100]}", expected a name, '
            "or a kind and a name such as StatefulSet/db"
        )
        return item_of({"name": text}, where)
    kind = parts[-2] if len(parts) > 1 else default.kind
    version = "/".join(parts[:2]) if len(parts) == 4 else default.api_version
    return item_of({"name": parts[-1], "kind": kind, "apiVersion": version}, where)
