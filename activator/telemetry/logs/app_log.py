"""The program's own log on standard error: as console text or JSON, with a level per part and a limit on repetitions.

Rules
  1. The parts are the loggers below `activator`, and the libraries that log; a level set for one part applies until the
     next reload.
  2. Floods are bounded and reported: in a window, at most LOG_SAME_MAX lines with one text and LOG_PLACE_MAX from one
     place in the code are written; at its end, one line states how many were suppressed. Lines of the level debug are
     never suppressed.
  3. Malformed requests to the admin port and other ports of aiohttp are not logged: a scanner would fill the log.
  4. A record is one line, or one JSON object; data of a peer cannot begin another line.
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

LOG_WINDOW_S: Final = 10.0  # the window of the two limits below; lines beyond them are suppressed and counted
LOG_SAME_MAX: Final = 3  # lines with the same text, per window
LOG_PLACE_MAX: Final = 100  # lines from one place in the code, per window
LOG_PLACES_MAX: Final = 1_000  # places that are tracked

OWN: Final = "activator"
_SERVER: Final = "aiohttp.server"  # it logs each malformed request as an error, with a traceback
_CONSOLE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class AppLog:
    """The only handler of the root logger.

    `fixed_level` is the level of the command line, which overrides that of the file. `process` names a worker process;
    it is empty in the parent, or if there is one process.
    """

    def __init__(self, stream: TextIO, now: Now, fixed_level: str | None = None, process: str = "") -> None:
        self.fixed_level = fixed_level
        self._process = process
        self._handler = logging.StreamHandler(stream)
        self._repeats = Repeats(now, self._write)
        self._handler.addFilter(self._repeats)
        self._levels: dict[str, str] = {}  # by part
        self._level = "info"

    @property
    def suppressed_total(self) -> int:
        """The number of suppressed lines."""
        return self._repeats.suppressed_total

    def install(self, settings: Log) -> None:
        """Replace all handlers of the root logger."""
        root = logging.getLogger()
        for former in root.handlers[:]:
            root.removeHandler(former)
        root.addHandler(self._handler)
        logging.getLogger(_SERVER).addFilter(_is_own_fault)
        self.set(settings)

    def remove(self) -> None:
        """Undo `install`."""
        logging.getLogger(_SERVER).removeFilter(_is_own_fault)
        logging.getLogger().removeHandler(self._handler)
        for part in self._levels:
            _logger(part).setLevel(logging.NOTSET)

    def set(self, settings: Log) -> None:
        """Apply the file's settings; they replace all earlier levels."""
        self._handler.setFormatter(_formatter(settings.format, self._process))
        for part in self._levels.keys() - settings.levels.keys():
            _logger(part).setLevel(logging.NOTSET)
        self._levels = {}
        self.set_level("", self.fixed_level or settings.level)
        for part, level in settings.levels.items():
            self.set_level(part, level)

    def set_level(self, part: str, level: str) -> None:
        """Set the level of one part, or (empty) of all parts without a level; both words must have been validated."""
        if part:
            self._levels[part] = level
        else:
            self._level = level
        _logger(part).setLevel(level.upper())

    def levels(self) -> dict[str, str]:
        """Return the levels by part; the empty part means all others."""
        return {"": self._level, **self._levels}

    def sweep(self) -> None:
        """Report the suppressed lines of windows that have ended; called periodically."""
        self._repeats.sweep()

    def _write(self, record: logging.LogRecord) -> None:
        self._handler.emit(record)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for a client's malformed HTTP, which was answered with 400 and is no error of this program."""
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


class _CallSite:
    """The lines from one place in the code in the current window."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0  # lines written
        self.texts: dict[str, int] = {}  # lines written, by text
        self.suppressed = 0  # lines suppressed
        self.last: logging.LogRecord | None = None  # the last suppressed line


class Repeats(logging.Filter):
    """A filter that suppresses repeated lines; `write` writes a record that bypasses this filter."""

    def __init__(self, now: Now, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._now = now
        self._write = write
        self._call_sites: dict[tuple[str, int], _CallSite] = {}
        self.suppressed_total = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        now_s = self._now()
        key = (record.pathname, record.lineno)
        site = self._call_sites.get(key)
        if site is not None and now_s - site.since_s >= LOG_WINDOW_S:
            self._end(key, site)
            site = None
        if site is None:
            if len(self._call_sites) >= LOG_PLACES_MAX:
                self._end_all()
            site = self._call_sites[key] = _CallSite(now_s)
        text = record.getMessage()
        same = site.texts.get(text, 0)
        if same < LOG_SAME_MAX and site.count < LOG_PLACE_MAX:
            site.texts[text] = same + 1
            site.count += 1
            return True
        site.suppressed += 1
        site.last = record
        self.suppressed_total += 1
        return False

    def sweep(self) -> None:
        """Report the windows that have ended."""
        now_s = self._now()
        ended = [(key, site) for key, site in self._call_sites.items() if now_s - site.since_s >= LOG_WINDOW_S]
        for key, site in ended:
            self._end(key, site)

    def _end_all(self) -> None:
        for key, site in list(self._call_sites.items()):
            self._end(key, site)

    def _end(self, key: tuple[str, int], site: _CallSite) -> None:
        """End the window of a call site, and report its suppressed lines."""
        self._call_sites.pop(key, None)  # another thread may have removed it
        last = site.last
        if last is None:
            return
        count = f"{site.suppressed:,} more line{'s' if site.suppressed > 1 else ''}"
        text = f"{count} from here were left out in {LOG_WINDOW_S:g} s, the last: {last.getMessage()}"
        self._write(logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, (), None))


class ConsoleFormatter(logging.Formatter):
    """A formatter for people; a message is one line, and only a traceback has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the standard library's name)
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """A formatter for machines: one JSON object per line."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process
        self._encode = msgspec.json.Encoder().encode

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        fields = {
            "time": f"{second_text}.{int((record.created - second) * 1000.0):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "caller": f"{record.filename}:{record.lineno}",
        }
        if self._process:
            fields["process"] = self._process
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        try:
            line = self._encode(fields).decode()
        except UnicodeEncodeError:  # an unpaired surrogate
            return json.dumps(fields)
        return line if line.isprintable() else json.dumps(fields)
