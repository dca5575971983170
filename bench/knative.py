"""Cold starts with Knative: the time until the autoscaler is notified, and until a listening pod has the request.

Rules
  1. The cluster is that of the end-to-end tests: an API server, an autoscaler and pods whose queue-proxy checks its
     program every 50 ms. All of them and the client run on one event loop and so share one clock.
  2. Each start is one of a revision at zero; its pods are removed before the next one.
  3. Any response other than 200 invalidates the run: exit code 1.

"poke": from sending the request until the autoscaler has the activator's message. "overhead": from the moment the
program listens until the client has the response, which is the part that the activator can influence.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

import lb
from bench import header, results
from bench.generator import percentile
from bench.results import Document, Result, Value
from tests.e2e.knative_cluster import Cluster
from tests.e2e.running import Activator, eventually, resident_bytes

NET = 99  # the pods' addresses are 127.99.x.y


class Start(msgspec.Struct, frozen=True):
    """One cold start, in milliseconds."""

    poke_ms: float
    overhead_ms: float


def run(rounds: int, start_ms: int, json_path: str | None) -> int:
    """Run `python -m bench knative`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    starts: list[Start] = []
    failures: list[str] = []
    idle_mb = 0.0
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        cluster = Cluster(Path(name), NET)
        cluster.start_seconds = start_ms / 1000.0
        activator = cluster.activator()
        try:
            cluster.revision("bench-00001", limit=1)
            eventually(lambda: "bench-00001" in activator.revisions())
            idle_mb = resident_bytes(activator.process.pid) / 1e6
            for _ in range(rounds):
                try:
                    starts.append(cluster.do(_once(cluster, activator)))
                except (OSError, AssertionError, asyncio.IncompleteReadError) as error:
                    failures.append(repr(error))
                cluster.scale("bench-00001", 0)
                eventually(lambda: not activator.slots("bench-00001"))
        finally:
            activator.close()
            cluster.close()
    print("\n" + results.table(*rows(starts)) + "\n")
    print(
        f"Measured: {rounds} cold starts of one revision; its program listens {start_ms} ms after its queue-proxy.\n"
        f"Knative's own activator, on a real cluster: 33 ms overhead (8 to 52). {len(failures)} failures.\n"
        f"Idle, with one revision: {idle_mb:.0f} MB resident (Knative's own: 90 MB)."
    )
    if json_path is not None:
        results.write(json_path, Document(head, figures(starts, len(failures), start_ms, idle_mb)))
    for failure in failures:
        print(f"bench: a cold start failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


async def _once(cluster: Cluster, activator: Activator) -> Start:
    loop = asyncio.get_running_loop()
    messages = len(cluster.stats)
    reader, writer = await asyncio.open_connection(activator.host, activator.port)
    try:
        sent_s = loop.time()
        writer.write(
            b"GET / HTTP/1.1\r\nHost: bench\r\nKnative-Serving-Namespace: default\r\n"
            b"Knative-Serving-Revision: bench-00001\r\n\r\n"
        )
        status = await reader.readline()
        answered_s = loop.time()
        assert status.startswith(b"HTTP/1.1 200"), status
    finally:
        writer.close()
    pod = cluster.pods["bench-00001"][0]
    return Start((cluster.stats[messages][0] - sent_s) * 1e3, (answered_s - pod.listens_s) * 1e3)


def sorted_ms(starts: list[Start]) -> dict[str, list[float]]:
    """Return the durations by phase, ascending."""
    return {
        "poke": sorted(start.poke_ms for start in starts),
        "overhead": sorted(start.overhead_ms for start in starts),
    }


def rows(starts: list[Start]) -> tuple[list[str], list[list[str]]]:
    """Return the table for the terminal."""
    lines = []
    for phase, ordered in sorted_ms(starts).items():
        shares = [percentile(ordered, share) for share in (0.0, 0.50, 0.99)] if ordered else [None] * 3
        lines.append([phase, *map(results.figure, shares)])
    return ["phase", "min ms", "p50 ms", "p99 ms"], lines


def figures(starts: list[Start], failures: int, start_ms: int, idle_mb: float) -> list[Result]:
    """Return the results for the JSON file."""
    params: dict[str, Value] = {
        "compiled": lb.COMPILED,
        "rounds": len(starts) + failures,
        "program_starts_in_ms": start_ms,
    }
    found = []
    for phase, ordered in sorted_ms(starts).items():
        for name, share in (("p50", 0.50), ("p99", 0.99)):
            if ordered:
                found.append(Result(f"knative.{phase}.{name}", percentile(ordered, share), "ms", True, params))
    found.append(Result("knative.idle_resident", idle_mb, "MB", True, params))
    found.append(Result("knative.failures", float(failures), "requests", True, params))
    return found
