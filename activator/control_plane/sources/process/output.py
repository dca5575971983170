"""What a program writes: its last lines, and the line that says that it is ready.

Rules
  1. Of a line the first `LINE_BYTES_MAX` bytes count, of all lines the last `LINES_KEPT`: a program controls no memory.
  2. A line is text without the colours of a terminal. It ends with a line feed, a carriage return or the output.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Final

LINE_BYTES_MAX: Final = 4096
LINES_KEPT: Final = 50

_ENDS: Final = re.compile(rb"[\r\n]")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Output:
    """Of one process, from both of its streams; `ready` is set by the first line that `ready_log` is found in."""

    def __init__(self, ready_log: str = "") -> None:
        self.ready = asyncio.Event()
        self._pattern = re.compile(ready_log) if ready_log else None
        self._kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._open: dict[str, bytes] = {}  # stream → its line that has not ended yet

    def feed(self, stream: str, data: bytes) -> None:
        """What came from a stream next."""
        *ended, rest = _ENDS.split(data)
        for part in ended:
            self._line(self._begun(stream, part))
            self._open[stream] = b""
        self._open[stream] = self._begun(stream, rest)

    def lines(self) -> list[str]:
        """The last ones that are not empty, those that have not ended among them."""
        return [*self._kept, *(text for data in self._open.values() if (text := _text(data)))]

    def _begun(self, stream: str, part: bytes) -> bytes:
        begun = self._open.get(stream, b"")
        return begun + part[: LINE_BYTES_MAX - len(begun)]

    def _line(self, data: bytes) -> None:
        text = _text(data)
        if not text:
            return
        self._kept.append(text)
        if self._pattern is not None and self._pattern.search(text) is not None:
            self._pattern = None
            self.ready.set()


def _text(data: bytes) -> str:
    return _COLOURS.sub("", data.decode("utf-8", "replace")).strip()
