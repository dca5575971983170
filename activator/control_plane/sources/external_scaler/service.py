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
     connection for all objects with one address. A request has at most SCALER_REQUEST_BYTES_MAX, and must have arrived
     with its end within SCALER_READ_TIMEOUT_S; afterwards the peer of a stream can send nothing on it.
  5. gRPC bounds peers in threads of its own (`_bounds`), so that their bytes cost the loop nothing until they are
     a call. It is imported where the port is served and nowhere else: a process with its threads must not fork.

Source: kedacore/keda pkg/scalers/external_scaler.go, pkg/scalers/externalscaler/externalscaler.proto.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message

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
from activator.runtime.errors import StartError
from activator.runtime.sockets import address_of, bind
from activator.runtime.tasks import wait_for
from activator.runtime.units import KIB

SCALER_CONNECTIONS_MAX: Final = 64  # each KEDA instance has one
SCALER_STREAMS_MAX: Final = 5_000  # per connection: one for each ScaledObject, and the running calls
SCALER_REQUEST_BYTES_MAX: Final = 64 * KIB
SCALER_READ_TIMEOUT_S: Final = 5.0
SCALER_HANDSHAKE_S: Final = 5.0  # until a connection has HTTP/2's settings
SCALER_IDLE_S: Final = 300.0  # a connection without a call is closed; KEDA connects again for its next one
SCALER_ALIVE_S: Final = 60.0  # between two pings of a quiet connection, and until one without an answer is closed
SCALER_CLOSE_S: Final = 1.0  # for the streams to end normally; the others are cancelled
STREAM_CHECK_S: Final = 60.0  # between two checks of a stream's revision
STREAM_AGAIN_S: Final = 5.0  # between two repeated messages while requests are queued
METRIC_NAME: Final = "activator"

_SERVICE: Final = "externalscaler.ExternalScaler"
_WINDOW_BYTES: Final = 4 * KIB  # what a stream may send before it is read: nearly all requests are shorter
T = TypeVar("T", bound=Message)


class Query(NamedTuple):
    """The metadata of a trigger, resolved."""

    key: str
    metric: str
    target: float


class RefusedCallError(Exception):
    """A call that is answered with an error of gRPC."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ExternalScaler:
    """The service, whose methods are in `handlers`."""

    def __init__(self, figures: ScalerFigures, again_s: float = STREAM_AGAIN_S) -> None:
        self._figures = figures
        self._again_s = again_s
        self._is_closing = False

    def handlers(self) -> grpc.GenericRpcHandler:
        methods = {
            "IsActive": _unary(self._is_active, ScaledObjectRef),
            "StreamIsActive": _handler(self._stream_is_active),
            "GetMetricSpec": _unary(self._get_metric_spec, ScaledObjectRef),
            "GetMetrics": _unary(self._get_metrics, GetMetricsRequest),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    def close(self) -> None:
        """Make the streams end normally."""
        self._is_closing = True
        self._figures.wake_all()

    def resolve_query(self, reference: ScaledObjectRef) -> Query:
        """Resolve the metadata of a trigger; raise RefusedCallError if they are invalid."""
        metadata, key = reference.scalerMetadata, _key(reference)
        metric = metadata.get("metric") or METRIC_CONCURRENCY
        if metric not in SCALING_METRICS:
            raise _invalid(f"metric: found {metric!r}, expected {' or '.join(SCALING_METRICS)}")
        if not self._figures.begin_figures(key):
            advice = "set `revision` and `namespace` in the metadata of the trigger"
            raise RefusedCallError(grpc.StatusCode.NOT_FOUND, f"there is no revision {key}: {advice}")
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
        metric_value = MetricValue(metricName=request.metricName, metricValue=math.ceil(value), metricValueFloat=value)
        return GetMetricsResponse(metricValues=[metric_value])

    async def _stream_is_active(self, call: grpc.aio.ServicerContext) -> None:
        key = _key(await _received(call, ScaledObjectRef))
        changed = asyncio.Event()
        sent: bool | None = None
        self._figures.watch(key, changed)
        try:
            while not self._is_closing:
                changed.clear()
                active_for_s = self._figures.active_for_s(key)
                is_active = active_for_s > 0.0
                if not self._figures.knows(key):
                    sent = None
                elif is_active is not sent or self._figures.has_queued(key):
                    sent = is_active
                    await call.write(IsActiveResponse(result=is_active).SerializeToString())
                check_s = self._again_s if self._figures.has_queued(key) else STREAM_CHECK_S
                await wait_for(changed, min(active_for_s or check_s, check_s))
        finally:
            self._figures.unwatch(key, changed)


class ExternalScalerServer:
    """The server with its port."""

    def __init__(self, figures: ScalerFigures, again_s: float = STREAM_AGAIN_S) -> None:
        self._service = ExternalScaler(figures, again_s)
        self._server = grpc.aio.server(options=_bounds())
        self._server.add_generic_rpc_handlers((self._service.handlers(),))

    async def start(self, address: str) -> str:
        """Bind and serve; return the bound address. Raise StartError."""
        with bind(address) as sock:  # its error has the cause and the remedy, unlike gRPC's
            bound = address_of(sock)
        try:
            self._server.add_insecure_port(bound)
        except RuntimeError as error:
            raise StartError(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        return bound

    async def close(self) -> None:
        self._service.close()
        await self._server.stop(SCALER_CLOSE_S)


def _bounds() -> list[tuple[str, int]]:
    """Return the options of gRPC that bound its peers (grpc/impl/channel_arg_names.h)."""
    return [
        ("grpc.so_reuseport", 0),  # otherwise a second program could listen on the same port
        ("grpc.max_allowed_incoming_connections", SCALER_CONNECTIONS_MAX),
        ("grpc.server_handshake_timeout_ms", _ms(SCALER_HANDSHAKE_S)),
        ("grpc.http2.settings_timeout", _ms(SCALER_HANDSHAKE_S)),
        ("grpc.max_connection_idle_ms", _ms(SCALER_IDLE_S)),
        ("grpc.keepalive_time_ms", _ms(SCALER_ALIVE_S)),
        ("grpc.keepalive_timeout_ms", _ms(SCALER_ALIVE_S)),
        ("grpc.max_concurrent_streams", SCALER_STREAMS_MAX),
        # All streams of a connection may begin at once; by default gRPC refuses some of more than a thousand.
        ("grpc.server.max_pending_requests", SCALER_STREAMS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", SCALER_STREAMS_MAX),
        ("grpc.max_receive_message_length", SCALER_REQUEST_BYTES_MAX),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # would make the window grow
    ]


def _ms(seconds: float) -> int:
    return int(seconds * 1e3)


def _key(reference: ScaledObjectRef) -> str:
    metadata = reference.scalerMetadata
    return f"{metadata.get('namespace') or reference.namespace}/{metadata.get('revision') or reference.name}"


def _unary(answer: Callable[[Any], Awaitable[Message]], request: type[Message]) -> grpc.RpcMethodHandler:
    async def serve(call: grpc.aio.ServicerContext) -> None:
        reply = await answer(await _received(call, request))
        await call.write(reply.SerializeToString())

    return _handler(serve)


def _handler(serve: Callable[[grpc.aio.ServicerContext], Awaitable[None]]) -> grpc.RpcMethodHandler:
    """Return the handler of a method, which reads the request itself: gRPC would wait for it without a bound."""

    async def handle(requests: object, call: grpc.aio.ServicerContext) -> None:
        try:
            await serve(call)
        except RefusedCallError as refused:
            await call.abort(refused.code, refused.text)

    return grpc.stream_stream_rpc_method_handler(handle)


async def _received(call: grpc.aio.ServicerContext, request: type[T]) -> T:
    """Return the request of a call when it has arrived with its end; raise RefusedCallError."""
    try:
        async with asyncio.timeout(SCALER_READ_TIMEOUT_S):
            data = await call.read()
            is_whole = data is not grpc.aio.EOF and await call.read() is grpc.aio.EOF
    except TimeoutError as error:
        raise RefusedCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time") from error
    if not is_whole:
        raise _invalid("the request has no message, or several")
    try:
        return request.FromString(data)
    except DecodeError as error:
        raise _invalid(f"the request is no {request.DESCRIPTOR.name}") from error


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise _invalid(f"target: found {text!r}, expected a number above 0")
    return number


def _invalid(problem: str) -> RefusedCallError:
    return RefusedCallError(grpc.StatusCode.INVALID_ARGUMENT, problem)
