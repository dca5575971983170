"""The CustomResourceDefinition of `Activation`, generated from the structs that read it.

Rules
  1. The schema is structural, as Kubernetes requires: every level has a type, and values of several types are described
     by Kubernetes' own extensions (`x-kubernetes-int-or-string`, `x-kubernetes-preserve-unknown-fields`).
  2. The API server rejects as many mistakes as possible, so that their author sees them. The others are found when the
     object is read, and reported in its status (`activation.py`).
  3. The schema has the defaults that the object alone determines. Those that depend on other keys, such as the policy,
     are left out: they would be stored with the object and outlive the key on which they depended.

Source: Kubernetes' documentation, "Extend the Kubernetes API with CustomResourceDefinitions" (apiextensions.k8s.io/v1).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect as types

from activator.config.activation import GROUP, KIND, KIND_OF_SPEC, VERSION, camel, respelled
from activator.config.model.kinds import Duration, Size
from activator.config.reader import SIZE_PATTERN
from activator.runtime.durations import DURATION_PATTERN

PLURAL: Final = "activations"
CONDITIONS: Final = ("Ready", "Active", "ScaledToZero", "Degraded", "InPath")

Schema = dict[str, Any]

_PATTERNS: Final[dict[type, str]] = {Duration: DURATION_PATTERN, Size: SIZE_PATTERN}

# Rules beyond the types, in the Common Expression Language: (rule, message). A rule cannot use a field with several
# types (`hashOn`, `splitOn`): the API server would reject the whole definition ("undefined field").
_RULES: Final = (
    (
        "type(self.port) != int || (self.port >= 1 && self.port <= 65535)",
        "port: expected a port from 1 to 65535, or the name of a port such as http",
    ),
)


def make_definition() -> Schema:
    """Return the definition of the kind for an API server."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["act"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _object_schema()},
                }
            ],
        },
    }


def _columns() -> list[Schema]:
    def column(name: str, path: str, kind: str = "string", priority: int = 0) -> Schema:
        return {"name": name, "type": kind, "jsonPath": path, "priority": priority}

    def of(condition: str, field: str) -> str:
        return f'.status.conditions[?(@.type=="{condition}")].{field}'

    return [
        column("Target", ".spec.target.name"),
        column("Ready", of("Ready", "status")),
        column("Reason", of("Ready", "reason")),
        column("Pods", ".status.ready", "integer"),
        column("Wanted", ".status.wanted", "integer"),
        column("Hosts", ".status.hosts", priority=1),
        column("Message", of("Ready", "message"), priority=1),
        column("Age", ".metadata.creationTimestamp", "date"),
    ]


def _object_schema() -> Schema:
    spec = _schema_of(KIND_OF_SPEC)
    spec["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in _RULES]
    return {
        "type": "object",
        "description": "A workload that the activator serves and scales, from zero and back.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status_schema(),
        },
    }


def _status_schema() -> Schema:
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "enum": list(CONDITIONS)},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    }
    count: Schema = {"type": "integer", "format": "int32", "minimum": 0}
    return {
        "type": "object",
        "description": "What the activator makes of it.",
        "properties": {
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The generation of the spec that this status is about.",
            },
            "hosts": {
                "type": "array",
                "description": "The hosts that lead here.",
                "items": {"type": "string"},
            },
            "ready": {**count, "description": "The pods that answer."},
            "wanted": {**count, "description": "The replicas that the load asks for."},
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }


def _schema_of(kind: types.Type) -> Schema:
    match kind:
        case types.Metadata():
            extra = kind.extra_json_schema or {}
            described = {"description": respelled(extra["description"])} if "description" in extra else {}
            words = {"enum": extra["enum"]} if "enum" in extra else {}
            return {**described, **_schema_of(kind.type), **words}
        case types.UnionType():
            members = [member for member in kind.types if not isinstance(member, types.NoneType)]
            return _schema_of(members[0]) if len(members) == 1 else _several(members)
        case types.StructType():
            return _struct_schema(kind)
        case types.ListType():
            return {"type": "array", "items": _schema_of(kind.item_type)}
        case types.DictType():
            return {"type": "object", "additionalProperties": _schema_of(kind.value_type)}
        case types.CustomType():
            return {**_int_or_string(), "pattern": f"^({_PATTERNS[kind.cls]})$"}
        case types.IntType() | types.FloatType():
            name = "integer" if isinstance(kind, types.IntType) else "number"
            bounds = {"minimum": kind.ge, "maximum": kind.le}
            return {"type": name} | {key: bound for key, bound in bounds.items() if bound is not None}
        case types.BoolType():
            return {"type": "boolean"}
        case types.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
    assert isinstance(kind, types.StrType), kind
    return {"type": "string"}


def _int_or_string() -> Schema:
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _several(members: list[types.Type]) -> Schema:
    """Return the schema of several types; a structural schema supports only whole numbers and texts."""
    bare = {type(member.type if isinstance(member, types.Metadata) else member) for member in members}
    if bare == {types.IntType, types.StrType}:
        return _int_or_string()
    return {"x-kubernetes-preserve-unknown-fields": True}


def _struct_schema(kind: types.StructType) -> Schema:
    properties: dict[str, Schema] = {}
    for field in kind.fields:
        found = properties[camel(field.encode_name)] = _schema_of(field.type)
        default = _plain(field.default)
        if default is not None:
            found["default"] = default
    schema: Schema = {"type": "object", "properties": properties}
    required = [camel(field.encode_name) for field in kind.fields if field.required]
    return {**schema, "required": required} if required else schema


def _plain(default: Any) -> Any:
    """Return a default as an API server stores it; None if it is better left out."""
    match default:
        case Duration():
            return f"{float(default):g}s" if default else None
        case Size():
            return int(default) or None
        case bool() | int() | float() | str():
            return default or None
    return None
