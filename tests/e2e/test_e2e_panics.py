"""A thousand injected panics, spread over revisions, while real requests go through real sockets.

Most are in `reduce`: a change that cannot be worked out. Some are in `apply`: a slot that cannot be had, which condemns
its revision. Nobody's request may fail for it but those of a revision that is distrusted just then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

import uvloop

from activator.config.model.file import Config
from activator.config.specs import BalancingSpec, RevisionSpec, RoutingSpec
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import Supervision
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import open_socket
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.throttle.revision import RevisionThrottler
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
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.policy import Policy
from lb.rng import Rng
from lb.slots import Trim
from lb.tracker import PodTracker

REVISIONS = 250
ROUNDS = 4
CONDEMNED = 20  # of the revisions, in the last round: by a panic in `apply`
CLIENTS = 16
POISON = "poison"


class InjectedError(RuntimeError):
    pass


def poisoned(model: Model, change: Change, now_s: float) -> Reduction:
    """`reduce`, that cannot work out what is said of one pod."""
    if isinstance(change, ObservedPod) and change.identity.startswith(POISON):
        raise InjectedError(change.identity)
    return reduce(model, change, now_s)


class FaultyHooks(TableHooks):
    """Those of the program, but that no connections can be had for one pod."""

    def __init__(self, hooks: TableHooks) -> None:
        self._hooks = hooks
        self.raised = 0

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        if tracker.identity == "cursed" and self.raised < CONDEMNED:
            self.raised += 1
            raise InjectedError("cursed")
        self._hooks.pod_placed(tracker, spec)

    def make_policy(self, name: str) -> Policy:
        return self._hooks.make_policy(name)

    def revision_set(self, throttler: RevisionThrottler) -> None:
        self._hooks.revision_set(throttler)

    def pod_withdrawn(self, attachment: object) -> None:
        self._hooks.pod_withdrawn(attachment)

    def address_taken(self, attachment: object) -> None:
        self._hooks.address_taken(attachment)

    def pod_drained(self, key: str, identity: str) -> None:
        self._hooks.pod_drained(key, identity)

    def revision_dropped(self, throttler: RevisionThrottler) -> None:
        self._hooks.revision_dropped(throttler)

    def revision_ended(self, throttler: RevisionThrottler) -> None:
        self._hooks.revision_ended(throttler)

    def trimmed(self, key: str, trim: Trim) -> None:
        self._hooks.trimmed(key, trim)

    def failed(self, effect: object, error: Exception) -> None:
        assert isinstance(error, InjectedError), error

    def broken(self, key: str, cause: str, kind: str) -> None:
        self._hooks.broken(key, cause, kind)


class Running:
    """A state worker and a data plane with a real listener, and one pod's server for all."""

    def __init__(self) -> None:
        self.tasks = TaskGroupOwner(lambda name, error: None)
        self.data = DataPlane(Config(admin=""), time.monotonic, self._receive, Rng(1), self.tasks)
        self.hooks = FaultyHooks(self.data.tables._hooks)
        self.data.tables._hooks = self.hooks
        self.worker = StateWorker(
            time.monotonic,
            self.data.apply,
            lambda orders: None,
            lambda source, key: None,
            poisoned,
            Supervision(Rng(1)),
        )
        self.answers: Counter[tuple[int, bool]] = Counter()  # (status, of a revision that may be distrusted)
        self.stopping = False

    def _receive(self, message: FromData) -> None:
        if not isinstance(message, Load | PodDrained | PodTaken | Drained | RevisionEnded):
            self.worker.submit(message)

    async def start(self) -> None:
        self._pod = await asyncio.start_server(_serve, "127.0.0.1", 0)
        self.pod_address = f"127.0.0.1:{self._pod.sockets[0].getsockname()[1]}"
        self.tasks.start("worker", self.worker.run())
        listener = open_socket("127.0.0.1:0")
        await self.data.start().open(listener)
        host, _, port = listener.address.rpartition(":")
        self.address = (host, int(port))
        for number in range(REVISIONS):
            routing = RoutingSpec((f"r{number}",))
            spec = RevisionSpec(_key(number), routing=routing, balancing=BalancingSpec(max_scale=4))
            self.worker.submit(RevisionSet(spec))
            await self.worker.submit_with_outcome(self.pod(number, "p1"))

    def pod(self, number: int, identity: str) -> ObservedPod:
        return ObservedPod(_key(number), "list", identity, self.pod_address, PodStatus.READY)

    async def client(self, place: int) -> None:
        """Asks one revision after the other, on one connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        number = place
        while not self.stopping:
            number = (number + CLIENTS + 1) % REVISIONS
            writer.write(f"GET / HTTP/1.1\r\nHost: r{number}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.answers[int(head.split()[1]), number < CONDEMNED] += 1
        writer.close()

    async def panic_everywhere(self, life: int) -> None:
        """One panic in each revision, until the backoffs are over and all tables are rebuilt."""
        before = self.worker.panics_total
        for number in range(REVISIONS):
            cursed = life == ROUNDS - 1 and number < CONDEMNED
            self.worker.submit(self.pod(number, "cursed" if cursed else f"{POISON}-{life}"))
            await asyncio.sleep(0)
        async with asyncio.timeout(60.0):
            while self.worker.panics_total < before + REVISIONS or self.worker.parked or self.data.tables.distrusted:
                await pause(0.01)

    async def end(self) -> None:
        await self.data.drain(5.0, 5.0)
        await self.tasks.close()
        self._pod.close()


def _key(number: int) -> str:
    return f"ns/r{number}"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    writer.close()


def test_a_thousand_panics_cost_no_request_but_of_condemned_revisions() -> None:
    async def scenario() -> Running:
        running = Running()
        await running.start()
        clients = [asyncio.create_task(running.client(place)) for place in range(CLIENTS)]
        for life in range(ROUNDS):
            await running.panic_everywhere(life)
        running.stopping = True
        await asyncio.gather(*clients)
        for throttler in running.data.tables.throttlers.values():
            throttler.table.check_invariants()
            assert throttler.table.in_flight == len(throttler.leases) == throttler.queue.waiters.length == 0
        await running.end()
        return running

    running = uvloop.run(scenario())
    worker = running.worker
    assert (worker.panics_total, running.hooks.raised) == (ROUNDS * REVISIONS, CONDEMNED)
    assert worker.rebuilds_total == CONDEMNED
    assert running.data.tables.distrusted == {}
    assert running.answers[200, False] > 1000, running.answers
    assert {status for status, distrusted in running.answers if not distrusted} == {200}
    assert {status for status, distrusted in running.answers if distrusted} <= {200, 503}
    assert running.data.errors_total == 0
    tables = [throttler.table for throttler in running.data.tables.throttlers.values()]
    assert [table.used for table in tables] == [1] * REVISIONS, "an address has one pod: the one that came last"
    assert all(table.late_releases == 0 for table in tables)
    assert worker.mismatch_totals == {}
