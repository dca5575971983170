"""`activator status`: the answer of `/debug/revisions` as tables."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(answer: bytes) -> str:
    """Text for a terminal as wide as it is."""
    snapshot = msgspec.json.decode(answer)
    console = Console(file=io.StringIO())
    if not snapshot["revisions"]:
        return "no revisions"
    for revision in snapshot["revisions"]:
        console.print(_revision(revision))
        if revision["slots"]:
            console.print(_slots(revision["slots"]))
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue().rstrip()


def _revision(revision: dict[str, Any]) -> Text:
    line = Text(f"{revision['namespace']}/{revision['name']}", style="bold")
    line.append(
        f"  in flight {revision['in_flight']}  queued {revision['queued']}  requests {revision['requests']}"
        f"  policy {revision['policy']}",
        style="not bold",
    )
    if revision["waits_for"]:
        line.append(f"  waits for {revision['waits_for']}", style="yellow")
    if revision["failure"]:
        line.append(f"  cannot start: {revision['failure']}", style="red")
    return line


def _slots(slots: list[dict[str, Any]]) -> Table:
    shown = Table("slot", "pod", "address", "state", "in flight", "limit", box=None, padding=(0, 2, 0, 0))
    for slot in slots:
        limit = "-" if slot["limit"] >= 1 << 30 else str(slot["limit"])
        shown.add_row(str(slot["slot"]), slot["pod"], slot["address"], slot["state"], str(slot["in_flight"]), limit)
    return shown
