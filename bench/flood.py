"""`python -m bench flood`: the cost of a flood of updates for the state worker and for concurrent requests.

A state worker and a data plane run in one process, as in the program; the upstream and the client are other processes.
The phases are: no updates; pods of another revision become ready and not ready, `updates` times per second; yet another
revision panics at every change. In all phases requests are sent at a steady rate, and changes of a third revision are
submitted one by one, to measure how long each takes to be applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

import lb
from activator.config.model.file import Config
from activator.config.specs import BalancingSpec, RevisionSpec, RoutingSpec
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import Supervision
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import open_socket
from activator.messages import (
    Change,
    Drained,
    FromData,
    Load,
    ObservedPod,
    PodDrained,
    PodStatus,
    PodTaken,
    RevisionEnded,
    RevisionSet,
)
from activator.runtime.tasks import TaskGroupOwner
from bench import header, results
from bench.generator import Summary, percentile
from bench.processes import BenchError, Cores, answers, free_port, pinned, running
from bench.results import Document, Result
from lb.rng import Rng

RATE = 1_000.0  # requests per second
TICK_S = 0.005  # the interval of bursts of updates
ASKED_EVERY_S = 0.02
SERVED, FLOODED, POISONED, ASKED = "ns/served", "ns/flooded", "ns/poisoned", "ns/asked"


def _poisoned(model: Model, change: Change, now_s: float) -> Reduction:
    if change.key == POISONED and not isinstance(change, RevisionSet):
        raise RuntimeError("every change of this revision does")
    return reduce(model, change, now_s)


class Phase(msgspec.Struct):
    """The results of one phase."""

    name: str
    summary: Summary
    applied_s: list[float]  # the times from submitting to applying changes of the third revision
    busy: float  # the share of a core that the state worker uses
    updates: int
    queued_most: int


class World:
    """The state worker and the data plane, connected by calls."""

    def __init__(self, pods: int) -> None:
        self.pods = pods
        self.tasks = TaskGroupOwner(_task_failed)
        rng = Rng(1)
        self.data = DataPlane(Config(admin=""), time.monotonic, self._receive, rng, self.tasks)
        self.worker = StateWorker(
            time.monotonic,
            self.data.apply,
            lambda orders: None,
            lambda source, key: None,
            _poisoned,
            Supervision(rng),
            self.data.write_out,
        )
        self.updates = 0
        self.queued_most = 0
        self._number = 0

    def _receive(self, message: FromData) -> None:
        if not isinstance(message, Load | PodDrained | PodTaken | Drained | RevisionEnded):
            self.worker.submit(message)

    async def start(self, upstream: str) -> str:
        self.tasks.start("worker", self.worker.run())
        listener = open_socket("127.0.0.1:0")
        await self.data.start().open(listener)
        for key in (SERVED, FLOODED, POISONED, ASKED):
            host = key.partition("/")[2]
            spec = RevisionSpec(key, routing=RoutingSpec((host,)), balancing=BalancingSpec(max_scale=self.pods))
            self.worker.submit(RevisionSet(spec))
        await self.worker.submit_with_outcome(ObservedPod(SERVED, "list", "p", upstream, PodStatus.READY))
        self._words = [
            [_pod(FLOODED, number, status) for number in range(self.pods)]
            for status in (PodStatus.READY, PodStatus.NOT_READY)
        ]
        for word in self._words[0]:
            self.worker.submit(word)
        return listener.address

    def flood(self, count: int) -> None:
        """Submit `count` updates of one pod after the other; each differs from that pod's last one."""
        for _ in range(count):
            turn, place = divmod(self._number, self.pods)
            self.worker.submit(self._words[(turn + 1) % 2][place])
            self._number += 1
        self.updates += count
        self.queued_most = max(self.queued_most, len(self.worker.queue))

    def poison(self, count: int) -> None:
        for number in range(count):
            self.worker.submit(_pod(POISONED, number, PodStatus.READY))
        self.updates += count


def _pod(key: str, number: int, status: PodStatus) -> ObservedPod:
    return ObservedPod(key, "list", f"pod-{number}", f"10.0.{number // 250}.{number % 250}:8012", status)


def _task_failed(name: str, error: BaseException) -> None:
    raise BenchError(f"{name} failed: {error!r}")


async def _each_tick(per_s: float, submit: Callable[[int], None]) -> None:
    began_s = time.perf_counter()
    submitted = 0
    while True:
        await asyncio.sleep(TICK_S)
        due = int((time.perf_counter() - began_s) * per_s)
        submit(due - submitted)
        submitted = due


async def _ask_meanwhile(world: World, applied_s: list[float]) -> None:
    number = 0
    while True:
        await asyncio.sleep(ASKED_EVERY_S)
        number += 1
        began_s = time.perf_counter()
        await world.worker.submit_with_outcome(_pod(ASKED, number % 50, PodStatus.READY))
        applied_s.append(time.perf_counter() - began_s)


async def _phase(name: str, world: World, address: str, seconds: int, core: int, work: tuple[float, str]) -> Phase:
    per_s, kind = work
    applied_s: list[float] = []
    sides = [asyncio.create_task(_ask_meanwhile(world, applied_s))]
    if kind:
        sides.append(asyncio.create_task(_each_tick(per_s, world.flood if kind == "flood" else world.poison)))
    world.updates = world.queued_most = 0
    processing_s = world.worker.processing.sum
    began_s = time.perf_counter()
    with pinned(core):
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.paced_client", address, str(RATE), str(seconds), "served"),
            stdout=asyncio.subprocess.PIPE,
        )
    out, _ = await client.communicate()
    elapsed_s = time.perf_counter() - began_s
    for side in sides:
        side.cancel()
    await asyncio.gather(*sides, return_exceptions=True)
    busy = (world.worker.processing.sum - processing_s) / elapsed_s
    summary = msgspec.json.decode(out, type=Summary)
    return Phase(name, summary, applied_s, busy, world.updates, world.queued_most)


async def _phases(upstream: str, seconds: int, updates: int, pods: int, core: int) -> list[Phase]:
    world = World(pods)
    address = await world.start(upstream)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in the program
    quiet = max(seconds // 2, 1)
    found = []
    for name, length, work in (
        ("warm-up", 1, (0.0, "")),
        ("quiet", quiet, (0.0, "")),
        ("flood", seconds, (float(updates), "flood")),
        ("quiet again", quiet, (0.0, "")),
        ("poisoned", quiet, (float(updates), "poison")),
    ):
        found.append(await _phase(name, world, address, length, core, work))
    panics = world.worker.panics_total
    if not panics:
        raise BenchError("nothing panicked")
    await world.data.drain(1.0, 1.0)
    await world.tasks.close()
    return found[1:]


def run(seconds: int, updates: int, pods: int, json_path: str | None) -> int:
    """Run `python -m bench flood`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    logging.getLogger("activator").setLevel(logging.CRITICAL)  # panics are intended here
    cores, port = Cores(), free_port()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "bench.upstream", f"127.0.0.1:{port}"]
        stack.enter_context(running(command, Path(name) / "upstream.log", cores.load)).wait_until(
            answers(port, "/small")
        )
        stack.enter_context(pinned(cores.measured))
        found = uvloop.run(_phases(f"127.0.0.1:{port}", seconds, updates, pods, cores.load))
    print("\n" + results.table(*_rows(found)) + "\n")
    quiet_us = [one.summary.p99_us for one in found if one.name.startswith("quiet")]
    ratio = _flood(found).summary.p99_us * len(quiet_us) / sum(quiet_us)
    print(f"p99 of requests in the flood: {ratio:.2f} x the mean of quiet before and after (bar: 1.3)")
    print(f"Measured: {updates:,} updates/s of {pods:,} pods for {seconds} s with {RATE:,.0f} requests/s")
    if json_path is not None:
        results.write(json_path, Document(head, _figures(found, ratio)))
    return 1 if any(one.summary.failures for one in found) else 0


def _flood(found: list[Phase]) -> Phase:
    return next(one for one in found if one.name == "flood")


def _rows(found: list[Phase]) -> tuple[list[str], list[list[str]]]:
    head = ["phase", "requests", "failed", "p50 ms", "p99 ms", "updates/s", "worker %", "queue most", "applied p50 ms"]
    rows = []
    for one in found:
        summary, applied = one.summary, sorted(one.applied_s)
        per_s = one.updates / summary.duration_us * 1e6
        rows.append(
            [one.name, f"{summary.requests:,}", str(summary.failures)]
            + [results.figure(value) for value in (summary.p50_us / 1e3, summary.p99_us / 1e3)]
            + [results.figure(per_s, 0), results.figure(one.busy * 100.0, 1), f"{one.queued_most:,}"]
            + [" / ".join(results.figure(percentile(applied, share) * 1e3, 3) for share in (0.5, 0.99))]
        )
    return [*head[:-1], "applied p50 / p99 ms"], rows


def _figures(found: list[Phase], ratio: float) -> list[Result]:
    figures = [Result("flood.p99_ratio", ratio, "x", True, {"compiled": lb.COMPILED})]
    for one in found:
        params: dict[str, results.Value] = {"compiled": lb.COMPILED, "phase": one.name}
        applied = sorted(one.applied_s)
        figures += [
            Result("flood.p99", one.summary.p99_us, "us", True, params),
            Result("flood.worker_busy", one.busy, "of a core", True, params),
            Result("flood.applied_p50", percentile(applied, 0.5) * 1e6, "us", True, params),
            Result("flood.applied_p99", percentile(applied, 0.99) * 1e6, "us", True, params),
            Result("flood.queue_most", float(one.queued_most), "changes", True, params),
        ]
    return figures
