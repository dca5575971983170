"""JSON Schema of the configuration file for editors, generated from the types that read it.

msgspec's own generator cannot be used: it rejects defaults of our types (`Size`, `Duration`).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect as types

from activator.config.model.file import Config
from activator.config.model.kinds import Duration, Secret, Size
from activator.config.reader import SIZE_PATTERN
from activator.runtime.durations import DURATION_PATTERN

Schema = dict[str, Any]

# The unit of a number, the form of a text, and the text's pattern.
_UNITS: Final[dict[type, tuple[str, str, str]]] = {
    Duration: ("seconds", "a duration such as 300ms, 5s or 2m", DURATION_PATTERN),
    Size: ("bytes", "a size such as 32KiB or 1MiB", SIZE_PATTERN),
}


def make_schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration of the activator",
        **_schema_of(types.type_info(Config)),
    }


def _schema_of(kind: types.Type) -> Schema:
    match kind:
        case types.Metadata():
            # The description comes first, for readers.
            return {**(kind.extra_json_schema or {}), **_schema_of(kind.type)}
        case types.UnionType():
            return {"anyOf": [_schema_of(member) for member in kind.types]}
        case types.StructType():
            return _struct_schema(kind)
        case types.ListType():
            return {"type": "array", "items": _schema_of(kind.item_type)}
        case types.DictType():
            return {"type": "object", "additionalProperties": _schema_of(kind.value_type)}
        case types.CustomType() if kind.cls is not Secret:
            unit, text, pattern = _UNITS[kind.cls]
            number = {"type": "number", "minimum": 0, "description": unit}
            return {"anyOf": [number, {"type": "string", "pattern": f"^({pattern})$", "description": text}]}
        case types.IntType() | types.FloatType():
            name = "integer" if isinstance(kind, types.IntType) else "number"
            bounds = {"minimum": kind.ge, "maximum": kind.le}
            return {"type": name} | {key: bound for key, bound in bounds.items() if bound is not None}
        case types.BoolType() | types.LiteralType():
            return {"enum": list(kind.values)} if isinstance(kind, types.LiteralType) else {"type": "boolean"}
        case types.NoneType():
            return {"type": "null"}
    assert isinstance(kind, types.StrType | types.CustomType), kind
    return {"type": "string"}


def _struct_schema(kind: types.StructType) -> Schema:
    properties: dict[str, Schema] = {}
    for field in kind.fields:
        properties[field.encode_name] = _schema_of(field.type)
        # The defaults of a group's keys are at the keys.
        if isinstance(field.default, bool | int | float | str):
            properties[field.encode_name]["default"] = _plain(field.default)
    return {
        "type": "object",
        "properties": properties,
        "required": [field.encode_name for field in kind.fields if field.required],
        "additionalProperties": False,
    }


def _plain(value: Any) -> Any:
    match value:
        case Duration():
            return float(value)
        case Size():
            return int(value)
        case Secret():
            return str(value)
    return value
