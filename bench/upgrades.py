"""Upgrades under traffic: how long no new connection is answered, and how long a stream pauses.

Rules
  1. `activator upgrade` is compared with a reload of nginx, which replaces its workers only.
  2. One client connects for each request without a pause, another reads a stream with an event every 10 ms, from before
     the first upgrade until after the last.
  3. A gap is the time between the ends of two requests, a pause that between two events. "quiet" is the longest one of
     the same length of time without an upgrade, in the same run.
  4. A request that fails or a stream that ends fails the run: exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import lb
from bench import header, results
from bench.peers import nginx
from bench.processes import LOOPBACK, ROOT, BenchError, Child, answers, find_program, free_port, running
from bench.results import Document, Result

SETTLE_S: Final = 0.5  # before and after each upgrade
ANSWER_S: Final = 10.0
RELOAD_STEP_S: Final = 0.005
PROGRAM: Final = str(ROOT / "bench" / "upgrade_program.py")
ROWS: Final = ("gap", "pause", "upgrade")

Change = Callable[[], Awaitable[None]]


class Traffic:
    """The two clients. `ended_s`, `event_s`: when each request and each event has ended, in monotonic seconds."""

    def __init__(self, port: int) -> None:
        self.ended_s: list[float] = []
        self.event_s: list[float] = []
        self.failures: list[str] = []
        self._port = port
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    async def connect(self) -> None:
        """Send requests, each on a connection of its own, until `stop`."""
        while not self._is_over:
            try:
                async with asyncio.timeout(ANSWER_S):
                    reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
                    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    answer = await reader.read()
                    writer.close()
            except OSError as error:  # also if the time is up
                self.failures.append(f"a request: {error!r}")
                continue
            if answer.startswith(b"HTTP/1.1 200 "):
                self.ended_s.append(time.monotonic())
            else:
                self.failures.append(f"a request: {answer[:60]!r}")

    async def stream(self) -> None:
        """Read events until `stop`."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        while not self._is_over:
            if not await reader.read(4096):
                self.failures.append("the stream has ended")
                return
            self.event_s.append(time.monotonic())
        writer.close()


async def measured(port: int, rounds: int, change: Change) -> tuple[dict[str, list[float]], list[str]]:
    """Return the longest gap and pause of each round, without and with an upgrade, in ms; and the failures."""
    traffic = Traffic(port)
    clients = [asyncio.ensure_future(traffic.connect()), asyncio.ensure_future(traffic.stream())]
    found: dict[str, list[float]] = {f"{row}{kind}": [] for row in ROWS for kind in ("", " quiet")}
    for _ in range(rounds):
        began_s = time.monotonic()
        await asyncio.sleep(SETTLE_S)
        changes_s = time.monotonic()
        await change()
        took_s = time.monotonic() - changes_s
        await asyncio.sleep(SETTLE_S)
        until_s = time.monotonic()
        await asyncio.sleep(until_s - began_s)
        found["upgrade"].append(took_s * 1e3)
        for row, times in (("gap", traffic.ended_s), ("pause", traffic.event_s)):
            found[row].append(longest_ms(times, began_s, until_s))
            found[f"{row} quiet"].append(longest_ms(times, until_s, time.monotonic()))
    traffic.stop()
    await asyncio.gather(*clients)
    return found, traffic.failures


def longest_ms(times_s: list[float], began_s: float, until_s: float) -> float:
    """Return the longest time between two of these times within a period."""
    within = [began_s, *(one for one in times_s if began_s < one < until_s), until_s]
    return max(later - earlier for earlier, later in itertools.pairwise(within)) * 1e3


@contextlib.contextmanager
def by_activator(folder: Path, workers: int) -> Iterator[tuple[int, Change]]:
    """Serve the program by the activator; the change is an upgrade."""
    port, admin = free_port(), f"{LOOPBACK}:{free_port()}"
    file = folder / "activator.yaml"
    file.write_text(
        f"listen: {LOOPBACK}:{port}\nadmin: {admin}\nworkers: {workers}\nlog: {{level: warning}}\nrevisions:\n"
        f"  - {{name: app, hosts: ['*'], process: {{command: [{sys.executable}, {PROGRAM}, '{{port}}']}}}}\n"
    )
    activator = [sys.executable, "-m", "activator.cli"]
    with running([*activator, "run", "-c", str(file)], folder / "activator.log") as child:
        child.wait_until(answers(port, "/"))

        async def upgrade() -> None:
            command = await asyncio.create_subprocess_exec(*activator, "upgrade", "--admin", admin, stdout=-3)
            if await command.wait():
                raise BenchError(f"the upgrade failed:\n{child.tail()}")

        yield port, upgrade


@contextlib.contextmanager
def by_nginx(folder: Path) -> Iterator[tuple[int, Change]]:
    """Serve the program by nginx; the change is a reload."""
    port, upstream = free_port(), free_port()
    command = nginx(
        folder / "nginx",
        f"""    server {{
        listen {LOOPBACK}:{port};
        location / {{
            proxy_pass http://{LOOPBACK}:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}""",
    )
    with (
        running([sys.executable, PROGRAM, str(upstream)], folder / "program.log") as program,
        running(command, folder / "nginx.log") as child,
    ):
        program.wait_until(answers(upstream, "/"))
        child.wait_until(answers(port, "/"))

        async def reload() -> None:
            before = _children(child)
            os.kill(child.process.pid, signal.SIGHUP)
            for _ in range(round(ANSWER_S / RELOAD_STEP_S)):
                if _children(child) - before:
                    return
                await asyncio.sleep(RELOAD_STEP_S)
            raise BenchError(f"nginx has started no other worker:\n{child.tail()}")

        yield port, reload


def _children(child: Child) -> set[str]:
    process = child.process.pid
    return set(Path(f"/proc/{process}/task/{process}/children").read_text().split())


def run(rounds: int, workers: int, json_path: str | None) -> int:
    """Run `python -m bench upgrades`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    failures: list[str] = []
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ways = [("activator", by_activator(Path(folder), workers))]
        if find_program("nginx") is not None:
            ways.append(("nginx", by_nginx(Path(folder))))
        for name, way in ways:
            with way as (port, change):
                figures, failed = asyncio.run(measured(port, rounds, change))
            failures += [f"{name}: {one}" for one in failed]
            rows = [[row, results.figure(max(each)), results.figure(sorted(each)[len(each) // 2])]
                    for row, each in figures.items() if each]  # fmt: skip
            print(f"\n{name}\n" + results.table(["longest ms", "of all rounds", "median of the rounds"], rows))
            params: dict[str, results.Value] = {"compiled": lb.COMPILED, "rounds": rounds, "workers": workers}
            found += [Result(f"upgrades.{name}.{row.replace(' ', '_')}", max(each), "ms", True, params)
                      for row, each in figures.items() if each]  # fmt: skip
    if json_path is not None:
        results.write(json_path, Document(head, found))
    for line in failures:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if failures else 0
