"""What a waiting page shows of a program: the lines that it has written since its start began.

Rules
  1. Only of revisions whose file asks for it, and only while none of their processes is ready: what a program writes
     in service is nobody's business but its owner's.
  2. At most OUTPUT_LINES_MAX lines and OUTPUT_BYTES_MAX bytes, looked at every OUTPUT_INTERVAL_S and sent only when
     they are others: a program that writes much controls neither memory nor the messages to the workers.
  3. Lines come without colours and control characters (`output.py`, `one_line`); whoever shows them escapes them.
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


class _Shown:
    """Of one revision."""

    def __init__(self, since: int) -> None:
        self.since = since  # the line before the start began
        self.last = since  # the line that was sent last
        self.is_empty = True  # nothing is shown


class ShownOutput:
    """`find(key)` returns the processes of a revision; `send` delivers messages to the data plane."""

    def __init__(self, find: Callable[[str], Fleet | None], now: Now, send: Callable[[ShowOutput], None]) -> None:
        self._find = find
        self._now = now
        self._send = send
        self._shown: dict[str, _Shown] = {}
        self._due_s = 0.0

    def set_revision(self, key: str, is_wanted: bool) -> None:
        """Whether a revision shows its output from now on."""
        if not is_wanted:
            self.drop_revision(key)
        elif key not in self._shown:
            fleet = self._find(key)
            self._shown[key] = _Shown(0 if fleet is None else fleet.log.history.last)

    def drop_revision(self, key: str) -> None:
        shown = self._shown.pop(key, None)
        if shown is not None and not shown.is_empty:
            self._send(ShowOutput(key, ()))

    def tick(self) -> None:
        """To be called often."""
        now_s = self._now()
        if not self._shown or now_s < self._due_s:
            return
        self._due_s = now_s + OUTPUT_INTERVAL_S
        for key, shown in self._shown.items():
            fleet = self._find(key)
            if fleet is not None:
                self._look(key, fleet, shown)

    def _look(self, key: str, fleet: Fleet, shown: _Shown) -> None:
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
    """The last lines that fit; of a line that alone does not, its beginning."""
    left = OUTPUT_BYTES_MAX
    kept: list[str] = []
    for text in reversed(texts):
        left -= len(text.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        kept.append(text)
    if not kept and texts:
        return (texts[-1][: OUTPUT_BYTES_MAX // 4],)
    return tuple(reversed(kept))
