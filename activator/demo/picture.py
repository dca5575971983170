"""What the demo shows: a live picture in a terminal, plain progress lines elsewhere.

The scene is read from the running activator's own table, slot by slot; nothing is drawn that is not so.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from activator.data_plane.apply import RevisionTables
from lb.tracker import EMPTY, READY, STATE_NAMES, PodTracker

_STYLES = {"pending": "yellow", "ready": "green", "draining": "magenta", "quarantined": "red"}
_BAR = 24


class Scene:
    """What is to be seen now."""

    def __init__(self, tables: RevisionTables, key: str) -> None:
        self._tables = tables
        self._key = key
        self.act = ""
        self.client: dict[str, Any] = {}
        self.cold_start: list[tuple[str, float]] = []
        self.most_ready = 0
        self.back_at_zero = False

    def pods(self) -> list[PodTracker]:
        """The slots that hold a process."""
        throttler = self._tables.throttlers.get(self._key)
        if throttler is None:
            return []
        table = throttler.table
        pods = [tracker for tracker in table.slots[: table.length] if tracker.state != EMPTY]
        self.most_ready = max(self.most_ready, sum(tracker.state == READY for tracker in pods))
        return pods

    def queued(self) -> int:
        throttler = self._tables.throttlers.get(self._key)
        return 0 if throttler is None else throttler.line.length

    def in_flight(self) -> int:
        throttler = self._tables.throttlers.get(self._key)
        return 0 if throttler is None else throttler.table.in_flight

    def cold_start_line(self) -> str:
        return "  ".join(f"{name} {ms:g} ms" for name, ms in self.cold_start)


class PlainLines:
    """One line whenever something worth telling has changed."""

    def __init__(self) -> None:
        self._act = ""
        self._told = ""
        self._cold = False

    def show(self, scene: Scene) -> None:
        pods = scene.pods()
        if scene.act != self._act:
            self._act = scene.act
            print(f"== {scene.act}", flush=True)
        if scene.cold_start and not self._cold:
            self._cold = True
            print(f"   cold start: {scene.cold_start_line()}", flush=True)
        told = " ".join(f"[{tracker.slot}: {STATE_NAMES[tracker.state]}]" for tracker in pods)
        if told != self._told:
            self._told = told
            rate = f", {scene.client.get('rps', 0):g} requests/s" if scene.client else ""
            print(
                f"   processes {told or 'none'}, in flight {scene.in_flight()}, queued {scene.queued()}{rate}",
                flush=True,
            )

    def close(self) -> None:
        """Nothing is left open."""


class Picture:
    """Redrawn in place."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), auto_refresh=False, transient=False)
        self._live.start()

    def show(self, scene: Scene) -> None:
        self._live.update(_frame(scene), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _frame(scene: Scene) -> RenderableType:
    slots = Table("slot", "process", "state", "in flight", "", box=None, padding=(0, 2, 0, 0), expand=True)
    for tracker in scene.pods():
        name = STATE_NAMES[tracker.state]
        filled = min(_BAR, _BAR * tracker.in_flight // max(tracker.limit, 1))
        slots.add_row(
            str(tracker.slot),
            tracker.identity,
            Text(name, style=_STYLES.get(name, "")),
            f"{tracker.in_flight}/{tracker.limit}",
            Text("█" * filled + "░" * (_BAR - filled), style="cyan"),
        )
    client = scene.client
    figures = Text(f"queued {scene.queued():<5} in flight {scene.in_flight():<5}")
    if client:
        figures.append(
            f"requests {client['requests']:<8} {client['rps']:>8.0f}/s   p50 {client['p50_ms']:g} ms"
            f"   p99 {client['p99_ms']:g} ms   failures {client['failures']}"
        )
    parts: list[RenderableType] = [Text(scene.act, style="bold"), Text(""), slots, Text(""), figures]
    if scene.cold_start:
        parts.append(Text(f"cold start: {scene.cold_start_line()}", style="dim"))
    return Panel(Group(*parts), title="activator demo", padding=(1, 2))
