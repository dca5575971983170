"""A revision that is removed under requests, with the real data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from activator.config.model.file import Config
from activator.config.specs import BalancingSpec, RevisionSpec, RoutingSpec
from activator.data_plane.plane import DataPlane
from activator.messages import DropRevision, FromData, PlacePod, PodDrained, SetRevision
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, request_head

KEY = "default/app"


def run(scenario: Callable[[DataPlane, list[FromData]], None]) -> None:
    async def main() -> None:
        told: list[FromData] = []
        failures: list[BaseException] = []
        tasks = TaskGroupOwner(lambda _name, error: failures.append(error))
        data = DataPlane(Config(admin=""), time.monotonic, told.append, Rng(1), tasks)
        scenario(data, told)
        data.wheel.close()
        await tasks.close()
        assert failures == [] and data.errors_total == 0

    asyncio.run(main())


@pytest.mark.parametrize("in_line", [0, 1])
def test_who_waits_for_a_connection_when_the_revision_goes_hears_of_it_at_once(in_line: int) -> None:
    """The pool of its pod is closed then, and a request that was refused a connection looks for another pod."""

    def scenario(data: DataPlane, told: list[FromData]) -> None:
        spec = RevisionSpec(
            key=KEY,
            routing=RoutingSpec(hosts=("app.test",)),
            container_concurrency=1,
            balancing=BalancingSpec(max_scale=4),
        )
        pods = [PlacePod(KEY, f"p{number}", f"127.0.0.1:{number}", READY, 1, 1, number) for number in (1, 2)]
        data.apply([SetRevision(spec), *pods])
        throttler = data.tables.throttlers[KEY]
        clients = [Client() for _ in range(2 + in_line)]
        for client in clients:  # two dial, which takes a turn of the loop
            data.proxy.open(request_head(), client).begin()
        assert (len(throttler.leases), throttler.queue.waiters.length) == (2, in_line)
        data.apply([DropRevision(KEY)])
        assert [(client.status, client.reason) for client in clients] == [(503, "revision_removed")] * len(clients)
        assert (len(throttler.leases), throttler.queue.waiters.length, data.proxy.active) == (0, 0, 0)
        assert sorted(one.identity for one in told if isinstance(one, PodDrained)) == ["p1", "p2"]
        assert data.tables.distrusted == {}

    run(scenario)
