"""Background work: a program that reports that it is busy is not stopped for idleness.

Rules
  1. A program is asked over HTTP, at the path that its revision configures, every `interval` while it is ready and the
     revision has no request. A revision with requests is active anyway, and a program without a free slot could not
     answer.
  2. A request may leave background work behind. After a request the revision counts as busy until its programs have
     been asked after the last request; they are asked as soon as it has ended.
  3. The answer is the word `busy` or `idle`, or JSON of which one field counts: a flag, a number, a list of jobs, or
     the time of the last activity (`parse_answer`).
  4. A missing or malformed answer changes nothing for SILENT_MAX times; then the program counts as idle, and one line
     is logged. A program that hangs must not run without end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from activator.config.model.waiting import Busy
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess
from activator.control_plane.sources.process.program_client import query_program
from activator.messages import Load
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.units import KIB

BUSY_TIMEOUT_S: Final = 2.0
BUSY_BYTES_MAX: Final = 64 * KIB  # a longer answer counts as malformed
SILENT_MAX: Final = 3
_DEPTH_MAX: Final = 8  # names in a field's path
_WORDS: Final = {"busy": True, "true": True, "1": True, "idle": False, "false": False, "0": False, "": False}

log = logging.getLogger("activator.process")


class BusyAnswer(NamedTuple):
    """The answer of a program. `active_s`: Unix seconds of its last activity, 0.0 if it does not report that."""

    busy: bool = False
    active_s: float = 0.0
    problem: str = ""


class _Watched:
    """The queries to the programs of one revision, and their results."""

    def __init__(self, busy: Busy) -> None:
        self.busy = busy
        self.due_s = 0.0  # time of the next query
        self.is_asking = False  # a query is under way
        self.count = 0  # programs that are busy
        self.requests_total = 0
        self.requested = 0  # how often a report of the load has shown requests
        self.is_unknown = False  # requests have arrived after the last query to the programs
        self.silent: dict[str, int] = {}  # missing answers in a row, by program


class BusyWatch:
    """The regular queries to programs whether they are busy.

    `find(key)` returns the programs of a revision, `has_requests(key)` is true while it has any request. `changed(key,
    count)` is called with the number of busy programs, `touched(key, ago_s)` with the age of the last activity.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        find: Callable[[str], Fleet | None],
        has_requests: Callable[[str], bool],
        changed: Callable[[str, int], None],
        touched: Callable[[str, float], None],
        now: Now,
        wall_clock: Now,
    ) -> None:
        self._tasks = tasks
        self._find = find
        self._has_requests = has_requests
        self._changed = changed
        self._touched = touched
        self._now = now
        self._wall_clock = wall_clock
        self._watched: dict[str, _Watched] = {}

    def set_revision(self, key: str, busy: Busy | None) -> None:
        """Set how the programs of a revision are asked; None: they are not asked."""
        watched = self._watched.get(key)
        if busy is None:
            self.drop_revision(key)
        elif watched is None:
            self._watched[key] = _Watched(busy)
        else:
            watched.busy = busy

    def drop_revision(self, key: str) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None and watched.count:
            self._changed(key, 0)

    def load(self, load: Load) -> None:
        """Record the load of a revision: a request makes it count as busy until its programs have been asked."""
        watched = self._watched.get(load.key)
        if watched is None:
            return
        is_idle = load.in_flight + load.queued == 0
        if not is_idle or load.requests_total != watched.requests_total:
            watched.requests_total = load.requests_total
            watched.requested += 1
            if not watched.is_unknown:
                watched.is_unknown = True
                self._changed(load.key, max(watched.count, 1))
        if is_idle and watched.is_unknown:
            watched.due_s = 0.0

    def tick(self) -> None:
        """Ask the programs that are due; to be called several times in a second."""
        now_s = self._now()
        for key, watched in self._watched.items():
            if now_s < watched.due_s or watched.is_asking:
                continue
            watched.due_s = now_s + float(watched.busy.interval)
            fleet = self._find(key)
            once = fleet is None or fleet.is_once()  # a query would be the one request that it takes
            ready = [] if fleet is None or once else [process for process in fleet.running() if process.ready]
            if not ready:
                self._set_count(key, watched, 0, watched.requested)
            elif not self._has_requests(key):
                watched.is_asking = True
                self._tasks.start(f"busy {key}", self._ask_all(key, watched, ready))

    async def _ask_all(self, key: str, watched: _Watched, ready: list[LocalProcess]) -> None:
        requested = watched.requested
        try:
            busy = watched.busy
            addresses = [process.unit.address for process in ready]
            answers = await asyncio.gather(
                *(ask(address, busy.http_get, busy.field, BUSY_TIMEOUT_S) for address in addresses)
            )
            if self._watched.get(key) is not watched:
                return
            for process, answer in zip(ready, answers, strict=True):
                self._record_answer(key, watched, process, answer)
            watched.silent = {process.identity: watched.silent.get(process.identity, 0) for process in ready}
            self._set_count(key, watched, sum(process.busy and process.ready for process in ready), requested)
        finally:
            watched.is_asking = False

    def _record_answer(self, key: str, watched: _Watched, process: LocalProcess, answer: BusyAnswer) -> None:
        if not answer.problem:
            watched.silent[process.identity] = 0
            process.busy = answer.busy
            if answer.active_s > 0.0:
                self._touched(key, max(self._wall_clock() - answer.active_s, 0.0))
            return
        silent = watched.silent[process.identity] = watched.silent.get(process.identity, 0) + 1
        if silent == SILENT_MAX:
            message = "%s: the busy check failed %d times, so the program counts as idle: %s"
            log.warning(message, process.identity, silent, answer.problem)
        if silent >= SILENT_MAX:
            process.busy = False

    def _set_count(self, key: str, watched: _Watched, count: int, requested: int) -> None:
        """Set the number of busy programs, observed after `requested` load reports with requests."""
        was_unknown = watched.is_unknown
        watched.is_unknown = was_unknown and watched.requested != requested
        before, watched.count = watched.count, count
        if count or before or was_unknown:
            self._changed(key, max(count, 1) if watched.is_unknown else count)


# --- one query --------------------------------------------------------------------------------------------------------


async def ask(address: str, path: str, field: str, timeout_s: float) -> BusyAnswer:
    """Query a program once; a failure is returned as a `problem`, not raised."""
    head = f"GET {path} HTTP/1.1\r\nAccept: application/json\r\n"
    reply = await query_program(address, head, timeout_s, BUSY_BYTES_MAX)
    if reply.problem:
        return BusyAnswer(problem=reply.problem)
    if reply.status != 200:
        return BusyAnswer(problem=f"the answer is {reply.status}")
    return parse_answer(reply.body, field)


def parse_answer(body: bytes, field: str) -> BusyAnswer:
    """Parse an answer. `field`: a name, or names with dots between them, in each element of a list."""
    try:
        text = body.decode("utf-8").strip()
        if not field and text.lower() in _WORDS:
            return BusyAnswer(_WORDS[text.lower()])
        data = json.loads(text)
    except (ValueError, RecursionError):
        return BusyAnswer(problem="the answer is neither JSON nor one of `busy` and `idle`")
    values = _values(data, (field or "busy").split(".")[:_DEPTH_MAX])
    if not values:
        return BusyAnswer(problem=f"the answer has no field {field or 'busy'}") if data != [] else BusyAnswer()
    busy, active_s = False, 0.0
    for value in values:
        answer = _answer_of(value)
        if answer is None:
            return BusyAnswer(problem=f"the field {field or 'busy'} is not understood")
        busy = busy or answer.busy
        active_s = max(active_s, answer.active_s)
    return BusyAnswer(busy, active_s)


def _values(data: Any, names: list[str]) -> list[Any]:
    if isinstance(data, list) and names:
        return [value for element in data for value in _values(element, names)]
    if not names:
        return [data]
    if isinstance(data, dict) and names[0] in data:
        return _values(data[names[0]], names[1:])
    return []


def _answer_of(value: Any) -> BusyAnswer | None:
    """Return the meaning of one value; None if it has none."""
    match value:
        case None:
            return BusyAnswer()
        case bool():
            return BusyAnswer(value)
        case int() | float():
            return BusyAnswer(value > 0)
        case list() | dict():
            return BusyAnswer(bool(value))
        case str():
            if value.lower() in _WORDS:
                return BusyAnswer(_WORDS[value.lower()])
            try:
                at = datetime.fromisoformat(value)
                return BusyAnswer(active_s=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
            except (ValueError, OverflowError):
                return None
    return None
