"""The answer of a metrics port, to clients over real sockets that read it, leave, or do neither."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from typing import Self

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer as LoopbackServer

from activator.telemetry.metrics.sliced_response import answer_in_slices

MIB = 1 << 20
ENDLESS = 1_000  # MiB: more than any socket holds
ASKED = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


class Scraped:
    """A port whose answers have so many slices of 1 MiB."""

    def __init__(self, slices: int, answer_s: float = 60.0) -> None:
        self._slices = slices
        self._answer_s = answer_s
        self.made = 0
        self.over = asyncio.Event()
        application = web.Application()
        application.add_routes([web.get("/metrics", self._answer)])
        self.server = LoopbackServer(application, access_log=None)

    async def __aenter__(self) -> Self:
        await self.server.start_server()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await answer_in_slices(request, self._made(), "text/plain", self._answer_s)
        finally:
            self.over.set()

    def _made(self) -> Iterator[bytes]:
        for _ in range(self._slices):
            self.made += 1
            yield b"x" * MIB


@pytest.mark.parametrize("coding", ["gzip", "x-gzip;q=0.5", "identity", "gzip;q=0", "*"])
def test_all_of_it_arrives(coding: str) -> None:
    async def story() -> None:
        headers = {"Accept-Encoding": coding}
        async with (
            Scraped(3) as scraped,
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.get(scraped.server.make_url("/metrics"), headers=headers) as response,
        ):
            data = await response.read()
            packed = response.headers.get("Content-Encoding") == "gzip"
        assert packed == (coding in {"gzip", "x-gzip;q=0.5"})
        assert (gzip.decompress(data) if packed else data) == b"x" * 3 * MIB

    asyncio.run(story())


def test_whoever_leaves_in_the_middle_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Scraped(ENDLESS) as scraped:
            reader, writer = await asyncio.open_connection(scraped.server.host, scraped.server.port)
            writer.write(ASKED)
            await reader.readexactly(MIB)
            writer.transport.abort()
            async with asyncio.timeout(30):
                await scraped.over.wait()
        assert scraped.made < ENDLESS
        assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []

    asyncio.run(story())


def test_whoever_does_not_read_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Scraped(ENDLESS, answer_s=0.2) as scraped:
            reader, writer = await asyncio.open_connection(scraped.server.host, scraped.server.port, limit=1024)
            writer.write(ASKED)
            async with asyncio.timeout(30):
                await scraped.over.wait()
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(ENDLESS * MIB)
            writer.transport.abort()
        assert scraped.made < ENDLESS
        assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []

    asyncio.run(story())
