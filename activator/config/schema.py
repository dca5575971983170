"""JSON Schema of the configuration file for editors, generated from the forms that read it.

msgspec's own generator cannot be used: it rejects defaults of our types (`Size`, `Duration`).
"""

from __future__ import annotations

from typing import Any

from activator.config.forms import FILE, Choice, Form, Group, JsonValue, Key, Many, Mapping, Scalar, plain

Schema = dict[str, Any]


def make_schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration of the activator",
        **_schema_of(FILE),
    }


def _schema_of(form: Form) -> Schema:
    return {**form.notes, **_bare_schema(form)}  # the description comes first, for readers


def _bare_schema(form: Form) -> Schema:
    match form:
        case Choice():
            null = [{"type": "null"}] if form.is_optional else []
            return {"anyOf": [*map(_schema_of, form.forms), *null]}
        case Group():
            return {
                "type": "object",
                "properties": {name: _key_schema(key) for name, key in form.keys.items()},
                "required": [key.name for key in form.required],
                "additionalProperties": False,
            }
        case Many():
            return {"type": "array", "items": _schema_of(form.of)}
        case Mapping():
            return {"type": "object", "additionalProperties": _schema_of(form.of)}
        case JsonValue():
            return {}
    assert isinstance(form, Scalar)
    return form.schema


def _key_schema(key: Key) -> Schema:
    default = plain(key.default)  # the defaults of a group's keys are at the keys
    return _schema_of(key.form) | ({} if default is None else {"default": default})
