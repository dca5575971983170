"""Reads items into the structs of `model/`, by their forms.

Rules
  1. All mistakes are reported, not only the first. A value that cannot be read is noted in the findings; the struct has
     a default in its place, a list or a mapping is without it.
  2. The structs are the only description of the file. A new field there is a new key in the file, in the environment
     and in the schema; its bounds are in its `msgspec.Meta`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
from typing import Any, Final

import yaml

from activator.config.forms import Choice, Form, Group, JsonValue, Key, Many, Mapping, Scalar
from activator.config.key_path import Findings, KeyPath, Path
from activator.config.model.kinds import Duration, Json, Secret, Size
from activator.config.tree import Item

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.6.2: a header name, a method, a cookie name
# Units that people write, and the ones of the file.
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", re.ASCII)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_DURATION_WORDS: Final = {
    word: unit
    for unit, words in {
        "ms": "ms msec millis millisecond milliseconds",
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
    }.items()
    for word in words.split()
}
_SIZE_WORDS: Final = {
    word: unit
    for unit, words in {
        "KiB": "k kb ki kib kilobytes",
        "MiB": "m mb mi mib megabytes",
        "GiB": "g gb gi gib gigabytes",
        "B": "b byte bytes",
    }.items()
    for word in words.split()
}
# Values of JSON that YAML has without quotes; a number with a leading zero is a text.
_WORDS: Final = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)  # RFC 8259
_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*|0?\.[0-9]+|[1-9][0-9]*\.[0-9]*|0\.)([eE][-+]?[0-9]+)?", re.ASCII)
_BEGUN_MIN: Final = 3  # least length of an abbreviated key that is recognized
LINE_MAX: Final = 200  # longest text that is shown again as a list


class _Unreadable:
    """The value of an item that could not be read and has been reported."""


UNREADABLE: Final = _Unreadable()


def json_of(item: Item) -> Json:
    """Return a value in JSON. A text that is not in quotes and that YAML 1.2 reads as a number or a word is that."""
    if item.entries is not None:
        members = (f"{_json_text(name)}:{json_of(one)}" for name, one in item.entries.items())
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
                return self._mistaken(item, form, path) if value is None else value
            case Choice():
                return self._read_choice(item, form, path)
            case JsonValue():
                return json_of(item)
            case Group() if item.entries is not None:
                return self._read_group(item.entries, form, path)
            case Many() if item.elements is not None:
                read = (self._read_part(one, form.of, (*path, place)) for place, one in enumerate(item.elements))
                return [value for value in read if value is not UNREADABLE]
            case Mapping() if item.entries is not None:
                values = {key: self._read_part(one, form.of, (*path, key)) for key, one in item.entries.items()}
                return {key: value for key, value in values.items() if value is not UNREADABLE}
        return self._mistaken(item, form, path)

    def _read_choice(self, item: Item, form: Choice, path: Path) -> Any:
        if form.is_optional and item.text is None and item.entries is None and item.elements is None:
            return None
        for one in form.forms:
            if isinstance(one, Scalar):
                value = None if item.text is None else one.parse(item.text)
                if value is not None:
                    return value
            elif (item.elements if isinstance(one, Many) else item.entries) is not None:
                return self.read(item, one, path)
        return self._mistaken(item, form, path)

    def _read_group(self, entries: dict[str, Item], group: Group, path: Path) -> Any:
        values: dict[str, Any] = {}
        for name, one in entries.items():
            key = group.keys.get(name)
            if key is None:
                found = f'the unknown key "{name}"'
                KeyPath(self._findings, path).found(_nearest(name, group.keys), found, one.key_where)
                self._findings.skip((*path, name), is_part=False)
                continue
            value = self.read(one, key.form, (*path, name))
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

    def _mistaken(self, item: Item, form: Form, path: Path) -> _Unreadable:
        """Report a value that does not fit."""
        at, placeholder = KeyPath(self._findings, path), _placeholder(item)
        if placeholder and isinstance(form, Scalar) and form.cls is str and "enum" not in form.schema:
            at.advise(f'YAML reads {placeholder} as a mapping: write "{placeholder}", in quotes')
        else:
            hidden = "a text" if item.text is not None and _holds_secret(form) else ""
            at.found(form.expected + ("" if hidden else _corrected(item, form)), hidden)
        return UNREADABLE


def _holds_secret(form: Form) -> bool:
    """Return True if a text in the place of the value may be a secret."""
    match form:
        case Choice():
            return any(map(_holds_secret, form.forms))
        case Mapping():
            return _holds_secret(form.of)
        case Many():
            return _holds_secret(form.of)
        case Group():
            return any(_holds_secret(key.form) for key in form.keys.values() if not isinstance(key.form, Group))
    return isinstance(form, Scalar) and form.cls is Secret


def _as_list(item: Item) -> str:
    """Return the list that a user meant by a line of words."""
    if not item.text or len(item.text) > LINE_MAX:
        return ""
    try:
        words = shlex.split(item.text)
    except ValueError:  # unclosed quotes
        words = item.text.split()
    shown = yaml.safe_dump(words, default_flow_style=True, width=math.inf, allow_unicode=True).strip()
    return f": {shown}"


def _placeholder(item: Item) -> str:
    """Return the placeholder that a user meant by a mapping with one empty entry, such as {port}; else empty."""
    entries = item.entries or {}
    names = [key for key, one in entries.items() if one.text is None and one.entries is None and one.elements is None]
    return f"{{{names[0]}}}" if len(entries) == 1 and names else ""


def _as_mapping(item: Item) -> str:
    """Return the mapping that a user meant by a list of NAME=VALUE, without its values: they may be secrets."""
    texts = [one.text for one in item.elements or [] if one.text is not None and _ASSIGNMENT.match(one.text)]
    if not texts or len(texts) != len(item.elements or []):
        return ""
    name = texts[0].partition("=")[0]
    return f", with `{name}: VALUE` in place of `- {name}=VALUE`"


def _corrected(item: Item, form: Form) -> str:
    """Return how to write what a person understands and the file does not; else empty."""
    match form:
        case Many():
            return _as_list(item)
        case Mapping():
            return _as_mapping(item)
        case Choice():
            return next(filter(None, (_corrected_amount(item, one) for one in form.forms)), "")
    return _corrected_amount(item, form)


def _corrected_amount(item: Item, form: Form) -> str:
    if not isinstance(form, Scalar) or form.cls not in (Duration, Size) or item.text is None:
        return ""
    match = _AMOUNT.fullmatch(item.text.strip())
    units = _DURATION_WORDS if form.cls is Duration else _SIZE_WORDS
    unit = None if match is None else units.get(match[2].lower())
    suggested = "" if match is None or unit is None else f"{match[1]}{unit}"
    return f": write {suggested}" if suggested and form.parse(suggested) is not None else ""


def _nearest(name: str, keys: dict[str, Key]) -> str:
    begun = sorted(one for one in keys if len(name) >= _BEGUN_MIN and one.startswith(name))
    near = begun or difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
    return " or ".join(f'"{one}"' for one in near) if near else "one of " + ", ".join(sorted(keys))
