"""What a program writes: its last lines, and the line that says that it is ready.

Rules
  1. A line is at most `LINE_BYTES_MAX` bytes; of a longer one the rest are lines of their own, which are handed on and
     neither kept here nor compared. Of all lines the last `LINES_KEPT` are kept: a program controls no memory.
  2. A line is text without the colours of a terminal. It ends with a line feed, a carriage return or the output; what
     is handed on (`on_line`) has its colours. Lines with nothing in them are left out.
  3. A program that writes more than `RATE_BYTES_S` for long is held up by its full pipe, and not by our loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final

from activator.runtime.clock import Now
from activator.runtime.units import KIB, MIB

LINE_BYTES_MAX: Final = 4 * KIB
LINES_KEPT: Final = 50
READ_BYTES: Final = KIB  # at once, and in one turn of the loop: 512 lines at the most, 4 ms
RATE_BYTES_S: Final = 2 * MIB  # of one process; then 8,192 short lines a second, some 7 % of a core
BURST_BYTES: Final = 256 * KIB
LINE_COST_BYTES: Final = 256  # a line counts for so many at least

_ENDS: Final = re.compile(rb"[\r\n]")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

OnLine = Callable[[str, bytes], None]  # stream, line without its end


class Output:
    """Of one process, from both of its streams; `ready` is set by the first line that `ready_log` is found in."""

    def __init__(self, ready_log: str = "", on_line: OnLine | None = None) -> None:
        self.ready = asyncio.Event()
        self._pattern = re.compile(ready_log) if ready_log else None
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._open: dict[str, bytes] = {}  # stream → its line that has not ended yet
        self._long: set[str] = set()  # streams whose open line has been handed on in part

    def feed(self, stream: str, data: bytes) -> int:
        """What came from a stream next; how many lines ended with it."""
        *ended, rest = _ENDS.split(self._open.get(stream, b"") + data)
        for part in ended:
            self._line(stream, part)
            self._long.discard(stream)
        whole = len(rest) // LINE_BYTES_MAX * LINE_BYTES_MAX
        if whole:
            self._line(stream, rest[:whole])
            self._long.add(stream)
        self._open[stream] = rest[whole:]
        return len(ended)

    def end(self, stream: str) -> None:
        """Nothing more comes from this stream."""
        rest = self._open.pop(stream, b"")
        self._line(stream, rest)
        self._long.discard(stream)

    def lines(self) -> list[str]:
        """The last ones that are not empty, those that have not ended among them."""
        begun = [data for stream, data in self._open.items() if stream not in self._long]
        return [*self._kept, *(text for data in begun if (text := plain(data)))]

    def _line(self, stream: str, data: bytes) -> None:
        for place in range(0, len(data), LINE_BYTES_MAX):
            piece = data[place : place + LINE_BYTES_MAX]
            if place == 0 and stream not in self._long:
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


class Pace:
    """How long to wait before more is read of a program that has written much."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._left: float = BURST_BYTES  # below 0: to be waited for
        self._seen_s = now()

    def wait_s(self, taken: int, lines: int) -> float:
        """So many bytes were read, and so many lines."""
        taken = max(taken, lines * LINE_COST_BYTES)
        now_s = self._now()
        self._left = min(self._left + (now_s - self._seen_s) * RATE_BYTES_S, BURST_BYTES) - taken
        self._seen_s = now_s
        return max(-self._left / RATE_BYTES_S, 0.0)


def plain(data: bytes) -> str:
    """A line as text, without colours."""
    return _COLOURS.sub("", data.decode("utf-8", "replace")).strip()
