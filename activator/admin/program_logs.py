"""`activator logs`: what the local programs of a revision have written, and what they write from now on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

FOLLOW_INTERVAL_S: Final = 0.5  # between two looks for new lines

Ask = Callable[[str], bytes]  # path → the body of the answer


def path_of(name: str, after: int) -> str:
    """On the admin port."""
    return f"/logs/{quote(name, safe='/')}?after={after}"


def output(ask: Ask, name: str, last_lines: int, goes_on: Callable[[], bool]) -> Iterator[str]:
    """Lines as they are printed: the last ones, and as long as `goes_on` (which waits) says so, those that come.

    Raises StartError as `ask` does.
    """
    found = msgspec.json.decode(ask(path_of(name, 0)))
    lines = found["lines"]
    yield from map(_shown, lines[-last_lines:] if last_lines else [])
    last = found["last"]
    while goes_on():
        found = msgspec.json.decode(ask(path_of(name, last)))
        if found["last"] < last:  # the revision is another one of that name, or the activator was started anew
            found = msgspec.json.decode(ask(path_of(name, 0)))
        elif found["missed"]:
            yield f"… {found['missed']} lines were too many to be kept …"
        yield from map(_shown, found["lines"])
        last = found["last"]


def _shown(line: dict[str, Any]) -> str:
    return f"{line['process'].removeprefix('default/')} | {line['text']}"
