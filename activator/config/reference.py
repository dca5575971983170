"""docs/configuration.md, generated from the structs of `model/` by `make docs`.

Each struct is a section, each field a row: the key, its type and unit, its default, its meaning and an example.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect as types

from activator.config.model.file import FIXED_KEYS, Config
from activator.config.model.kinds import Duration, Secret, Size
from activator.runtime.units import GIB, KIB, MIB

_INTRODUCTION: Final = """# Configuration reference

Every key of the file that `activator run -c` reads. This page is written from the code by `make docs`.
`activator schema` prints the same as JSON Schema, for editors. `activator check activator.yaml` reports every mistake
with its line.

- A **duration** is `300ms`, `5s`, `2m`, `1h` or a plain number of seconds. A **size** is `32KiB`, `1MiB`, `2GiB` or a
  plain number of bytes.
- A variable of the environment replaces a key of the file: `ACTIVATOR_LIMITS__HEADER_BYTES=64KiB` is
  `limits.header_bytes`, and `ACTIVATOR_REVISIONS__0__POLICY=random` is the policy of the first revision. A value in
  brackets or braces is read as YAML.
- An unknown key is a mistake, and so is a key that has no effect beside the others.
- `[]` in a section's title stands for each element of a list.

SIGHUP, or `POST /reload` on the admin port, reads the file again; requests in flight are not touched.
A reload does not change FIXED.
They need a restart, and `POST /reload` names those that differ in `needs_restart`. All other keys hold at once, except
those of `limits` and `forwarded` that are about a request's header, its body's size or its origin: these hold for
connections that are made from then on.

The smallest file:

```yaml
revisions:
  - name: site
    hosts: ["*"]
    pods: [127.0.0.1:9001]
```

More about single parts: [routing](routing.md), [queueing](queueing.md), [load balancing policies](policies.md),
[the data path](data-path.md), [health checks and reports](state-worker.md), [the table and its threshold](table.md),
[access log](access-log.md), [log](logging.md), [traces](tracing.md), [metrics](metrics.md), [Knative](knative.md).
"""


class Key:
    """One key of the file."""

    def __init__(self, path: str, field: types.Field, root: types.Type) -> None:
        self.path = path
        self.name = field.encode_name
        self.root = root
        self.kind = bare(field.type)
        self._field = field
        shown: dict[str, Any] = {}
        if isinstance(field.type, types.Metadata):
            shown = field.type.extra_json_schema or {}
        self.meaning: str = shown.get("description", "")
        self.examples: list[Any] = shown.get("examples", [])
        self.words: list[str] = shown.get("enum", [])
        self.struct = _struct_of(self.kind)
        # A key that only contains other keys needs no example of its own.
        self.is_group = self.struct is not None

    @property
    def default(self) -> str:
        if self._field.required:
            return "required"
        default = self._field.default
        if default is msgspec.NODEFAULT:
            default = self._field.default_factory() if callable(self._field.default_factory) else None
        match default:
            case None:
                return "not set"
            case "":
                return "empty"
            case msgspec.Struct():
                return ""
            case Duration():
                return f"`{_duration(default)}`"
            case Size():
                return f"`{_size(default)}`"
        return f"`{as_yaml(default)}`"

    @property
    def type(self) -> str:
        if self.words:
            return "one of " + ", ".join(f"`{word}`" for word in self.words if word)
        return _type_name(self.kind)


def bare(kind: types.Type) -> types.Type:
    """Return the type without its documentation."""
    return bare(kind.type) if isinstance(kind, types.Metadata) else kind


def keys() -> Iterator[Key]:
    """Yield every key, each group's before the next group's."""
    root = types.type_info(Config)
    for _, _, members in _sections("", root, root):
        yield from members


def markdown() -> str:
    """Return the whole page."""
    fixed = ", ".join(f"`{name}`" for name in FIXED_KEYS[:-1]) + f" and `{FIXED_KEYS[-1]}`"
    parts = [_INTRODUCTION.replace("FIXED", fixed)]
    root = types.type_info(Config)
    for path, struct, members in _sections("", root, root):
        title = f"`{path}`" if path else "The file"
        parts.append(f"## {title}\n\n{inspect.getdoc(struct.cls)}\n\n{_table(members)}")
    return "\n".join(parts)


def _sections(path: str, kind: types.Type, root: types.Type) -> Iterator[tuple[str, types.StructType, list[Key]]]:
    struct = _struct_of(kind)
    assert struct is not None
    prefix = f"{path}." if path else ""
    members = [Key(prefix + field.encode_name, field, root) for field in struct.fields]
    yield path, struct, members
    for key in members:
        if key.struct is not None:
            yield from _sections(key.path + ("[]" if _is_list_of_structs(key.kind) else ""), key.struct, root)


def _is_list_of_structs(kind: types.Type) -> bool:
    return isinstance(kind, types.ListType)


def _struct_of(kind: types.Type) -> types.StructType | None:
    """Return the struct that a key contains: directly, in a list, or as one of several forms."""
    match kind:
        case types.StructType():
            return kind
        case types.ListType():
            return _struct_of(bare(kind.item_type))
        case types.UnionType():
            for member in kind.types:
                found = _struct_of(bare(member))
                if found is not None:
                    return found
    return None


def _type_name(kind: types.Type) -> str:
    match bare(kind):
        case types.CustomType() as custom:
            return {Duration: "duration", Size: "size", Secret: "text"}[custom.cls]
        case types.IntType() as whole:
            return "whole number" + _bounds(whole)
        case types.FloatType() as number:
            return "number" + _bounds(number)
        case types.BoolType():
            return "`true` or `false`"
        case types.LiteralType() as words:
            return " or ".join(f"`{word}`" for word in words.values)
        case types.ListType() as many:
            return f"list of: {_type_name(many.item_type)}"
        case types.DictType() as mapping:
            return f"mapping of names to: {_type_name(mapping.value_type)}"
        case types.StructType():
            return "mapping"
        case types.UnionType() as union:
            names = [_type_name(member) for member in union.types if not isinstance(member, types.NoneType)]
            return ", or ".join(dict.fromkeys(names))
    return "text"


def _bounds(kind: types.IntType | types.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f", {kind.ge:g} to {kind.le:g}"
    return "" if kind.ge is None else f", at least {kind.ge:g}"


def _table(members: list[Key]) -> str:
    rows = ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
    for key in members:
        example = "<br>".join(f"`{as_yaml(one)}`" for one in key.examples)
        meaning = key.meaning
        if key.is_group:
            section = key.path + ("[]" if _is_list_of_structs(key.kind) else "")
            meaning += f" See [`{section}`](#{_anchor(section)})."
        cells = (f"`{key.name}`", key.type, key.default, meaning, example)
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _anchor(section: str) -> str:
    """Return the anchor that GitHub and mkdocs generate from a section's title."""
    return "".join(letter for letter in section.lower() if letter.isalnum() or letter in "_-")


def as_yaml(value: Any) -> str:
    """Return a value in one line, as it is written in a file."""
    # The reader takes every scalar as its text: 1.2 and off need no quotes.
    if isinstance(value, str) and value.replace(".", "").isalnum():
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _duration(value: float) -> str:
    if value and value % 3600 == 0:
        return f"{value / 3600:g}h"
    if value > 60.0 and value % 60 == 0:
        return f"{value / 60:g}m"
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"


def _size(value: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(int(value))


if __name__ == "__main__":
    sys.stdout.write(markdown())
