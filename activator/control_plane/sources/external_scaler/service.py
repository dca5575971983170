"""The gRPC service that KEDA calls, and its port.

Rules
  1. The metadata of the trigger name the revision: `revision` and `namespace` (by default those of the ScaledObject),
     `metric` (concurrency | rps), `target` (by default the limit of the revision, or 100; rps: 200).
  2. `StreamIsActive` sends the present state at once, and then each change; a first request is pushed immediately.
     While requests are queued the state is sent repeatedly: KEDA drops a message that it cannot use yet, and asks by
     itself only every half minute.
  3. An unknown revision is NOT_FOUND; invalid metadata are INVALID_ARGUMENT with what to change. A stream waits for its
     revision, and ends normally with the server: after an error KEDA doubles its pause, up to a minute, and only a
     normal end resets it.
  4. There are at most SCALER_CONNECTIONS_MAX connections with SCALER_STREAMS_MAX streams each, because KEDA has one
     connection for all objects with one address. A request has at most SCALER_REQUEST_BYTES_MAX and must arrive within
     SCALER_READ_TIMEOUT_S.

Source: kedacore/keda pkg/scalers/external_scaler.go, pkg/scalers/externalscaler/externalscaler.proto.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import AbstractHandler, Connection, EventsProcessor, H2Protocol
from grpclib.server import Server, Stream
from h2.events import DataReceived
from h2.settings import SettingCodes

from activator.config.model.scaling import (
    METRIC_CONCURRENCY,
    METRIC_RPS,
    SCALING_METRICS,
    TARGET_CONCURRENCY,
    TARGET_RPS,
)
from activator.control_plane.scaling.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from activator.control_plane.sources.external_scaler.figures import ScalerFigures
from activator.runtime.sockets import address_of, bind
from activator.runtime.tasks import pause, wait_for
from activator.runtime.units import KIB

SCALER_CONNECTIONS_MAX: Final = 64  # each KEDA instance has one
SCALER_STREAMS_MAX: Final = 5_000  # per connection: one for each ScaledObject, and the running calls
SCALER_REQUEST_BYTES_MAX: Final = 64 * KIB
SCALER_READ_TIMEOUT_S: Final = 5.0
SCALER_CLOSE_S: Final = 1.0  # for the streams to end normally
STREAM_LOOK_S: Final = 60.0  # between two checks of a stream's revision
STREAM_AGAIN_S: Final = 5.0  # between two repeated messages while requests are queued
METRIC_NAME: Final = "activator"

_PATH: Final = "/externalscaler.ExternalScaler/"
T = TypeVar("T")


class Query(NamedTuple):
    """The metadata of a trigger, resolved."""

    key: str
    metric: str
    target: float


class ExternalScaler:
    """The service; grpclib finds the methods by `__mapping__`."""

    def __init__(self, figures: ScalerFigures, again_s: float = STREAM_AGAIN_S) -> None:
        self._figures = figures
        self._again_s = again_s
        self._streams = 0
        self._is_closing = False
        self._all_ended = asyncio.Event()

    def __mapping__(self) -> dict[str, Handler]:
        return {
            _PATH + "IsActive": _unary(self._is_active, ScaledObjectRef, IsActiveResponse),
            _PATH + "StreamIsActive": Handler(
                self._stream_is_active, Cardinality.UNARY_STREAM, ScaledObjectRef, IsActiveResponse
            ),
            _PATH + "GetMetricSpec": _unary(self._get_metric_spec, ScaledObjectRef, GetMetricSpecResponse),
            _PATH + "GetMetrics": _unary(self._get_metrics, GetMetricsRequest, GetMetricsResponse),
        }

    async def close(self) -> None:
        """End the streams normally, as far as possible within SCALER_CLOSE_S."""
        self._is_closing = True
        self._all_ended.clear()
        self._figures.wake_all()
        if self._streams:
            await wait_for(self._all_ended, SCALER_CLOSE_S)

    def resolve_query(self, reference: ScaledObjectRef) -> Query:
        """Resolve the metadata of a trigger; raise GRPCError if they are invalid."""
        metadata, key = reference.scalerMetadata, _key(reference)
        metric = metadata.get("metric") or METRIC_CONCURRENCY
        if metric not in SCALING_METRICS:
            raise _invalid(f"metric: found {metric!r}, expected {' or '.join(SCALING_METRICS)}")
        if not self._figures.ask(key):
            advice = "set `revision` and `namespace` in the metadata of the trigger"
            raise GRPCError(Status.NOT_FOUND, f"there is no revision {key}: {advice}")
        target = float(TARGET_RPS)
        if metric != METRIC_RPS:
            target = float(self._figures.container_concurrency(key) or TARGET_CONCURRENCY)
        if "target" in metadata:
            target = _number(metadata["target"])
        return Query(key, metric, target)

    async def _is_active(self, reference: ScaledObjectRef) -> IsActiveResponse:
        return IsActiveResponse(result=self._figures.active_for_s(self.resolve_query(reference).key) > 0.0)

    async def _get_metric_spec(self, reference: ScaledObjectRef) -> GetMetricSpecResponse:
        query = self.resolve_query(reference)
        name = f"{METRIC_NAME}-{query.metric}"
        whole = max(math.ceil(query.target), 1)
        spec = MetricSpec(metricName=name, targetSize=whole, targetSizeFloat=query.target)
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def _get_metrics(self, request: GetMetricsRequest) -> GetMetricsResponse:
        query = self.resolve_query(request.scaledObjectRef)
        value = self._figures.value(query.key, query.metric)
        found = MetricValue(metricName=request.metricName, metricValue=math.ceil(value), metricValueFloat=value)
        return GetMetricsResponse(metricValues=[found])

    async def _stream_is_active(self, stream: Stream[ScaledObjectRef, IsActiveResponse]) -> None:
        key = _key(await _received(stream))
        changed = asyncio.Event()
        sent: bool | None = None
        self._figures.watch(key, changed)
        self._streams += 1
        try:
            while not self._is_closing:
                changed.clear()
                active_for_s = self._figures.active_for_s(key)
                is_active = active_for_s > 0.0
                if not self._figures.knows(key):
                    sent = None
                elif is_active is not sent or self._figures.waits(key):
                    sent = is_active
                    await stream.send_message(IsActiveResponse(result=is_active))
                look_s = self._again_s if self._figures.waits(key) else STREAM_LOOK_S
                await wait_for(changed, min(active_for_s or look_s, look_s))
        finally:
            self._figures.unwatch(key, changed)
            self._streams -= 1
            if not self._streams:
                self._all_ended.set()


class ExternalScalerServer:
    """The server with its port."""

    def __init__(self, figures: ScalerFigures, again_s: float = STREAM_AGAIN_S) -> None:
        config = Configuration(
            http2_connection_window_size=SCALER_REQUEST_BYTES_MAX, http2_stream_window_size=SCALER_REQUEST_BYTES_MAX
        )
        self._service = ExternalScaler(figures, again_s)
        self._server = _BoundedServer([self._service], config=config)

    async def start(self, address: str) -> str:
        """Bind and serve; return the bound address. Raise StartError."""
        sock = bind(address)
        await self._server.start(sock=sock)
        return address_of(sock)

    async def close(self) -> None:
        await self._service.close()
        self._server.close()  # cancels running calls
        for transport in list(self._server.transports):
            transport.close()
        await self._server.wait_closed()
        await pause(0.0)  # lets the transports close their sockets


class _BoundedServer(Server):
    """A server that tracks its connections, which grpclib's leaves open when it is closed."""

    def __init__(self, handlers: list[ExternalScaler], config: Configuration) -> None:
        super().__init__(handlers, config=config)
        self.transports: set[asyncio.Transport] = set()

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return _BoundedProtocol(self, made)


class _BoundedProtocol(H2Protocol):
    """A protocol with bounds; grpclib bounds neither connections nor the declared length of a request."""

    def __init__(self, server: _BoundedServer, made: H2Protocol) -> None:
        super().__init__(made.handler, made.config, made.h2_config)
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        stream = self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._server.transports.add(stream)
        if len(self._server.transports) > SCALER_CONNECTIONS_MAX:
            stream.abort()
        self.processor = _BoundedProcessor(self.handler, self.connection, stream)
        self.connection._connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: SCALER_STREAMS_MAX})
        self.connection.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._transport is not None:
            self._server.transports.discard(self._transport)
        super().connection_lost(exc)


class _BoundedProcessor(EventsProcessor):
    """A processor that bounds the received bytes of a request, whatever length it declares."""

    def __init__(self, handler: AbstractHandler, connection: Connection, transport: asyncio.Transport) -> None:
        super().__init__(handler, connection)
        self._transport = transport

    def process_data_received(self, event: DataReceived) -> None:
        super().process_data_received(event)
        stream = self.streams.get(event.stream_id)
        if stream is not None and stream.data_received > SCALER_REQUEST_BYTES_MAX:
            self._transport.abort()


def _key(reference: ScaledObjectRef) -> str:
    metadata = reference.scalerMetadata
    return f"{metadata.get('namespace') or reference.namespace}/{metadata.get('revision') or reference.name}"


def _unary(answer: Callable[[Any], Awaitable[Any]], request: type, reply: type) -> Handler:
    async def handle(stream: Stream[Any, Any]) -> None:
        await stream.send_message(await answer(await _received(stream)))

    return Handler(handle, Cardinality.UNARY_UNARY, request, reply)


async def _received(stream: Stream[T, Any]) -> T:
    try:
        async with asyncio.timeout(SCALER_READ_TIMEOUT_S):
            message = await stream.recv_message()
    except TimeoutError as error:
        raise GRPCError(Status.DEADLINE_EXCEEDED, "the request did not arrive in time") from error
    if message is None:
        raise _invalid("the request has no message")
    return message


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise _invalid(f"target: found {text!r}, expected a number above 0")
    return number


def _invalid(what: str) -> GRPCError:
    return GRPCError(Status.INVALID_ARGUMENT, what)
