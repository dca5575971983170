"""The output of programs: to the activator's own streams, to a file, and to the history for `activator logs`.

Rules
  1. On the activator's own streams each line is prefixed with the name of its process; standard output goes to standard
     output.
  2. Threads do the writing: a slow reader or a full disk blocks neither the loop nor a program. The queue is bounded;
     lines beyond it are dropped and counted.
  3. Of each revision the last `HISTORY_LINES_MAX` lines are kept, at most `HISTORY_BYTES_MAX` of them. Each line has a
     number; a reader asks for the lines after the last number that it has, and learns how many it has missed.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable
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
TERMINAL_BYTES_MAX: Final = MIB  # waiting to be written to one of the activator's streams
FILE_LINES_MAX: Final = 2_000  # waiting to be written to a file, of up to 4 KiB each
LOG_CLOSE_S: Final = 1.0  # how long to wait for the last lines

log = logging.getLogger("activator.process")


class Terminal:
    """The activator's own two streams, for all programs."""

    def __init__(self) -> None:
        self._writers: dict[str, LineWriter] = {}
        self.lost_lines = 0

    def write(self, stream: str, line: bytes) -> None:
        """Write a line, which includes its line feed."""
        writer = self._writers.get(stream)
        if writer is None:
            descriptor = (sys.stdout if stream == "stdout" else sys.stderr).fileno()
            name = f"the {stream} of programs"
            writer = self._writers[stream] = LineWriter(name, descriptor, TERMINAL_BYTES_MAX, log, shared=True)
        if len(line) > writer.room_bytes:
            if not self.lost_lines:
                log.warning("dropping output of programs: the reader of our %s is too slow", stream)
            self.lost_lines += 1
            return
        writer.write(line)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close(LOG_CLOSE_S)


class HistoryLine(NamedTuple):
    """A line of the history. `at_s`: monotonic seconds."""

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

    def restore(self, lines: Iterable[HistoryLine]) -> None:
        """Begin with the lines that a former process of the activator has kept."""
        for line in lines:
            self._next = line.number
            self.add(line.at_s, line.process, line.stream, line.text)

    def kept(self) -> tuple[HistoryLine, ...]:
        """Return all lines."""
        return tuple(self._lines)

    def after(self, number: int) -> tuple[list[HistoryLine], int]:
        """Return the lines with a greater number, and how many of those are no longer kept."""
        lines = [line for line in self._lines if line.number > number]
        first = lines[0].number if lines else self._next
        return lines, max(first - number - 1, 0)

    def newest(self, since: int, lines_max: int) -> list[HistoryLine]:
        """Return the last `lines_max` lines with a greater number than `since`, in order."""
        newest_first: list[HistoryLine] = []
        for line in reversed(self._lines):
            if line.number <= since or len(newest_first) == lines_max:
                break
            newest_first.append(line)
        return newest_first[::-1]

    @property
    def last(self) -> int:
        """The number of the newest line; 0 before the first."""
        return self._next - 1


class FileSettings(NamedTuple):
    """A log file: its absolute `path`, the limit of one file, and the number of older files to keep."""

    path: str
    bytes_max: int
    keep: int


class LogFile:
    """A file of lines that is renamed when it is full (name.1, name.2, …); a thread writes it."""

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
        """Queue a line without its line feed; it is dropped if the queue is full."""
        if self._lines.qsize() >= FILE_LINES_MAX:
            self.lost_lines += 1
        else:
            self._lines.put(line)

    def close(self) -> None:
        """Make the thread write the queued lines and end."""
        self._lines.put(None)

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for the thread for at most `timeout_s`: a disk may hang."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._handler.handle(logging.LogRecord("program", logging.INFO, "", 0, line, None, None))
        self._handler.close()


class _Handler(RotatingFileHandler):
    """A handler that logs a failure once, until it can write again."""

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
    """The output of the processes of one revision."""

    def __init__(self, terminal: Terminal, now: Now) -> None:
        self.history = History()
        self._terminal = terminal
        self._now = now
        self._file: LogFile | None = None
        self._is_shown = True

    def configure(self, is_shown: bool, file: FileSettings | None) -> None:
        """Set the destinations of the lines that follow."""
        self._is_shown = is_shown
        if (None if self._file is None else self._file.settings) == file:
            return
        if self._file is not None:
            self._file.close()
        self._file = None if file is None else LogFile(file)

    def add_line(self, process: str, stream: str, data: bytes) -> None:
        """Add a line of a process, without its line feed."""
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
        """Return the lines after `number` in the form that `activator logs` reads."""
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
        """Write the last lines and close the file; wait for at most `wait_s`."""
        file = self._file
        if file is not None:
            self._file = None
            file.close()
            file.wait_closed(wait_s)

    def _lost_lines(self) -> int:
        """Return the lines that were not written: of all programs to our streams, of this one to its present file."""
        return self._terminal.lost_lines + (0 if self._file is None else self._file.lost_lines)
