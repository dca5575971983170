"""The connection to the autoscaler, against a WebSocket server and protobuf classes that are not ours."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
import uvloop
from websockets.asyncio.server import ServerConnection, serve

from activator.control_plane.scaling.autoscaler_stream import (
    AUTOSCALER_BATCH_MAX,
    AUTOSCALER_BATCHES_MAX,
    AutoscalerStream,
    encode_batch,
)
from activator.control_plane.scaling.concurrency import ConcurrencyStat
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.manual_clock import ManualClock
from tests.sources import ROOT

PROTO = ROOT / "activator/control_plane/scaling/statistics.proto"
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", f"--python_out={folder}"]
    subprocess.run([*command, f"--pyi_out={folder}", str(PROTO)], check=True, timeout=120)
    return folder


def test_the_classes_in_the_repository_are_those_of_the_proto(generated: Path) -> None:
    for name in ("statistics_pb2.py", "statistics_pb2.pyi"):
        assert (generated / name).read_text() == (PROTO.parent / name).read_text(), "`make proto` writes them anew"


def test_golden_bytes() -> None:
    """Written by hand after the encoding's own rules: tag, length, value; a double is eight bytes, little endian."""
    stat = (
        b"\x0a\x03pod" + b"\x11" + b"\x00\x00\x00\x00\x00\x00\xf0\x3f" + b"\x21" + b"\x00\x00\x00\x00\x00\x00\x00\x40"
    )
    message = b"\x0a\x07default" + b"\x12\x05hello" + b"\x1a" + bytes([len(stat)]) + stat
    expected = b"\x0a" + bytes([len(message)]) + message
    assert encode_batch([ConcurrencyStat("default/hello", 1.0, 2.0)], "pod") == expected


def test_zeros_are_left_out_but_the_figures_themselves_are_always_there() -> None:
    message = b"\x0a\x01n" + b"\x12\x01r" + b"\x1a\x05" + b"\x0a\x03pod"
    assert encode_batch([ConcurrencyStat("n/r", 0.0, 0.0)], "pod") == b"\x0a" + bytes([len(message)]) + message


class Autoscaler:
    """Decodes what it is sent with classes of its own."""

    def __init__(self, classes: ModuleType) -> None:
        self._classes = classes
        self.heard: asyncio.Queue[list[tuple[str, str, str, float, float]]] = asyncio.Queue()
        self.connections: list[ServerConnection] = []
        self.port = 0
        self._server: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await serve(self._serve, "127.0.0.1", self.port)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self, code: int = 1001) -> None:
        self._server.close(code=code)
        await self._server.wait_closed()

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        assert connection.request is not None and connection.request.path == "/"
        async for frame in connection:
            assert isinstance(frame, bytes), "a binary frame"
            batch = self._classes.WireStatMessages.FromString(frame)
            assert all(message.HasField("stat") for message in batch.messages)
            self.heard.put_nowait(
                [
                    (
                        message.namespace,
                        message.name,
                        message.stat.pod_name,
                        message.stat.average_concurrent_requests,
                        message.stat.request_count,
                    )
                    for message in batch.messages
                ]
            )


def over_sockets(scenario: Callable[[ModuleType], Coroutine[Any, Any, None]]) -> Callable[[ModuleType], None]:
    """Run on uvloop, as the program does."""

    def run(classes: ModuleType) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario(classes))

    run.__name__ = scenario.__name__
    return run


@pytest.fixture(scope="module")
def classes(generated: Path) -> ModuleType:
    # Under another package name: one process knows each message name once.
    text = PROTO.read_text().replace("package activator.statistics", "package autoscaler.test")
    (generated / "theirs.proto").write_text(text)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{generated}", f"--python_out={generated}"]
    subprocess.run([*command, str(generated / "theirs.proto")], check=True, timeout=120)
    spec = importlib.util.spec_from_file_location("theirs_pb2", generated / "theirs_pb2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_long_it_has_been_away() -> None:
    clock = ManualClock()
    stream = AutoscalerStream("ws://nowhere", "pod", lambda: None, clock.now, Rng(1), lambda _name, _error: None)
    clock.pass_time(100.0)
    assert stream.unreachable_for_s() == 100.0, "there never was a connection"
    stream._begin()
    clock.pass_time(50.0)
    assert stream.unreachable_for_s() == 0.0
    stream._end()
    clock.pass_time(7.0)
    assert stream.unreachable_for_s() == 7.0, "since it broke, not since the beginning"


@over_sockets
async def test_batches_arrive_decoded(classes: ModuleType) -> None:
    async with connected(classes) as (autoscaler, stream):
        names = [f"revision-{number}" for number in range(200)]
        stream.send([ConcurrencyStat(f"space/{name}", 0.25, 3.0) for name in names])
        heard = await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S)
        assert heard == [("space", name, "pod-1", 0.25, 3.0) for name in names]
        assert stream.unreachable_for_s() == 0.0


@over_sockets
async def test_a_request_while_the_autoscaler_is_away_is_told_when_it_is_back(classes: ModuleType) -> None:
    holder: list[AutoscalerStream] = []

    def tell() -> None:
        holder[0].send([ConcurrencyStat("a/waits", 1.0, 1.0)])

    async with Autoscaler(classes) as autoscaler, running(autoscaler, tell, holder) as stream:
        await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S)
        await autoscaler.stop(1012)
        await until(lambda: not stream.is_connected)
        stream.send([ConcurrencyStat("a/waits", 1.0, 1.0)])
        assert stream.dropped_total == 1
        await autoscaler.start()
        assert await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S) == [("a", "waits", "pod-1", 1.0, 1.0)]
        assert stream.errors_total == 1 and stream.connections_total == 2


@over_sockets
async def test_a_hundred_first_requests_in_one_turn_are_all_told(classes: ModuleType) -> None:
    async with connected(classes) as (autoscaler, stream):
        for number in range(AUTOSCALER_BATCHES_MAX * 2):  # within one turn: none can leave in between
            stream.send([ConcurrencyStat(f"a/{number}", 1.0, 1.0)])
        heard = await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S)
        assert [one[1] for one in heard] == [str(number) for number in range(AUTOSCALER_BATCHES_MAX * 2)]
        assert stream.dropped_total == 0


@over_sockets
async def test_a_slow_autoscaler_gets_the_newest_batches(classes: ModuleType) -> None:
    async with connected(classes) as (autoscaler, stream):
        for number in range(AUTOSCALER_BATCHES_MAX + 36):  # reports of many revisions, each a batch of its own
            stream.send([ConcurrencyStat("a/b", float(number), 0.0)] * AUTOSCALER_BATCH_MAX)
        assert stream.dropped_total == 36
        first = await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S)
        assert first[0][3] == 36.0


@over_sockets
async def test_a_defect_does_not_end_it(classes: ModuleType) -> None:
    """Whoever is told that the connection is there may fail: without the stream no revision would start any more."""
    holder: list[AutoscalerStream] = []

    def fail_once() -> None:
        if holder[0].connections_total == 1:
            raise ValueError("a defect")
        holder[0].send([ConcurrencyStat("a/b", 1.0, 1.0)])

    async with Autoscaler(classes) as autoscaler:
        run = running(autoscaler, fail_once, holder)
        async with run:
            heard = await asyncio.wait_for(autoscaler.heard.get(), WITHIN_S)
            assert heard == [("a", "b", "pod-1", 1.0, 1.0)]
            await until(lambda: autoscaler.connections[0].close_code is not None)
            assert [(name, repr(error)) for name, error in run.defects] == [("autoscaler", "ValueError('a defect')")]
            run.defects.clear()


class running:  # noqa: N801 - reads as a word at its uses
    """A stream that runs as a task of its own."""

    def __init__(self, autoscaler: Autoscaler, on_connected: Any, holder: list[AutoscalerStream] | None = None) -> None:
        url = f"ws://127.0.0.1:{autoscaler.port}"
        self.defects: list[tuple[str, BaseException]] = []
        self.stream = AutoscalerStream(url, "pod-1", on_connected, time.monotonic, Rng(7), self._failed)
        if holder is not None:
            holder.append(self.stream)
        self.failures: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda _name, error: self.failures.append(error))

    def _failed(self, name: str, error: BaseException) -> None:
        self.defects.append((name, error))

    async def __aenter__(self) -> AutoscalerStream:
        self.tasks.start("stream", self.stream.run())
        return self.stream

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()
        assert self.failures == []
        assert self.defects == []


@asynccontextmanager
async def connected(classes: ModuleType) -> AsyncIterator[tuple[Autoscaler, AutoscalerStream]]:
    """An autoscaler, and a stream that is connected to it."""
    told = asyncio.Event()
    async with Autoscaler(classes) as autoscaler, running(autoscaler, told.set) as stream:
        await asyncio.wait_for(told.wait(), WITHIN_S)
        yield autoscaler, stream


async def until(holds: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 - of a plain attribute
            await asyncio.sleep(0.005)
