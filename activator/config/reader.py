"""Reads items as the types of the structs in `model/`, by walking those types.

Rules
  1. All mistakes are reported, not only the first: a value that cannot be read is left out, and reading continues.
  2. A mistake is one line: its place, the key's path, the found and the expected value, or the correction.
  3. The structs are the only description of the file. A new field there is a new key in the file, in the environment
     and in the schema; its bounds are in its `msgspec.Meta`.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from typing import Any, Final

import yaml
from msgspec import inspect as types

from activator.config.model.kinds import Duration, Secret, Size
from activator.config.tree import Item
from activator.runtime.durations import parse_seconds
from activator.runtime.units import GIB, KIB, MIB

Values = dict[str, Any]  # the readable fields of a struct; structs within are Values too

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.6.2: a header name, a method, a cookie name
SIZE_PATTERN: Final = r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB)?"
_BYTES: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
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
_BEGUN_MIN: Final = 3  # least length of an abbreviated key that is recognized
LINE_MAX: Final = 200  # longest text that is shown again as a list
_INT: Final = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


class _Unreadable:
    """The value of an item that could not be read and has been reported."""


UNREADABLE: Final = _Unreadable()


class Reader:
    """A reader that collects the problems of one tree."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def found(self, item: Item, path: str, expected: str, found: str | None = None, where: str | None = None) -> None:
        """Report a mistake."""
        subject = f"{path}: " if path else ""
        self.problems.append(f"{where or item.where}: {subject}found {found or item.describe()}, expected {expected}")

    def advise(self, item: Item, path: str, advice: str) -> None:
        """Report a mistake that is best described by what to change."""
        self.problems.append(f"{item.where}: {path}: {advice}" if path else f"{item.where}: {advice}")

    def read(self, item: Item, kind: types.Type, path: str) -> Any:
        """Return the item's value, or UNREADABLE."""
        match kind:
            case types.Metadata():
                return self.read(item, kind.type, path)
            case types.UnionType():
                return self._read_union(item, kind, path)
            case types.StructType():
                return self._read_struct(item, kind, path)
            case types.ListType():
                return self._read_list(item, kind, path)
            case types.DictType():
                return self._read_dict(item, kind, path)
        value = None if item.text is None else _scalar(item.text, kind)
        if value is None:
            placeholder = _placeholder(item)
            if placeholder and isinstance(kind, types.StrType):
                self.advise(item, path, f'YAML reads {placeholder} as a mapping: write "{placeholder}", in quotes')
            else:
                self.found(item, path, expectation(kind) + _corrected(item, kind), _hidden(item, kind))
            return UNREADABLE
        return value

    def _read_union(self, item: Item, kind: types.UnionType, path: str) -> Any:
        if kind.includes_none and item.text is None and item.entries is None and item.elements is None:
            return None
        for member in kind.types:
            is_fitting = (
                item.entries is not None
                if isinstance(member, types.StructType | types.DictType)
                else item.elements is not None
                if isinstance(member, types.ListType)
                else item.text is not None and _scalar(item.text, member) is not None
            )
            if is_fitting:
                return self.read(item, member, path)
        self.found(item, path, expectation(kind) + _corrected(item, kind), _hidden(item, kind))
        return UNREADABLE

    def _read_list(self, item: Item, kind: types.ListType, path: str) -> Any:
        if item.elements is None:
            self.found(item, path, expectation(kind) + _as_list(item))
            return UNREADABLE
        # Unreadable elements stay, so that the others keep their indexes.
        return [self.read(one, kind.item_type, f"{path}[{place}]") for place, one in enumerate(item.elements)]

    def _read_dict(self, item: Item, kind: types.DictType, path: str) -> Any:
        if item.entries is None:
            self.found(item, path, expectation(kind) + _as_mapping(item), _hidden(item, kind))
            return UNREADABLE
        return {key: self.read(one, kind.value_type, f"{path}.{key}") for key, one in item.entries.items()}

    def _read_struct(self, item: Item, kind: types.StructType, path: str) -> Any:
        if item.entries is None:
            self.found(item, path, expectation(kind), _hidden(item, kind))
            return UNREADABLE
        fields = {field.encode_name: field for field in kind.fields}
        values: Values = {}
        for key, one in item.entries.items():
            at = f"{path}.{key}" if path else key
            if key in fields:
                value = self.read(one, fields[key].type, at)
                if value is not UNREADABLE:
                    values[key] = value
            else:
                self.found(one, path, _nearest(key, fields), f'the unknown key "{key}"', one.key_where)
        for name, field in fields.items():
            if field.required and name not in item.entries:
                self.found(item, path, f'the key "{name}"', "none")
        return values


def _hidden(item: Item, kind: types.Type) -> str | None:
    """Return a description in place of a secret, or of a mapping with secrets; None if it may be shown."""
    return "a text" if item.text is not None and _holds_secret(kind) else None


def _holds_secret(kind: types.Type) -> bool:
    match kind:
        case types.Metadata():
            return _holds_secret(kind.type)
        case types.UnionType():
            return any(_holds_secret(member) for member in kind.types)
        case types.DictType():
            return _holds_secret(kind.value_type)
        case types.StructType():
            return any(_holds_secret(one.type) for one in kind.fields if not _is_struct(one.type))
    return isinstance(kind, types.CustomType) and kind.cls is Secret


def _is_struct(kind: types.Type) -> bool:
    return isinstance(kind.type if isinstance(kind, types.Metadata) else kind, types.StructType)


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


def _corrected(item: Item, kind: types.Type) -> str:
    """Return how to write a duration or a size that a person understands and the file does not; else empty."""
    match kind:
        case types.Metadata():
            return _corrected(item, kind.type)
        case types.UnionType():
            return next(filter(None, (_corrected(item, member) for member in kind.types)), "")
        case types.CustomType() if kind.cls in (Duration, Size) and item.text is not None:
            match = _AMOUNT.fullmatch(item.text.strip())
            units = _DURATION_WORDS if kind.cls is Duration else _SIZE_WORDS
            unit = None if match is None else units.get(match[2].lower())
            suggested = "" if match is None or unit is None else f"{match[1]}{unit}"
            return f": write {suggested}" if suggested and _scalar(suggested, kind) is not None else ""
    return ""


def build(kind: types.Type, values: Any) -> Any:
    """Build the structs from values that were read without a problem."""
    match kind:
        case types.Metadata():
            return build(kind.type, values)
        case types.StructType() if isinstance(values, dict):
            by_name = {field.encode_name: field for field in kind.fields}
            return kind.cls(**{by_name[key].name: build(by_name[key].type, value) for key, value in values.items()})
        case types.ListType() if isinstance(values, list):
            return [build(kind.item_type, value) for value in values]
        case types.UnionType() if isinstance(values, dict | list):
            wanted = types.StructType if isinstance(values, dict) else types.ListType
            return build(next(member for member in kind.types if isinstance(member, wanted)), values)
    return values


def parse_duration(text: str) -> Duration | None:
    """Parse `300ms`, `5s`, `2m`, `1h` or a plain number of seconds; None if malformed."""
    seconds = parse_seconds(text)
    return None if seconds is None else Duration(seconds)


def parse_size(text: str) -> Size | None:
    """Parse `32KiB`, `1MiB`, `2GiB` or a plain number of bytes; None if malformed."""
    match = re.fullmatch(SIZE_PATTERN, text, re.ASCII)
    if match is None:
        return None
    size = float(match[1]) * _BYTES[match[2] or "B"]
    return Size(size) if size < 2**63 else None


def expectation(kind: types.Type) -> str:
    """Return the form that a user should write."""
    match kind:
        case types.Metadata():
            return expectation(kind.type)
        case types.UnionType():
            texts = [expectation(member) for member in kind.types if not isinstance(member, types.NoneType)]
            return ", or ".join(dict.fromkeys(texts))
        case types.CustomType() if kind.cls is Duration:
            return "a duration such as 300ms, 5s or 2m"
        case types.CustomType() if kind.cls is Size:
            return "a size such as 32KiB or 1MiB"
        case types.IntType():
            return "a whole number" + _bounds(kind)
        case types.FloatType():
            return "a number" + _bounds(kind)
        case types.BoolType() | types.LiteralType():
            words = kind.values if isinstance(kind, types.LiteralType) else ("true", "false")
            return " or ".join(str(word) for word in words)
        case types.ListType():
            return "a list"
        case types.DictType() | types.StructType():
            return "a mapping"
    return "text"


def _bounds(kind: types.IntType | types.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:g} to {kind.le:g}"
    return "" if kind.ge is None else f" of at least {kind.ge:g}"


def _scalar(text: str, kind: types.Type) -> Any:
    """Return the value of a scalar's text; None if it does not fit the type or its bounds."""
    match kind:
        case types.StrType():
            return text
        case types.LiteralType():
            return text if text in kind.values else None
        case types.BoolType():
            return {"true": True, "false": False}.get(text)
        case types.IntType():
            digits = text.replace("_", "")
            return _within(int(digits), kind) if _INT.fullmatch(digits) else None
        case types.FloatType():
            return _within(float(text), kind) if _FLOAT.fullmatch(text) else None
        case types.CustomType() if kind.cls is Duration:
            return parse_duration(text)
        case types.CustomType() if kind.cls is Size:
            return parse_size(text)
        case types.CustomType() if kind.cls is Secret:
            return Secret(text)
        case types.NoneType():
            return None
    raise AssertionError(f"config.py uses a type that the reader does not know: {kind}")


def _within(number: float, kind: types.IntType | types.FloatType) -> float | None:
    is_within = math.isfinite(number) and number >= _or(kind.ge, -math.inf) and number <= _or(kind.le, math.inf)
    return number if is_within else None


def _or(bound: float | None, default: float) -> float:
    return default if bound is None else bound


def _nearest(key: str, fields: dict[str, types.Field]) -> str:
    begun = sorted(name for name in fields if len(key) >= _BEGUN_MIN and name.startswith(key))
    near = begun or difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
    return " or ".join(f'"{name}"' for name in near) if near else "one of " + ", ".join(sorted(fields))
