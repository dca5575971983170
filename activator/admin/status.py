"""`activator status`: the response of `/debug/revisions` as tables."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDTH_MAX: Final = 1_000  # columns


def console_of(file: IO[str] | None = None) -> Console:
    """Return a console that prints texts as they are: `[fd00::1]:80` and `:80:` are no markup and no emoji."""
    return Console(file=file, markup=False, emoji=False)


def table(answer: bytes) -> str:
    """Return the tables as text, as wide as the terminal, or wider if they need it: nothing is cut."""
    parts = shown(answer)
    console = console_of(io.StringIO())
    tables = [part for part in getattr(parts, "renderables", []) if isinstance(part, Table)]
    wide = console.options.update(width=WIDTH_MAX)
    console.width = max(console.width, *(Measurement.get(console, wide, part).maximum for part in tables), 0)
    console.print(parts)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue().rstrip()


def watch(ask: Callable[[], bytes], wait: Callable[[], bool], console: Console) -> None:
    """Show the tables in place, and refresh them until `wait` returns False."""
    with Live(shown(ask()), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while wait():
            live.update(shown(ask()), refresh=True)


def shown(answer: bytes) -> Group | Text:
    """Return the response of `/debug/revisions` as an object to print."""
    snapshot = msgspec.json.decode(answer)
    parts: list[Text | Table] = []
    if len(snapshot["revisions"]) > 1:
        parts.append(_summary(snapshot["revisions"]))
    for revision in snapshot["revisions"]:
        parts.append(_revision(revision))
        if len(snapshot["revisions"]) == 1:
            parts.extend(
                _waiting(number, request) for number, request in enumerate(revision.get("waiting_requests", []), 1)
            )
        if revision["slots"] or revision["without_slot"]:
            parts.append(_slots(revision["slots"], revision["without_slot"]))
    parts.extend(_group(group) for group in snapshot.get("groups", []))
    clients = snapshot["clients"]
    if clients["http2_connections"]:
        parts.append(
            Text(f"clients: {clients['connections']} connections, {clients['http2_connections']} of them HTTP/2 with "
                 f"{clients['streams']} streams")
        )  # fmt: skip
    return Group(*parts) if parts else Text("no revisions")


def why(answer: bytes, name: str) -> str | None:
    """Return why each revision, or only the one with this name, has its number of pods; None if it does not exist.

    `name` may be `name` or `namespace/name`.
    """
    revisions = [
        revision
        for revision in msgspec.json.decode(answer)["revisions"]
        if not name or name in (revision["name"], f"{revision['namespace']}/{revision['name']}")
    ]
    if name and not revisions:
        return None
    return "\n".join(line for revision in revisions for line in _why(revision)) or "no revisions"


def _why(revision: dict[str, Any]) -> list[str]:
    """Return the lines that explain the number of a revision's pods."""
    head = f"{revision['namespace']}/{revision['name']}"
    scaling = revision.get("scaling")
    if scaling is None:
        return [f"{head}: not scaled here, because it has no `process` or `container`"]
    state = "asleep" if scaling["asleep"] else "panics" if scaling["panicking"] else "awake"
    averages = f"stable average {scaling['stable_average']:g}, panic average {scaling['panic_average']:g}"
    bounds = f"ready {scaling['ready']}, min {scaling['min']}, max {scaling['max'] or 'no bound'}"
    lines = [
        f"{head}: wanted {scaling['wanted']} ({scaling['reason']}, {_ago(scaling['age_s'])}), {state}",
        f"  {scaling['explanation']}",
        f"  {scaling['metric']}: {averages}, target {scaling['target']:g}; {bounds}",
    ]
    failure = [f"cannot start: {revision['failure']}"] if revision.get("failure") else []
    lines += [f"  {problem}" for problem in (*failure, *revision.get("problems", []))]
    if scaling["unloads_in_s"] is not None:
        lines.append(f"  without a request it is unloaded in {_duration(scaling['unloads_in_s'])}")
    group = revision.get("group")
    if group is not None:
        waits = group.get("waits")
        wait = f"{waits['explanation']}, for {waits['waited_s']:.0f} s" if waits else "waits for nothing"
        lines.append(f"  group {group['name']}: may run {group['granted']}, {wait}")
    change = scaling["changed"]
    if change is not None:
        prefix = f"  last change {_ago(change['age_s'])}: {change['from']} to {change['to']} ({change['reason']}): "
        lines.append(prefix + change["explanation"])
    return lines


def _group(group: dict[str, Any]) -> Text:
    """Return the group's budget, the revisions that use it, and those that wait."""
    line = Text(f"group {group['name']}", style="bold")
    used = ", ".join(
        f"{name} {_amount(group['used'][name])} of {_amount(limit)}" for name, limit in group["budget"].items()
    )
    line.append(
        f"  {used or 'one revision at a time'}  {group['discipline']}  swaps {group['swaps']}", style="not bold"
    )
    for one in group["holders"]:
        parts = [f"{one[state]} {state}" for state in ("running", "leaving", "sleeping") if one[state]]
        parts += [_uses(one["memory"])] if one.get("memory") else []
        line.append(f"\n  {one['revision']}: {', '.join(parts)}", style="not bold")
    for one in group["waiting"]:
        line.append(f"\n  {one['revision']} {one['explanation']}, for {one['waited_s']:.0f} s", style="yellow not bold")
    return line


def _uses(memory: dict[str, int]) -> str:
    return "uses " + ", ".join(f"{name} {_amount(used)}" for name, used in memory.items())


def _amount(amount: int) -> str:
    """Format an amount: a size in KiB, MiB or GiB, a small number (such as of GPUs) unchanged."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.4g}{unit}"
    return str(amount)


def _ago(seconds: float) -> str:
    return f"{_duration(seconds)} ago"


def _duration(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.0f} h"


def _summary(revisions: list[dict[str, Any]]) -> Text:
    """Return how many revisions there are, and how many of them need attention."""
    counts = {
        "with ready pods": sum(any(slot["state"] == "ready" for slot in revision["slots"]) for revision in revisions),
        "with waiting requests": sum(revision["queued"] > 0 for revision in revisions),
        "cannot start": sum(bool(revision["failure"]) for revision in revisions),
    }
    parts = [f"{len(revisions)} revisions", *(f"{count} {label}" for label, count in counts.items() if count)]
    return Text(", ".join(parts))


def _revision(revision: dict[str, Any]) -> Text:
    line = Text(f"{revision['namespace']}/{revision['name']}", style="bold")
    line.append(
        f"  in flight {revision['in_flight']}  queued {revision['queued']}  requests {revision['requests']}"
        f"  policy {revision['policy']}"
        f"{'' if revision['protocol'] == 'h1' else '  pods speak ' + revision['protocol']}",
        style="not bold",
    )
    if revision["gathering"] or revision["delivering"]:
        line.append(f"  slow clients: {revision['gathering']} send, {revision['delivering']} read", style="not bold")
    if revision.get("memory"):
        line.append(f"  {_uses(revision['memory'])}", style="not bold")
    if revision["waits_for"]:
        line.append(f"  waits for {revision['waits_for']}", style="yellow")
    for problem in revision.get("problems", []):
        line.append(f"  {problem}", style="yellow")
    if revision["failure"]:
        line.append(f"  cannot start: {revision['failure']}", style="red")
    return line


def _waiting(number: int, request: dict[str, Any]) -> Text:
    """Return a line about a waiting request; number 1 has waited longest."""
    user = f", user {request['user']}" if request["user"] else ""
    level = f", level {request['level']}" if request["level"] else ""
    waits = f"waits for {_duration(request['waited_s'])}, probably {_duration(request['expected_s'])} more"
    return Text(f"  {number}. {request['method']} {request['target']}{user}{level}: {waits}", style="yellow")


def _first_byte(pod: dict[str, Any]) -> str:
    """Return the pod's mean time to the first byte of a response."""
    if not pod.get("responses"):
        return "-"
    mean_s: float = pod["first_byte_total_s"] / pod["responses"]
    return f"{mean_s * 1000.0:.3g} ms" if mean_s < 1.0 else f"{mean_s:.3g} s"


def _slots(slots: list[dict[str, Any]], without_slot: list[dict[str, Any]]) -> Table:
    """Return the table of a revision's pods, those without a slot last."""
    pods = [*slots, *without_slot]
    is_named = any(pod["pod"] != pod["address"] for pod in pods)  # otherwise the address is the name
    has_zones = any("zone" in pod for pod in pods)
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for title in (
        "slot",
        *(["pod"] if is_named else []),
        "address",
        *(["zone"] if has_zones else []),
        "state",
        "changed",
        "in flight",
        "limit",
        "responses",
        "errors",
        "first byte",
    ):
        shown.add_column(title, no_wrap=True)
    shown.add_column("reason", overflow="fold")
    for pod in pods:
        has_slot = "slot" in pod
        limit = str(pod["limit"]) if has_slot and pod["limit"] < 1 << 30 else "-"
        names = [pod["pod"], pod["address"]] if is_named else [pod["address"]]
        if has_zones:
            names.append(pod.get("zone", "-"))
        age_s = pod.get("state_age_s")
        changed = "-" if age_s is None else _ago(age_s)
        in_flight = str(pod["in_flight"]) if has_slot else "-"
        figures = [str(pod.get("responses", "-")), str(pod.get("errors", "-")), _first_byte(pod)]
        shown.add_row(
            str(pod.get("slot", "-")), *names, pod["state"], changed, in_flight, limit, *figures, pod["reason"]
        )
    return shown
