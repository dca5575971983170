"""A fake API server, a client of ours to it, and time that tests hand out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol

import yaml

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.object_store import Handler
from activator.kubernetes.objects import Object
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.resources import Selection
from lb.rng import Rng
from tests.kube import real
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.kube_samples import Recorder
from tests.manual_clock import ManualClock

TEST_TIMEOUT_S = 240.0 if real.IS_THERE else 60.0  # a real server on a busy machine takes its time

Arguments = ParamSpec("Arguments")


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`main` on a loop of its own, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await main()

    asyncio.run(bounded())


def on_a_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """A test that `run` runs; pytest hands in what its parameters name."""

    @wraps(test)
    def whole(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        run(lambda: test(*arguments, **named))

    return whole


def write_config(
    folder: Path, url: str, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> str:
    """A kubeconfig; its path."""
    path = folder / "config"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "current-context": "here",
    }
    path.write_text(yaml.safe_dump(document), "utf-8")
    return str(path)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for something that sockets bring about; how long it takes is no part of any test."""
    async with asyncio.timeout(TEST_TIMEOUT_S / 2):
        while not condition():  # noqa: ASYNC110 - nobody tells a test that a socket has delivered
            await asyncio.sleep(0.002)


class Pauses:
    """Instead of sleeping: notes how long, lets that time pass on the clock, and lets sockets do their work."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._clock.pass_time(seconds)
        await asyncio.sleep(0.001)


class Cluster:
    """The server, a client that talks to it, and the time that the client believes in."""

    def __init__(self, server: FakeApiServer, client: KubeClient, clock: ManualClock) -> None:
        self.server = server
        self.client = client
        self.clock = clock
        self.pauses = Pauses(clock)

    def reflector(self, selection: Selection[Object], handler: Handler[Object], **settings: Any) -> Reflector[Object]:
        return Reflector(self.client, selection, handler, self.clock.now, Rng(1), self.pauses, **settings)


class Life(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def running(one: Life) -> AsyncIterator[None]:
    """Its life, until the test leaves; a life that ended by itself fails the test."""
    task = asyncio.create_task(one.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def watching(
    cluster: Cluster, selection: Selection[Object], handler: Recorder | None = None, **settings: Any
) -> AsyncIterator[tuple[Reflector[Object], Recorder]]:
    """A running reflector that has listed and is at its watch; its handler remembers what it was told till then."""
    handler = handler or Recorder()
    reflector = cluster.reflector(selection, handler, **settings)
    async with running(reflector):
        await until(lambda: cluster.server.watchers and reflector.watching)  # both ends: the head comes a turn later
        yield reflector, handler


@asynccontextmanager
async def fake_cluster(folder: Path, user: dict[str, Any] | None = None, **bounds: Any) -> AsyncIterator[Cluster]:
    server = FakeApiServer()
    await server.start()
    clock = ManualClock()
    config = write_config(folder, server.url, user)
    client = KubeClient(Credentials({"KUBECONFIG": config}, clock.now), "activator/test", **bounds)
    try:
        yield Cluster(server, client, clock)
    finally:
        await client.close()
        await server.stop()
