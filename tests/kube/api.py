"""Any call to an API server, without the checks of our own client: what tests and simulated nodes need."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import UnreachableError
from activator.kubernetes.resources import CONFIG_MAPS, ENDPOINT_SLICES
from activator.kubernetes.watch_stream import WatchStream

Json = dict[str, Any]
Query = Mapping[str, str]
NO_QUERY: Query = {}
MERGE = "application/merge-patch+json"
CALL_TIMEOUT_S = 60.0


class Api:
    """One namespace of a cluster, and whatever verb a test wants, without our own client's checks."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        query: Query = NO_QUERY,
    ) -> tuple[int, Json]:
        session = await self.client._session("tests")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        async with asyncio.timeout(CALL_TIMEOUT_S):
            response = await session.request(method, path, query, headers, data)
        async with response:
            text = await response.read()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, {}

    async def encoding(self, path: str, accepted: str) -> str:
        """How the answer to a GET is encoded, where a client takes this."""
        session = await self.client._session("tests")
        headers = {"Accept": "application/json", "Accept-Encoding": accepted}
        async with await session.request("GET", path, {}, headers, None) as response:
            assert response.status == 200, await response.text()
            await response.read()
        return str(response.headers.get("Content-Encoding", "identity"))

    async def until(self, path: str, holds: Callable[[int, Json], object], timeout_s: float = CALL_TIMEOUT_S) -> Json:
        """GET again and again, until status and body are so; the body."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    status, found = await self.call("GET", path)
                except UnreachableError:
                    status, found = 0, {}
                if holds(status, found):
                    return found
                await asyncio.sleep(0.05)

    @property
    def maps(self) -> str:
        return CONFIG_MAPS.collection(self.namespace)

    @property
    def slices(self) -> str:
        return ENDPOINT_SLICES.collection(self.namespace)

    async def create(self, thing: Json, path: str = "") -> Json:
        status, made = await self.call("POST", path or self.maps, thing)
        assert status == 201, made
        return made

    async def version(self) -> str:
        return str((await self.call("GET", self.maps))[1]["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(self, path: str = "", **query: str) -> AsyncIterator[Watch]:
        stream = await self.client.watch(path or self.maps, query)
        try:
            yield Watch(stream)
        finally:
            stream.close()


class Watch:
    """The events of a watch, one by one; bookmarks are left out unless asked for."""

    def __init__(self, stream: WatchStream) -> None:
        self._stream = stream
        self._events: list[Json] = []

    async def next(self, bookmarks: bool = False) -> Json | None:
        """None at the end."""
        while True:
            while not self._events:
                lines = await self._stream.lines()
                if not lines:
                    return None
                self._events = [json.loads(line) for line in lines]
            event = self._events.pop(0)
            if bookmarks or event["type"] != "BOOKMARK":
                return event

    async def pair(self) -> tuple[str, str]:
        event = await self.next()
        assert event is not None
        return event["type"], event["object"]["metadata"]["name"]
