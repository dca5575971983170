"""Addresses that are used again: pods die and their ports are taken by pods of another revision while requests run.

Without verification nobody is answered by the wrong pod once the change is applied; with it, nobody ever is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from random import Random

import uvloop

from activator.config.model.file import Config
from activator.config.specs import BalancingSpec, ProbeSpec, ProbingSpec, RevisionSpec, RoutingSpec
from activator.control_plane.state.worker import ChangeOutcome, StateWorker
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import open_socket
from activator.messages import (
    Drained,
    FromData,
    Load,
    ObservedPod,
    PodDrained,
    PodGone,
    PodStatus,
    PodTaken,
    RevisionEnded,
    RevisionSet,
)
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng

REVISIONS = ("a", "b")
PORTS = 10
ROUNDS = 100  # each port dies in each: 1,000 pods


class Pod:
    """A server that answers each request with the revision it belongs to, and says who it is."""

    def __init__(self, revision: str, identity: str = "") -> None:
        self.revision = revision
        self.identity = identity
        self.port = 0
        self.asked = asyncio.Event()  # who it is
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int, beside: bool = False) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, reuse_address=True, reuse_port=beside or None
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /who "):
                    self.asked.set()
                named = b"X-Pod: %b\r\n" % self.identity.encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n%b\r\n" % named + self.revision.encode())
        writer.close()
        self._writers.discard(writer)

    async def die(self) -> None:
        """At once, with every connection."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)


class Running:
    """A state worker and a data plane with a real listener."""

    def __init__(self, probe: ProbeSpec | None = None) -> None:
        self.probe = probe or ProbeSpec()
        self.tasks = TaskGroupOwner(lambda name, error: None)
        self.data = DataPlane(Config(admin=""), time.monotonic, self._receive, Rng(1), self.tasks)
        self.worker = StateWorker(time.monotonic, self.data.apply, lambda orders: None, lambda source, key: None)
        self.gone_s: dict[tuple[str, int], float] = {}  # when the end of a pod of this revision here was applied
        self.answers = {"right": 0, "before": 0, "failed": 0}
        self.wrong: list[str] = []
        self.stopping = False

    def _receive(self, message: FromData) -> None:
        if not isinstance(message, Load | PodDrained | PodTaken | Drained | RevisionEnded):
            self.worker.submit(message)

    async def start(self) -> None:
        self.tasks.start("worker", self.worker.run())
        socket = open_socket("127.0.0.1:0")
        await self.data.start().open(socket)
        host, _, port = socket.address.rpartition(":")
        self.address = (host, int(port))
        for name in REVISIONS:
            spec = RevisionSpec(
                key=f"ns/{name}",
                routing=RoutingSpec(hosts=(name,)),
                balancing=BalancingSpec(policy="round-robin"),
                probing=ProbingSpec(probe=self.probe),
            )
            self.worker.submit(RevisionSet(spec))

    async def comes(self, pod: Pod, identity: str) -> None:
        address = f"127.0.0.1:{pod.port}"
        seen = ObservedPod(f"ns/{pod.revision}", "list", identity, address, PodStatus.READY)
        assert await self.worker.submit_with_outcome(seen) is ChangeOutcome.APPLIED

    async def goes(self, pod: Pod, identity: str) -> None:
        gone = PodGone(f"ns/{pod.revision}", "list", identity)
        assert await self.worker.submit_with_outcome(gone) is ChangeOutcome.APPLIED
        self.gone_s[pod.revision, pod.port] = time.monotonic()

    async def client(self, revision: str) -> None:
        """Asks on and on; whoever answers must be of the revision, once the change has been applied."""
        while not self.stopping:
            began_s = time.monotonic()
            answered = await self._ask(revision)
            if answered == revision:
                self.answers["right"] += 1
            elif not answered:
                self.answers["failed"] += 1
            elif began_s > max(self.gone_s.values(), default=0.0):
                self.wrong.append(f"{revision} was answered by {answered}")
            else:
                self.answers["before"] += 1

    async def _ask(self, revision: str) -> str:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(f"GET / HTTP/1.1\r\nHost: {revision}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return body.decode() if head.startswith(b"HTTP/1.1 200") else ""
        finally:
            writer.close()


async def ended(running: Running, clients: list[asyncio.Task[None]], pods: list[Pod]) -> None:
    """Let everything end, and look whether it adds up."""
    running.stopping = True
    await asyncio.gather(*clients)
    for throttler in running.data.tables.throttlers.values():
        throttler.table.check_invariants()
        assert throttler.table.in_flight == len(throttler.leases) == 0
    await running.data.drain(5.0, 5.0)
    for pod in pods:
        await pod.die()
    await running.tasks.close()


def test_no_request_is_answered_by_the_pod_that_took_the_address() -> None:
    async def scenario() -> Running:
        running = Running()
        await running.start()
        steady = [Pod(name) for name in REVISIONS]
        for pod in steady:
            await pod.start(0)
            await running.comes(pod, f"steady-{pod.revision}")
        pods = [Pod(REVISIONS[number % 2]) for number in range(PORTS)]
        names = [f"first-{number}" for number in range(PORTS)]
        for pod, name in zip(pods, names):
            await pod.start(0)
            await running.comes(pod, name)
        clients = [asyncio.create_task(running.client(REVISIONS[number % 2])) for number in range(8)]
        rng = Random(1)
        for life in range(ROUNDS):
            for place in rng.sample(range(PORTS), PORTS):
                old = pods[place]
                await old.die()
                new = Pod(REVISIONS[1 - REVISIONS.index(old.revision)])
                await running.goes(old, names[place])
                await new.start(old.port)
                names[place] = f"life-{life}-{place}"
                await running.comes(new, names[place])
                pods[place] = new
        await ended(running, clients, [*pods, *steady])
        return running

    running = uvloop.run(scenario())  # the program's own loop
    assert running.wrong == []
    assert running.answers["right"] > 500, running.answers
    assert running.answers["before"] == 0, "the port was taken only after the change"
    assert running.worker.panics_total == 0
    assert running.worker.mismatch_totals == {}


def test_with_verification_no_request_is_ever_answered_by_another_pod() -> None:
    """The address is another pod's already, and nobody has told us: as when a watch is late, or lost."""
    taken_unheard = 0

    async def scenario() -> Running:
        nonlocal taken_unheard
        running = Running(ProbeSpec("http", "/who", identity_header="X-Pod"))
        await running.start()
        steady = [Pod(name, f"steady-{name}") for name in REVISIONS]
        pods = [Pod(REVISIONS[number % 2], f"first-{number}") for number in range(PORTS)]
        for pod in (*steady, *pods):
            await pod.start(0, beside=True)
            await running.comes(pod, pod.identity)
        clients = [asyncio.create_task(running.client(REVISIONS[number % 2])) for number in range(8)]
        rng = Random(1)
        for life in range(ROUNDS):
            for place in rng.sample(range(PORTS), PORTS):
                old = pods[place]
                new = pods[place] = Pod(REVISIONS[1 - REVISIONS.index(old.revision)], f"life-{life}-{place}")
                await new.start(old.port, beside=True)  # no moment in which a dial is refused
                await old.die()
                with contextlib.suppress(TimeoutError):
                    # Somebody goes there in the name of the old one, unless it was struck from the picks before.
                    await asyncio.wait_for(new.asked.wait(), 0.2)
                taken_unheard += new.asked.is_set()
                await running.goes(old, old.identity)
                await running.comes(new, new.identity)
        await ended(running, clients, [*pods, *steady])
        return running

    running = uvloop.run(scenario())
    assert running.wrong == []
    assert running.answers["before"] == 0, "not even before the change was applied"
    assert running.answers["right"] > 500, running.answers
    assert taken_unheard > 100
    assert running.worker.panics_total == 0
    assert running.worker.mismatch_totals == {}
