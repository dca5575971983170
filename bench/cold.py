"""Cold starts: the phases of the first request to a program at zero, compared with systemd-socket-proxyd.

Rules
  1. The two ways alternate, so that disturbances of the machine affect both.
  2. The phases are measured with the clock that all processes share, by the client and by the started program.
  3. A first request that is not answered with 200 fails the run: exit code 1.

Phases: "start" from sending the request to the program's first line (fork, exec, interpreter); "listen" until its port
accepts connections (the program's own time); "hand over" until the program has the held request (the port must be
detected and connected to); "answer" until the client has the response. "beyond" is the sum of the last two: the time
that is added to the program's own.
"""

from __future__ import annotations

import http.client
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

import lb
from bench import header, results
from bench.cold_ways import ColdStart, by_activator, by_socket_proxy, has_socket_proxy
from bench.generator import percentile
from bench.results import Document, Result

OURS = "activator"
PHASES = ["start", "listen", "hand over", "answer", "beyond", "total"]


def phases_ms(start: ColdStart) -> dict[str, float]:
    """Return the phases in chronological order, the two sums last."""
    life = start.life
    points = [start.sent_s, life.started_s, life.listening_s, life.request_s, start.answered_s]
    lasted = [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(points)]
    sums = [(start.answered_s - life.listening_s) * 1e3, (start.answered_s - start.sent_s) * 1e3]
    return dict(zip(PHASES, [*lasted, *sums]))


def run(rounds: int, json_path: str | None) -> int:
    """Run `python -m bench cold`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    ways: dict[str, Callable[[Path], ColdStart]] = {OURS: by_activator}
    if has_socket_proxy():
        ways["systemd-socket-proxyd"] = by_socket_proxy
    else:
        print("bench: systemd-socket-proxyd is not installed and therefore not measured", file=sys.stderr)
    starts: dict[str, list[ColdStart]] = {name: [] for name in ways}
    failures: dict[str, list[str]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for number in range(rounds):
            for name, once in ways.items():
                try:
                    starts[name].append(once(Path(folder) / f"{name}{number}.log"))
                except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                    failures[name].append(f"{type(error).__name__}: {error}")
    for name in ways:
        print(f"\n{name}\n" + results.table(*rows(starts[name])))
    print(
        f"\nMeasured: {rounds} first requests each, with a new listener for each of them; no reserved cores.\n"
        '"beyond": from when the port answers until the client has the response. The program is a bare Python server.'
    )
    if json_path is not None:
        found = [one for name in ways for one in figures(name, starts[name], len(failures[name]))]
        results.write(json_path, Document(head, found))
    for name, errors in failures.items():
        for line in errors:
            print(f"bench: a first request of {name} failed: {line}", file=sys.stderr)
    return 1 if any(failures.values()) else 0


def sorted_phases_ms(starts: list[ColdStart]) -> dict[str, list[float]]:
    """Return the durations by phase, ascending."""
    each = [phases_ms(start) for start in starts]
    return {phase: sorted(one[phase] for one in each) for phase in PHASES}


def rows(starts: list[ColdStart]) -> tuple[list[str], list[list[str]]]:
    """Return the table for the terminal."""
    lines = []
    for phase, ordered in sorted_phases_ms(starts).items():
        shares = [percentile(ordered, share) for share in (0.0, 0.50, 0.99)] if ordered else [None] * 3
        lines.append([phase, *map(results.figure, shares)])
    return ["phase", "min ms", "p50 ms", "p99 ms"], lines


def figures(name: str, starts: list[ColdStart], failures: int) -> list[Result]:
    """Return the results for the JSON file; those of other programs are prefixed with their name."""
    prefix = "cold" if name == OURS else f"cold.{name}"
    params: dict[str, results.Value] = {"compiled": lb.COMPILED, "rounds": len(starts) + failures}
    found = []
    for phase, ordered in sorted_phases_ms(starts).items():
        for percent, share in (("p50", 0.50), ("p99", 0.99)):
            if ordered:
                figure = percentile(ordered, share)
                found.append(Result(f"{prefix}.{phase.replace(' ', '_')}.{percent}", figure, "ms", True, params))
    found.append(Result(f"{prefix}.failures", float(failures), "requests", True, params))
    return found
