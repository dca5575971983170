"""Reads items into the structs of `model/`, by their forms.

Rules
  1. All mistakes are reported, not only the first. A value that cannot be read is noted in the findings; the struct has
     a default in its place, a list or a mapping is without it.
  2. The structs are the only description of the file. A new field there is a new key in the file, in the environment
     and in the schema; its bounds are in its `msgspec.Meta`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from activator.config.corrections import corrected, holds_secret, known_key, placeholder
from activator.config.forms import Choice, Form, Group, JsonValue, Many, Mapping, Scalar
from activator.config.key_path import Findings, KeyPath, Path
from activator.config.model.kinds import Json
from activator.config.tree import Item

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.6.2: a header name, a method, a cookie name
# Values of JSON that YAML has without quotes; a number with a leading zero is a text.
_WORDS: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)  # RFC 8259
_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*|0?\.[0-9]+|[1-9][0-9]*\.[0-9]*|0\.)([eE][-+]?[0-9]+)?", re.ASCII)


class _Unreadable:
    """The value of an item that could not be read and has been reported."""


UNREADABLE: Final = _Unreadable()


def json_of(item: Item) -> Json:
    """Return a value in JSON. A text without quotes that YAML 1.2 reads as a number or a boolean becomes one."""
    if item.entries is not None:
        members = (f"{_json_text(name)}:{json_of(child)}" for name, child in item.entries.items())
        return Json(f"{{{','.join(members)}}}")
    if item.elements is not None:
        return Json(f"[{','.join(map(json_of, item.elements))}]")
    return Json("null" if item.text is None else _scalar_json(item.text, item.is_quoted))


def _scalar_json(text: str, is_quoted: bool) -> str:
    if is_quoted:
        return _json_text(text)
    if text in _WORDS:
        return text.lower()
    if _JSON_NUMBER.fullmatch(text):
        return text
    if _NUMBER.fullmatch(text):  # JSON has it in another spelling: .5, 1., +1
        number = float(text)
        if math.isfinite(number):
            return text.lstrip("+") if text.lstrip("+").isdecimal() else repr(number)
    return _json_text(text)


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Reader:
    """A reader of one tree."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def read(self, item: Item, form: Form, path: Path = ()) -> Any:
        """Return the item's value, or UNREADABLE."""
        match form:
            case Scalar():
                value = None if item.text is None else form.parse(item.text)
                return self._report(item, form, path) if value is None else value
            case Choice():
                return self._read_choice(item, form, path)
            case JsonValue():
                return json_of(item)
            case Group() if item.entries is not None:
                return self._read_group(item.entries, form, path)
            case Many() if item.elements is not None:
                read = (self._read_part(child, form.of, (*path, index)) for index, child in enumerate(item.elements))
                return [value for value in read if value is not UNREADABLE]
            case Mapping() if item.entries is not None:
                values = {key: self._read_part(child, form.of, (*path, key)) for key, child in item.entries.items()}
                return {key: value for key, value in values.items() if value is not UNREADABLE}
        return self._report(item, form, path)

    def _read_choice(self, item: Item, form: Choice, path: Path) -> Any:
        """Read a value by the first form that fits."""
        if form.is_optional and item.text is None and item.entries is None and item.elements is None:
            return None
        for option in form.forms:
            if isinstance(option, Scalar):
                value = None if item.text is None else option.parse(item.text)
                if value is not None:
                    return value
            elif (item.elements if isinstance(option, Many) else item.entries) is not None:
                return self.read(item, option, path)
        return self._report(item, form, path)

    def _read_group(self, entries: dict[str, Item], group: Group, path: Path) -> Any:
        """Read a mapping as a struct; report unknown and missing keys."""
        values: dict[str, Any] = {}
        for name, child in entries.items():
            key = group.keys.get(name)
            if key is None:
                found = f'the unknown key "{name}"'
                KeyPath(self._findings, path).found(known_key(name, group, entries), found, child.key_where)
                self._findings.skip((*path, name), is_part=False)
                continue
            value = self.read(child, key.form, (*path, name))
            if value is UNREADABLE:
                self._findings.skip((*path, name), is_part=False)
            else:
                values[key.attribute] = value
        for key in group.required:
            if key.name not in entries:
                KeyPath(self._findings, path).found(f'the key "{key.name}"', "none")
                self._findings.skip((*path, key.name), is_part=False)
            values.setdefault(key.attribute, key.form.zero)
        return group.make(values)

    def _read_part(self, item: Item, form: Form, path: Path) -> Any:
        value = self.read(item, form, path)
        if value is UNREADABLE:
            self._findings.skip(path, is_part=True)
        return value

    def _report(self, item: Item, form: Form, path: Path) -> _Unreadable:
        """Report a value that does not fit its form. Return UNREADABLE."""
        at, name = KeyPath(self._findings, path), placeholder(item)
        if name and isinstance(form, Scalar) and form.cls is str and "enum" not in form.schema:
            at.advise(f'YAML reads {name} as a mapping: write "{name}", in quotes')
        else:
            hidden = "a text" if item.text is not None and holds_secret(form) else ""
            at.found(form.expected + corrected(item, form, bool(hidden)), hidden)
        return UNREADABLE
