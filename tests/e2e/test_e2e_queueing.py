"""A crowd in front of few slots, over real sockets: exactness, order, departures, dead pods, overload."""

from __future__ import annotations

import asyncio
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.conftest import DEEP, Need
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, CutShortError, Visitor, ask, request
from tests.e2e.running import SERVING, Activator, configured, eventually, process_revision, resident_bytes
from tests.e2e.single_pods import SinglePods

PODS = 20
SERVICE_S = 0.05
CLIENTS = 2_000 if DEEP else 300
BATCH = 25
PATIENCE_S = 180.0  # of a client that stays: a machine under load may take its time


@pytest.fixture
def many_files(need: Need) -> None:
    """Descriptors for all clients of the test, and for the activator, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CLIENTS + 500
    need(hard == resource.RLIM_INFINITY or hard >= wanted, f"{wanted} open files")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def crowded(pods: SinglePods, **queue: object) -> dict[str, object]:
    revision = {
        "name": "app",
        "hosts": ["*"],
        "container_concurrency": pods.pods[0].limit,
        "pods": pods.addresses,
        "queue": {"timeout": "170s", **queue},
    }
    return configured([revision])


class Crowd:
    """Clients with a connection each; some leave. `outcomes`: what each one got, by its name."""

    def __init__(self, activator: Activator, chance: random.Random, leaving: float) -> None:
        self.activator = activator
        self.chance = chance
        self.leaving = leaving
        self.outcomes: dict[str, str] = {}

    async def one(self, name: str) -> None:
        visitor = await Visitor.connect(self.activator.address)
        leaves = self.chance.random() < self.leaving
        # 2 s is longer than most of them wait: some leave in line, some at a pod, some too late.
        patience_s = self.chance.uniform(0.0, 2.0) if leaves else PATIENCE_S
        try:
            answer = await visitor.ask(request(f"/{name}"), patience_s)
            self.outcomes[name] = str(answer.status) if answer.status == 200 else answer.reason
        except TimeoutError:
            self.outcomes[name] = "left" if leaves else "never answered"
        except CutShortError:
            self.outcomes[name] = "cut short"
        finally:
            await visitor.close()

    async def arrive(self, count: int, between: Callable[[int], None]) -> None:
        """In batches, each of which is known to have arrived before the next begins."""
        clients: list[asyncio.Task[None]] = []
        for start in range(0, count, BATCH):
            batch = start // BATCH
            clients += [asyncio.create_task(self.one(f"{batch}/{number}")) for number in range(BATCH)]
            await asyncio.to_thread(eventually, lambda arrived=start + BATCH: self._arrived() >= arrived)
            await asyncio.to_thread(between, batch)
        await asyncio.gather(*clients)

    def _arrived(self) -> int:
        count: int = self.activator.revision("app")["requests"]
        # Whoever left before its request was read has arrived in vain.
        return count + sum(outcome == "left" for outcome in self.outcomes.values())


def test_one_at_a_time_in_order_and_everybody_answered(many_files: None, run_activator: RunActivator) -> None:
    with SinglePods(PODS, SERVICE_S) as pods:
        activator = run_activator(crowded(pods))
        activator.wait_ready_pods("app", PODS)
        crowd = Crowd(activator, random.Random(1), leaving=0.0)
        asyncio.run(crowd.arrive(CLIENTS, lambda batch: None))
        assert pods.violations() == []
        assert Counter(crowd.outcomes.values()) == {"200": CLIENTS}
        for pod in pods.pods:
            batches = [int(target.split("/")[1]) for target in pod.served]
            assert batches == sorted(batches), "a later arrival was served first"
        assert sum(len(pod.served) for pod in pods.pods) == CLIENTS


def test_departures_and_dead_pods_leave_nobody_without_an_end(many_files: None, run_activator: RunActivator) -> None:
    chance = random.Random(2)
    with SinglePods(PODS, SERVICE_S) as pods:
        activator = run_activator(crowded(pods))
        activator.wait_ready_pods("app", PODS)
        dead: list[int] = []
        kills: list[int] = []

        def between(batch: int) -> None:
            if batch % 2 == 0:
                dead.append(chance.randrange(PODS - 1))  # the last one stays
                pods.kill(dead[-1])
                kills.append(batch)
            elif dead:
                pods.revive(dead.pop())

        crowd = Crowd(activator, chance, leaving=0.15)
        asyncio.run(crowd.arrive(CLIENTS, between))
        assert pods.violations() == []
        counts = Counter(crowd.outcomes.values())
        assert counts.total() == CLIENTS
        # A pod that dies may take along the one request that it has, or use up its attempts: that is answered too.
        assert set(counts) <= {"200", "left", "pod_closed", "connect_failed"}, counts
        assert counts["pod_closed"] + counts["connect_failed"] <= len(kills), counts
        assert counts["200"] > CLIENTS // 2, counts
        assert max(pod.most for pod in pods.pods) == 1
        activator.wait_idle("app")


def test_far_too_many_who_give_up_after_a_second(many_files: None, run_activator: RunActivator) -> None:
    """A hundred times of what can be served, for a while: it is served, the rest is told why not, and memory stays."""
    rounds = 60 if DEEP else 4
    with SinglePods(1, 0.2, limit=2) as pods:
        # Ten a second. Four wait for 0.4 s at most and are served within 0.6: a line that is longer than its clients'
        # patience serves only those who are about to leave.
        activator = run_activator(crowded(pods, depth=4))
        activator.wait_ready_pods("app", 1)
        outcomes: Counter[str] = Counter()
        sizes: list[int] = []

        async def client(number: int, until_s: float) -> None:
            loop = asyncio.get_running_loop()
            while loop.time() < until_s:
                visitor = await Visitor.connect(activator.address)
                try:
                    answer = await visitor.ask(request(f"/{number}"), 1.0)
                    outcomes[answer.reason or str(answer.status)] += 1
                    if answer.status != 200:
                        assert int(answer.header("retry-after")) >= 1
                except TimeoutError:
                    outcomes["gave up"] += 1
                finally:
                    await visitor.close()
                await asyncio.sleep(0.05)

        async def second() -> None:
            until_s = asyncio.get_running_loop().time() + 1.0
            await asyncio.gather(*(client(number, until_s) for number in range(50)))

        while len(sizes) < rounds or (outcomes["200"] == 0 and len(sizes) < rounds + 30):
            asyncio.run(second())
            sizes.append(resident_bytes(activator.process.pid))
        activator.wait_idle("app")
        assert pods.violations() == []
        assert set(outcomes) <= {"200", "queue_full", "gave up"}, outcomes
        assert outcomes["200"] > 0
        assert outcomes["queue_full"] > outcomes["200"]
        assert sizes[-1] - sizes[0] < 32 * 2**20, sizes
        shown = activator.revision("app")
        assert set(shown["failed"]) == {"queue_full"}
        # Some give up while their answer is on its way.
        assert 0 <= shown["failed"]["queue_full"] - outcomes["queue_full"] <= outcomes["gave up"]
        assert shown["client_gone"] <= outcomes["gave up"]


def test_priorities_deadlines_and_exemptions_over_sockets(run_activator: RunActivator) -> None:
    with SinglePods(1, 0.01) as pods:
        activator = run_activator(
            crowded(
                pods,
                depth=3,
                discipline="priority",
                header="X-Priority",
                request_timeout=True,
                rules=[{"path_prefix": "/healthz", "exempt": True}],
            )
        )
        pods.pods[0].limit = 2  # the exempted one comes on top
        activator.wait_ready_pods("app", 1)

        def waits(count: int) -> None:
            eventually(lambda: activator.revision("app")["queue"]["waiting"] == count, f"{count} in line")

        clients = [Client(activator.address, 60.0) for _ in range(4)]
        pods.pods[0].hold = "/first"
        clients[0].send(request("/first"))
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        clients[1].send(request("/low", headers="X-Priority: 0\r\n"))
        waits(1)
        clients[2].send(request("/high", headers="X-Priority: 7\r\n"))
        waits(2)
        assert (
            ask(activator.address, request("/late", headers="Activator-Deadline: 100ms\r\n")).reason == "queue_timeout"
        )
        bad = ask(activator.address, request("/bad", headers="Activator-Deadline: soon\r\n"))
        assert (bad.status, bad.reason) == (400, "bad_request")
        clients[3].send(request("/middle", headers="X-Priority: 3\r\n"))
        waits(3)
        full = ask(activator.address, request("/full"))
        assert (full.status, full.reason) == (503, "queue_full")
        assert int(full.header("retry-after")) >= 1
        assert ask(activator.address, request("/healthz")).status == 200
        pods.let_go(0)
        answers: list[Answer] = [client.answer() for client in clients]
        assert [answer.status for answer in answers] == [200] * 4
        assert pods.pods[0].served == ["/healthz", "/first", "/high", "/middle", "/low"]
        assert pods.violations() == []
        assert activator.revision("app")["queue"]["exempted"] == 1
        for client in clients:
            client.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_request_that_prefers_not_to_wait(run_activator: RunActivator, workers: int) -> None:
    """It is served if a slot is free, at whichever worker; else it gets 412, and starts nothing."""
    revision = {**process_revision(SERVING, max_scale=1), "container_concurrency": 1}
    activator = run_activator(configured([revision], workers=workers))
    data = request("/sleep/0.01", headers="Prefer: if-available\r\n")
    for _ in range(6):
        answer = ask(activator.address, data)
        assert (answer.status, answer.reason) == (412, "not_available")
    assert activator.slots("app") == []
    assert ask(activator.address, request()).status == 200
    eventually(lambda: ask(activator.address, data).status == 200)
    with Client(activator.address) as busy:
        busy.socket.sendall(request("/sleep/1"))
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        began_s = time.monotonic()
        for _ in range(6):
            answer = ask(activator.address, data)
            assert (answer.status, answer.reason) == (412, "not_available")
        assert time.monotonic() - began_s < 0.9, "none of them has waited"
        assert busy.answer().status == 200


@pytest.mark.parametrize("workers", [1, 2])
def test_a_queue_that_stands_keeps_only_those_that_came_recently(run_activator: RunActivator, workers: int) -> None:
    """One slot, 0.05 s a request, and 60 clients at once: 3 s of work, of which 0.3 s and the last one are done."""
    with SinglePods(1, SERVICE_S) as pods:
        queue = {"target_wait": "50ms", "target_interval": "300ms"}
        activator = run_activator({**crowded(pods, **queue), "workers": workers})
        found: list[Answer] = []
        clients = [threading.Thread(target=lambda: found.append(ask(activator.address, request()))) for _ in range(60)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        outcomes = Counter((one.status, one.reason) for one in found)
        assert set(outcomes) == {(200, ""), (503, "queue_overloaded")}, outcomes
        assert all(one.header("retry-after") for one in found if one.status == 503)
        assert pods.pods[0].violations == []
        assert len(pods.pods[0].served) == outcomes[200, ""] >= 3
        assert ask(activator.address, request()).status == 200


def test_a_limit_that_is_found_by_latency(run_activator: RunActivator) -> None:
    with SinglePods(1, 0.02, limit=1_000) as pods, ExitStack() as stack:
        revision = {"name": "app", "hosts": ["*"], "pods": pods.addresses, "adaptive_concurrency": {"min": 3, "max": 6}}
        activator = run_activator(configured([revision]))
        pods.pods[0].hold = "/held"
        clients = [stack.enter_context(Client(activator.address, 60.0)) for _ in range(4)]
        for client in clients:
            client.send(request("/held"))
        eventually(lambda: activator.revision("app")["in_flight"] == 3 and activator.revision("app")["queued"] == 1)
        pods.let_go(0)
        eventually(lambda: pods.pods[0].held)  # the one that waited
        pods.let_go(0)
        assert [client.answer().status for client in clients] == [200] * 4
        for _ in range(100):
            assert clients[3].ask(request()).status == 200
        assert activator.revision("app")["queue"]["adaptive_limit"] == 4, "it has grown once, when it was used"
