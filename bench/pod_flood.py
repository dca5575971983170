"""`python -m bench pod-flood`: pods that are continually deleted and created, and a comparison of ways to keep up.

The load is that of a node agent that was overloaded by updates (CPU-Pooler, pull request 70): 12 pods with two
containers, deleted and recreated, ten updates of each without new information, restarts inside known pods, 1 % of the
events lost, a watch that breaks every second. Meanwhile requests arrive at a steady rate.

Rules
  1. Each way has the same seed, its own cluster, and its own state worker, prober and data plane. The cluster and the
     client are separate processes on the other core.
  2. A pod is routable when its slot may be picked; the time counts from when it first listens. Pods that died earlier
     are left out of these times; one that listened for ROUTABLE_S without dying and was not routable is reported.
  3. CPU is that of the whole thread, including requests; the run without a flood shows the part of the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

import lb
from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from bench import header, results
from bench.flood_cluster import PodLife, Story
from bench.flood_sources import WAYS, FloodSource, Way
from bench.flood_world import KEY, World
from bench.generator import Summary, percentile
from bench.processes import BenchError, Cores, pinned
from bench.results import Document, Result

RATE = 200.0  # requests per second
PATH = "/slow/0.005"  # the seconds that a pod takes for a request
COMPARE_INTERVAL_S = 2.0
ROUTABLE_S = 5.0
START_S = 60.0
SETTLE_S = 3.0  # after the flood, for pods that are not routable yet
QUIET = Way("no flood, filtered", "new")
FIRST_NET = 210  # N in the pods' addresses, 127.N.x.y


class Counts(NamedTuple):
    """Totals so far: events and what became of them; seconds of CPU, of handling events, of all time."""

    received: float
    handled: float
    submitted: float
    pulled: float
    lists: float
    cpu_s: float
    event_s: float
    clock_s: float

    @classmethod
    def of(cls, world: World, source: FloodSource) -> Counts:
        lists = source.reflector.lists_total + source.relister.rounds_total.total()
        events = (source.received, source.handler.handled, world.submitted, source.pulled, lists)
        return cls(*events, time.thread_time(), source.reflector.spent_s, time.perf_counter())


class Outcome(msgspec.Struct, frozen=True):
    """The results of one way."""

    way: str
    counts: Counts
    routable_s: list[float]
    never: int
    refused: int
    broken: int
    summary: Summary
    story: Story | None


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    seconds: int = 20
    pods: int = 12
    seed: int = 1


class Cluster:
    """The process of `bench.flood_cluster`."""

    def __init__(self, process: asyncio.subprocess.Process, kubeconfig: str) -> None:
        self._process = process
        self.kubeconfig = kubeconfig

    async def story(self, seconds: float) -> Story:
        """Begin the flood and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        return msgspec.json.decode(await _line(self._process, seconds + START_S), type=Story)


async def _line(process: asyncio.subprocess.Process, timeout_s: float) -> bytes:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise BenchError(f"no line from the cluster within {timeout_s:.0f} s") from None
    if not line:
        raise BenchError(f"the cluster ended with exit code {await process.wait()}")
    return line


@contextlib.asynccontextmanager
async def _cluster(net: int, options: Options, core: int, log: Path) -> AsyncIterator[Cluster]:
    words = [str(net), str(options.seed), str(options.seconds), str(options.pods)]
    with pinned(core), log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.flood_cluster", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=64 << 20,
        )
    try:
        word, _, kubeconfig = (await _line(process, START_S)).decode().strip().partition(" ")
        if word != "ready":
            raise BenchError(f"the cluster says {word!r} instead of being ready")
        yield Cluster(process, kubeconfig)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(START_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _measured(way: Way, net: int, options: Options, core: int, log: Path) -> Outcome:
    async with _cluster(net, options, core, log) as cluster:
        world = World(options.pods)
        client = KubeClient(Credentials({"KUBECONFIG": cluster.kubeconfig}, time.monotonic), "activator/bench")
        source = FloodSource(way, client, KEY, world.source_submits, COMPARE_INTERVAL_S)
        address = await world.start()
        for number, run in enumerate(source.runs()):
            world.tasks.start(f"source {number}", run)
        try:
            async with asyncio.timeout(START_S):
                while len(world.routable_s) < options.pods:  # noqa: ASYNC110 - other processes change it
                    await asyncio.sleep(0.01)
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 20)  # as in the program
            return await _under_load(way, world, source, cluster, (address, options, core))
        finally:
            await world.data.drain(1.0, 1.0)
            await world.tasks.close()
            await client.close()


async def _under_load(
    way: Way, world: World, source: FloodSource, cluster: Cluster, where: tuple[str, Options, int]
) -> Outcome:
    address, options, core = where
    before = Counts.of(world, source)
    world.refused = world.broken = 0
    with pinned(core):
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.paced_client", address, str(RATE), str(options.seconds), "hello", PATH),
            stdout=asyncio.subprocess.PIPE,
        )
    story = None if way is QUIET else await cluster.story(options.seconds)
    out, _ = await client.communicate()
    counts = Counts(*(now - then for now, then in zip(Counts.of(world, source), before)))
    times: list[float] = []
    never = 0
    if story is not None:
        await asyncio.sleep(SETTLE_S)  # lists and pulls continue, so that late pods differ from lost ones
        lives = [life for life in story.pods if life.began_s > story.ended_s - options.seconds]
        times, never = judged(lives, world.routable_s, story.ended_s + SETTLE_S)
    summary = msgspec.json.decode(out, type=Summary)
    return Outcome(way.name, counts, times, never, world.refused, world.broken, summary, story)


def judged(lives: list[PodLife], routable_s: dict[str, float], until_s: float) -> tuple[list[float], int]:
    """Return the times from listening to routable, ascending, and how many pods lived long but were never routable."""
    times, never = [], 0
    for life in lives:
        at_s = routable_s.get(life.address)
        if at_s is not None:
            times.append(max(at_s - life.began_s, 0.0))
        elif (life.downs[0][0] if life.downs else until_s) - life.began_s > ROUTABLE_S:
            never += 1
    return sorted(times), never


# --- the results ----------------------------------------------------------------------------------------------------


def run(options: Options, json_path: str | None) -> int:
    """Run `python -m bench pod-flood`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    logging.getLogger("activator").setLevel(logging.CRITICAL)  # dying pods are part of the test
    cores = Cores()
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name, pinned(cores.measured):
        for number, way in enumerate((QUIET, *WAYS)):
            log = Path(name) / "cluster.log"
            found.append(uvloop.run(_measured(way, FIRST_NET + number, options, cores.load, log)))
    print("\n" + results.table(*rows(found)) + "\n")
    print("\n".join(f"{one.way}: {describe(one.story)}" for one in found if one.story is not None))
    print(f"Measured: {options.pods} pods, seed {options.seed}, {options.seconds} s, with {RATE:,.0f} requests/s")
    if json_path is not None:
        results.write(json_path, Document(head, figures(options, found)))
    return 0


def describe(story: Story) -> str:
    """Describe the flood in one line."""
    return (
        f"{story.deleted} pods deleted, {story.restarted} restarted, {story.updates} updates, {story.lost} events "
        f"lost, {story.cut} watches cut, {sum(life.died_with for life in story.pods)} requests in flight at deaths"
    )


def rows(found: list[Outcome]) -> tuple[list[str], list[list[str]]]:
    title = [
        "way",
        "events/s",
        "handled/s",
        "submitted/s",
        "pulls",
        "lists",
        "CPU ms/s",
        "us an event",
        "routable p50 / p99 / max ms",
        "never",
        "dead pods dialled",
        "broken",
        "failed of",
    ]
    lines = []
    for one in found:
        counts = one.counts
        per_s = 1.0 / counts.clock_s
        times = " / ".join(results.figure(value * 1e3, 0) for value in _spread(one.routable_s))
        rates = (counts.received * per_s, counts.handled * per_s, counts.submitted * per_s)
        event_us = counts.event_s * 1e6 / counts.received if counts.received else None
        cells = [one.way, *(results.figure(rate, 1) for rate in rates), f"{counts.pulled:.0f}", f"{counts.lists:.0f}"]
        cells += [results.figure(counts.cpu_s * 1e3 * per_s, 1), results.figure(event_us, 1)]
        cells += [times if one.routable_s else "-", str(one.never), str(one.refused), str(one.broken)]
        lines.append([*cells, f"{one.summary.failures} of {one.summary.requests:,}"])
    return title, lines


def _spread(ordered: list[float]) -> tuple[float, float, float]:
    return (percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1] if ordered else 0.0)


def figures(options: Options, found: list[Outcome]) -> list[Result]:
    """Return the results for the JSON file."""
    made = []
    for one in found:
        params: dict[str, results.Value] = {
            "compiled": lb.COMPILED,
            "way": one.way,
            "pods": options.pods,
            "seed": options.seed,
            "pulled": one.counts.pulled,
            "lists": one.counts.lists,
            "never": one.never,
            "requests": one.summary.requests,
        }
        p50_s, p99_s, most_s = _spread(one.routable_s)
        for name, value, unit in (
            ("received", one.counts.received / one.counts.clock_s, "events/s"),
            ("handled", one.counts.handled / one.counts.clock_s, "events/s"),
            ("cpu", one.counts.cpu_s / one.counts.clock_s, "of a core"),
            ("routable_p50", p50_s, "s"),
            ("routable_p99", p99_s, "s"),
            ("routable_max", most_s, "s"),
            ("refused", float(one.refused), "dials"),
            ("failures", float(one.summary.failures), "requests"),
        ):
            made.append(Result(f"pod_flood.{name}", value, unit, True, params))
    return made
