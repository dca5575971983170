"""docs/configuration.md, generated from the structs of `model/` by `make docs`.

Each struct is a section, each field a row: the key, its type, its default, its meaning and an example.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from activator.config.forms import FILE, Key, sections
from activator.config.model.file import FIXED_KEYS
from activator.config.model.kinds import Duration, Size
from activator.runtime.units import GIB, KIB, MIB

_INTRODUCTION: Final = """# Configuration reference

Every key of the file that `activator run -c` reads, written from the code by `make docs`. `activator schema` prints
the same as JSON Schema, for editors. `activator check activator.yaml` reports every mistake with its line.

- A **duration** is `300ms`, `5s`, `2m`, `1h` or a plain number of seconds. A **size** is `32KiB`, `1MiB`, `2GiB` or a
  plain number of bytes.
- A key without a default is empty or not set.
- A variable of the environment replaces a key of the file: `ACTIVATOR_LIMITS__HEADER_BYTES=64KiB` is
  `limits.header_bytes`, and `ACTIVATOR_REVISIONS__0__POLICY=random` is the policy of the first revision. A value in
  brackets or braces is read as YAML.
- An unknown key is a mistake, and so is a key that has no effect beside the others.
- `[]` in a section's title stands for each element of a list.

SIGHUP, or `POST /reload` on the admin port, reads the file again; requests in flight are not touched.
A reload does not change FIXED.
They need a restart, and `POST /reload` names those that differ in `needs_restart`. All other keys take effect at
once, except the keys of `limits` and `forwarded` for a request's header, the size of its body or its origin: these
apply to new connections.

The smallest file:

```yaml
revisions:
  - name: site
    hosts: ["*"]
    pods: [127.0.0.1:9001]
```
"""


def keys() -> Iterator[tuple[str, Key]]:
    """Yield every key with its path, each group's before the next group's."""
    for path, group in sections(FILE):
        for key in group.keys.values():
            yield f"{path}.{key.name}" if path else key.name, key


def markdown() -> str:
    """Return the whole page."""
    fixed = ", ".join(f"`{name}`" for name in FIXED_KEYS[:-1]) + f" and `{FIXED_KEYS[-1]}`"
    lines = [_INTRODUCTION.replace("FIXED", fixed)]
    titles = {group.cls: path for path, group in reversed([*sections(FILE)])}  # the first section counts
    written: dict[tuple[type, str], str] = {}  # the section of a key, by the struct that declares it
    for path, group in sections(FILE):
        if titles[group.cls] != path:
            continue
        rows = ["|key|type|default|meaning|", "|---|---|---|---|"]
        inherited: dict[str, list[str]] = {}
        for key in group.keys.values():
            struct = next(cls for cls in reversed(group.cls.__mro__) if hasattr(cls, key.attribute))
            section = written.setdefault((struct, key.name), path)
            if section == path:
                rows.append(_row(key, titles))
            else:
                inherited.setdefault(section, []).append(f"`{key.name}`")
        title = f"`{path}`" if path else "The file"
        lines += [f"## {title}", "", str(inspect.getdoc(group.cls)), "", *rows, ""]
        for section, names in inherited.items():
            lines += [f"As in [`{section}`](#{_anchor(section)}): {', '.join(names)}.", ""]
    lines += ["Tests: `tests/config/test_config_reference.py`.", ""]
    return "\n".join(lines)


def _row(key: Key, titles: dict[type, str]) -> str:
    type_text = ", ".join(f"`{word}`" for word in key.words if word) or key.form.label
    if key.group is not None:
        type_text = type_text.replace("mapping", f"[mapping](#{_anchor(titles[key.group.cls])})")
    meaning = key.description
    if key.examples and not key.words and re.search("string|list|map", type_text):  # other types need no example
        meaning += f" Example: {' or '.join(f'`{as_yaml(example)}`' for example in key.examples)}."
    cells = (f"`{key.name}`", type_text, _default(key), meaning)
    return f"|{'|'.join(cell.replace('|', '&#124;') for cell in cells)}|"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    match key.default:
        case None | "" | msgspec.Struct():
            return ""
        case Duration() as seconds:
            return f"`{_duration(seconds)}`"
        case Size() as size:
            return f"`{_size(size)}`"
    return f"`{as_yaml(key.default)}`"


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
