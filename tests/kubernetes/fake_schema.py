"""Structural schemas (OpenAPI v3, as of CustomResourceDefinitions): pruning, defaults, and what is wrong with a value.

What it does not know in a schema is refused when the definition is created: a rule that is silently not checked would
make the tests say more than they do.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.fake_rules import Rule, RuleError

Json = dict[str, Any]

KNOWN = {
    *("type", "description", "properties", "required", "items", "additionalProperties", "enum", "pattern", "default"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "format", "nullable", "title", "example", "multipleOf", "uniqueItems"),
    *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "anyOf"),
    *("x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations", "oneOf", "allOf", "not"),
}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}
FORMATS = {
    "date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"),
    "duration": re.compile(r"([0-9]+(\.[0-9]+)?(h|m|s|ms|us|ns))+"),
}
INTEGERS = {"int32": 1 << 31, "int64": 1 << 63}


def schema_mistakes(schema: Json, path: str = "") -> Iterator[str]:
    """Why this is no structural schema, or none that this fake understands."""
    where = path or "<root>"
    for word in set(schema) - KNOWN:
        yield f"{where}: the fake does not know {word}"
    loose = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not loose and schema.get("type") not in TYPES:
        yield f"{where}: Required value: must not be empty for specified object fields"
    if schema.get("uniqueItems"):
        yield f"{where}.uniqueItems: Forbidden: uniqueItems cannot be set to true"
    if schema.get("x-kubernetes-list-type") == "map":
        for key in schema.get("x-kubernetes-list-map-keys") or ():
            item = schema.get("items") or {}
            if key not in item.get("properties", {}):
                yield f"{where}: x-kubernetes-list-map-keys: {key} is no property of the items"
            elif key not in item.get("required", ()) and "default" not in item["properties"][key]:
                yield f"{where}: {key}: Required value: must be required or have a default, as a key of the list"
    for rule in schema.get("x-kubernetes-validations") or ():
        try:
            fields = Rule(rule).fields
        except RuleError as error:
            yield f"{where}.x-kubernetes-validations: {error}"
        else:
            for field in fields:
                if not _is_declared(schema, field):
                    text = f"undefined field '{field[-1]}'"
                    yield f"{where}.x-kubernetes-validations: Invalid value: compilation failed: ERROR: {text}"
    for name, child in _children(schema):
        yield from schema_mistakes(child, f"{path}.{name}")


def _is_declared(schema: Json, path: tuple[str, ...]) -> bool:
    """Whether a rule sees a field: it is declared, as is what it is in, and it has a type."""
    for name in path:
        if "additionalProperties" in schema:
            schema = schema["additionalProperties"] if isinstance(schema["additionalProperties"], dict) else {}
        elif name in schema.get("properties", {}):
            schema = schema["properties"][name]
        else:
            return False
        if not ("type" in schema or schema.get("x-kubernetes-int-or-string")):
            return False
    return True


def _children(schema: Json) -> Iterator[tuple[str, Json]]:
    yield from schema.get("properties", {}).items()
    if isinstance(schema.get("items"), dict):
        yield "items", schema["items"]
    if isinstance(schema.get("additionalProperties"), dict):
        yield "*", schema["additionalProperties"]


def prune(schema: Json, value: Any) -> None:
    """Drop the fields that the schema does not have, in place."""
    if isinstance(value, list):
        for item in value:
            prune(schema.get("items") or {}, item)
    elif isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in list(value):
            if name in properties:
                prune(properties[name], value[name])
            elif isinstance(others, dict):
                prune(others, value[name])
            elif not others and not schema.get("x-kubernetes-preserve-unknown-fields"):
                del value[name]


def put_defaults(schema: Json, value: Any) -> None:
    """Where an object is, its absent fields get their defaults, in place. A null of what is not nullable is absent."""
    if isinstance(value, list):
        for item in value:
            put_defaults(schema.get("items") or {}, item)
    elif isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if name in value and value[name] is None and not child.get("nullable") and "default" in child:
                del value[name]
            if name not in value and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                put_defaults(child, value[name])
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            for name in value.keys() - schema.get("properties", {}).keys():
                put_defaults(others, value[name])


def mistakes(schema: Json, value: Any, old: Any = None, path: str = "") -> Iterator[str]:
    """What is wrong with `value`, in the API's words; `old`: what it was, None: there was none."""
    if value is None:
        if not schema.get("nullable"):
            yield f'{path}: Invalid value: "null": must be of type {schema.get("type")}: "null"'
        return
    wrong = _type_mistake(schema, value)
    if wrong:
        yield f"{path}: Invalid value: {_shown(value)}: must be of type {wrong}"
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{one}"' for one in schema["enum"])
        yield f"{path}: Unsupported value: {_shown(value)}: supported values: {supported}"
    yield from _bounds(schema, value, path)
    if isinstance(value, dict):
        yield from _in_object(schema, value, old if isinstance(old, dict) else {}, path)
    elif isinstance(value, list):
        yield from _in_list(schema, value, path)
    yield from _of_junctors(schema, value, path)
    for rule in schema.get("x-kubernetes-validations") or ():
        yield from Rule(rule).mistakes(value, old, path)


def _type_mistake(schema: Json, value: Any) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "" if isinstance(value, int | str) and not isinstance(value, bool) else "integer,string"
    kind = schema.get("type", "")
    right = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
    }
    return "" if right.get(kind, True) else kind


def _bounds(schema: Json, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        yield from _of_string(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
            yield f"{path}: Invalid value: {value}: should be greater than or equal to {low}"
        if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
            yield f"{path}: Invalid value: {value}: should be less than or equal to {high}"
        limit = INTEGERS.get(schema.get("format", ""))
        if limit and not -limit <= value < limit:
            yield f"{path}: Invalid value: {value}: {schema['format']} is too small for it"
        if "multipleOf" in schema and value % schema["multipleOf"]:
            yield f"{path}: Invalid value: {value}: should be a multiple of {schema['multipleOf']}"
    for least, most, kind in (("minItems", "maxItems", list), ("minProperties", "maxProperties", dict)):
        if isinstance(value, kind):
            if len(value) < schema.get(least, 0):
                yield f"{path}: Invalid value: {len(value)}: should have at least {schema[least]} items"
            if len(value) > schema.get(most, len(value)):
                yield f"{path}: Too many: {len(value)}: must have at most {schema[most]} items"


def _of_string(schema: Json, value: str, path: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"{path}: Invalid value: {_shown(value)}: should be at least {schema['minLength']} chars long"
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: Invalid value: {_shown(value)}: should match '{schema['pattern']}'"
    form = FORMATS.get(schema.get("format", ""))
    if form and not form.fullmatch(value):
        yield f"{path}: Invalid value: {_shown(value)}: must be of type {schema['format']}"


def _in_object(schema: Json, value: Json, old: Json, path: str) -> Iterator[str]:
    for name in schema.get("required") or ():
        if name not in value:
            yield f"{path}.{name}: Required value"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, one in value.items():
        child = properties.get(name, others)
        if isinstance(child, dict):
            yield from mistakes(child, one, old.get(name), f"{path}.{name}")


def _in_list(schema: Json, value: list[Any], path: str) -> Iterator[str]:
    for number, item in enumerate(value):
        yield from mistakes(schema.get("items") or {}, item, None, f"{path}[{number}]")
    kind = schema.get("x-kubernetes-list-type")
    if kind in {"set", "map"}:
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        seen: list[Any] = []
        for number, item in enumerate(value):
            told = {key: item.get(key) for key in keys} if kind == "map" else item
            if told in seen:
                yield f"{path}[{number}]: Duplicate value: {_shown(told)}"
            seen.append(told)


def _of_junctors(schema: Json, value: Any, path: str) -> Iterator[str]:
    def fits(one: Json) -> bool:
        return not any(True for _ in mistakes(one, value, None, path))

    if schema.get("x-kubernetes-int-or-string"):
        return  # its anyOf says what is known
    if "anyOf" in schema and not any(fits(one) for one in schema["anyOf"]):
        yield f"{path}: Invalid value: must validate at least one schema (anyOf)"
    if "oneOf" in schema and sum(fits(one) for one in schema["oneOf"]) != 1:
        yield f"{path}: Invalid value: must validate one and only one schema (oneOf)"
    if "allOf" in schema and not all(fits(one) for one in schema["allOf"]):
        yield f"{path}: Invalid value: must validate all the schemas (allOf)"
    if "not" in schema and fits(schema["not"]):
        yield f"{path}: Invalid value: must not validate the schema (not)"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return '"object"'
    return '"array"' if isinstance(value, list) else str(value).lower()
