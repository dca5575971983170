"""The keys of the file and the forms of their values, from the types of the structs in `model/`.

Rules
  1. This is the only walk over those types: the reader, the schema, the CRD and the reference use its forms.
  2. A new field of a struct is a new key everywhere; its bounds are in its `msgspec.Meta`, its texts in its `doc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import inspect as types

from activator.config.model.file import Config
from activator.config.model.kinds import Duration, Json, Secret, Size
from activator.runtime.durations import DURATION_PATTERN, parse_seconds
from activator.runtime.units import GIB, KIB, MIB

SIZE_PATTERN: Final = r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB)?"
_BYTES: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_INT: Final = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


class Form:
    """The form of a value."""

    def __init__(self, expected: str, label: str, zero: Any) -> None:
        self.expected = expected  # what a user should write
        self.label = label  # in the reference
        self.zero = zero  # the value in place of a required one that could not be read
        self.notes: dict[str, Any] = {}  # the texts of `doc`, by the words of JSON Schema


class Scalar(Form):
    """A value that is one text in the file. `parse` returns None for a text that does not fit."""

    def __init__(
        self, cls: type, parse: Callable[[str], Any], expected: str, label: str, zero: Any, **schema: Any
    ) -> None:
        super().__init__(expected, label, zero)
        self.cls = cls
        self.parse = parse
        self.schema = schema
        self.pattern = {Duration: DURATION_PATTERN, Size: SIZE_PATTERN}.get(cls, "")


class Many(Form):
    """A list."""

    def __init__(self, of: Form) -> None:
        super().__init__("a list", f"list of {of.label}", [])
        self.of = of


class Mapping(Form):
    """A mapping from names of the user's choice."""

    def __init__(self, of: Form) -> None:
        super().__init__("a mapping", f"map of {of.label}", {})
        self.of = of


class JsonValue(Form):
    """Any value of JSON, as YAML."""

    def __init__(self) -> None:
        super().__init__("a value of JSON", "any", Json("null"))


class Choice(Form):
    """One of several forms. `is_optional`: the value may be missing."""

    def __init__(self, forms: list[Form], is_optional: bool) -> None:
        expected, labels = (dict.fromkeys(texts) for texts in zip(*((form.expected, form.label) for form in forms)))
        super().__init__(", or ".join(expected), ", or ".join(labels), None if is_optional else forms[0].zero)
        self.forms = forms
        self.is_optional = is_optional


class Key:
    """One key of a group. `attribute` is its name in the struct."""

    def __init__(self, field: types.Field) -> None:
        self.name = field.encode_name
        self.attribute = field.name
        self.form = form_of(field.type)
        self.required = field.required
        factory = field.default_factory
        self.default = factory() if callable(factory) else field.default
        self.description: str = self.form.notes.get("description", "")
        self.examples: list[Any] = self.form.notes.get("examples", [])
        self.words: list[str] = self.form.notes.get("enum", [])
        self.group = _group_in(self.form)
        self.is_list = isinstance(self.form, Many)


class Group(Form):
    """A mapping whose keys are the fields of a struct. `make` builds the struct from values by attribute."""

    def __init__(self, cls: type, keys: list[Key], make: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.cls = cls
        self.keys = {key.name: key for key in keys}
        self.required = [key for key in keys if key.required]
        self.make = make or (lambda values: cls(**values))
        super().__init__("a mapping", "mapping", self.make({key.attribute: key.form.zero for key in self.required}))


def group_of(cls: type) -> Group:
    """Return the form of a struct."""
    form = form_of(types.type_info(cls))
    assert isinstance(form, Group)
    return form


def form_of(declared: types.Type) -> Form:
    """Return the form of the values of a type."""
    match declared:
        case types.Metadata():
            form = form_of(declared.type)
            form.notes = declared.extra_json_schema or {}
            return form
        case types.UnionType():
            forms = [form_of(option) for option in declared.types if not isinstance(option, types.NoneType)]
            return Choice(forms, declared.includes_none)
        case types.StructType():
            return Group(declared.cls, [Key(field) for field in declared.fields])
        case types.ListType():
            return Many(form_of(declared.item_type))
        case types.DictType():
            return Mapping(form_of(declared.value_type))
        case types.CustomType() if declared.cls is Json:
            return JsonValue()
    return _scalar(declared)


def _scalar(declared: types.Type) -> Scalar:
    match declared:
        case types.IntType() | types.FloatType():
            return _number(declared)
        case types.BoolType():
            words = {"true": True, "false": False}
            return Scalar(bool, words.get, "true or false", "bool", False, type="boolean")
        case types.LiteralType():
            texts = [str(word) for word in declared.values]
            label = ", ".join(f"`{word}`" for word in texts)
            return Scalar(str, {word: word for word in texts}.get, " or ".join(texts), label, texts[0], enum=texts)
        case types.StrType():
            return Scalar(str, lambda text: text, "text", "string", "", type="string")
        case types.CustomType() if declared.cls is Secret:
            return Scalar(Secret, Secret, "text", "string", Secret(""), type="string")
        case types.CustomType() if declared.cls is Duration:
            return _amount(Duration, parse_duration, "a duration such as 300ms, 5s or 2m", "seconds", DURATION_PATTERN)
        case types.CustomType() if declared.cls is Size:
            return _amount(Size, parse_size, "a size such as 32KiB or 1MiB", "bytes", SIZE_PATTERN)
    raise AssertionError(f"model/ uses a type without a form: {declared}")


def _number(declared: types.IntType | types.FloatType) -> Scalar:
    least, most = declared.ge, declared.le
    is_whole = isinstance(declared, types.IntType)
    noun, label = ("whole number", "integer") if is_whole else ("number", "number")
    bounds = ""
    if least is not None:
        bounds = f" of at least {least:g}" if most is None else f" from {least:g} to {most:g}"
        label += f" ≥ {least:g}" if most is None else f" {least:g} to {most:g}"
    low, high = -math.inf if least is None else least, math.inf if most is None else most

    def parse(text: str) -> float | None:
        if is_whole:
            text = text.replace("_", "")
        if (_INT if is_whole else _FLOAT).fullmatch(text) is None:
            return None
        number = int(text) if is_whole else float(text)
        return number if math.isfinite(number) and low <= number <= high else None

    schema = {"type": "integer" if is_whole else "number", "minimum": least, "maximum": most}
    schema = {name: bound for name, bound in schema.items() if bound is not None}
    return Scalar(int if is_whole else float, parse, f"a {noun}{bounds}", label, 0, **schema)


def _amount(cls: type, parse: Callable[[str], Any], expected: str, unit: str, pattern: str) -> Scalar:
    number = {"type": "number", "minimum": 0, "description": unit}
    text = {"type": "string", "pattern": f"^({pattern})$", "description": expected}
    return Scalar(cls, parse, expected, cls.__name__.lower(), cls(0), anyOf=[number, text])


def _group_in(form: Form) -> Group | None:
    """Return the group that a value contains: directly, in a list or a mapping, or as one of several forms."""
    match form:
        case Group():
            return form
        case Many() | Mapping():
            return _group_in(form.of)
        case Choice():
            return next(filter(None, map(_group_in, form.forms)), None)
    return None


def sections(group: Group, path: str = "") -> Iterator[tuple[str, Group]]:
    """Yield the group and every group within, each with its path, in which `[]` stands for each element of a list."""
    yield path, group
    for key in group.keys.values():
        if key.group is not None:
            yield from sections(key.group, f"{path}{'.' if path else ''}{key.name}{'[]' if key.is_list else ''}")


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


FILE: Final = group_of(Config)


def plain(value: Any) -> Any:
    """Return a default as a scalar of JSON; None if it is not a scalar."""
    for cls, bare in ((Duration, float), (Size, int), (Secret, str)):
        if isinstance(value, cls):
            return bare(value)
    return value if isinstance(value, bool | int | float | str) else None
