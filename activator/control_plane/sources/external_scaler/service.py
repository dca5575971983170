"""The gRPC service that KEDA calls, and the port that it is on.

Rules
  1. Which revision is meant stands in the metadata of the trigger: `revision` and `namespace` (by default those of the
     ScaledObject), `metric` (concurrency | rps), `target` (by default the limit of the revision, or 100; rps: 200).
  2. `StreamIsActive` tells at once what is so, and then each change; a first request is pushed without a wait.
  3. A revision that is not known is NOT_FOUND, metadata that make no sense are INVALID_ARGUMENT with what to change.
  4. There are at most SCALER_CONNECTIONS_MAX connections with 100 streams each (h2's own limit), and
     SCALER_REQUEST_BYTES_MAX for each request, which must come within SCALER_READ_TIMEOUT_S.

Source: kedacore/keda pkg/scalers/external_scaler.go, pkg/scalers/externalscaler/externalscaler.proto.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

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

SCALER_CONNECTIONS_MAX: Final = 64  # KEDA has one for each ScaledObject's address
SCALER_REQUEST_BYTES_MAX: Final = 64 * KIB
SCALER_READ_TIMEOUT_S: Final = 5.0
STREAM_LOOK_S: Final = 60.0  # a stream looks so often whether its revision is still there and active
METRIC_NAME: Final = "activator"

_PATH: Final = "/externalscaler.ExternalScaler/"
T = TypeVar("T")


class Asked(NamedTuple):
    """What a trigger's metadata say."""

    key: str
    metric: str
    target: float


class ExternalScaler:
    """The service; grpclib finds the methods by `__mapping__`."""

    def __init__(self, figures: ScalerFigures) -> None:
        self._figures = figures

    def __mapping__(self) -> dict[str, Handler]:
        return {
            _PATH + "IsActive": _unary(self._is_active, ScaledObjectRef, IsActiveResponse),
            _PATH + "StreamIsActive": Handler(
                self._stream_is_active, Cardinality.UNARY_STREAM, ScaledObjectRef, IsActiveResponse
            ),
            _PATH + "GetMetricSpec": _unary(self._get_metric_spec, ScaledObjectRef, GetMetricSpecResponse),
            _PATH + "GetMetrics": _unary(self._get_metrics, GetMetricsRequest, GetMetricsResponse),
        }

    def asked(self, reference: ScaledObjectRef) -> Asked:
        """Raises GRPCError."""
        metadata = reference.scalerMetadata
        namespace, name = metadata.get("namespace") or reference.namespace, metadata.get("revision") or reference.name
        key = f"{namespace}/{name}"
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
        return Asked(key, metric, target)

    async def _is_active(self, reference: ScaledObjectRef) -> IsActiveResponse:
        return IsActiveResponse(result=self._figures.active_for_s(self.asked(reference).key) > 0.0)

    async def _get_metric_spec(self, reference: ScaledObjectRef) -> GetMetricSpecResponse:
        asked = self.asked(reference)
        name = f"{METRIC_NAME}-{asked.metric}"
        whole = max(math.ceil(asked.target), 1)
        spec = MetricSpec(metricName=name, targetSize=whole, targetSizeFloat=asked.target)
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def _get_metrics(self, request: GetMetricsRequest) -> GetMetricsResponse:
        asked = self.asked(request.scaledObjectRef)
        value = self._figures.value(asked.key, asked.metric)
        told = MetricValue(metricName=request.metricName, metricValue=math.ceil(value), metricValueFloat=value)
        return GetMetricsResponse(metricValues=[told])

    async def _stream_is_active(self, stream: Stream[ScaledObjectRef, IsActiveResponse]) -> None:
        key = self.asked(await _received(stream)).key
        changed = asyncio.Event()
        told: bool | None = None
        self._figures.watch(key, changed)
        try:
            while self._figures.knows(key):
                changed.clear()
                active_for_s = self._figures.active_for_s(key)
                if (active_for_s > 0.0) is not told:
                    told = active_for_s > 0.0
                    await stream.send_message(IsActiveResponse(result=told))
                await wait_for(changed, min(active_for_s or STREAM_LOOK_S, STREAM_LOOK_S))
        finally:
            self._figures.unwatch(key, changed)
        raise GRPCError(Status.NOT_FOUND, f"the revision {key} is gone")


class ExternalScalerServer:
    """The port."""

    def __init__(self, figures: ScalerFigures) -> None:
        config = Configuration(
            http2_connection_window_size=SCALER_REQUEST_BYTES_MAX, http2_stream_window_size=SCALER_REQUEST_BYTES_MAX
        )
        self._server = _BoundedServer([ExternalScaler(figures)], config=config)

    async def start(self, address: str) -> str:
        """The address as bound. Raises StartError."""
        sock = bind(address)
        await self._server.start(sock=sock)
        return address_of(sock)

    async def close(self) -> None:
        self._server.close()
        for transport in list(self._server.transports):
            transport.close()
        await self._server.wait_closed()
        await pause(0.0)  # in which the transports close their sockets


class _BoundedServer(Server):
    """Knows its connections, which grpclib's leaves open when it is closed."""

    def __init__(self, handlers: list[ExternalScaler], config: Configuration) -> None:
        super().__init__(handlers, config=config)
        self.transports: set[asyncio.Transport] = set()

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return _BoundedProtocol(self, made)


class _BoundedProtocol(H2Protocol):
    """grpclib has no bound of its own: neither for connections nor for the length that a request declares."""

    def __init__(self, server: _BoundedServer, made: H2Protocol) -> None:
        super().__init__(made.handler, made.config, made.h2_config)
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._transport = transport
        self._server.transports.add(transport)
        if len(self._server.transports) > SCALER_CONNECTIONS_MAX:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        streams = self.processor.streams.values()
        if self._transport is not None and any(one.data_received > SCALER_REQUEST_BYTES_MAX for one in streams):
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._transport is not None:
            self._server.transports.discard(self._transport)
        super().connection_lost(exc)


def _unary(answer: Callable[[Any], Awaitable[Any]], request: type, reply: type) -> Handler:
    async def handle(stream: Stream[Any, Any]) -> None:
        await stream.send_message(await answer(await _received(stream)))

    return Handler(handle, Cardinality.UNARY_UNARY, request, reply)


async def _received(stream: Stream[T, Any]) -> T:
    try:
        async with asyncio.timeout(SCALER_READ_TIMEOUT_S):
            message = await stream.recv_message()
    except TimeoutError as error:
        raise GRPCError(Status.DEADLINE_EXCEEDED, "the request did not come") from error
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
