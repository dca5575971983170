"""KEDA's external scaler, asked over a real socket by gRPC's own client, on the event loop of the program."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from activator.config.specs import RevisionSpec
from activator.control_plane.scaling.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from activator.control_plane.sources.external_scaler.figures import ACTIVE_S
from activator.control_plane.sources.external_scaler.service import (
    SCALER_CONNECTIONS_MAX,
    SCALER_REQUEST_BYTES_MAX,
    STREAM_AGAIN_S,
)
from activator.control_plane.sources.external_scaler.source import ExternalScalerSource
from activator.messages import DropRevision, Load, SetRevision
from activator.runtime.errors import StartError
from activator.runtime.tasks import pause
from tests.manual_clock import ManualClock

KEY = "default/app"
SERVICE = "/externalscaler.ExternalScaler/"
REPLIES: dict[str, Any] = {
    "IsActive": IsActiveResponse,
    "StreamIsActive": IsActiveResponse,
    "GetMetricSpec": GetMetricSpecResponse,
    "GetMetrics": GetMetricsResponse,
}


class Keda:
    """The source, and a client of gRPC that asks it as KEDA does."""

    def __init__(self, again_s: float) -> None:
        self.clock = ManualClock()
        self.source = ExternalScalerSource("127.0.0.1:0", self.clock.now, again_s)
        self.source.applied([SetRevision(RevisionSpec(KEY, container_concurrency=7))])
        self.requests = 0
        self.seconds = 0.0
        self.channel: grpc.aio.Channel | None = None

    def load(self, here: int, requests: int = 0, seconds: float = 0.0, queued: int = 0) -> None:
        """After so many seconds with `here` requests in pods."""
        self.clock.pass_time(seconds)
        self.requests += requests
        self.seconds += here * seconds
        self.source.receive_load(Load(KEY, here, queued, self.requests, here, self.seconds, self.clock.now()))

    async def ask(self, method: str, request: Any, wait_for_ready: bool = False) -> Any:
        assert self.channel is not None
        call = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=REPLIES[method].FromString,
        )
        return await call(request, timeout=10.0, wait_for_ready=wait_for_ready)

    def stream(self, method: str = "StreamIsActive") -> Any:
        assert self.channel is not None
        call = self.channel.unary_stream(
            SERVICE + method,
            request_serializer=ScaledObjectRef.SerializeToString,
            response_deserializer=IsActiveResponse.FromString,
        )
        return call(reference(), timeout=20.0)


def reference(**metadata: str) -> ScaledObjectRef:
    return ScaledObjectRef(name="app", namespace="default", scalerMetadata=metadata)


@asynccontextmanager
async def running(again_s: float) -> AsyncIterator[Keda]:
    keda = Keda(again_s)
    await keda.source.start()
    try:
        async with grpc.aio.insecure_channel(keda.source.address) as keda.channel:
            yield keda
    finally:
        await keda.source.close()


def run(scenario: Callable[[Keda], Awaitable[None]], again_s: float = STREAM_AGAIN_S) -> None:
    async def main() -> None:
        async with running(again_s) as keda:
            await scenario(keda)

    uvloop.run(main())


def test_active_from_the_first_request_until_it_was_quiet() -> None:
    async def scenario(keda: Keda) -> None:
        async def is_active() -> bool:
            found: bool = (await keda.ask("IsActive", reference())).result
            return found

        assert not await is_active()
        keda.load(1, requests=1)
        assert await is_active()
        keda.load(0, seconds=5.0)
        assert await is_active()
        keda.clock.pass_time(ACTIVE_S - 5.0)
        assert not await is_active()
        keda.load(0, requests=3)  # came and went between two reports
        assert await is_active()

    run(scenario)


def test_the_first_request_is_pushed() -> None:
    async def scenario(keda: Keda) -> None:
        stream = keda.stream()
        assert (await stream.read()).result is False
        keda.load(1, requests=1)
        assert (await stream.read()).result is True

    run(scenario)


def test_that_it_is_active_is_said_again_while_requests_are_in_line() -> None:
    """KEDA drops a push that it cannot use: before it has made its HorizontalPodAutoscaler, or without its own API."""

    async def scenario(keda: Keda) -> None:
        stream = keda.stream()
        assert (await stream.read()).result is False
        keda.load(0, requests=2, queued=2)
        assert [(await stream.read()).result for _ in range(4)] == [True] * 4
        keda.load(2)
        said = 4
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while said < 10:
                    await stream.read()
                    said += 1
        assert said < 10, "one may have been on its way"

    run(scenario, again_s=0.05)


def test_a_stream_waits_for_its_revision() -> None:
    """KEDA waits twice as long after each error of a stream, up to a minute: an object may be there before its
    revision, and a revision is away while the activator starts."""

    async def scenario(keda: Keda) -> None:
        keda.source.applied([DropRevision(KEY)])
        stream = keda.stream()
        first = asyncio.ensure_future(stream.read())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda.ask("GetMetricSpec", reference())
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND, "its user reads this in the events of the object"
        assert not first.done()
        for _ in range(2):
            keda.source.applied([SetRevision(RevisionSpec(KEY))])
            assert (await first).result is False
            keda.load(1, requests=1)
            assert (await stream.read()).result is True
            keda.source.applied([DropRevision(KEY)])
            first = asyncio.ensure_future(stream.read())
        first.cancel()

    run(scenario)


def test_streams_end_in_order_with_the_server() -> None:
    """Which is all that makes KEDA forget how often it has tried."""

    async def scenario(keda: Keda) -> None:
        streams = [keda.stream() for _ in range(50)]
        for stream in streams:
            await stream.read()
        await keda.source.close()
        for stream in streams:
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() == grpc.StatusCode.OK

    run(scenario)


def test_a_stream_that_is_left_is_forgotten() -> None:
    async def scenario(keda: Keda) -> None:
        streams = [keda.stream() for _ in range(20)]
        for stream in streams:
            await stream.read()
        watchers = keda.source._figures._watchers
        assert len(watchers[KEY]) == 20
        for stream in streams:
            stream.cancel()
        async with asyncio.timeout(10.0):
            while watchers:
                await pause(0.01)

    run(scenario)


def test_one_connection_has_a_stream_for_each_of_many_objects() -> None:
    """KEDA has one connection for all objects with one address; a call that finds no room in it waits for ever."""

    async def scenario(keda: Keda) -> None:
        streams = [keda.stream() for _ in range(300)]
        for stream in streams:
            assert (await stream.read()).result is False
        assert len((await keda.ask("GetMetricSpec", reference())).metricSpecs) == 1
        keda.load(1, requests=1)
        for stream in streams:
            assert (await stream.read()).result is True

    run(scenario)


def test_a_poll_of_keda() -> None:
    """In its order: the specification once, whose name it prefixes with its trigger's number, and without that
    prefix the value each time, then whether it is active; whatever else the trigger's metadata have comes along."""

    async def scenario(keda: Keda) -> None:
        trigger = reference(scalerAddress=keda.source.address, revision="app", enableTLS="false")
        (spec,) = (await keda.ask("GetMetricSpec", trigger)).metricSpecs
        name = f"s0-{spec.metricName}"
        keda.load(1, requests=1)
        for _ in range(3):
            asked = GetMetricsRequest(scaledObjectRef=trigger, metricName=name.removeprefix("s0-"))
            (value,) = (await keda.ask("GetMetrics", asked)).metricValues
            assert value.metricName == spec.metricName and value.metricValueFloat >= 0
            assert (await keda.ask("IsActive", trigger)).result

    run(scenario)


def test_a_method_that_is_not_there_says_so() -> None:
    """StreamMetricSpec is optional: KEDA goes on without it where it is UNIMPLEMENTED, and only there."""

    async def scenario(keda: Keda) -> None:
        stream = keda.stream("StreamMetricSpec")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.read()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED

    run(scenario)


def test_the_target_and_the_load() -> None:
    async def scenario(keda: Keda) -> None:
        (spec,) = (await keda.ask("GetMetricSpec", reference())).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("activator-concurrency", 7, 7.0)
        (spec,) = (await keda.ask("GetMetricSpec", reference(metric="rps", target="2.5"))).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("activator-rps", 3, 2.5)
        for _ in range(300):
            keda.load(30, requests=4, seconds=0.1)
        request = GetMetricsRequest(scaledObjectRef=reference(), metricName="activator-concurrency")
        (value,) = (await keda.ask("GetMetrics", request)).metricValues
        assert value.metricName == "activator-concurrency"
        assert (value.metricValue, value.metricValueFloat) == (30, pytest.approx(30.0))
        request = GetMetricsRequest(scaledObjectRef=reference(metric="rps"), metricName="activator-rps")
        (value,) = (await keda.ask("GetMetrics", request)).metricValues
        assert value.metricValueFloat == pytest.approx(40.0, rel=0.05)

    run(scenario)


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ({"revision": "other"}, grpc.StatusCode.NOT_FOUND, "there is no revision default/other: set `revision`"),
        ({"namespace": "prod"}, grpc.StatusCode.NOT_FOUND, "there is no revision prod/app"),
        ({"metric": "cpu"}, grpc.StatusCode.INVALID_ARGUMENT, "metric: found 'cpu', expected concurrency or rps"),
        ({"target": "0"}, grpc.StatusCode.INVALID_ARGUMENT, "target: found '0', expected a number above 0"),
        ({"target": "many"}, grpc.StatusCode.INVALID_ARGUMENT, "target: found 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_change(
    metadata: dict[str, str], code: grpc.StatusCode, words: str
) -> None:
    async def scenario(keda: Keda) -> None:
        for method in ("IsActive", "GetMetricSpec"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await keda.ask(method, reference(**metadata))
            assert refused.value.code() == code
            assert words in str(refused.value.details())

    run(scenario)


def test_a_request_that_is_too_long_is_refused() -> None:
    async def scenario(keda: Keda) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda.ask("IsActive", reference(revision="x" * (2 * SCALER_REQUEST_BYTES_MAX)))
        assert refused.value.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
        assert not (await keda.ask("IsActive", reference())).result, "the next one is served"

    run(scenario)


def test_a_request_may_be_longer_than_the_window_of_its_stream() -> None:
    async def scenario(keda: Keda) -> None:
        asked = reference(more="x" * (SCALER_REQUEST_BYTES_MAX - 1_000))
        assert not (await keda.ask("IsActive", asked)).result

    run(scenario)


class RawPeer:
    """A connection of HTTP/2 whose frames the test decides on. h2 keeps to the windows that the server grants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.http2 = H2Connection(H2Configuration(client_side=True))
        self.http2.initiate_connection()

    def begin(self, stream: int, method: str = "IsActive") -> None:
        fields = [(":method", "POST"), (":path", SERVICE + method), (":scheme", "http"), (":authority", "a")]
        self.http2.send_headers(stream, [*fields, ("te", "trailers"), ("content-type", "application/grpc")])

    async def exchange(self, wait_s: float) -> list[Event] | None:
        """Send what there is to be sent and return what the server sent meanwhile; None: it has closed."""
        try:
            self.writer.write(self.http2.data_to_send())
            got = await asyncio.wait_for(self._reader.read(1 << 16), wait_s)
            return self.http2.receive_data(got) if got else None
        except TimeoutError:
            return []
        except ConnectionError:
            return None

    async def end_of(self, stream: int) -> dict[str, str]:
        """Return the trailers of a stream."""
        async with asyncio.timeout(20.0):
            while True:
                events = await self.exchange(20.0)
                assert events is not None, "the server has closed the connection"
                for event in events:
                    if isinstance(event, ResponseReceived | TrailersReceived) and event.stream_id == stream:
                        trailers = {bytes(name).decode(): bytes(value).decode() for name, value in event.headers}
                        if "grpc-status" in trailers:
                            return trailers


@asynccontextmanager
async def raw_peer(keda: Keda) -> AsyncIterator[RawPeer]:
    host, _, port = keda.source.address.rpartition(":")
    peer = RawPeer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        peer.writer.close()


def test_a_length_that_is_only_declared_costs_no_memory() -> None:
    """A peer says that 4 GB follow, and sends as much as it may."""

    async def scenario(keda: Keda) -> None:
        async with raw_peer(keda) as peer, asyncio.timeout(10.0):
            peer.begin(1)
            peer.http2.send_data(1, struct.pack(">?I", False, (1 << 32) - 1))
            sent = 0
            ended = False
            while not ended and sent < 1 << 22:
                room = min(peer.http2.local_flow_control_window(1), peer.http2.max_outbound_frame_size)
                if room > 0:
                    peer.http2.send_data(1, bytes(room))
                    sent += room
                events = await peer.exchange(0.05 if room > 0 else 5.0)
                ended = events is None or any(isinstance(one, StreamEnded | StreamReset) for one in events)
            assert ended
            assert sent <= 4 * SCALER_REQUEST_BYTES_MAX

    run(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="no message"),
        pytest.param(struct.pack(">?I", False, 0) * 2, id="two messages"),
        pytest.param(struct.pack(">?I", False, 3) + b"\xff" * 3, id="no protobuf"),
    ],
)
def test_a_request_that_is_none_is_refused_and_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(keda: Keda) -> None:
        async with raw_peer(keda) as peer:
            for stream, method in ((1, "IsActive"), (3, "StreamIsActive")):
                peer.begin(stream, method)
                peer.http2.send_data(stream, sent, end_stream=True)
                trailers = await peer.end_of(stream)
                assert trailers["grpc-status"] == str(grpc.StatusCode.INVALID_ARGUMENT.value[0])
                assert trailers["grpc-message"].startswith("the request ")

    run(scenario)
    assert [record.levelname for record in caplog.records if record.levelname != "INFO"] == []


def test_connections_beyond_the_bound_are_closed() -> None:
    async def scenario(keda: Keda) -> None:
        host, _, port = keda.source.address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(SCALER_CONNECTIONS_MAX)]
        for reader, _ in held:
            assert await reader.read(1), "its settings"
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.wait_for(reader.read(), 10.0)  # until its end
        except ConnectionError:
            pass
        writer.close()
        for _, one in held:
            one.close()
        # The server may still count the closed ones, and close this call's first connection: it is tried again.
        assert not (await keda.ask("IsActive", reference(), wait_for_ready=True)).result

    run(scenario)


def test_the_error_for_a_port_in_use_has_the_remedy() -> None:
    async def scenario(keda: Keda) -> None:
        other = ExternalScalerSource(keda.source.address, keda.clock.now)
        with pytest.raises(StartError, match="the port is in use; stop the other program or choose another address"):
            await other.start()

    run(scenario)


@pytest.mark.parametrize("level", ["", "INFO"])
def test_programs_do_not_inherit_how_grpc_logs_here(level: str) -> None:
    package = "activator.control_plane.sources.external_scaler"
    code = f"import os, {package}; print(os.environ.get('GRPC_VERBOSITY', ''))"
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if level:
        environment["GRPC_VERBOSITY"] = level
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == level
