"""The EndpointSlices of a cluster as they are written, for those who stand for its proxies (kube_proxy.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from activator.kubernetes.errors import KubeError
from tests.kube.api import Api
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_objects import Collection, Event

Json = dict[str, Any]
Told = Callable[[str, Json | None], None]  # a slice by name, as it is now; None: it is gone


class SliceFeed(Protocol):
    """Where slices come from, in the order in which they were written; on the loop of the cluster."""

    async def start(self, told: Told) -> dict[str, Json]:
        """Those that are there; from then on `told` is called."""

    async def stop(self) -> None: ...


class FakeSlices:
    """Of the fake API server."""

    def __init__(self, api: FakeApiServer) -> None:
        self._api = api
        self._told: Told = _ignore

    async def start(self, told: Told) -> dict[str, Json]:
        self._told = told
        self._api.listeners.append(self._written)
        return {name: one for (_, name), one in self._api.collection("endpointslices").objects.items()}

    async def stop(self) -> None:
        self._api.listeners.remove(self._written)

    def _written(self, collection: Collection, event: Event) -> None:
        if collection.plural == "endpointslices":
            thing = event.after or event.before
            assert thing is not None
            self._told(thing["metadata"]["name"], event.after)


class RealSlices:
    """Of a namespace of a real API server, by a watch."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._task: asyncio.Task[None] | None = None

    async def start(self, told: Told) -> dict[str, Json]:
        found, version = await self._list()
        self._task = asyncio.get_running_loop().create_task(self._watch(version, told))
        return found

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _list(self) -> tuple[dict[str, Json], str]:
        status, found = await self._api.call("GET", self._api.slices)
        assert status == 200, found
        return {one["metadata"]["name"]: one for one in found["items"]}, found["metadata"]["resourceVersion"]

    async def _watch(self, version: str, told: Told) -> None:
        while True:
            try:
                async with self._api.watch(self._api.slices, resourceVersion=version) as watch:
                    while (event := await watch.next(bookmarks=True)) is not None:
                        metadata = event["object"]["metadata"]
                        version = metadata["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            told(metadata["name"], None if event["type"] == "DELETED" else event["object"])
            except (KubeError, OSError):
                await asyncio.sleep(0.1)


def _ignore(name: str, one: Json | None) -> None:
    pass
