"""The tour: four acts with one activator, one program and one client process.

1. at zero             nothing runs
2. the first requests  are held while the first process starts, and then answered
3. load                scales the revision to several processes
4. silence             scales it back to zero

At the end it prints a summary and commands to try next and, without a terminal, one line of JSON with the figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import lb
from activator.app import App, Settings
from activator.config.file import resolve
from activator.config.model.file import Config
from activator.config.model.kinds import Duration
from activator.config.model.programs import Process
from activator.config.model.queueing import Queue
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.reaping import Reaping
from activator.data_plane.exchange import Exchange
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.streams import ClientStream
from activator.demo.picture import PHASES, Picture, PlainLines, Snapshot
from lb.registry import default_name

FIRST_REQUESTS = 5  # requests that are held at the start from zero
CONNECTIONS = 32
CONCURRENCY = 8  # requests at a time in one process
PROCESSES_MAX = 4
LOAD_S = 9.0
IDLE_S = 4.0
READ_S = 2.0  # time to read a caption
FRAME_S = 0.1
ACT_TIMEOUT_S = 25.0  # per act; the whole tour ends within a minute

_KEY = "default/demo"
_FOLDER = Path(__file__).parent


class FirstExchange(ExchangeObserver):
    """An observer that records the first request."""

    def __init__(self) -> None:
        self.first: Exchange | None = None

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        if self.first is None and isinstance(exchange, Exchange):
            self.first = exchange


def run() -> int:
    """Run the tour. Return the exit code, 0 if every act went as planned."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    reaping = Reaping.start()
    import uvloop

    try:
        return uvloop.run(_tour(reaping))
    finally:
        reaping.close()


def _settings() -> Settings:
    process = Process(
        command=[sys.executable, "-I", str(_FOLDER / "program.py"), "{port}"],
        max_scale=PROCESSES_MAX,
        idle=Duration(IDLE_S),
    )
    revision = Revision(
        name="demo",
        hosts=["*"],
        container_concurrency=CONCURRENCY,
        policy="round-robin",
        process=process,
        queue=Queue(depth=1000),
    )
    config = Config(listen="127.0.0.1:0", admin="", revisions=[revision])
    return Settings(config, resolve(config, default_name), encode_messages=True)  # as if through a socket


async def _tour(reaping: Reaping) -> int:
    """Run the activator of the demo, and play the acts. Return the exit code."""
    app = App(_settings(), reaping)
    observer = FirstExchange()
    assert app.data is not None, "one worker: the picture is drawn from its table"
    app.data.proxy.observer = observer
    in_terminal = sys.stdout.isatty()
    picture = Picture() if in_terminal else PlainLines()
    snapshot = Snapshot(app.data.tables, _KEY)
    await app.start()
    drawing = asyncio.get_running_loop().create_task(_draw(picture, snapshot))
    try:
        result = await _acts(app, snapshot, observer)
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})
        await app.close()
        picture.close()
    print("\n".join(summary(result, snapshot, command_name(sys.argv[0], Path.cwd(), Path(sys.executable)))), flush=True)
    if not in_terminal:
        print(json.dumps(result), flush=True)
    return 0 if result["failures"] == 0 and snapshot.back_at_zero else 1


async def _draw(picture: Picture | PlainLines, snapshot: Snapshot) -> None:
    while True:
        picture.show(snapshot)
        await asyncio.sleep(FRAME_S)


async def _acts(app: App, snapshot: Snapshot, observer: FirstExchange) -> dict[str, Any]:
    """Play the four acts. Return the figures of the summary."""
    address = app.addresses[0]
    snapshot.begin(
        "1 of 4: at zero",
        f"No process runs. The activator listens on http://{address}; the first request will start the program.",
    )
    await asyncio.sleep(READ_S)

    snapshot.begin(
        f"2 of 4: {FIRST_REQUESTS} requests, and no process to answer them",
        "They are held, not refused, while a process starts. See what they wait for, and the phases below.",
    )
    began_s = snapshot.asked_s = time.monotonic()
    first = await _client(address, FIRST_REQUESTS, 0.0, snapshot)
    cold_start_ms = first["p50_ms"]
    snapshot.cold_start = _phases(observer, app, began_s)
    await asyncio.sleep(READ_S)

    snapshot.begin(
        f"3 of 4: load, {CONNECTIONS} connections for {LOAD_S:g} s",
        f"No process gets more than {CONCURRENCY} requests at a time; the others wait. More processes are started.",
    )
    load = await _client(address, CONNECTIONS, LOAD_S, snapshot)

    snapshot.begin(
        "4 of 4: silence",
        f"{IDLE_S:g} s after the last request the processes are drained and stopped, and the slots become empty.",
    )
    until_s = time.monotonic() + ACT_TIMEOUT_S
    while snapshot.pods() and time.monotonic() < until_s:  # noqa: ASYNC110 - the demo polls as a viewer would
        await asyncio.sleep(FRAME_S)
    snapshot.back_at_zero = not snapshot.pods()
    if not snapshot.back_at_zero:
        snapshot.begin("some processes were not stopped", "This is a defect; please report it.")
    await asyncio.sleep(0.5)
    return {
        "requests": first["requests"] + load["requests"],
        "failures": first["failures"] + load["failures"],
        "p50_ms": load["p50_ms"],
        "p99_ms": load["p99_ms"],
        "cold_start_ms": cold_start_ms,
        "max_pods": snapshot.most_ready,
        "compiled": lb.COMPILED,
    }


async def _client(address: str, connections: int, seconds: float, snapshot: Snapshot) -> dict[str, Any]:
    """Run the client process. Return its last report."""
    words = [sys.executable, "-I", str(_FOLDER / "load_client.py"), address, str(connections), str(seconds)]
    child = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    last: dict[str, Any] = {"requests": 0, "failures": 1, "p50_ms": 0.0, "p99_ms": 0.0}
    try:
        async with asyncio.timeout(ACT_TIMEOUT_S):
            async for line in child.stdout:
                last = json.loads(line)
                snapshot.client = last
            await child.wait()
    except TimeoutError:
        child.kill()
        last["failures"] += 1
    return last


def summary(result: dict[str, Any], snapshot: Snapshot, command: str) -> list[str]:
    """Return the lines of the summary, and of commands to try next."""
    end = "0" if snapshot.back_at_zero else "some that were not stopped"
    build = "compiled" if result["compiled"] else "plain Python"
    total = f"{result['requests']:,} requests"
    phases = dict(snapshot.cold_start)
    program = phases.get("process starts", 0.0)
    return [
        f"Seen ({build}): processes 0 -> {result['max_pods']} -> {end}; {total}, {result['failures']} failures;",
        f"  the first waited {result['cold_start_ms']:,.0f} ms, of which the program took {program:,.0f} to start;",
        f"  under load p50 {result['p50_ms']:g} ms, p99 {result['p99_ms']:g} ms; up to {snapshot.most_queued} queued.",
        "Try next:",
        f"  {command} run -- python3 -m http.server {{port}}",
        "  curl http://127.0.0.1:8012/     # in another terminal: starts that server",
        f"  {command} status --watch     # in another terminal: pods and queues",
        "The live page, while an activator runs: http://127.0.0.1:8008/",
    ]


def command_name(started_as: str, here: Path, python: Path) -> str:
    """Return the command that runs this program again, given that it was started as `started_as` or by `python`."""
    path = Path(started_as).absolute()
    if path.name != "activator":
        path = python.with_name("activator")  # started by `make demo`; the script may be installed
        if not path.exists():
            return f"{shlex.quote(str(python))} -m activator.cli"
    installed = shutil.which("activator")
    if installed is not None and Path(installed).absolute() == path:
        return "activator"
    return shlex.quote(os.path.relpath(path, here) if path.is_relative_to(here) else str(path))


def _phases(observer: FirstExchange, app: App, began_s: float) -> list[tuple[str, float]]:
    """Return the phases of the first request as (phase, ms)."""
    first = observer.first
    start = app.control.processes.supervisor.first_start
    if first is None or start is None:
        return []
    started_s, ready_s = start
    ends_s = (started_s, ready_s, first.granted_s, first.connected_s, first.first_byte_s, first.done_s)
    phases = []
    previous_s = first.arrived_s
    for name, at_s in zip(PHASES, ends_s, strict=True):
        phases.append((name, round((at_s - previous_s) * 1000.0, 2)))
        previous_s = at_s
    return phases
