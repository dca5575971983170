"""A pod that is to be spoken with in another way than before: what becomes of busy connections, and of who waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import uvloop

from activator.data_plane.upstream.dial import PodAddress
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.runtime.clock import NEVER
from tests.data_plane.upstream.test_dial import Harness, Post

PATIENCE_S = 20.0


class Pod(asyncio.Protocol):
    """One connection; it answers when the test says so."""

    def __init__(self, pods: list[Pod]) -> None:
        pods.append(self)
        self.received = b""
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def answer(self) -> None:
        assert self.transport is not None
        self.received = b""
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


async def until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0.005)


def run(main: Callable[[Harness, PodAddress, list[Pod]], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        pods: list[Pod] = []
        server = await asyncio.get_running_loop().create_server(lambda: Pod(pods), "127.0.0.1", 0)
        harness = Harness()
        try:
            address = PodAddress("127.0.0.1", server.sockets[0].getsockname()[1])
            await asyncio.wait_for(main(harness, address, pods), PATIENCE_S)
        finally:
            await harness.close()
            server.close()
        assert harness.errors == []

    uvloop.run(inside())


def ask(pool: Http1Pool) -> Post:
    post = Post(b"x")
    pod = pool.checkout(post, NEVER, time.monotonic())
    if pod is not None:
        post.connected(pod)
    return post


def test_no_request_goes_out_on_a_connection_from_before() -> None:
    """Another trust of TLS holds for the next request, also if the connection was busy when it changed."""

    async def main(harness: Harness, address: PodAddress, pods: list[Pod]) -> None:
        pool = harness.pool(address)
        first = ask(pool)
        await until(lambda: bool(pods) and bool(pods[0].received))
        pool.change_address(address)
        assert first.ends == [], "it goes on"
        pods[0].answer()
        await first.ended.wait()
        assert first.ends == ["answered"] and pool.statistics()["idle"] == 0
        second = ask(pool)
        await until(lambda: len(pods) == 2 and bool(pods[1].received))
        pods[1].answer()
        await second.ended.wait()
        assert second.ends == ["answered"] and pool.statistics()["idle"] == 1
        pool.close()

    run(main)


def test_who_waits_for_a_dial_is_served_by_one_with_the_new_settings() -> None:
    async def main(harness: Harness, address: PodAddress, pods: list[Pod]) -> None:
        pool = harness.pool(PodAddress("127.0.0.1", 1))  # not dialled yet when the pod moves
        post = ask(pool)
        pool.change_address(address)
        await until(lambda: any(pod.received for pod in pods))
        next(pod for pod in pods if pod.received).answer()
        await post.ended.wait()
        assert post.ends == ["answered"]
        pool.close()
        assert harness.context.connections == 0

    run(main)


def test_a_pool_that_is_replaced_hands_over_who_waits() -> None:
    """The pod is the same: no request is to report that it is dead."""

    async def main(harness: Harness, address: PodAddress, pods: list[Pod]) -> None:
        old = harness.pool(PodAddress("127.0.0.1", 1))
        stays, leaves = ask(old), ask(old)
        new = harness.pool(address)
        old.hand_over(new)
        assert old.is_closed() and old.in_use() is new
        assert new.statistics()["waiting"] == 2
        old.stop_waiting(leaves)  # a request knows the pool of its lease only
        assert new.statistics()["waiting"] == 1
        await until(lambda: any(pod.received for pod in pods))
        next(pod for pod in pods if pod.received).answer()
        await stays.ended.wait()
        assert (stays.ends, leaves.ends) == (["answered"], [])
        new.close()

    run(main)
