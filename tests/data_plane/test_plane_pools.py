"""The pools of a plane's pods when a revision is set again: which are moved, and which are replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from activator.config.model.file import Config
from activator.config.specs import ConnectionSpec, RevisionSpec, RoutingSpec
from activator.data_plane.plane import DataPlane
from activator.data_plane.upstream.alpn_pool import AlpnPool
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.pool import PodPool
from activator.messages import PlacePod, SetRevision, WithdrawPod
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from lb.tracker import READY, PodTracker

KEY = "default/app"
SPEC = RevisionSpec(key=KEY, routing=RoutingSpec(hosts=("app.test",)), connection=ConnectionSpec(protocol="alpn"))


def run(main: Callable[[DataPlane, PodTracker], None]) -> None:
    async def inside() -> None:
        errors: list[BaseException] = []
        tasks = TaskGroupOwner(lambda _name, error: errors.append(error))
        data = DataPlane(Config(), time.monotonic, lambda _message: None, Rng(1), tasks)
        data.apply([SetRevision(SPEC), PlacePod(KEY, "p1", "127.0.0.1:1", READY, 2, 1, 1)])
        tracker = data.tables.throttlers[KEY].table.find_identity("p1")
        assert tracker is not None
        main(data, tracker)
        data.wheel.close()
        await tasks.close()
        assert errors == [] and data.errors_total == 0

    asyncio.run(inside())


def pool_of(tracker: PodTracker) -> PodPool:
    assert isinstance(tracker.attachment, PodPool)
    return tracker.attachment


def agree_on_http1(pool: PodPool) -> PodPool:
    """As if the pod had chosen it."""
    http1 = Http1Pool(pool._context, pool._now, pool._address, 5.0)
    pool.hand_over(http1)
    return http1


def trust_changes(data: DataPlane, is_lenient: bool) -> None:
    connection = ConnectionSpec(protocol="alpn", lenient=is_lenient)
    data.apply([SetRevision(msgspec.structs.replace(SPEC, connection=connection))])


def test_a_pod_that_has_not_decided_keeps_its_pool() -> None:
    def main(data: DataPlane, tracker: PodTracker) -> None:
        pool = pool_of(tracker)
        trust_changes(data, True)
        assert pool_of(tracker) is pool and not pool.is_closed()

    run(main)


def test_a_pod_that_has_decided_is_asked_again() -> None:
    def main(data: DataPlane, tracker: PodTracker) -> None:
        first = pool_of(tracker)
        http1 = agree_on_http1(first)
        trust_changes(data, True)
        second = pool_of(tracker)
        assert isinstance(second, AlpnPool) and second is not first
        assert http1.is_closed() and first.in_use() is http1.in_use() is second
        assert list(second._context.pools) == [second]

    run(main)


def test_a_pod_that_leaves_closes_the_pool_in_use_which_no_reload_opens_again() -> None:
    def main(data: DataPlane, tracker: PodTracker) -> None:
        http1 = agree_on_http1(pool_of(tracker))
        throttler = data.tables.throttlers[KEY]
        throttler.table.reserve(tracker)  # a request: the slot drains
        data.apply([WithdrawPod(KEY, "p1", 30.0)])
        assert http1.is_closed()
        trust_changes(data, True)
        assert pool_of(tracker).in_use() is http1 and not http1._context.pools

    run(main)
