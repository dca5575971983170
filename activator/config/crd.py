"""The CustomResourceDefinition of `Activation`, generated from the forms that read it.

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

from activator.config.activation import GROUP, KIND, SPEC, VERSION, camel, respelled
from activator.config.forms import Choice, Form, Group, JsonValue, Many, Mapping, Scalar, plain
from activator.config.model.kinds import Duration

PLURAL: Final = "activations"
CONDITIONS: Final = ("Ready", "Active", "ScaledToZero", "Degraded", "InPath")

Schema = dict[str, Any]

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

    def condition_path(condition: str, field: str) -> str:
        return f'.status.conditions[?(@.type=="{condition}")].{field}'

    return [
        column("Target", ".spec.target.name"),
        column("Ready", condition_path("Ready", "status")),
        column("Reason", condition_path("Ready", "reason")),
        column("Pods", ".status.ready", "integer"),
        column("Wanted", ".status.wanted", "integer"),
        column("Hosts", ".status.hosts", priority=1),
        column("Message", condition_path("Ready", "message"), priority=1),
        column("Age", ".metadata.creationTimestamp", "date"),
    ]


def _object_schema() -> Schema:
    spec = _schema_of(SPEC)
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


def _schema_of(form: Form) -> Schema:
    described = {"description": respelled(form.notes["description"])} if "description" in form.notes else {}
    words = {"enum": form.notes["enum"]} if "enum" in form.notes else {}
    return {**described, **_bare_schema(form), **words}


def _bare_schema(form: Form) -> Schema:
    match form:
        case Choice():
            return _schema_of(form.forms[0]) if len(form.forms) == 1 else _several(form.forms)
        case Group():
            return _group_schema(form)
        case Many():
            return {"type": "array", "items": _schema_of(form.of)}
        case Mapping():
            return {"type": "object", "additionalProperties": _schema_of(form.of)}
        case JsonValue():
            return {"x-kubernetes-preserve-unknown-fields": True}
    assert isinstance(form, Scalar)
    if form.pattern:
        return {**_int_or_string(), "pattern": f"^({form.pattern})$"}
    return {"type": "string"} | form.schema


def _int_or_string() -> Schema:
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _several(forms: list[Form]) -> Schema:
    """Return the schema of several forms; a structural schema supports only whole numbers and texts."""
    if {one.cls for one in forms if isinstance(one, Scalar) and "enum" not in one.schema} == {int, str}:
        return _int_or_string()
    return {"x-kubernetes-preserve-unknown-fields": True}


def _group_schema(group: Group) -> Schema:
    properties: dict[str, Schema] = {}
    for key in group.keys.values():
        property_schema = properties[camel(key.name)] = _schema_of(key.form)
        # The default as an API server stores it; an empty one is left out.
        default = plain(key.default)
        if default:
            property_schema["default"] = f"{default:g}s" if isinstance(key.default, Duration) else default
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": [camel(key.name) for key in group.required]} if group.required else {})
