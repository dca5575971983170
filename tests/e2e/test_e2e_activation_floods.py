"""Floods of pods under traffic: what comes is routable soon, what dies takes along only what it carried.

The flood is that of `pod_flood.py`, drawn from a seed.

Rules
  1. A request may fail only if a pod died while it was under way, or if it met as many pods that were down as it has
     attempts; nothing else is excused.
  2. A pod that lives longer than ROUTABLE_S, without a restart of its program in between, takes requests by then: it is
     ready in the table, or recovering.
  3. In the end all is as it was in the beginning: the process, its slots, what it knows.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from activator.data_plane.plane import ATTEMPTS_MAX
from tests.e2e.activation_cluster import ActivationCluster, PodServer
from tests.e2e.conftest import next_net
from tests.e2e.pod_flood import PODS, Flood, deployment_of
from tests.e2e.running import Activator, eventually
from tests.kubernetes.fake_nodes import Settings

CLIENTS: Final = 6
RECONCILE_S: Final = 2.0  # the independent comparison
WITHDRAWN_S: Final = 1.0  # after the death of a pod that is deleted: then its endpoint has gone, on a busy machine too
TAKES_REQUESTS: Final = frozenset({"ready", "recovering"})
LONG_S: Final = float(os.environ.get("FLOOD_SECONDS", "600"))
ROUTABLE_S: Final = RECONCILE_S + 3.0  # from its first connection on: one comparison, and a busy machine


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ActivationCluster]:
    made = ActivationCluster(tmp_path, next_net(), Settings(schedule_s=0.01, ready_s=0.05, terminate_s=0.2))
    made.are_killed = True
    yield made
    made.close()


@pytest.fixture
def activator(cluster: ActivationCluster) -> Iterator[Activator]:
    made = cluster.activator(kubernetes={"reconcile_interval": f"{RECONCILE_S:g}s"})
    yield made
    made.close()


class Traffic:
    """Requests one after the other from each client; `failures`: begun and ended when, and what came of it."""

    def __init__(self, activator: Activator, seed: int) -> None:
        self._url = f"http://{activator.address}"
        self._seed = seed
        self.over = threading.Event()
        self.answered = 0
        self.failures: list[tuple[float, float, str]] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def end(self) -> None:
        self.over.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30.0)) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(self._seed * 1_000 + number)
        while not self.over.is_set():
            began_s = time.monotonic()
            found = await self._visit(session, f"/slow/{chance.choice((0, 0, 0.005, 0.03))}")
            if found == "200":
                self.answered += 1
            else:
                self.failures.append((began_s, time.monotonic(), found))

    async def _visit(self, session: aiohttp.ClientSession, path: str) -> str:
        try:
            async with session.get(self._url + path, headers={"Host": "hello.test"}) as answer:
                text = await answer.text()
                return "200" if answer.status == 200 else f"{answer.status} {dict(answer.headers)} {text[:200]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)


class Watcher:
    """When each pod was first seen to be ready in the table, by polling the admin port."""

    def __init__(self, activator: Activator) -> None:
        self._activator = activator
        self.ready_s: dict[str, float] = {}  # by address
        self.states: dict[str, list[tuple[float, str]]] = {}  # by address: since when it is what, for people
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self.over.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        while not self.over.wait(0.1):
            shown = self._activator.revision("hello")
            for slot in shown["slots"]:
                if slot["state"] in TAKES_REQUESTS:
                    self.ready_s.setdefault(slot["address"], time.monotonic())
            for one in [*shown["slots"], *shown["without_slot"]]:
                states = self.states.setdefault(one["address"], [])
                state = f"{one.get('state', 'without slot')} {one.get('reason', '')}".strip()
                if not states or states[-1][1] != state:
                    states.append((round(time.monotonic(), 1), state))


def held(activator: Activator) -> dict[str, float]:
    """What grows with what is known, from the metrics: gauges of objects, pods, slots, revisions and queues."""
    text = activator.ask("/metrics")[2].decode()
    gauges = set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
    counted = re.compile(r"_(objects|slots|pods|revisions|hosts|tombstones|queue_depth|depth|leases|probes)(_|$)")
    found = {}
    for line in text.splitlines():
        match = re.match(r"(\w+)(\{.*\})? (\S+)$", line)
        if match and match[1] in gauges and counted.search(match[1]):
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def total(activator: Activator, name: str) -> float:
    text = activator.ask("/metrics")[2].decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def settle(cluster: ActivationCluster, activator: Activator) -> None:
    eventually(lambda: len(cluster.names("pods")) == len(cluster.pods) == PODS, "all pods are there again")
    addresses = {f"{pod.host}:{pod.port}" for pod in cluster.pods.values()}

    def ready() -> set[str]:
        return {slot["address"] for slot in activator.slots("hello") if slot["state"] == "ready"}

    try:
        eventually(lambda: ready() == addresses, "the table has the pods that are there and no others")
    except AssertionError as error:
        odd = ready() ^ addresses
        shown = [slot for slot in activator.slots("hello") if slot["address"] in odd]
        unserved = [pod.name for pod in cluster.pods.values() if not pod.is_serving]
        raise AssertionError(f"{error}; {sorted(odd)}: {shown}; do not listen: {unserved}") from error
    eventually(lambda: len(activator.slots("hello")) == PODS, "slots of the dead are given back")


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [pytest.param(1, 8.0, id="short"), pytest.param(2, LONG_S, id="long", marks=pytest.mark.soak)],
)
def test_a_flood_of_pods_under_traffic(
    cluster: ActivationCluster, activator: Activator, seed: int, seconds: float
) -> None:
    cluster.create("deployments", deployment_of(PODS))
    cluster.declare(scaling={"min": PODS, "max": PODS})
    settle(cluster, activator)
    cluster.api.requests_kept = False
    before, pid = held(activator), activator.process.pid
    flood, traffic, watcher = Flood(cluster, seed), Traffic(activator, seed), Watcher(activator)
    try:
        run = asyncio.run_coroutine_threadsafe(flood.run(seconds), cluster.loop)
        run.result(seconds + 60.0)
        settle(cluster, activator)  # under traffic: a pod that was down becomes ready by a request that it answers
    finally:
        traffic.end()
        watcher.end()
    lives = judge_pods(cluster, watcher)
    died_with = judge_failures(cluster, traffic)
    print(
        f"seed {seed}: {flood.deleted} pods deleted, {flood.restarted} restarted, {flood.updates} updates each of pods "
        f"and slices, {flood.lost} events lost, {flood.cut} watches cut; {traffic.answered} answers, "
        f"{len(traffic.failures)} failures, {died_with} in flight at deaths; routable after {max(lives):.2f} s at most"
    )
    assert flood.deleted > seconds
    assert traffic.answered > 20 * seconds
    assert activator.process.poll() is None
    assert activator.process.pid == pid
    assert total(activator, "activator_state_panics_total") == 0
    eventually(lambda: held(activator) == before, f"as it began: {before}")


def judge_pods(cluster: ActivationCluster, watcher: Watcher) -> list[float]:
    """How long it took until each pod was routable, seconds; of those that died before, nothing can be said."""
    lives = []
    for pod in cluster.seen:
        address = f"{pod.host}:{pod.port}"
        ready_s = watcher.ready_s.get(address)
        if ready_s is not None:
            lives.append(max(ready_s - pod.began_s, 0.0))
        else:
            history = f"{address} began {pod.began_s:.1f}, died at {pod.deaths}: {watcher.states.get(address)}"
            assert max(lived_s(pod)) < ROUTABLE_S, f"there for long and never ready: {history}"
    assert max(lives) < ROUTABLE_S
    return lives


def lived_s(pod: PodServer) -> list[float]:
    """How long its program ran each time, until it died."""
    starts = [pod.began_s, *(up_s for _, up_s in pod.downs)]
    return [down_s - up_s for up_s, (down_s, _) in zip(starts, pod.downs, strict=False)] or [0.0]


def pods_down(cluster: ActivationCluster, from_s: float, until_s: float) -> int:
    """How many pods did not listen at a time between the two, and could still be known."""
    return sum(
        any(down_s <= until_s and min(up_s, down_s + WITHDRAWN_S) >= from_s for down_s, up_s in pod.downs)
        for pod in cluster.seen
    )


def judge_failures(cluster: ActivationCluster, traffic: Traffic) -> int:
    """Each failure has its death; how many requests were in flight at all deaths."""
    deaths = sorted(death for pod in cluster.seen for death in pod.deaths)
    for began_s, ended_s, what in traffic.failures:
        died = any(began_s <= when_s <= ended_s for when_s, _ in deaths)
        assert died or pods_down(cluster, began_s, ended_s) >= ATTEMPTS_MAX, f"nobody died meanwhile: {what}"
    died_with = sum(count for _, count in deaths)
    assert len(traffic.failures) <= died_with, traffic.failures
    return died_with
