"""KEDA's calls to the program itself: its own process, its own event loop, and gRPC's own client."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, SettingsFrame

from activator.control_plane.scaling.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from activator.control_plane.sources.external_scaler.service import (
    SCALER_CONNECTIONS_MAX,
    SCALER_HANDSHAKE_S,
    SCALER_READ_TIMEOUT_S,
    SCALER_REQUEST_BYTES_MAX,
)
from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.conftest import next_net
from tests.e2e.running import PATIENCE_S, Activator, eventually
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


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[Activator, str]]:
    """An activator with two workers, and the address for KEDA."""
    cluster = ActivationCluster(tmp_path, next_net())
    try:
        activator = cluster.activator(workers=2, kubernetes={"external_scaler": {"listen": "127.0.0.1:0"}})
        yield activator, activator.wait_log(r"the external scaler for KEDA listens on (\S+)")
        activator.close()
    finally:
        cluster.close()


def is_answered(address: str) -> bool:
    """KEDA's call is answered, with what it should be without a revision."""
    own_pool = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=own_pool) as channel:
        try:
            call(channel, "IsActive", OBJECT, IsActiveResponse)
        except grpc.RpcError as error:
            found: bool = error.code() is grpc.StatusCode.NOT_FOUND
            return found
    return False


def connect(address: str, *frames: Any) -> socket.socket:
    """A connection that has begun with HTTP/2's preface and these frames."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), PATIENCE_S)
    if frames:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frame.serialize() for frame in frames))
    return sock


def read_all(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass


def test_connections_that_send_nothing_do_not_keep_keda_out(serving: tuple[Activator, str]) -> None:
    activator, address = serving
    before = len(os.listdir(f"/proc/{activator.process.pid}/fd"))
    silent = [connect(address) for _ in range(10 * SCALER_CONNECTIONS_MAX)]
    assert len(os.listdir(f"/proc/{activator.process.pid}/fd")) <= before + SCALER_CONNECTIONS_MAX + 16
    eventually(lambda: is_answered(address), timeout_s=SCALER_HANDSHAKE_S + PATIENCE_S)
    for sock in silent:
        sock.close()


def test_a_request_that_trickles_has_its_time(serving: tuple[Activator, str]) -> None:
    _, address = serving
    fields = [(":method", "POST"), (":path", SERVICE + "StreamIsActive"), (":scheme", "http"), (":authority", "a")]
    head = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in [*fields, ("te", "trailers"), ("content-type", "application/grpc")]
    )
    begun = HeadersFrame(1, head, flags=["END_HEADERS"])
    declared = DataFrame(1, struct.pack(">?I", False, SCALER_REQUEST_BYTES_MAX))
    with connect(address, SettingsFrame(0), SettingsFrame(0, flags=["ACK"]), begun, declared) as sock:
        sock.settimeout(0.2)
        received = b""
        for _ in range(round((SCALER_READ_TIMEOUT_S + PATIENCE_S) / 0.2)):
            sock.sendall(DataFrame(1, b"x").serialize())
            try:
                received += sock.recv(1 << 16)
            except TimeoutError:
                pass
            if b"the request did not arrive in time" in received:
                break
        assert b"the request did not arrive in time" in received
    assert is_answered(address)


@pytest.mark.deep
def test_nothing_that_a_peer_sends_is_written_to_our_log(serving: tuple[Activator, str]) -> None:
    activator, address = serving
    for _ in range(5):
        said = GoAwayFrame(0, last_stream_id=0, error_code=2, additional_data=b"made\nup")
        with connect(address, SettingsFrame(0), said, DataFrame(1, b"made up")) as sock:
            read_all(sock)
        with connect(address) as sock:
            sock.sendall(b"GET /made-up HTTP/1.1\r\n\r\n")
            read_all(sock)
    assert is_answered(address)
    assert "made" not in activator.text()


def test_the_threads_of_grpc_are_never_forked(serving: tuple[Activator, str]) -> None:
    """Workers come from a process that has not loaded it, also those that replace others while it serves."""
    activator, address = serving

    def with_grpc() -> list[int]:
        return [pid for pid in activator.processes() if "cygrpc" in Path(f"/proc/{pid}/maps").read_text("utf-8")]

    assert is_answered(address)
    assert with_grpc() == [activator.process.pid]
    former = set(activator.processes())
    (worker, *_) = (one["pid"] for one in json.loads(activator.ask("/debug/revisions")[2])["workers"])
    os.kill(worker, signal.SIGKILL)
    activator.may_log_errors = True  # of the worker that was killed
    eventually(lambda: set(activator.processes()) - former, "another worker")
    assert is_answered(address)
    assert with_grpc() == [activator.process.pid]


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
