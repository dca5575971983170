"""The last requests as the admin port shows them, and as a table and a report for terminals.

Rules
  1. The id of a request is the number of its worker, a dash, and its number there in hexadecimal digits. Numbers grow,
     also when a worker is replaced.
  2. `follow` shows each request once, the oldest first. If more requests end between two queries than one answer has,
     or than a worker remembers, the rest is not shown, and `missed` is called.
  3. What peers have sent is escaped, so that it cannot control the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

FOLLOW_INTERVAL_S: Final = 1.0
_NOT_SHOWN: Final = frozenset(("number", "age_s"))
FOLLOW_COUNT: Final = 500  # requests of one answer while following
_ID: Final = re.compile(r"(old)?(\d{1,4})-([0-9a-f]{1,15})")  # old: a process that an upgrade has replaced
_WIDTHS: Final = {  # the columns, and their least widths while following
    "TIME": 13,
    "ID": 6,
    "REVISION": 12,
    "REQUEST": 24,
    "STATUS": 6,
    "TOOK": 7,
    "WAIT": 7,
    "FIRST": 7,
    "TOKENS": 9,
    "TOKENS/S": 8,
    "USER": 8,
    "POD": 15,
}
_COLUMNS: Final = tuple(_WIDTHS)
_WIDTHS_FOLLOWED: Final = tuple(_WIDTHS.values())


def listed(answers: dict[int, dict[str, Any]], count: int, wall_s: float, is_slowest: bool = False) -> dict[str, Any]:
    """Return the response to `GET /debug/requests`: the last `count` of all workers, the newest or slowest first.

    `answers`: as `Inspection.last_requests` returns them. `wall_s`: seconds since 1970.
    """
    records = [
        (answer.get("wall_s", wall_s) - record["age_s"], worker, record)
        for worker, answer in answers.items()
        for record in answer["records"]
    ]
    records.sort(key=lambda entry: entry[2]["duration_s"] if is_slowest else entry[0], reverse=True)
    evicted = {str(worker): answer["evicted"] for worker, answer in answers.items()}
    return {"requests": [_listed(*entry) for entry in records[:count]], "evicted": evicted}


def _listed(ended_s: float, worker: int, record: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in record.items() if value not in (None, "") and name not in _NOT_SHOWN}
    time = f"{datetime.fromtimestamp(ended_s, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    process = f"old{-worker}" if worker < 0 else str(worker)
    return {"id": f"{process}-{record['number']:x}", "time": time, **shown}


def parse_id(text: str) -> tuple[int, int]:
    """Return the worker (negative: a former process) and the number that an id names; (0, 0): the text is not an id."""
    match = _ID.fullmatch(text)
    if match is None:
        return 0, 0
    return (-int(match[2]) if match[1] else int(match[2])), int(match[3], 16)


class RequestTable:
    """A table, of which all columns but the last are padded. Its first lines set the widths for the later ones.

    `is_followed`: there may be later lines, whose cells may be longer.
    """

    def __init__(self, is_followed: bool) -> None:
        self._widths: tuple[int, ...] = ()  # empty before the first lines
        self._least = _WIDTHS_FOLLOWED if is_followed else (0,) * len(_COLUMNS)

    def lines(self, requests: list[dict[str, Any]], with_head: bool = True) -> Iterator[str]:
        """Yield a line for each request, after the names of the columns if `with_head`."""
        rows = [list(_COLUMNS)] if with_head else []
        rows += [_row(request) for request in requests]
        if not self._widths:
            self._widths = tuple(
                [max(least, *map(len, cells)) for least, *cells in zip(self._least, *rows, strict=True)]
            )
        for row in rows:
            yield "  ".join([cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]).rstrip()


def json_lines(requests: list[dict[str, Any]], with_head: bool = True) -> Iterator[str]:
    """Yield each request as a line of JSON."""
    for request in requests:
        yield json.dumps(request)


def follow(
    ask: Callable[[int], bytes],
    count: int,
    goes_on: Callable[[], bool],
    render: Callable[[list[dict[str, Any]], bool], Iterator[str]],
    missed: Callable[[], None],
) -> Iterator[str]:
    """Yield the lines of the last `count` requests, and of new ones while `goes_on` returns True.

    `ask(n)` returns the response of the admin port with the last n requests.
    """
    last: dict[int, int] = {}  # the highest number shown, by worker
    new, _ = _new_requests(ask(max(count, FOLLOW_COUNT)), last)
    yield from render(new[-count:], True)
    while goes_on():
        new, is_whole = _new_requests(ask(FOLLOW_COUNT), last)
        if not is_whole or len(new) == FOLLOW_COUNT:
            missed()
        yield from render(new, False)


def _new_requests(text: bytes, last: dict[int, int]) -> tuple[list[dict[str, Any]], bool]:
    """Return the requests of an answer that are new, the oldest first, and note their numbers.

    The second value is False if a worker has dropped new ones.
    """
    new: list[dict[str, Any]] = []
    answer = json.loads(text)
    is_whole = all(last.get(int(worker), number) >= number for worker, number in answer["evicted"].items())
    highest = dict(last)
    for request in reversed(answer["requests"]):
        worker, number = parse_id(request["id"])
        if number > last.get(worker, 0):
            new.append(request)
            highest[worker] = max(highest.get(worker, 0), number)
    last.update(highest)
    return new, is_whole


def report(capture: dict[str, Any]) -> Iterator[str]:
    """Yield a captured request and its response as lines; what peers have sent is indented."""
    for name in ("request", "response"):
        yield f"--- {name}"
        for text in (capture[name]["head"], capture[name]["body"]):
            yield from [f"  {_printable(line)}".rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    if capture["is_cut"]:
        yield "--- not complete: a body was longer than `record.capture.bytes`, or there was no room for it"


def _row(request: dict[str, Any]) -> list[str]:
    """Return the cells of a request, in the order of the columns."""
    tokens = request.get("tokens")
    cells = (
        request["time"][11:],
        request["id"] + ("*" if request["has_capture"] else ""),
        request["revision"].removeprefix("default/"),
        f"{request['method']} {request['target']}",
        f"{request['status'] or '-'} {request.get('reason', '')}".rstrip(),
        _duration(request.get("duration_s")),
        _duration(request.get("wait_s")),
        _duration(request.get("first_token_s", request.get("first_byte_s"))),
        "-" if tokens is None else f"{tokens['prompt']}+{tokens['completion']}",
        _per_second(request.get("output_token_s")),
        request.get("user", "-"),
        request.get("pod", "-"),
    )
    return [_printable(cell) for cell in cells]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000.0:.1f}ms" if seconds < 1.0 else f"{seconds:.2f}s"


def _per_second(token_s: float | None) -> str:
    return f"{1.0 / token_s:.3g}" if token_s else "-"


def _printable(text: str) -> str:
    """Return the text with all but printable characters and tabs escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode() for char in text
    )
