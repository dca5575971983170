"""What the program says of itself, on standard error: console or JSON, a level for each part, repeats left out.

Rules
  1. The parts are the loggers below `activator`, and the libraries that say something; a level set for one part holds
     until the next reload.
  2. A flood is bounded and reported: of one text at most LOG_SAME_MAX lines in a window, of one place in the code
     LOG_PLACE_MAX; when the window is over, one line says how many were left out. Lines of the level debug are never
     left out.
  3. Malformed requests to the admin port and other ports of aiohttp are not logged: a scanner would fill the log.
  4. A record is one line, or one object; what a peer sent cannot begin another line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Final, TextIO

import msgspec

from activator.config.model.telemetry import LOG_PARTS, Log
from activator.runtime.clock import Now
from activator.runtime.errors import one_line

LOG_WINDOW_S: Final = 10.0  # in which the program says of itself …
LOG_SAME_MAX: Final = 3  # … the same so many times at most …
LOG_PLACE_MAX: Final = 100  # … and so much from one place in its code; more is left out and counted
LOG_PLACES_MAX: Final = 1_000  # places that are looked at

OWN: Final = "activator"
_SERVER: Final = "aiohttp.server"  # it logs each malformed request as an error, with a traceback
_CONSOLE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class AppLog:
    """The root logger's one handler. `fixed_level`: of the command line; it is stronger than the file's.

    `process`: which of several processes this is; empty: there is one, or it is the parent.
    """

    def __init__(self, stream: TextIO, now: Now, fixed_level: str | None = None, process: str = "") -> None:
        self.fixed_level = fixed_level
        self._process = process
        self._handler = logging.StreamHandler(stream)
        self._repeats = Repeats(now, self._tell)
        self._handler.addFilter(self._repeats)
        self._levels: dict[str, str] = {}  # by part
        self._level = "info"

    @property
    def suppressed_total(self) -> int:
        """Lines that were left out."""
        return self._repeats.suppressed_total

    def install(self, wanted: Log) -> None:
        """From now on everything goes here."""
        root = logging.getLogger()
        for former in root.handlers[:]:
            root.removeHandler(former)
        root.addHandler(self._handler)
        logging.getLogger(_SERVER).addFilter(_is_own_fault)
        self.set(wanted)

    def remove(self) -> None:
        """Undo `install`."""
        logging.getLogger(_SERVER).removeFilter(_is_own_fault)
        logging.getLogger().removeHandler(self._handler)
        for part in self._levels:
            _logger(part).setLevel(logging.NOTSET)

    def set(self, wanted: Log) -> None:
        """What the file says, instead of whatever was said before."""
        self._handler.setFormatter(_formatter(wanted.format, self._process))
        for part in self._levels.keys() - wanted.levels.keys():
            _logger(part).setLevel(logging.NOTSET)
        self._levels = {}
        self.set_level("", self.fixed_level or wanted.level)
        for part, level in wanted.levels.items():
            self.set_level(part, level)

    def set_level(self, part: str, level: str) -> None:
        """Of one part, or (empty) of all that have none of their own; the words must have been checked."""
        if part:
            self._levels[part] = level
        else:
            self._level = level
        _logger(part).setLevel(level.upper())

    def levels(self) -> dict[str, str]:
        """By part; the empty one stands for the others."""
        return {"": self._level, **self._levels}

    def sweep(self) -> None:
        """Report the floods that are over; called now and then."""
        self._repeats.sweep()

    def _tell(self, record: logging.LogRecord) -> None:
        self._handler.emit(record)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for bytes of a client that are no HTTP: it was sent a 400, and is no error of this program."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__module__ != "aiohttp.http_exceptions"


def _formatter(kind: str, process: str) -> logging.Formatter:
    if kind == "json":
        return JsonFormatter(process)
    return ConsoleFormatter(_CONSOLE.replace("%(name)s", f"[{process}] %(name)s") if process else _CONSOLE)


def _logger(part: str) -> logging.Logger:
    if not part:
        return logging.getLogger()
    own = part in LOG_PARTS and LOG_PARTS[part]
    return logging.getLogger(f"{OWN}.{part}" if own else part)


class _Place:
    """Lines of one place in the code, since a window began."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0  # that were not left out
        self.texts: dict[str, int] = {}
        self.left_out = 0
        self.last: logging.LogRecord | None = None  # that was left out


class Repeats(logging.Filter):
    """Leaves out what has been logged often enough; `tell` writes a record past this filter."""

    def __init__(self, now: Now, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._now = now
        self._tell = tell
        self._places: dict[tuple[str, int], _Place] = {}
        self.suppressed_total = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        now_s = self._now()
        key = (record.pathname, record.lineno)
        place = self._places.get(key)
        if place is not None and now_s - place.since_s >= LOG_WINDOW_S:
            self._end(key, place)
            place = None
        if place is None:
            if len(self._places) >= LOG_PLACES_MAX:
                self._end_all()
            place = self._places[key] = _Place(now_s)
        text = record.getMessage()
        said = place.texts.get(text, 0)
        if said < LOG_SAME_MAX and place.count < LOG_PLACE_MAX:
            place.texts[text] = said + 1
            place.count += 1
            return True
        place.left_out += 1
        place.last = record
        self.suppressed_total += 1
        return False

    def sweep(self) -> None:
        """Report the windows that are over."""
        now_s = self._now()
        over = [(key, place) for key, place in self._places.items() if now_s - place.since_s >= LOG_WINDOW_S]
        for key, place in over:
            self._end(key, place)

    def _end_all(self) -> None:
        for key, place in list(self._places.items()):
            self._end(key, place)

    def _end(self, key: tuple[str, int], place: _Place) -> None:
        self._places.pop(key, None)  # another thread may have ended it
        last = place.last
        if last is None:
            return
        count = f"{place.left_out:,} more line{'s' if place.left_out > 1 else ''}"
        text = f"{count} from here were left out in {LOG_WINDOW_S:g} s, the last: {last.getMessage()}"
        self._tell(logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, (), None))


class ConsoleFormatter(logging.Formatter):
    """For people; a message is one line, and only a traceback has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the standard library's name)
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """For machines: one object a line."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process
        self._encode = msgspec.json.Encoder().encode

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        shown = {
            "time": f"{moment}.{int((record.created - second) * 1000.0):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "caller": f"{record.filename}:{record.lineno}",
        }
        if self._process:
            shown["process"] = self._process
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            shown["stack"] = record.stack_info
        try:
            line = self._encode(shown).decode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return json.dumps(shown)
        return line if line.isprintable() else json.dumps(shown)
