"""An `Activation`, the object that declares a revision in a cluster, with the keys of a revision in camel case.

Rules
  1. The structs of `model/` describe the keys. This module has only the differences in a cluster: the target instead of
     `pods` and `process`, and the spelling (`container_concurrency` is `containerConcurrency`).
  2. The reader and the checks of the file are used, so mistakes are reported in the same way, with the keys in the
     spelling of the object.
  3. Text that is not a key keeps its spelling: names of headers, of environment variables, and values.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from activator.config.checks import Checker
from activator.config.edge_checks import check_positive
from activator.config.forms import Choice, Form, Group, Many, Mapping, group_of, sections
from activator.config.key_path import Findings, KeyPath
from activator.config.model.kinds import Duration, doc
from activator.config.model.revision import Revision
from activator.config.model.transparent import (
    ALWAYS_IN_PATH,
    MODE_PROXY,
    MODE_TRANSPARENT,
    MODES,
    Transparent,
)
from activator.config.reader import UNREADABLE, Reader
from activator.config.tree import Item

GROUP: Final = "activator.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "Activation"

# An RFC 6335 service name, as Kubernetes accepts it.
PORT_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
PATIENCE_S: Final = 60.0

# Keys that only the file has; a cluster has another way to set them, or cannot have them.
# `waiting_page` and `fallback` name files, which an object's author must not be able to read from our container;
# `filters` names code that is run here, `forward_auth` a server that we connect to; `fault` is for tests of clients on
# one machine;
# `adaptive_concurrency` would take the load of other replicas for slowness of the pods;
# `respond_async` stores responses in the memory of one replica, and other replicas find them only in a group.
_FILE_ONLY: Final = frozenset(
    {
        "name", "namespace", "pods", "process", "container", "tls", "max_scale", "needs", "depends_on", "no_wake",
        "waiting_page", "fallback", "respond_async", "progress", "activity", "fault", "filters", "forward_auth",
        "adaptive_concurrency",
    }
)  # fmt: skip


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that is scaled: in the same namespace, with a scale subresource."""

    name: Annotated[str, doc("The name of the object.", "model")]
    kind: Annotated[str, doc("Its kind.", "StatefulSet")] = "Deployment"
    api_version: Annotated[str, doc("Its group and version.", "apps/v1")] = "apps/v1"


class Activation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of an Activation besides those of a revision."""

    target: Annotated[Target, doc("The object whose pods serve the requests, and which is scaled.")]
    port: Annotated[
        int | str, doc("The port of the pods: its number, or its name in the pod template.", 8080, "http")
    ] = 8080
    patience: Annotated[
        Duration,
        doc(
            "Pods cannot come for a cause that may pass by itself (no node has room, a quota is used up): requests "
            "wait for this time before they are refused with the cause.",
            "5m",
        ),
    ] = Duration(PATIENCE_S)
    external_scaler: Annotated[
        bool, doc("Somebody else scales the target, such as KEDA or an HPA: the activator never does.", True)
    ] = False
    mode: Annotated[
        str,
        doc(
            "`proxy`: requests reach the activator by an Ingress or a route. `transparent`: they reach it by the "
            "Service of the pods, and only while there is no pod or the load has to be seen.",
            MODE_TRANSPARENT,
            words=MODES,
        ),
    ] = MODE_PROXY
    transparent: Annotated[Transparent, doc("What `mode: transparent` does.")] = Transparent()


class Declared(msgspec.Struct, frozen=True):
    """A revision declared by a Kubernetes object (an Activation or an annotated Service)."""

    revision: Revision
    activation: Activation


def _spec() -> Group:
    """Return the form of a spec, with the keys spelled as in the file; its value is a `Declared`."""
    own = group_of(Activation)
    shared = [key for key in group_of(Revision).keys.values() if key.name not in _FILE_ONLY]
    names = {key.attribute for key in own.keys.values()}

    def make(values: dict[str, Any]) -> Declared:
        activation = Activation(**{name: value for name, value in values.items() if name in names})
        others = {name: value for name, value in values.items() if name not in names}
        return Declared(Revision(name="", **others), activation)

    return Group(Activation, [*own.keys.values(), *shared], make)


SPEC: Final = _spec()


def read_spec(
    spec: Item, namespace: str, name: str, policy_names: AbstractSet[str] | None, problems: list[str]
) -> Declared | None:
    """Read the declaration in `spec`; if it has mistakes, add them to `problems` and return None."""
    spelling: list[str] = []
    at = KeyPath(Findings(Item(spec.where, entries={"spec": spec}), spelling))["spec"]
    item = _as_in_the_file(spec, SPEC, at)
    mistakes: list[str] = []
    findings = Findings(Item(spec.where, entries={"spec": item}), mistakes)
    at = KeyPath(findings)["spec"]
    declared = Reader(findings).read(item, SPEC, at.path)
    if declared is not UNREADABLE:
        Checker(at, policy_names).check_declared(at, declared.revision)
        _check(at, declared.activation)
    if mistakes or spelling:
        problems += spelling + [respelled(problem) for problem in mistakes]
        return None
    return Declared(replace(declared.revision, name=name, namespace=namespace), declared.activation)


def _check(at: KeyPath, activation: Activation) -> None:
    """Check the keys that only an Activation has."""
    port = activation.port
    if isinstance(port, int):
        if not 1 <= port <= 65_535:
            at["port"].found("a port from 1 to 65535, or the name of a port")
    elif PORT_NAME.fullmatch(port) is None or port.isdecimal():
        at["port"].found("a port from 1 to 65535, or the name of a port such as http")
    if activation.mode not in MODES:
        at["mode"].found(f"one of {', '.join(MODES)}")
    if (activation.transparent.burst_capacity or 0) < ALWAYS_IN_PATH:
        at["transparent"]["burst_capacity"].found("-1, 0 or more requests")
    check_positive(at["transparent"], activation.transparent, "look_interval", expected="more than 0s")


def item_of(value: Any, where: str) -> Item:
    """Return the tree of a JSON value; `where` names the object."""
    match value:
        case dict():
            return Item(where, entries={str(key): item_of(child, where) for key, child in value.items()})
        case list():
            return Item(where, elements=[item_of(child, where) for child in value])
        case None:
            return Item(where)
        case bool():
            return Item(where, text=str(value).lower())
    return Item(where, text=str(value))


# --- the spelling ---------------------------------------------------------------------------------------------------


def camel(name: str) -> str:
    """Return a key in camel case: `container_concurrency` → `containerConcurrency`."""
    head, *others = name.split("_")
    return head + "".join(other[:1].upper() + other[1:] for other in others)


_RESPELLINGS: Final = {
    key.name: camel(key.name) for _, group in sections(SPEC) for key in group.keys.values() if "_" in key.name
}
_KEY: Final = re.compile(r"(?<![\w-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w-])")


def respelled(problem: str) -> str:
    """Return a message of the file's checks with the keys spelled as in a cluster."""
    return _KEY.sub(lambda match: _RESPELLINGS.get(match[0], match[0]), problem)


def _as_in_the_file(item: Item, form: Form, at: KeyPath) -> Item:
    """Return `item` with the keys of structs spelled as in the file. A key in the file's spelling is a mistake."""
    match form:
        case Choice():
            fitting = Many if item.elements is not None else Group | Mapping
            forms = [child for child in form.forms if isinstance(child, fitting)]
            return _as_in_the_file(item, forms[0], at) if forms else item
        case Group() if item.entries is not None:
            return _group_as_in_the_file(item, item.entries, form, at)
        case Many() if item.elements is not None:
            elements = [_as_in_the_file(child, form.of, at[index]) for index, child in enumerate(item.elements)]
            return _copy(item, elements=elements)
        case Mapping() if item.entries is not None:
            entries = {key: _as_in_the_file(child, form.of, at[key]) for key, child in item.entries.items()}
            return _copy(item, entries=entries)
    return item


def _group_as_in_the_file(item: Item, children: dict[str, Item], group: Group, at: KeyPath) -> Item:
    """Return a mapping with the keys of `group` spelled as in the file; report those that already are."""
    by_spelling = {camel(key.name): key for key in group.keys.values()}
    entries: dict[str, Item] = {}
    for name, child in children.items():
        key = by_spelling.get(name)
        if key is not None:
            entries[key.name] = _as_in_the_file(child, key.form, at[name])
        elif name in group.keys:
            at.found(f'"{camel(name)}"', f'the key "{name}" of the file', child.key_where)
        else:
            entries[name] = child  # the reader does not know this key either
    return _copy(item, entries=entries)


def _copy(item: Item, entries: dict[str, Item] | None = None, elements: list[Item] | None = None) -> Item:
    copy = Item(item.where, entries=entries, elements=elements)
    copy.key_where = item.key_where
    return copy
