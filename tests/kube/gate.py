"""A way to a real API server that can be closed, for all or for some, and on which each call is noted.

It forwards calls as they come, watches included, with the token of whoever calls: the API server itself decides what
that one may do.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress

import aiohttp
from aiohttp import web

from activator.kubernetes.client import KubeClient

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length"})


class Gate:
    """`names`: who has which token; calls with another one are noted under the token itself."""

    def __init__(self, client: KubeClient, host: str = "127.0.0.1") -> None:
        self._client = client
        self._host = host
        self._port = 0
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._target = ""
        self.names: dict[str, str] = {}
        self.written: list[tuple[float, str, str, str]] = []  # of each write: when, who, the verb, the path
        self.read: list[tuple[str, str]] = []  # of each other call: who, the path

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Opens it; again after `stop`, on the same port."""
        if self._session is None:
            configuration = (await self._client._session("gate")).configuration
            self._target = configuration.host.rstrip("/")
            context: ssl.SSLContext | bool = False
            if configuration.verify_ssl:
                context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuses connections and cuts those that are there."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        assert runner.server is not None
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def close(self) -> None:
        await self.stop()
        if self._session is not None:
            await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        self._note(request)

        def kept(name: str) -> bool:
            return name.lower() not in HOP_BY_HOP

        headers = [(name, value) for name, value in request.headers.items() if kept(name)]
        try:
            async with self._session.request(
                request.method,
                self._target + request.raw_path,
                headers=headers,
                data=await request.read() or None,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer:
                told = [(name, value) for name, value in answer.headers.items() if kept(name)]
                response = web.StreamResponse(status=answer.status, headers=dict(told))
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response
        except aiohttp.ClientError:  # the API server is gone: so is this connection
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        except ConnectionError:  # whoever called is gone
            with suppress(AttributeError):
                request.transport.abort()  # type: ignore[union-attr]
            return web.Response(status=502)

    def _note(self, request: web.Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        who, verb = self.names.get(token, token), VERBS.get(request.method)
        if verb is None:
            self.read.append((who, request.path))
        else:
            self.written.append((time.monotonic(), who, verb, request.path))
