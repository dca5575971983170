"""The output of the demo: a live picture in a terminal of 80 columns and 24 lines, otherwise progress lines.

The figures are read from the table of the running activator, slot by slot.
"""

from __future__ import annotations

import time
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from activator.data_plane.snapshot import waits_for
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.tracker import EMPTY, READY, STATE_NAMES, PodTracker

PHASES = ("ask", "process starts", "hand over", "connect", "first byte", "done")

_STYLES = {"pending": "yellow", "ready": "green", "draining": "magenta", "quarantined": "red"}
_BAR_WIDTH = 20
_SLOT_LINES = 4  # the demo's maximum of processes, so that the picture keeps its height
_PHASES_IN_A_LINE = 3
_WAITS_EVERY_S = 1.0  # the interval at which progress lines report waiting requests


class Snapshot:
    """The current figures and captions of the demo."""

    def __init__(self, tables: RevisionTables, key: str) -> None:
        self._tables = tables
        self._key = key
        self.act = ""
        self.hint = ""
        self.asked_s = 0.0  # when the first request was sent; 0: not yet
        self.client: dict[str, Any] = {}
        self.cold_start: list[tuple[str, float]] = []
        self.most_ready = 0
        self.most_queued = 0
        self.back_at_zero = False

    def begin(self, act: str, hint: str) -> None:
        """Begin the next act; `hint` is the advice for the viewer."""
        self.act = act
        self.hint = hint

    def pods(self) -> list[PodTracker]:
        """Return the slots in use, and update `most_ready`."""
        throttler = self._throttler()
        if throttler is None:
            return []
        table = throttler.table
        pods = [tracker for tracker in table.slots[: table.length] if tracker.state != EMPTY]
        self.most_ready = max(self.most_ready, sum(tracker.state == READY for tracker in pods))
        return pods

    def queued(self) -> int:
        throttler = self._throttler()
        queued = 0 if throttler is None else throttler.queue.waiters.length
        self.most_queued = max(self.most_queued, queued)
        return queued

    def waits_for(self) -> str:
        """Return what the queued requests wait for; empty if there are none."""
        throttler = self._throttler()
        return "" if throttler is None else waits_for(throttler)

    def in_flight(self) -> int:
        throttler = self._throttler()
        return 0 if throttler is None else throttler.table.in_flight

    def waited_s(self) -> float:
        """Return how long the first request has been held so far; 0 before it, and after its response."""
        return time.monotonic() - self.asked_s if self.asked_s and not self.cold_start else 0.0

    def phases(self) -> list[tuple[str, str]]:
        """Return the phases of the first request and their durations, so far for the current one; empty before it."""
        if self.cold_start:
            return [(name, f"{ms:,.1f} ms") for name, ms in self.cold_start]
        waited_s = self.waited_s()
        if not waited_s:
            return []
        current = 1 if self.pods() else 0
        return [
            (name, f"{1000.0 * waited_s:,.0f} ms …" if index == current else "") for index, name in enumerate(PHASES)
        ]

    def _throttler(self) -> RevisionThrottler | None:
        return self._tables.throttlers.get(self._key)


QUIET_S: Final = 2.0  # the longest time without a line


class PlainLines:
    """Progress lines: one whenever the processes have changed, and at least every QUIET_S."""

    def __init__(self) -> None:
        self._act = ""
        self._shown = ""  # the line of processes
        self._has_shown_phases = False
        self._shown_wait_s = 0.0  # the wait of the first request when it was last shown
        self._shown_s = 0.0  # when the processes were last shown

    def show(self, snapshot: Snapshot) -> None:
        """Print the lines that have changed since the last call."""
        pods = snapshot.pods()
        if snapshot.act != self._act:
            self._act = snapshot.act
            print(f"== {snapshot.act}", flush=True)
            print(f"   {snapshot.hint}", flush=True)
        processes = " ".join(f"[{tracker.slot}: {STATE_NAMES[tracker.state]}]" for tracker in pods)
        now_s = time.monotonic()
        if processes != self._shown or now_s - self._shown_s >= QUIET_S:
            self._shown = processes
            self._shown_s = now_s
            rate = f", {snapshot.client.get('rps', 0):g} requests/s" if snapshot.client else ""
            print(
                f"   processes {processes or 'none'}, in flight {snapshot.in_flight()}, "
                f"queued {snapshot.queued()}{rate}",
                flush=True,
            )
        waited_s = snapshot.waited_s()
        if waited_s - self._shown_wait_s >= _WAITS_EVERY_S and snapshot.queued():
            self._shown_wait_s = waited_s
            print(
                f"   {snapshot.queued()} requests wait for {snapshot.waits_for()}, {waited_s:.1f} s so far", flush=True
            )
        if snapshot.cold_start and not self._has_shown_phases:
            self._has_shown_phases = True
            phases = ", ".join(f"{name} {took}" for name, took in snapshot.phases())
            print(f"   the first request's time: {phases}", flush=True)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Picture:
    """A picture that is redrawn in place, and removed at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(frame(snapshot), refresh=True)

    def close(self) -> None:
        self._live.stop()


def frame(snapshot: Snapshot) -> RenderableType:
    """Return one frame of the picture, of a fixed height and at most 80 columns."""
    parts: list[RenderableType] = [
        Text(snapshot.act, style="bold"),
        Text(snapshot.hint),
        Text(""),
        _slots(snapshot),
        Text(""),
        _queue_line(snapshot),
        _client(snapshot),
        Text(""),
        _phases(snapshot),
    ]
    return Panel(Group(*parts), title="activator demo", padding=(0, 1), width=80, height=21)


def _slots(snapshot: Snapshot) -> Table:
    table = Table("slot", "process", "state", "in flight", "", box=None, padding=(0, 2, 0, 0), expand=True)
    pods = snapshot.pods()
    for tracker in pods:
        name = STATE_NAMES[tracker.state]
        filled = min(_BAR_WIDTH, _BAR_WIDTH * tracker.in_flight // max(tracker.limit, 1))
        table.add_row(
            str(tracker.slot),
            tracker.identity,
            Text(name, style=_STYLES.get(name, "")),
            f"{tracker.in_flight}/{tracker.limit}",
            Text("█" * filled + "░" * (_BAR_WIDTH - filled), style="cyan"),
        )
    if not pods:
        table.add_row("", Text("no process runs", style="dim"), "", "", "")
    for _ in range(_SLOT_LINES - max(len(pods), 1)):
        table.add_row("", "", "", "", "")
    return table


def _queue_line(snapshot: Snapshot) -> Text:
    queued = snapshot.queued()
    line = Text("waiting    ")
    line.append(f"{queued:>4} requests", style="yellow" if queued else "")
    if queued:
        line.append(f"  for {snapshot.waits_for()}", style="yellow")
    return line


def _client(snapshot: Snapshot) -> Group:
    client = snapshot.client or {"requests": 0, "rps": 0.0, "p50_ms": 0.0, "p99_ms": 0.0, "failures": 0}
    return Group(
        Text(f"in flight  {snapshot.in_flight():>4} requests"),
        Text(
            f"answered {client['requests']:>6,} requests  {client['rps']:,.0f}/s  p50 {client['p50_ms']:,.1f} ms"
            f"  p99 {client['p99_ms']:,.1f} ms  failures {client['failures']}"
        ),
    )


def _phases(snapshot: Snapshot) -> Table:
    """Return the phases in two lines of three, as name and time."""
    table = Table(
        title="where the first request's time went",
        title_justify="left",
        title_style="dim",
        box=None,
        show_header=False,
        padding=(0, 2, 0, 0),
    )
    phases = snapshot.phases() or [("", "")] * len(PHASES)
    for first in range(0, len(phases), _PHASES_IN_A_LINE):
        cells: list[Text] = []
        for name, took in phases[first : first + _PHASES_IN_A_LINE]:
            cells += [Text(name, style="" if took else "dim"), Text(took, style="yellow" if "…" in took else "green")]
        table.add_row(*cells)
    return table
