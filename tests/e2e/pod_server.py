"""The program of one pod, at an address of its own, on the loop of its cluster."""

from __future__ import annotations

import asyncio
import fcntl
import math
import sys
import termios
import time

from aiohttp import web


class PodServer:
    """The program of one pod: says who it is; `/slow/SECONDS` takes its time."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.in_flight = 0
        self.most_in_flight = 0
        self.requests = 0
        self.began_s = self.ended_s = time.monotonic()  # it listened, and died at last
        self.deaths: list[tuple[float, int]] = []  # when (monotonic seconds), and with how many requests in flight
        self.downs: list[tuple[float, float]] = []  # from a death to the next start, or for ever
        self._runner: web.AppRunner | None = None
        self._turn = asyncio.Lock()  # a site that is stopped while it starts would listen for ever
        self.is_serving = False

    async def start(self) -> None:
        async with self._turn:
            await self._start()
            self.is_serving = True

    async def stop(self) -> None:
        async with self._turn:
            self.is_serving = False
            if self._runner is not None:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    async def kill(self) -> None:
        """All its connections break at once, as with a process that dies; `start` is its restart."""
        async with self._turn:
            self.is_serving = False
            await self._kill()

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        if not self.deaths:
            self.began_s = time.monotonic()
        elif self.downs:
            self.downs[-1] = (self.downs[-1][0], time.monotonic())

    async def _kill(self) -> None:
        if self._runner is None or self._runner.server is None:
            return
        self.ended_s = time.monotonic()
        assert self._runner.server is not None
        unbegun = sum(map(_has_unbegun_request, self._runner.server.connections))
        self.deaths.append((self.ended_s, self.in_flight + unbegun))
        self.downs.append((self.ended_s, math.inf))
        runner, self._runner = self._runner, None
        assert runner.server is not None
        for site in list(runner.sites):
            await site.stop()
        server = runner.server
        _abort_all(server)
        await runner.cleanup()
        await asyncio.sleep(0)  # connections that had been accepted, and are told to the server a turn later
        _abort_all(server)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            words = request.path.strip("/").split("/")
            if words[0] == "slow":
                await asyncio.sleep(float(words[1]))
            return web.json_response({"pod": self.name, "host": request.headers.get("Host", "")})
        finally:
            self.in_flight -= 1


def _has_unbegun_request(connection: web.RequestHandler) -> bool:
    """True if a request has arrived whose handler has not begun, as where the loop of the pods has much to do."""
    if connection._messages or connection.transport is None:
        return bool(connection._messages)
    unread = bytearray(4)
    fcntl.ioctl(connection.transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread)
    return int.from_bytes(unread, sys.byteorder) > 0


def _abort_all(server: web.Server) -> None:
    for connection in list(server.connections):
        if connection.transport is not None:
            connection.transport.abort()
