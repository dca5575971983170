"""A fake API server, and members of a group that claim through it by several clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from activator.control_plane.sources.kubernetes.client import KubeClient
from activator.control_plane.sources.kubernetes.credentials import Credentials
from activator.members.claims.leases import LeaseStarter
from activator.members.claims.names import UID_ANNOTATION
from activator.members.claims.roster import LeaseRoster, Seats
from activator.members.claims.seats import Holder
from activator.members.claims.starter import Starter
from activator.members.claims.table import Choice
from lb.rng import Rng
from tests.control_plane.sources.kubernetes.fake_api_server import FakeApiServer
from tests.control_plane.sources.kubernetes.fake_cluster import until, write_config
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
    """`server` and whatever talks to it; `call_timeout_s` of new clients is short, so that silence ends."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        self.server = server
        self.clock = ManualClock()
        self.call_timeout_s = 5.0
        self._config = write_config(folder, server.url)
        self._clients: list[KubeClient] = []
        self._handed_out = 0
        self._rosters: list[LeaseRoster] = []

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
        return kind(self.client(), "default", group, who, Rng(number), choice, soon, **more)

    def starters(self, count: int, kind: type[Starter] = LeaseStarter, choice: Choice = Choice.LOWEST) -> list[Starter]:
        return [self.starter(number, kind, choice) for number in range(count)]

    async def roster(self, number: int, group: str = GROUP, **more: Any) -> Watcher:
        watcher = Watcher()
        loop = asyncio.get_running_loop()
        errors: list[str] = []
        roster = LeaseRoster(
            self.client(),
            "default",
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

    roster: LeaseRoster

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
    world = ClaimWorld(server, folder)
    try:
        yield world
    finally:
        await world.close()
        await server.stop()


async def claim_all(starters: Sequence[Starter]) -> list[int]:
    """All at once."""
    return list(await asyncio.gather(*(starter.claim() for starter in starters)))


async def until_indexes(watcher: Watcher, indexes: list[int]) -> None:
    """What the roster has told last."""
    await until(lambda: watcher.indexes == indexes)


def is_dense(indexes: list[int]) -> bool:
    """Each from 0 on once."""
    return sorted(indexes) == list(range(len(indexes)))
