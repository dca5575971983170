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
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final

import msgspec
from msgspec import inspect as types

from activator.config.checks import Checker
from activator.config.model.kinds import Duration, doc
from activator.config.model.revision import Revision
from activator.config.model.transparent import (
    ALWAYS_IN_PATH,
    MODE_PROXY,
    MODE_TRANSPARENT,
    MODES,
    TRANSPARENT_LOOK_INTERVAL_S,
    Transparent,
)
from activator.config.reader import UNREADABLE, Reader, Values, build
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
# `filters` names code that is run here; `fault` is for tests of clients on one machine;
# `respond_async` stores responses in the memory of one replica, and other replicas find them only in a group.
_FILE_ONLY: Final = frozenset(
    {
        "name", "namespace", "pods", "process", "container", "tls", "max_scale", "needs", "no_wake", "waiting_page",
        "fallback", "respond_async", "progress", "activity", "fault", "filters",
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
    """A revision that an object of the cluster declares."""

    revision: Revision
    activation: Activation


def _kind() -> types.StructType:
    """Return the type of a spec, with the keys spelled as in the file."""
    revision, own = types.type_info(Revision), types.type_info(Activation)
    assert isinstance(revision, types.StructType) and isinstance(own, types.StructType)
    fields = [*own.fields, *(field for field in revision.fields if field.name not in _FILE_ONLY)]
    return types.StructType(Activation, tuple(fields), forbid_unknown_fields=True)


KIND_OF_SPEC: Final = _kind()
_REVISION: Final = types.type_info(Revision)
_OWN: Final = types.type_info(Activation)
_OWN_KEYS: Final = frozenset(Activation.__struct_fields__)


def read_spec(
    spec: Item, namespace: str, name: str, policy_names: AbstractSet[str] | None, problems: list[str]
) -> Declared | None:
    """Read the declaration in `spec`; if it has mistakes, add them to `problems` and return None."""
    found: list[str] = []
    spelling: list[str] = []
    reader = Reader(found)
    item = _as_in_the_file(spec, KIND_OF_SPEC, Reader(spelling), "spec")
    values = reader.read(item, KIND_OF_SPEC, "spec")
    if values is not UNREADABLE:
        _check(item, values, reader, policy_names)
    if found or spelling:
        problems += spelling + [respelled(problem) for problem in found]
        return None
    own = {key: value for key, value in values.items() if key in _OWN_KEYS}
    rest = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    revision = build(_REVISION, {**rest, "name": name, "namespace": namespace})
    return Declared(revision, build(_OWN, own))


def _check(item: Item, values: Values, reader: Reader, policy_names: AbstractSet[str] | None) -> None:
    Checker(reader, policy_names).check_declared(item, values, "spec")
    port = values.get("port", UNREADABLE)
    place = (item.entries or {}).get("port", item)
    if isinstance(port, int) and not 1 <= port <= 65_535:
        reader.found(place, "spec.port", "a port from 1 to 65535, or the name of a port")
    elif isinstance(port, str) and (PORT_NAME.fullmatch(port) is None or port.isdecimal()):
        reader.found(place, "spec.port", "a port from 1 to 65535, or the name of a port such as http")
    _check_transparent(item, values, reader)


def _check_transparent(item: Item, values: Values, reader: Reader) -> None:
    if values.get("mode", MODE_PROXY) not in (*MODES, UNREADABLE):
        reader.found(_entry(item, "mode"), "spec.mode", f"one of {', '.join(MODES)}")
    said = values.get("transparent", UNREADABLE)
    place = (item.entries or {}).get("transparent", item)
    if not isinstance(said, dict):
        return
    if (said.get("burst_capacity") or 0) < ALWAYS_IN_PATH:
        reader.found(_entry(place, "burst_capacity"), "spec.transparent.burst_capacity", "-1, 0 or more requests")
    if said.get("look_interval", TRANSPARENT_LOOK_INTERVAL_S) <= 0:
        reader.found(_entry(place, "look_interval"), "spec.transparent.look_interval", "more than 0s")


def _entry(item: Item, key: str) -> Item:
    return (item.entries or {}).get(key, item)


def item_of(value: Any, where: str) -> Item:
    """Return the tree of a JSON value; `where` names the object."""
    match value:
        case dict():
            return Item(where, entries={str(key): item_of(one, where) for key, one in value.items()})
        case list():
            return Item(where, elements=[item_of(one, where) for one in value])
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


def _names_of(kind: types.Type, found: dict[str, str]) -> None:
    """Collect every key below `kind`, by its spelling in a cluster."""
    match kind:
        case types.Metadata():
            _names_of(kind.type, found)
        case types.UnionType():
            for member in kind.types:
                _names_of(member, found)
        case types.StructType():
            for field in kind.fields:
                found[camel(field.encode_name)] = field.encode_name
                _names_of(field.type, found)
        case types.ListType():
            _names_of(kind.item_type, found)
        case types.DictType():
            _names_of(kind.value_type, found)


def _respellings() -> Mapping[str, str]:
    names: dict[str, str] = {}
    _names_of(KIND_OF_SPEC, names)
    return {name: spelled for spelled, name in names.items() if name != spelled}


_RESPELLINGS: Final = _respellings()
_KEY: Final = re.compile(r"(?<![\w-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w-])")


def respelled(problem: str) -> str:
    """Return a message of the file's checks with the keys spelled as in a cluster."""
    return _KEY.sub(lambda match: _RESPELLINGS.get(match[0], match[0]), problem)


def _as_in_the_file(item: Item, kind: types.Type, reader: Reader, path: str) -> Item:
    """Return `item` with the keys of structs spelled as in the file. A key in the file's spelling is a mistake."""
    match kind:
        case types.Metadata():
            return _as_in_the_file(item, kind.type, reader, path)
        case types.UnionType():
            fitting = types.ListType if item.elements is not None else types.StructType | types.DictType
            members = [member for member in kind.types if isinstance(_bare(member), fitting)]
            return _as_in_the_file(item, members[0], reader, path) if members else item
        case types.StructType() if item.entries is not None:
            return _struct_as_in_the_file(item, kind, reader, path)
        case types.ListType() if item.elements is not None:
            elements = [
                _as_in_the_file(one, kind.item_type, reader, f"{path}[{place}]")
                for place, one in enumerate(item.elements)
            ]
            return _copy(item, elements=elements)
        case types.DictType() if item.entries is not None:
            values = {
                key: _as_in_the_file(one, kind.value_type, reader, f"{path}.{key}") for key, one in item.entries.items()
            }
            return _copy(item, entries=values)
    return item


def _struct_as_in_the_file(item: Item, kind: types.StructType, reader: Reader, path: str) -> Item:
    by_spelling = {camel(field.encode_name): field for field in kind.fields}
    names = {field.encode_name for field in kind.fields}
    entries: dict[str, Item] = {}
    for key, one in (item.entries or {}).items():
        field = by_spelling.get(key)
        if field is not None:
            entries[field.encode_name] = _as_in_the_file(one, field.type, reader, f"{path}.{key}")
        elif key in names:
            reader.found(one, path, f'"{camel(key)}"', f'the key "{key}" of the file', one.key_where)
        else:
            entries[key] = one  # the reader does not know this key either
    return _copy(item, entries=entries)


def _bare(kind: types.Type) -> types.Type:
    return kind.type if isinstance(kind, types.Metadata) else kind


def _copy(item: Item, entries: dict[str, Item] | None = None, elements: list[Item] | None = None) -> Item:
    copy = Item(item.where, entries=entries, elements=elements)
    copy.key_where = item.key_where
    return copy
