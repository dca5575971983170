"""Where the output of programs goes: to our own streams, to a file, and into the memory that `activator logs` reads.

Rules
  1. On our own streams each line has the name of its process in front; standard output goes to standard output.
  2. Writing is the work of threads: a slow reader or a full disk holds up neither the loop nor a program. What waits is
     bounded, and lines beyond are dropped and counted.
  3. Of each revision the last `HISTORY_LINES_MAX` lines are kept, as many of them as are in `HISTORY_BYTES_MAX`. Each
     has a number; who has read up to one asks for those after it, and learns how many it has missed.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from logging.handlers import RotatingFileHandler
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple

from activator.control_plane.sources.process.output import plain
from activator.runtime.clock import Now
from activator.runtime.errors import one_line
from activator.runtime.line_writer import LineWriter
from activator.runtime.units import KIB, MIB

HISTORY_LINES_MAX: Final = 1_000
HISTORY_BYTES_MAX: Final = 256 * KIB
TERMINAL_BYTES_MAX: Final = MIB  # waiting to be written to one of our streams
FILE_LINES_MAX: Final = 2_000  # waiting to be written to a file, of up to 4 KiB each
LOG_CLOSE_S: Final = 1.0  # how long the last lines may take

log = logging.getLogger("activator.process")


class Terminal:
    """Our own two streams, for all programs."""

    def __init__(self) -> None:
        self._writers: dict[str, LineWriter] = {}
        self.lost_lines = 0

    def write(self, stream: str, line: bytes) -> None:
        """A line with its end."""
        writer = self._writers.get(stream)
        if writer is None:
            descriptor = (sys.stdout if stream == "stdout" else sys.stderr).fileno()
            what = f"the {stream} of programs"
            writer = self._writers[stream] = LineWriter(what, descriptor, TERMINAL_BYTES_MAX, log, shared=True)
        if len(line) > writer.room_bytes:
            if not self.lost_lines:
                log.warning("lines of programs are lost: nobody reads our %s as fast as they write", stream)
            self.lost_lines += 1
            return
        writer.write(line)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close(LOG_CLOSE_S)


class HistoryLine(NamedTuple):
    """A line that is kept. `at_s`: monotonic seconds."""

    number: int
    at_s: float
    process: str
    stream: str
    text: str


class History:
    """The last lines of one revision."""

    def __init__(self) -> None:
        self._lines: deque[HistoryLine] = deque()
        self._bytes = 0
        self._next = 1

    def add(self, at_s: float, process: str, stream: str, text: str) -> None:
        self._lines.append(HistoryLine(self._next, at_s, process, stream, text))
        self._next += 1
        self._bytes += len(text)
        while len(self._lines) > HISTORY_LINES_MAX or self._bytes > HISTORY_BYTES_MAX:
            self._bytes -= len(self._lines.popleft().text)

    def after(self, number: int) -> tuple[list[HistoryLine], int]:
        """Lines with a greater number, and how many of those are not kept any more."""
        found = [line for line in self._lines if line.number > number]
        first = found[0].number if found else self._next
        return found, max(first - number - 1, 0)

    def newest(self, since: int, lines_max: int) -> list[HistoryLine]:
        """The last lines with a greater number than `since`, in order, as many as may be."""
        found: list[HistoryLine] = []
        for line in reversed(self._lines):
            if line.number <= since or len(found) == lines_max:
                break
            found.append(line)
        return found[::-1]

    @property
    def last(self) -> int:
        """The number of the last line there was."""
        return self._next - 1


class FileSettings(NamedTuple):
    """`path`: absolute; `bytes_max`: of one file; `keep`: how many older ones."""

    path: str
    bytes_max: int
    keep: int


class LogFile:
    """Lines to a file that is renamed when it is full (name.1, name.2, …), by a thread of its own."""

    def __init__(self, settings: FileSettings) -> None:
        self.settings = settings
        self.lost_lines = 0
        handler = _Handler(settings.path, maxBytes=settings.bytes_max, backupCount=settings.keep, delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%Y-%m-%dT%H:%M:%S"))
        self._handler = handler
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=f"log of a program: {settings.path}", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """One line without its end."""
        if self._lines.qsize() >= FILE_LINES_MAX:
            self.lost_lines += 1
        else:
            self._lines.put(line)

    def close(self) -> None:
        """The thread writes what waits, and ends."""
        self._lines.put(None)

    def wait_closed(self, timeout_s: float) -> None:
        """A disk may hang: for a bounded time."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._handler.handle(logging.LogRecord("program", logging.INFO, "", 0, line, None, None))
        self._handler.close()


class _Handler(RotatingFileHandler):
    """Says once that it cannot write, until it can."""

    failing = False
    failed = False

    def emit(self, record: logging.LogRecord) -> None:
        self.failed = False
        super().emit(record)
        self.failing = self.failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        self.failed = True
        if not self.failing:
            log.error("%s cannot be written (%s); lines are lost until it can", self.baseFilename, sys.exc_info()[1])


class ProgramLog:
    """Of one revision, for all its processes."""

    def __init__(self, terminal: Terminal, now: Now) -> None:
        self.history = History()
        self._terminal = terminal
        self._now = now
        self._file: LogFile | None = None
        self._is_shown = True

    def configure(self, is_shown: bool, file: FileSettings | None) -> None:
        """From the next line on."""
        self._is_shown = is_shown
        if (None if self._file is None else self._file.settings) == file:
            return
        if self._file is not None:
            self._file.close()
        self._file = None if file is None else LogFile(file)

    def line(self, process: str, stream: str, data: bytes) -> None:
        """A line of a process, without its end."""
        text = one_line(plain(data))
        if not text:
            return
        self.history.add(self._now(), process, stream, text)
        name = process.removeprefix("default/")
        if self._is_shown:
            self._terminal.write(stream, b"%b | %b\n" % (name.encode(), data))
        if self._file is not None:
            self._file.write(f"{name} {text}")

    def after(self, number: int) -> dict[str, Any]:
        """As `activator logs` reads it."""
        lines, missed = self.history.after(number)
        now_s = self._now()
        shown = [
            {
                "number": line.number,
                "age_s": round(max(now_s - line.at_s, 0.0), 3),
                "process": line.process,
                "stream": line.stream,
                "text": line.text,
            }
            for line in lines
        ]
        return {"last": self.history.last, "missed": missed, "lost": self._lost_lines(), "lines": shown}

    def close(self, wait_s: float = 0.0) -> None:
        """Nothing more comes. The thread writes the last lines; they are waited for, for at most so long."""
        file = self._file
        if file is not None:
            self._file = None
            file.close()
            file.wait_closed(wait_s)

    def _lost_lines(self) -> int:
        """That were not written: of all programs to our streams, of this one to its present file."""
        return self._terminal.lost_lines + (0 if self._file is None else self._file.lost_lines)
