"""The result of the endurance test as text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tests.e2e.running import resident_bytes
from tests.soak.figures import BOUNDS, MIB, Sample
from tests.soak.world import World


def line(world: World, seconds: float) -> str:
    """One line about a run that goes on."""
    ledger = world.ledger
    resident = []
    with contextlib.suppress(OSError, KeyError, AssertionError):
        resident = [
            resident_bytes(pid) // MIB for pid in (world.machine.newest().main, world.replicas.running[0].process.pid)
        ]
    return (
        f"{seconds / 60.0:5.1f} min: {ledger.total:,} requests, {ledger.failed:,} failed as a disturbance explains, "
        f"{ledger.violation_count} violations, {sum(ledger.disturbed.values())} disturbances; MiB {resident}"
    )


def table(heads: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = ["|" + "|".join(heads) + "|", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("|" + "|".join(str(cell) for cell in row) + "|" for row in rows)])


def report(world: World, seed: int, seconds: float, before: dict[str, Sample], after: dict[str, Sample]) -> str:
    """Return the result as Markdown."""
    ledger = world.ledger
    results = [(kind, result, f"{count:,}") for (kind, result), count in sorted(ledger.results.items())]
    longest = [(kind, f"{took_s:.2f}") for kind, took_s in sorted(ledger.longest_s.items())]
    disturbed = [
        (kind, f"{count:,}", f"{ledger.explained[kind]:,}") for kind, count in sorted(ledger.disturbed.items())
    ]
    executions = [
        (one.path.name.removeprefix("record-"), f"{one.total:,}", one.limit or "none", one.most, one.repeated)
        for one in world.executions()
    ]
    figures = [
        (door, name, f"{sample.figures[name]:,}", f"{after[door].figures[name]:,}", f"{BOUNDS[name][0]:,}")
        for door, sample in before.items()
        for name in BOUNDS
    ]
    verdict = "nothing was violated" if not ledger.violation_count else f"{ledger.violation_count} violations"
    parts = [
        f"# Endurance: {seconds / 60.0:.0f} minutes, seed {seed}: {verdict}",
        f"{ledger.total:,} requests, {ledger.failed:,} failed; {sum(ledger.disturbed.values()):,} disturbances.",
        *(f"Left out: {words}." for words in world.left_out),
        table(("kind", "result", "requests"), results),
        table(("kind", "longest successful, s"), longest),
        table(("disturbance", "times", "failures that it explains"), disturbed),
        table(("revision", "executions", "limit of a pod", "most at once", "repeated, idempotent"), executions),
        table(("processes of", "figure", "after the warm-up", "at the end", "may grow by"), figures),
        *(f"- {words}" for words in ledger.violations),
    ]
    return "\n\n".join(parts)
