"""The output of a program: its last lines, and the line that shows that it is ready.

Rules
  1. A line has at most `LINE_BYTES_MAX` bytes. The rest of a longer one is split into further lines, which are passed
     on, but not kept and not compared. The last `LINES_KEPT` lines are kept, so that a program controls no memory.
  2. A line is text without the colours of a terminal. It ends with a line feed, a carriage return or the end of the
     output. Lines that are passed on (`on_line`) keep their colours. Empty lines are left out.
  3. A program that continuously writes more than `RATE_BYTES_S` blocks on its full pipe; the event loop does not.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from activator.runtime.clock import Now
from activator.runtime.units import KIB, MIB

LINE_BYTES_MAX: Final = 4 * KIB
LINES_KEPT: Final = 50
READ_BYTES: Final = KIB  # per read, and per turn of the loop: at most 512 lines, 4 ms
RATE_BYTES_S: Final = 2 * MIB  # per process; 8,192 short lines a second, about 7 % of a core
BURST_BYTES: Final = 256 * KIB
LINE_COST_BYTES: Final = 256  # the least cost of a line

_ENDS: Final = re.compile(rb"[\r\n]")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

OnLine = Callable[[str, bytes], None]  # stream, line without its end


class Output:
    """The output of one process, from both streams; `ready` is set by the first line in which `ready_log` is found."""

    def __init__(self, ready_log: str = "", on_line: OnLine | None = None) -> None:
        self.ready = asyncio.Event()
        self._pattern = re.compile(ready_log) if ready_log else None
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._open: dict[str, bytes] = {}  # stream → its unfinished line
        self._long: set[str] = set()  # streams whose unfinished line has been passed on in part

    def feed(self, stream: str, data: bytes) -> int:
        """Add the next data of a stream; return how many lines it has completed."""
        *ended, rest = _ENDS.split(self._open.get(stream, b"") + data)
        for part in ended:
            self._add_line(stream, part)
            self._long.discard(stream)
        whole = len(rest) // LINE_BYTES_MAX * LINE_BYTES_MAX
        if whole:
            self._add_line(stream, rest[:whole])
            self._long.add(stream)
        self._open[stream] = rest[whole:]
        return len(ended)

    def unfinished(self) -> dict[str, bytes]:
        """Return the unfinished line of each stream."""
        return dict(self._open)

    def drop_unfinished(self) -> None:
        """Forget the unfinished lines: another process of the activator completes them."""
        self._open.clear()

    def restore(self, lines: Iterable[str], unfinished: Mapping[str, bytes]) -> None:
        """Take over the last lines, and the unfinished ones, of a program that was handed over."""
        self._kept.extend(lines)
        self._open.update(unfinished)

    def end(self, stream: str) -> None:
        """Complete the last line of a stream that has ended."""
        rest = self._open.pop(stream, b"")
        self._add_line(stream, rest)
        self._long.discard(stream)

    def finished_lines(self) -> tuple[str, ...]:
        """Return the last lines without the unfinished ones."""
        return tuple(self._kept)

    def lines(self) -> list[str]:
        """Return the last lines that are not empty, including unfinished ones."""
        begun = [data for stream, data in self._open.items() if stream not in self._long]
        return [*self._kept, *(text for data in begun if (text := plain(data)))]

    def _add_line(self, stream: str, data: bytes) -> None:
        for start in range(0, len(data), LINE_BYTES_MAX):
            piece = data[start : start + LINE_BYTES_MAX]
            if start == 0 and stream not in self._long:
                self._keep(plain(piece))
            if self._on_line is not None:
                self._on_line(stream, piece)

    def _keep(self, text: str) -> None:
        if not text:
            return
        self._kept.append(text)
        if self._pattern is not None and self._pattern.search(text) is not None:
            self._pattern = None
            self.ready.set()


class OutputRateLimiter:
    """The rate limit for reading a program's output."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._budget_bytes: float = BURST_BYTES  # below 0: the reader has to wait
        self._counted_s = now()

    def wait_s(self, taken: int, lines: int) -> float:
        """Account for a read of `taken` bytes; return how long to wait before the next read."""
        taken = max(taken, lines * LINE_COST_BYTES)
        now_s = self._now()
        self._budget_bytes = min(self._budget_bytes + (now_s - self._counted_s) * RATE_BYTES_S, BURST_BYTES) - taken
        self._counted_s = now_s
        return max(-self._budget_bytes / RATE_BYTES_S, 0.0)


def plain(data: bytes) -> str:
    """Return a line as text, without colours."""
    return _COLOURS.sub("", data.decode("utf-8", "replace")).strip()
