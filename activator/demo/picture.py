"""What the demo shows: a live picture in a terminal of 80 columns and 24 lines, plain progress lines elsewhere.

The scene is read from the running activator's own table, slot by slot; nothing is drawn that is not so.
"""

from __future__ import annotations

import time
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from activator.data_plane.apply import RevisionTables
from activator.data_plane.snapshot import waits_for
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.tracker import EMPTY, READY, STATE_NAMES, PodTracker

PHASES = ("ask", "process starts", "hand over", "connect", "first byte", "done")

_STYLES = {"pending": "yellow", "ready": "green", "draining": "magenta", "quarantined": "red"}
_BAR = 20
_SLOT_LINES = 4  # as many as the demo has processes: the picture does not jump
_PHASES_IN_A_LINE = 3
_TOLD_EVERY_S = 1.0  # how often plain lines report requests that go on waiting


class Scene:
    """What is to be seen now."""

    def __init__(self, tables: RevisionTables, key: str) -> None:
        self._tables = tables
        self._key = key
        self.act = ""
        self.look = ""
        self.asked_s = 0.0  # when the first request was sent; 0: not yet
        self.client: dict[str, Any] = {}
        self.cold_start: list[tuple[str, float]] = []
        self.most_ready = 0
        self.most_queued = 0
        self.back_at_zero = False

    def begin(self, act: str, look: str) -> None:
        """The next act, and what to look at in it."""
        self.act = act
        self.look = look

    def pods(self) -> list[PodTracker]:
        """The slots that hold a process."""
        throttler = self._throttler()
        if throttler is None:
            return []
        table = throttler.table
        pods = [tracker for tracker in table.slots[: table.length] if tracker.state != EMPTY]
        self.most_ready = max(self.most_ready, sum(tracker.state == READY for tracker in pods))
        return pods

    def queued(self) -> int:
        throttler = self._throttler()
        queued = 0 if throttler is None else throttler.queue.line.length
        self.most_queued = max(self.most_queued, queued)
        return queued

    def waits_for(self) -> str:
        """What the requests in line wait for; empty when none does."""
        throttler = self._throttler()
        return "" if throttler is None else waits_for(throttler)

    def in_flight(self) -> int:
        throttler = self._throttler()
        return 0 if throttler is None else throttler.table.in_flight

    def waited_s(self) -> float:
        """How long the first request has been held so far; 0 before it, and once it is answered."""
        return time.monotonic() - self.asked_s if self.asked_s and not self.cold_start else 0.0

    def phases(self) -> list[tuple[str, str]]:
        """The first request's phases, with what each took; of the one that goes on, so far; nothing before it."""
        if self.cold_start:
            return [(name, f"{ms:,.1f} ms") for name, ms in self.cold_start]
        waited_s = self.waited_s()
        if not waited_s:
            return []
        current = 1 if self.pods() else 0
        return [(name, f"{1000.0 * waited_s:,.0f} ms …" if at == current else "") for at, name in enumerate(PHASES)]

    def _throttler(self) -> RevisionThrottler | None:
        return self._tables.throttlers.get(self._key)


QUIET_S: Final = 2.0  # nobody has to wonder for longer whether the program still works


class PlainLines:
    """One line whenever something worth reporting has changed, and at least every QUIET_S."""

    def __init__(self) -> None:
        self._act = ""
        self._told = ""
        self._cold = False
        self._waits_told_s = 0.0
        self._shown_s = 0.0  # when the processes were last shown

    def show(self, scene: Scene) -> None:
        pods = scene.pods()
        if scene.act != self._act:
            self._act = scene.act
            print(f"== {scene.act}", flush=True)
            print(f"   {scene.look}", flush=True)
        told = " ".join(f"[{tracker.slot}: {STATE_NAMES[tracker.state]}]" for tracker in pods)
        now_s = time.monotonic()
        if told != self._told or now_s - self._shown_s >= QUIET_S:
            self._told = told
            self._shown_s = now_s
            rate = f", {scene.client.get('rps', 0):g} requests/s" if scene.client else ""
            print(
                f"   processes {told or 'none'}, in flight {scene.in_flight()}, queued {scene.queued()}{rate}",
                flush=True,
            )
        waited_s = scene.waited_s()
        if waited_s - self._waits_told_s >= _TOLD_EVERY_S and scene.queued():
            self._waits_told_s = waited_s
            print(f"   {scene.queued()} requests wait for {scene.waits_for()}, {waited_s:.1f} s so far", flush=True)
        if scene.cold_start and not self._cold:
            self._cold = True
            phases = ", ".join(f"{name} {took}" for name, took in scene.phases())
            print(f"   the first request's time: {phases}", flush=True)

    def close(self) -> None:
        """Nothing is left open."""


class Picture:
    """Redrawn in place, and gone at the end: the summary stands where it was."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, scene: Scene) -> None:
        self._live.update(frame(scene), refresh=True)

    def close(self) -> None:
        self._live.stop()


def frame(scene: Scene) -> RenderableType:
    """The picture of one moment: always as high, at most 80 columns wide."""
    parts: list[RenderableType] = [
        Text(scene.act, style="bold"),
        Text(scene.look),
        Text(""),
        _slots(scene),
        Text(""),
        _line(scene),
        _client(scene),
        Text(""),
        _phases(scene),
    ]
    return Panel(Group(*parts), title="activator demo", padding=(0, 1), width=80, height=21)


def _slots(scene: Scene) -> Table:
    shown = Table("slot", "process", "state", "in flight", "", box=None, padding=(0, 2, 0, 0), expand=True)
    pods = scene.pods()
    for tracker in pods:
        name = STATE_NAMES[tracker.state]
        filled = min(_BAR, _BAR * tracker.in_flight // max(tracker.limit, 1))
        shown.add_row(
            str(tracker.slot),
            tracker.identity,
            Text(name, style=_STYLES.get(name, "")),
            f"{tracker.in_flight}/{tracker.limit}",
            Text("█" * filled + "░" * (_BAR - filled), style="cyan"),
        )
    if not pods:
        shown.add_row("", Text("no process runs", style="dim"), "", "", "")
    for _ in range(_SLOT_LINES - max(len(pods), 1)):
        shown.add_row("", "", "", "", "")
    return shown


def _line(scene: Scene) -> Text:
    queued = scene.queued()
    line = Text("waiting    ")
    line.append(f"{queued:>4} requests", style="yellow" if queued else "")
    if queued:
        line.append(f"  for {scene.waits_for()}", style="yellow")
    return line


def _client(scene: Scene) -> Group:
    client = scene.client or {"requests": 0, "rps": 0.0, "p50_ms": 0.0, "p99_ms": 0.0, "failures": 0}
    return Group(
        Text(f"in flight  {scene.in_flight():>4} requests"),
        Text(
            f"answered {client['requests']:>6,} requests  {client['rps']:,.0f}/s  p50 {client['p50_ms']:,.1f} ms"
            f"  p99 {client['p99_ms']:,.1f} ms  failures {client['failures']}"
        ),
    )


def _phases(scene: Scene) -> Table:
    """In two lines of three: name and time."""
    shown = Table(
        title="where the first request's time went",
        title_justify="left",
        title_style="dim",
        box=None,
        show_header=False,
        padding=(0, 2, 0, 0),
    )
    phases = scene.phases() or [("", "")] * len(PHASES)
    for at in range(0, len(phases), _PHASES_IN_A_LINE):
        cells: list[Text] = []
        for name, took in phases[at : at + _PHASES_IN_A_LINE]:
            cells += [Text(name, style="" if took else "dim"), Text(took, style="yellow" if "…" in took else "green")]
        shown.add_row(*cells)
    return shown
