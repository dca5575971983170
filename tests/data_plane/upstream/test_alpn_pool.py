"""Pods over TLS whose protocol is found out: by servers on real sockets that agree on either version, or on none."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from typing import Any, ClassVar, cast

import pytest
import trustme
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from activator.data_plane.upstream.alpn_pool import AlpnPool
from activator.data_plane.upstream.dial import PodAddress
from activator.data_plane.upstream.http1_pool import Http1Pool
from tests.data_plane.upstream.test_dial import Harness, Post

LONG_S = 30.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class TlsPod(asyncio.Protocol):
    """Answers in the protocol that it has agreed on, once for each request."""

    transport: asyncio.Transport
    agreed: ClassVar[list[str | None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self.protocol = self.transport.get_extra_info("ssl_object").selected_alpn_protocol()
        self.agreed.append(self.protocol)
        self.http2 = H2Connection(H2Configuration(client_side=False))
        if self.protocol == "h2":
            self.http2.initiate_connection()
            self.transport.write(self.http2.data_to_send())

    def data_received(self, data: bytes) -> None:
        if self.protocol != "h2":
            self.transport.write(ANSWER * data.count(b"HTTP/1.1\r\n"))
            return
        for event in self.http2.receive_data(data):
            if isinstance(event, RequestReceived):
                self.http2.send_headers(event.stream_id, [(":status", "204")], end_stream=True)
        self.transport.write(self.http2.data_to_send())


def run(protocols: list[str], main: Any) -> None:
    ca = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(server_side)
    if protocols:
        server_side.set_alpn_protocols(protocols)

    def context(*offered: str) -> ssl.SSLContext:
        made = ssl.create_default_context()
        ca.configure_trust(made)
        made.set_alpn_protocols([*offered])
        return made

    async def inside() -> None:
        TlsPod.agreed = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(TlsPod, "127.0.0.1", 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        harness = Harness()
        http1 = PodAddress("127.0.0.1", port, context("http/1.1"))
        address = PodAddress("127.0.0.1", port, context("h2", "http/1.1"), alpn="h2", http1=http1)
        pool = AlpnPool(harness.context, time.monotonic, address, 5.0)
        try:
            await main(pool, address)
        finally:
            pool.in_use().close()
            await harness.close()
            server.close()
        assert harness.errors == []

    coroutine: Coroutine[Any, Any, None] = inside()
    uvloop.run(asyncio.wait_for(coroutine, LONG_S))


async def served(pool: AlpnPool, count: int) -> list[str]:
    """So many requests at once; how they ended."""
    posts = [Post(b"x") for _ in range(count)]
    for post in posts:
        pod = pool.in_use().checkout(post, 4.0, time.monotonic())
        if pod is not None:
            post.connected(pod)
    for post in posts:
        await post.ended.wait()
    return [end for post in posts for end in post.ends]


def test_a_pod_that_agrees_on_http_2_gets_all_on_one_connection() -> None:
    async def main(pool: AlpnPool, address: PodAddress) -> None:
        assert await served(pool, 3) == ["answered"] * 3
        assert TlsPod.agreed == ["h2"]
        assert pool.statistics()["open"] == 1

    run(["h2", "http/1.1"], main)


@pytest.mark.parametrize("protocols", [["http/1.1"], []], ids=["http/1.1", "none"])
def test_a_pod_that_does_not_is_spoken_with_in_http_1_1(protocols: list[str]) -> None:
    async def main(pool: AlpnPool, address: PodAddress) -> None:
        assert await served(pool, 1) == ["answered"]
        before = len(TlsPod.agreed)  # the pod may not have seen the end of the first handshake, which told
        assert await served(pool, 1) == ["answered"]
        assert len(TlsPod.agreed) == before, "what it has agreed on is known, and the connection was kept"
        assert pool.in_use().statistics()["idle"] == 1
        assert pool.in_use().close_idle_one()

    run(protocols, main)


def test_several_that_wait_are_all_served_by_a_pod_that_speaks_http_1_1() -> None:
    async def main(pool: AlpnPool, address: PodAddress) -> None:
        assert await served(pool, 5) == ["answered"] * 5

    run(["http/1.1"], main)


def test_another_address_is_asked_anew() -> None:
    """Of a pool that HTTP/1.1 was agreed on for a new one is made, as the plane does."""

    async def main(pool: AlpnPool, address: PodAddress) -> None:
        assert await served(pool, 1) == ["answered"]
        before = len(TlsPod.agreed)
        successor = AlpnPool(pool._context, time.monotonic, address, 5.0)
        pool.in_use().hand_over(successor)
        assert await served(pool, 1) == ["answered"]
        assert len(TlsPod.agreed) > before
        assert pool.in_use() is successor.in_use() is not successor

    run(["http/1.1"], main)


def test_a_pool_that_http_1_1_was_agreed_on_for_holds_nothing() -> None:
    async def main(pool: AlpnPool, address: PodAddress) -> None:
        assert await served(pool, 5) == ["answered"] * 5
        assert isinstance(pool.in_use(), Http1Pool) and pool.is_closed()
        assert pool.statistics() | {"window": 0} == dict.fromkeys(pool.statistics(), 0)
        assert list(pool._context.pools) == [pool.in_use()]
        assert pool._context.connections == pool.in_use().statistics()["open"]

    run(["http/1.1"], main)


def test_a_request_that_waits_may_be_forgotten() -> None:
    async def main(pool: AlpnPool, address: PodAddress) -> None:
        gone, stays = Post(b"x"), Post(b"x")
        assert pool.checkout(gone, 4.0, time.monotonic()) is None
        assert pool.checkout(stays, 4.0, time.monotonic()) is None
        pool.stop_waiting(gone)
        await stays.ended.wait()
        assert (gone.ends, stays.ends) == ([], ["answered"])

    run(["http/1.1"], main)
