"""The output of a program on its waiting page: the lines since its start began.

Rules
  1. Only revisions that enable it show their output, and only while none of their processes is ready: the output of a
     program in service is for its owner only.
  2. At most OUTPUT_LINES_MAX lines and OUTPUT_BYTES_MAX bytes, checked every OUTPUT_INTERVAL_S and sent only when they
     have changed: a program that writes much controls neither memory nor the messages to the workers.
  3. Lines have no colours and control characters (`output.py`, `one_line`). The page must escape them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.control_plane.sources.process.fleet import Fleet
from activator.messages import ShowOutput
from activator.runtime.clock import Now
from activator.runtime.units import KIB

OUTPUT_LINES_MAX: Final = 20
OUTPUT_BYTES_MAX: Final = 8 * KIB
OUTPUT_INTERVAL_S: Final = 0.5


class _OutputTail:
    """The shown output of one revision."""

    def __init__(self, since: int) -> None:
        self.since = since  # number of the last line before the start began
        self.last = since  # number of the line that was sent last
        self.is_empty = True  # nothing is shown


class OutputTailSender:
    """The sender of starting programs' output to the data plane.

    `find(key)` returns the processes of a revision; `send` delivers messages.
    """

    def __init__(self, find: Callable[[str], Fleet | None], now: Now, send: Callable[[ShowOutput], None]) -> None:
        self._find = find
        self._now = now
        self._send = send
        self._shown: dict[str, _OutputTail] = {}
        self._due_s = 0.0

    def set_revision(self, key: str, is_wanted: bool) -> None:
        """Set whether a revision shows its output."""
        if not is_wanted:
            self.drop_revision(key)
        elif key not in self._shown:
            fleet = self._find(key)
            self._shown[key] = _OutputTail(0 if fleet is None else fleet.log.history.last)

    def drop_revision(self, key: str) -> None:
        shown = self._shown.pop(key, None)
        if shown is not None and not shown.is_empty:
            self._send(ShowOutput(key, ()))

    def tick(self) -> None:
        """Send the output that has changed; to be called often."""
        now_s = self._now()
        if not self._shown or now_s < self._due_s:
            return
        self._due_s = now_s + OUTPUT_INTERVAL_S
        for key, shown in self._shown.items():
            fleet = self._find(key)
            if fleet is not None:
                self._refresh(key, fleet, shown)

    def _refresh(self, key: str, fleet: Fleet, shown: _OutputTail) -> None:
        history = fleet.log.history
        if fleet.wanted == 0 or fleet.ready():  # no start is under way
            shown.since = shown.last = history.last
            if not shown.is_empty:
                shown.is_empty = True
                self._send(ShowOutput(key, ()))
        elif history.last != shown.last:
            shown.last = history.last
            shown.is_empty = False
            texts = [line.text for line in history.newest(shown.since, OUTPUT_LINES_MAX)]
            self._send(ShowOutput(key, bounded(texts)))


def bounded(texts: list[str]) -> tuple[str, ...]:
    """Return the last lines that fit; the beginning of the last one if it alone does not fit."""
    room = OUTPUT_BYTES_MAX
    kept: list[str] = []
    for text in reversed(texts):
        room -= len(text.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(text)
    if not kept and texts:
        return (texts[-1][: OUTPUT_BYTES_MAX // 4],)
    return tuple(reversed(kept))
