"""`activator logs`: the output of a revision's local programs, and optionally new output as it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

FOLLOW_INTERVAL_S: Final = 0.5  # the interval between requests for new lines

Ask = Callable[[str], bytes]  # path → the body of the response


def path_of(name: str, after: int) -> str:
    """Return the path on the admin port for the lines behind the number `after`."""
    return f"/logs/{quote(name, safe='/')}?after={after}"


def output(ask: Ask, name: str, last_lines: int, goes_on: Callable[[], bool]) -> Iterator[str]:
    """Yield the last lines as text, then new ones as long as `goes_on`, which waits, returns True.

    Raises StartError as `ask` does.
    """
    answer = msgspec.json.decode(ask(path_of(name, 0)))
    lines = answer["lines"]
    yield from map(_shown, lines[-last_lines:] if last_lines else [])
    last = answer["last"]
    while goes_on():
        answer = msgspec.json.decode(ask(path_of(name, last)))
        if answer["last"] < last:  # the revision was replaced by one of the same name, or the activator was restarted
            answer = msgspec.json.decode(ask(path_of(name, 0)))
        elif answer["missed"]:
            yield f"… {answer['missed']} lines were dropped because there were too many …"
        yield from map(_shown, answer["lines"])
        last = answer["last"]


def _shown(line: dict[str, Any]) -> str:
    return f"{line['process'].removeprefix('default/')} | {line['text']}"
