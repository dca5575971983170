"""`python -m bench overload`: what clients get when far more of them come than a revision can serve.

An open loop: clients come at a fixed rate, 3, 10 and 30 times the capacity, each on a connection of its own, and leave
after PATIENCE_S. The pod takes SLOTS requests at a time, SERVICE_S each. A part of the clients, together less than the
capacity, has the highest priority. Then the rate falls to half of the capacity.

Figures of each phase: the share of the capacity that was spent on responses in time (goodput), the share of urgent
clients that were served in time, the 99th percentile of their latency and of all that were served, the most memory, and
after which time of the calm that follows each client is served as quickly as if there had been no overload.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from bench import header, results
from bench.peers import REFERENCE, Peer, activator, before_pod, haproxy
from bench.processes import LOOPBACK, Child, find_program
from bench.results import Document, Result

SLOTS = 4
SERVICE_S = 0.08
CAPACITY_PER_S = SLOTS / SERVICE_S
URGENT_SHARE = 0.2  # share of the capacity
PATIENCE_S = 1.0
TARGET = "200ms"
FACTORS = (3, 10, 30)
CALM_S = 4.0
CALM_FACTOR = 0.5
QUICK_S = 2 * SERVICE_S

_QUEUE = "queue: {discipline: priority, header: X-Priority%s}"
_CONTROLLED = f", target_wait: {TARGET}, target_interval: 500ms"
_BY_CLASS = "http-request set-priority-class int(-1) if { req.hdr(X-Priority) -m str 7 }"

PEERS = [
    Peer("haproxy", "haproxy", partial(haproxy, of_server=f" maxconn {SLOTS}", of_front=_BY_CLASS)),
    Peer(
        "haproxy-timeout-queue",
        "haproxy",
        partial(haproxy, of_server=f" maxconn {SLOTS}\n    timeout queue {TARGET}", of_front=_BY_CLASS),
    ),
    Peer("activator-no-target", None, activator(SLOTS, "", _QUEUE % "")),
    Peer("activator", None, activator(SLOTS, "", _QUEUE % _CONTROLLED)),
]


class _Pod(asyncio.Protocol):
    """Answers each request after SERVICE_S."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(SERVICE_S, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


class Visit(msgspec.Struct):
    """The outcome for one client. Times in seconds of `time.perf_counter`."""

    came_s: float
    is_urgent: bool
    status: int = 0  # 0 if it left
    took_s: float = 0.0

    def is_in_time(self) -> bool:
        return self.status == 200 and self.took_s <= PATIENCE_S


class _Client(asyncio.Protocol):
    def __init__(self, visit: Visit, left: Callable[[], None]) -> None:
        self._visit = visit
        self._left = left
        self._gives_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        level = b"X-Priority: 7\r\n" if self._visit.is_urgent else b""
        self._transport.write(b"GET / HTTP/1.1\r\nHost: bench.localhost\r\nConnection: close\r\n%b\r\n" % level)
        rest_s = PATIENCE_S - (time.perf_counter() - self._visit.came_s)
        self._gives_up = asyncio.get_running_loop().call_later(max(rest_s, 0.0), self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._visit.status:
            self._visit.status = int(data[9:12])
            self._visit.took_s = time.perf_counter() - self._visit.came_s
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gives_up is not None:
            self._gives_up.cancel()
        self._left()


class Load:
    """Clients that come at a fixed rate."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = 0
        self._all_left = asyncio.Event()
        self._urgent_due: float = 0.0

    async def phase(self, factor: float, seconds: float) -> list[Visit]:
        """Let clients come at `factor` times the capacity. Return what each of them got, when the last has left."""
        loop = asyncio.get_running_loop()
        per_s = CAPACITY_PER_S * factor
        visits: list[Visit] = []
        began_s = time.perf_counter()
        for number in range(round(per_s * seconds)):
            due_s = began_s + number / per_s
            if due_s > time.perf_counter():
                await asyncio.sleep(due_s - time.perf_counter())
            self._urgent_due += URGENT_SHARE / max(factor, 1.0)
            visit = Visit(due_s, self._urgent_due >= 1.0)
            self._urgent_due -= visit.is_urgent
            visits.append(visit)
            self._open += 1
            task = loop.create_task(self._visit(loop, visit))
            task.add_done_callback(self._connected)
        if self._open:
            self._all_left.clear()
            await asyncio.wait_for(self._all_left.wait(), 10.0 * PATIENCE_S)
        return visits

    async def _visit(self, loop: asyncio.AbstractEventLoop, visit: Visit) -> None:
        await loop.create_connection(lambda: _Client(visit, self._has_left), LOOPBACK, self._port)

    def _connected(self, task: asyncio.Task[None]) -> None:
        if task.exception() is not None:  # refused
            self._has_left()

    def _has_left(self) -> None:
        self._open -= 1
        if not self._open:
            self._all_left.set()


class Outcome(msgspec.Struct):
    """The figures of one phase."""

    goodput: float
    urgent: float
    urgent_p99_s: float
    p99_s: float
    memory_bytes: int
    calm_after_s: float


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def outcome(visits: list[Visit], seconds: float, calm: list[Visit], memory_bytes: int) -> Outcome:
    """Return the figures of a phase of this length and of the calm after it."""
    served = [one for one in visits if one.is_in_time()]
    urgent = [one for one in visits if one.is_urgent]
    slow = [one.came_s for one in calm if one.status != 200 or one.took_s > QUICK_S]
    return Outcome(
        len(served) / (CAPACITY_PER_S * seconds),
        sum(one.is_in_time() for one in urgent) / max(len(urgent), 1),
        p99([one.took_s for one in served if one.is_urgent]),
        p99([one.took_s for one in served]),
        memory_bytes,
        max(slow) - calm[0].came_s if slow else 0.0,
    )


async def _highest(child: Child, most: list[int]) -> None:
    while True:
        most[0] = max(most[0], child.memory_bytes())
        await asyncio.sleep(0.5)


async def _measure(peer: Peer, folder: Path, seconds: float) -> list[Outcome]:
    found = []
    async with before_pod(peer, _Pod, folder) as (child, port):
        load = Load(port)
        await load.phase(CALM_FACTOR, 1.0)
        for factor in FACTORS:
            most = [0]
            watch = asyncio.create_task(_highest(child, most))
            visits = await load.phase(factor, seconds)
            watch.cancel()
            calm = await load.phase(CALM_FACTOR, CALM_S)
            found.append(outcome(visits, seconds, calm, most[0]))
            gc.collect()
        child.check_alive()
    return found


def run(seconds: float, json_path: str | None) -> int:
    """Run `python -m bench overload`. Raises BenchError."""
    peers = [peer for peer in PEERS if peer.program is None or find_program(peer.program) is not None]
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    rows, measured = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for peer in peers:
            for factor, one in zip(FACTORS, uvloop.run(_measure(peer, Path(name), seconds)), strict=True):
                figures = {
                    "goodput": (100 * one.goodput, "%"),
                    "urgent_in_time": (100 * one.urgent, "%"),
                    "urgent_p99": (1000 * one.urgent_p99_s, "ms"),
                    "p99": (1000 * one.p99_s, "ms"),
                    "memory": (one.memory_bytes / 2**20, "MiB"),
                    "calm_after": (one.calm_after_s, "s"),
                }
                rows.append(
                    [f"{peer.name} at {factor} x", *(results.figure(value, 1) for value, _ in figures.values())]
                )
                print(*rows[-1], flush=True)
                for figure, (value, unit) in figures.items():
                    lower = figure not in {"goodput", "urgent_in_time"}
                    measured.append(
                        Result(f"overload.{figure}.{peer.name}.x{factor}", value, unit, lower, {"factor": factor})
                    )
    columns = ["proxy", "goodput %", "urgent in time %", "their p99, ms", "p99, ms", "MiB", "calm after, s"]
    print("\n" + results.table(columns, rows))
    if REFERENCE not in [peer.name for peer in peers]:
        print(f"{REFERENCE} is not installed: nothing to compare with", file=sys.stderr)
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
