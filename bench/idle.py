"""Idle revisions: what thousands of them cost, and whether they delay the first request to one of them.

Rules
  1. For each number of revisions the activator is started once; the runs follow each other.
  2. Memory is the Pss of all its processes; CPU is their process clocks over a period without any request, also to the
     admin port, whose server is loaded with its first connection. Readiness is read from the socket for systemd.
  3. First requests go to randomly chosen revisions whose program does not run. All of them must be answered.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

import lb
from bench import header, results
from bench.generator import percentile
from bench.processes import LOOPBACK, ROOT, BenchError, Child, free_port, running
from bench.results import Document, Result

START_S: Final = 60.0  # to read the file and set up its revisions
SETTLE_S: Final = 3.0  # after the start, before CPU is measured; at most as long as CPU is measured
ENDS_S: Final = 1.5  # within which an idle program ends
ANSWER_TIMEOUT_S: Final = 30.0
IDLE: Final = "500ms"
PROGRAM: Final = str(ROOT / "bench" / "cold_program.py")


class Idle(msgspec.Struct, frozen=True):
    """The figures of one start of the activator."""

    revisions: int
    start_s: float
    memory_bytes: int
    cpu_share: float  # 1.0 is one core
    first_ms: list[float]  # ascending


def run(counts: list[int], seconds: float, requests: int, json_path: str | None) -> int:
    """Run `python -m bench idle`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    lives: list[Idle] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        lives.extend(_live(Path(folder), count, seconds, requests) for count in counts)
    print("\n" + results.table(*rows(lives)))
    print(
        f"\nMeasured: memory and CPU over {seconds:g} s without requests; then {requests} first requests, each to a\n"
        "revision that had none before, or whose program has ended."
    )
    if json_path is not None:
        results.write(json_path, Document(head, figures(lives)))
    return 0


def configuration(count: int, port: int, admin_port: int) -> dict[str, Any]:
    """Return a configuration with `count` revisions, each with its own host and program."""
    process = {"command": [sys.executable, PROGRAM, "{port}"], "max_scale": 1, "idle": IDLE}
    revisions = [{"name": f"r{one}", "hosts": [f"r{one}.test"], "process": process} for one in range(count)]
    return {"listen": f"{LOOPBACK}:{port}", "admin": f"{LOOPBACK}:{admin_port}", "revisions": revisions}


def _live(folder: Path, count: int, seconds: float, requests: int) -> Idle:
    port = free_port()
    file = folder / f"{count}.json"
    file.write_text(json.dumps(configuration(count, port, free_port())))
    command = [sys.executable, "-m", "activator.cli", "run", "-c", str(file), "--log-level", "warning"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(path := str(folder / f"{count}.notify"))
        began_s = time.monotonic()
        with running(command, folder / f"{count}.log", environment={"NOTIFY_SOCKET": path}) as child:
            _await_ready(notified, child, count)
            return _measured(child, count, time.monotonic() - began_s, port, seconds, requests)


def _await_ready(notified: socket.socket, child: Child, count: int) -> None:
    notified.settimeout(0.5)
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        child.check_alive()
        with contextlib.suppress(TimeoutError):
            if b"READY=1" in notified.recv(4096):
                return
    raise BenchError(f"{count} revisions were not ready within {START_S:g} s")


def _measured(child: Child, count: int, start_s: float, port: int, seconds: float, requests: int) -> Idle:
    cpu_share = _cpu_share(child, seconds)
    memory = child.memory_bytes()
    first_ms = []
    for number, host in enumerate(_asked(count, requests)):
        if number >= count:
            time.sleep(ENDS_S)  # every revision has had its request: begin again with the first
        first_ms.append(_first_ms(port, host))
    return Idle(count, start_s, memory, cpu_share, sorted(first_ms))


def _cpu_share(child: Child, seconds: float) -> float:
    time.sleep(min(SETTLE_S, seconds))
    before_s = child.cpu_s()
    time.sleep(seconds)
    return (child.cpu_s() - before_s) / seconds


def _asked(count: int, requests: int) -> list[str]:
    rng = random.Random(1)
    chosen = rng.sample(range(count), min(requests, count))
    return [f"r{chosen[one % len(chosen)]}.test" for one in range(requests)]


def _first_ms(port: int, host: str) -> float:
    """Return the latency of a request to a revision whose program does not run."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.connect()
        began_s = time.monotonic()
        connection.request("GET", "/", headers={"Host": host})
        answer = connection.getresponse()
        content = answer.read()
        took_ms = (time.monotonic() - began_s) * 1e3
    if answer.status != 200:
        raise BenchError(f"a first request was answered with {answer.status}: {content[:200]!r}")
    return took_ms


def rows(lives: list[Idle]) -> tuple[list[str], list[list[str]]]:
    """Return the table for the terminal."""
    lines = [
        [
            f"{one.revisions:,}",
            results.figure(one.start_s),
            results.figure(one.memory_bytes / 1e6),
            f"{one.cpu_share:.2%}",
            results.figure(percentile(one.first_ms, 0.0)),
            results.figure(percentile(one.first_ms, 0.5)),
            results.figure(percentile(one.first_ms, 0.99)),
        ]
        for one in lives
    ]
    return ["revisions", "start s", "memory MB", "CPU", "first min ms", "p50 ms", "p99 ms"], lines


def figures(lives: list[Idle]) -> list[Result]:
    """Return the results for the JSON file."""
    found = []
    for one in lives:
        params: dict[str, results.Value] = {"compiled": lb.COMPILED, "revisions": one.revisions}
        found.append(Result("idle.start", one.start_s, "s", True, params))
        found.append(Result("idle.memory", float(one.memory_bytes), "bytes", True, params))
        found.append(Result("idle.cpu", one.cpu_share, "cores", True, params))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            found.append(Result(f"idle.first.{name}", percentile(one.first_ms, share), "ms", True, params))
    return found
