"""KEDA's calls to the program itself: its own process, its own event loop, and gRPC's own client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from activator.control_plane.scaling.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.conftest import next_net
from tests.e2e.running import PATIENCE_S
from tests.e2e.story_cluster import ask

SERVICE = "/externalscaler.ExternalScaler/"
OBJECT = ScaledObjectRef(name="hello", namespace="default", scalerMetadata={"target": "4"})


def call(channel: Any, method: str, request: Any, reply: type) -> Any:
    asks = channel.unary_unary(
        SERVICE + method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=reply.FromString,  # type: ignore[attr-defined]
    )
    return asks(request, timeout=PATIENCE_S, wait_for_ready=False)


def test_keda_scales_from_zero(tmp_path: Path) -> None:
    cluster = ActivationCluster(tmp_path, next_net())
    try:
        cluster.deploy()
        cluster.declare(externalScaler=True)
        activator = cluster.activator(kubernetes={"external_scaler": {"listen": "127.0.0.1:0"}})
        address = activator.wait_log(r"the external scaler for KEDA listens on (\S+)")
        with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(1) as pool:
            (spec,) = call(channel, "GetMetricSpec", OBJECT, GetMetricSpecResponse).metricSpecs
            assert (spec.metricName, spec.targetSizeFloat) == ("activator-concurrency", 4.0)
            assert call(channel, "IsActive", OBJECT, IsActiveResponse).result is False
            stream = channel.unary_stream(
                SERVICE + "StreamIsActive",
                request_serializer=ScaledObjectRef.SerializeToString,
                response_deserializer=IsActiveResponse.FromString,
            )(OBJECT, timeout=PATIENCE_S)
            assert next(stream).result is False
            waiting = pool.submit(ask, activator)
            assert next(stream).result is True, "the first request is pushed"
            cluster.edit("deployments", "hello", {"spec": {"replicas": 1}}, "keda")
            assert waiting.result(PATIENCE_S)[0] == 200
            asked = GetMetricsRequest(scaledObjectRef=OBJECT, metricName=spec.metricName)
            (value,) = call(channel, "GetMetrics", asked, GetMetricsResponse).metricValues
            assert value.metricValueFloat > 0.0
            stream.cancel()
        activator.close()
    finally:
        cluster.close()
