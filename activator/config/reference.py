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

from activator.config.forms import FILE, Group, Key, sections
from activator.config.model.file import FIXED_KEYS
from activator.config.model.kinds import Duration, Size
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

More about single parts: [routing](routing.md), [queueing](queueing.md), [load balancing policies](policies.md),
[the data path](data-path.md), [health checks and reports](state-worker.md), [the table and its threshold](table.md),
[access log](access-log.md), [log](logging.md), [traces](tracing.md), [metrics](metrics.md), [Knative](knative.md).
"""


def keys() -> Iterator[tuple[str, Key]]:
    """Yield every key with its path, each group's before the next group's."""
    for path, group in sections(FILE):
        for key in group.keys.values():
            yield f"{path}.{key.name}" if path else key.name, key


def markdown() -> str:
    """Return the whole page."""
    fixed = ", ".join(f"`{name}`" for name in FIXED_KEYS[:-1]) + f" and `{FIXED_KEYS[-1]}`"
    parts = [_INTRODUCTION.replace("FIXED", fixed)]
    for path, group in sections(FILE):
        title = f"`{path}`" if path else "The file"
        parts.append(f"## {title}\n\n{inspect.getdoc(group.cls)}\n\n{_table(path, group)}")
    return "\n".join(parts)


def _default(key: Key) -> str:
    if key.required:
        return "required"
    match key.default:
        case None:
            return "not set"
        case "":
            return "empty"
        case msgspec.Struct():
            return ""
        case Duration() as seconds:
            return f"`{_duration(seconds)}`"
        case Size() as size:
            return f"`{_size(size)}`"
    return f"`{as_yaml(key.default)}`"


def _table(path: str, group: Group) -> str:
    rows = ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
    for key in group.keys.values():
        example = "<br>".join(f"`{as_yaml(one)}`" for one in key.examples)
        meaning = key.description
        if key.group is not None:
            section = f"{path}{'.' if path else ''}{key.name}{'[]' if key.is_list else ''}"
            meaning += f" See [`{section}`](#{_anchor(section)})."
        words = "one of " + ", ".join(f"`{word}`" for word in key.words if word)
        cells = (f"`{key.name}`", words if key.words else key.form.label, _default(key), meaning, example)
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
