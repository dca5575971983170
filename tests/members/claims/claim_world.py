"""An API server, the fake or a real one, and members of a group that claim through it by several clients."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.resources import Resource
from activator.members.claims.directory import LeaseDirectory, Seats
from activator.members.claims.leases import LeaseStarter
from activator.members.claims.names import UID_ANNOTATION
from activator.members.claims.seats import Holder
from activator.members.claims.starter import Starter
from activator.members.claims.table import Choice
from activator.runtime.tasks import pause
from lb.rng import Rng
from tests.kube import real
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import until, write_config
from tests.manual_clock import ManualClock

Json = dict[str, Any]
GROUP = "activator"
CLIENTS_MAX = 6  # each with connections, and bounds of calls at once, of its own


def holder(number: int) -> Holder:
    return Holder(f"pod-{number}", f"uid-{number}", f"10.0.{number >> 8}.{number & 255}:8020")


async def soon(seconds: float) -> None:
    """Instead of a pause: the others get a turn."""
    await asyncio.sleep(0.001 if seconds else 0)


class ClaimWorld:
    """`server`, if it is the fake one, and whatever talks to it.

    `call_timeout_s` of new clients is short, so that silence ends."""

    def __init__(self, server: FakeApiServer | None, config: str, namespace: str = "default") -> None:
        self._server = server
        self.namespace = namespace
        self.clock = ManualClock()
        self.call_timeout_s = 5.0 if server is not None else 30.0
        self._pause = pause if server is None else soon  # a real server needs its time
        self._config = config
        self._clients: list[KubeClient] = []
        self._handed_out = 0
        self._rosters: list[LeaseDirectory] = []

    @property
    def server(self) -> FakeApiServer:
        assert self._server is not None
        return self._server

    async def thing(self, resource: Resource[Any], name: str) -> Json:
        found: Json = json.loads(await self.client().get(resource.one(self.namespace, name)))
        return found

    async def names(self, resource: Resource[Any]) -> list[str]:
        found = json.loads(await self.client().list_page(resource.collection(self.namespace), {}))
        return [thing["metadata"]["name"] for thing in found["items"] or ()]

    def client(self) -> KubeClient:
        """One of a few, in turn: a client's TLS set-up takes longer than its calls."""
        self._handed_out += 1
        if len(self._clients) >= CLIENTS_MAX:
            return self._clients[self._handed_out % CLIENTS_MAX]
        credentials = Credentials({"KUBECONFIG": self._config}, self.clock.now)
        client = KubeClient(credentials, "activator/test", self.call_timeout_s)
        self._clients.append(client)
        return client

    def starter(
        self,
        number: int,
        kind: type[Starter] = LeaseStarter,
        choice: Choice = Choice.LOWEST,
        group: str = GROUP,
        **more: Any,
    ) -> Starter:
        who = more.pop("holder", holder(number))
        return kind(self.client(), self.namespace, group, who, Rng(number), choice, self._pause, **more)

    def starters(self, count: int, kind: type[Starter] = LeaseStarter, choice: Choice = Choice.LOWEST) -> list[Starter]:
        return [self.starter(number, kind, choice) for number in range(count)]

    async def roster(self, number: int, group: str = GROUP, **more: Any) -> Watcher:
        watcher = Watcher()
        loop = asyncio.get_running_loop()
        errors: list[str] = []
        roster = LeaseDirectory(
            self.client(),
            self.namespace,
            group,
            holder(number),
            watcher.changed,
            watcher.lost,
            self.clock.now,
            Rng(number),
            loop.call_soon,
            lambda name, error: errors.append(f"{name}: {error}"),
            **more,
        )
        watcher.roster = roster
        self._rosters.append(roster)
        await roster.start()
        return watcher

    @property
    def leases(self) -> dict[str, Json]:
        return {name: thing for (_, name), thing in self.server.collection("leases").objects.items()}

    @property
    def uids(self) -> dict[str, str]:
        """Who has which Lease."""
        return {name: thing["metadata"]["annotations"][UID_ANNOTATION] for name, thing in self.leases.items()}

    async def close(self) -> None:
        for roster in self._rosters:
            await roster.close()
        for client in self._clients:
            await client.close()


class Watcher:
    """What a roster has told."""

    roster: LeaseDirectory

    def __init__(self) -> None:
        self.told: list[Seats] = []
        self.losses = 0

    def changed(self, seats: Seats) -> None:
        self.told.append(seats)

    def lost(self) -> None:
        self.losses += 1

    @property
    def indexes(self) -> list[int]:
        return [seat.index for seat in self.told[-1]] if self.told else []

    @property
    def names(self) -> list[str]:
        return [seat.holder.name for seat in self.told[-1]] if self.told else []


@asynccontextmanager
async def claim_world(folder: Path) -> AsyncIterator[ClaimWorld]:
    server = FakeApiServer()
    await server.start()
    world = ClaimWorld(server, write_config(folder, server.url))
    try:
        yield world
    finally:
        await world.close()
        await server.stop()


@asynccontextmanager
async def real_claim_world(folder: Path) -> AsyncIterator[ClaimWorld]:
    """In a namespace of its own."""
    world = ClaimWorld(None, real.kubeconfig(), f"activator-test-{uuid.uuid4().hex[:8]}")
    namespaces = "/api/v1/namespaces"
    made = json.loads(await world.client().create(namespaces, {"metadata": {"name": world.namespace}}, "test"))
    try:
        yield world
    finally:
        await world.client().delete(f"{namespaces}/{world.namespace}", made["metadata"]["uid"])
        await world.close()


MakeWorld = Callable[[Path], AbstractAsyncContextManager[ClaimWorld]]
ON_EACH_SERVER = pytest.mark.parametrize(
    "make_world", [claim_world, real_claim_world] if real.IS_THERE else [claim_world], ids=lambda make: make.__name__
)


async def claim_all(starters: Sequence[Starter]) -> list[int]:
    """All at once."""
    return list(await asyncio.gather(*(starter.claim() for starter in starters)))


async def until_indexes(watcher: Watcher, indexes: list[int]) -> None:
    """What the roster has told last."""
    await until(lambda: watcher.indexes == indexes)


def is_dense(indexes: list[int]) -> bool:
    """Each from 0 on once."""
    return sorted(indexes) == list(range(len(indexes)))
