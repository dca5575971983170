"""The tour itself: four acts, one activator, one program, one client process.

1. at zero             nothing runs
2. the first request   is held while the first process starts, and answered
3. load                drives the revision to several processes
4. silence             and it is back at zero
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import lb
from activator.app import App, Settings
from activator.config.file import resolve
from activator.config.model import Config, Duration, Process, Queue, Revision
from activator.control_plane.sources.process.supervisor import Reaping
from activator.data_plane.exchange import ClientStream, Exchange
from activator.data_plane.proxy.proxy import ExchangeObserver, ProxiedExchange
from activator.demo.picture import Picture, PlainLines, Scene
from lb.registry import default_name

CONNECTIONS = 32
LOAD_S = 8.0
IDLE_S = 3.0
FRAME_S = 0.1
ACT_TIMEOUT_S = 25.0  # of any one act; the whole ends within a minute

_KEY = "default/demo"
_HERE = Path(__file__).parent


class FirstExchange(ExchangeObserver):
    """Remembers the phases of the first request."""

    def __init__(self) -> None:
        self.first: ProxiedExchange | None = None

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        if self.first is None and isinstance(exchange, ProxiedExchange):
            self.first = exchange


def run() -> int:
    """The exit code: 0 when every act went as told."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    reaping = Reaping.start()
    import uvloop

    try:
        return uvloop.run(_tour(reaping))
    finally:
        reaping.close()


def _settings() -> Settings:
    process = Process(
        command=[sys.executable, "-I", str(_HERE / "program.py"), "{port}"],
        max_scale=4,
        idle=Duration(IDLE_S),
    )
    revision = Revision(
        name="demo",
        hosts=["*"],
        container_concurrency=8,
        policy="round-robin",
        process=process,
        queue=Queue(depth=1000),
    )
    config = Config(listen="127.0.0.1:0", admin="", revisions=[revision])
    return Settings(config, resolve(config, default_name), encode_messages=True)  # as if through a socket


async def _tour(reaping: Reaping) -> int:
    app = App(_settings(), reaping)
    observer = FirstExchange()
    app.data.proxy.observer = observer
    picture = Picture() if sys.stdout.isatty() else PlainLines()
    scene = Scene(app.data.tables, _KEY)
    await app.start()
    drawing = asyncio.get_running_loop().create_task(_draw(picture, scene))
    try:
        result = await _acts(app, scene, observer)
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})
        await app.close()
        picture.close()
    print(json.dumps(result), flush=True)
    return 0 if result["failures"] == 0 and scene.back_at_zero else 1


async def _draw(picture: Picture | PlainLines, scene: Scene) -> None:
    while True:
        picture.show(scene)
        await asyncio.sleep(FRAME_S)


async def _acts(app: App, scene: Scene, observer: FirstExchange) -> dict[str, Any]:
    address = app.addresses[0]
    scene.act = f"at zero: nothing runs; the activator listens on http://{address}"
    await asyncio.sleep(1.0)

    scene.act = "the first request: it is held while the first process starts"
    began_s = time.monotonic()
    first = await _client(address, 1, 0.0, scene)
    cold_start_ms = first["p50_ms"]
    scene.cold_start = _phases(observer, app, began_s)
    await asyncio.sleep(0.5)

    scene.act = f"load: {CONNECTIONS} connections from another process, {LOAD_S:g} s"
    load = await _client(address, CONNECTIONS, LOAD_S, scene)

    scene.act = f"silence: back to zero after {IDLE_S:g} s without requests"
    until_s = time.monotonic() + ACT_TIMEOUT_S
    while scene.pods() and time.monotonic() < until_s:  # noqa: ASYNC110 - the demo looks as a person would
        await asyncio.sleep(FRAME_S)
    scene.back_at_zero = not scene.pods()
    scene.act = "at zero again" if scene.back_at_zero else "processes are left that should have gone"
    await asyncio.sleep(0.3)
    return {
        "requests": first["requests"] + load["requests"],
        "failures": first["failures"] + load["failures"],
        "p50_ms": load["p50_ms"],
        "p99_ms": load["p99_ms"],
        "cold_start_ms": cold_start_ms,
        "max_pods": scene.most_ready,
        "compiled": lb.COMPILED,
    }


async def _client(address: str, connections: int, seconds: float, scene: Scene) -> dict[str, Any]:
    """Run the client process; its last line."""
    words = [sys.executable, "-I", str(_HERE / "load_client.py"), address, str(connections), str(seconds)]
    child = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    last: dict[str, Any] = {"requests": 0, "failures": 1, "p50_ms": 0.0, "p99_ms": 0.0}
    try:
        async with asyncio.timeout(ACT_TIMEOUT_S):
            async for line in child.stdout:
                last = json.loads(line)
                scene.client = last
            await child.wait()
    except TimeoutError:
        child.kill()
        last["failures"] += 1
    return last


def _phases(observer: FirstExchange, app: App, began_s: float) -> list[tuple[str, float]]:
    """The first request's time, split: (phase, ms)."""
    first = observer.first
    born = app.control.processes.supervisor.first_start
    if first is None or born is None:
        return []
    started_s, ready_s = born
    marks = [
        ("ask", started_s),
        ("process starts", ready_s),
        ("hand over", first.granted_s),
        ("connect", first.connected_s),
        ("first byte", first.first_byte_s),
        ("done", first.done_s),
    ]
    phases = []
    before_s = first.arrived_s
    for name, at_s in marks:
        phases.append((name, round((at_s - before_s) * 1000.0, 2)))
        before_s = at_s
    return phases
