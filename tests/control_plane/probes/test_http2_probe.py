"""Probes of pods that speak HTTP/2 only: a path, and gRPC's health service, against servers that are not ours."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activator.config.file import readiness_probe
from activator.config.model.programs import Process, Readiness
from activator.config.model.revision import Revision
from activator.config.specs import ProbeSpec
from activator.control_plane.probes.grpc_health import check_request, problem_with
from activator.control_plane.probes.http2_exchange import NOT_HTTP2, Http2Answer
from activator.control_plane.probes.probe import ProbeOutcome, ProbeRequest, probe_once
from activator.runtime.local_listeners import Listening, listening
from bench.processes import find_program
from tests.control_plane.probes.test_probe import Pod

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")

LONG_S = 30.0
NGHTTPD = find_program("nghttpd")
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
STATUSES = {b"": SERVING, b"\x0a\x05ready": SERVING, b"\x0a\x04busy": NOT_SERVING}


def _check(request: bytes, context: Any) -> bytes:
    status = STATUSES.get(request)
    if status is None:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
    assert status is not None
    return status


@pytest.fixture(scope="module")
def health_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(_check)  # messages as bytes: no generated classes
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def asked(address: str, probe: ProbeSpec) -> tuple[ProbeOutcome, list[str]]:
    request = ProbeRequest(address, probe)
    return asyncio.run(probe_once(request, LONG_S)), request.causes


@pytest.mark.parametrize("service", ["", "ready"])
def test_a_service_that_serves(health_server: str, service: str) -> None:
    assert asked(health_server, ProbeSpec("grpc", service=service)) == (ProbeOutcome.ANSWERED, [])


@pytest.mark.parametrize(
    ("service", "cause"), [("busy", "it is NOT_SERVING"), ("unknown", "grpc-status 5: no such service")]
)
def test_a_service_that_does_not(health_server: str, service: str, cause: str) -> None:
    assert asked(health_server, ProbeSpec("grpc", service=service)) == (ProbeOutcome.REFUSED, [cause])


def test_a_server_without_the_health_service() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    found, causes = asked(f"127.0.0.1:{port}", ProbeSpec("grpc"))
    server.stop(None)
    assert found is ProbeOutcome.REFUSED
    assert causes[0].startswith("grpc-status 12 (it has no health service)")


def test_a_pod_that_speaks_http_1_1() -> None:
    async def main() -> tuple[ProbeOutcome, list[str]]:
        async with Pod(lambda head: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as pod:
            request = ProbeRequest(pod.address, ProbeSpec("grpc"))
            return await probe_once(request, LONG_S), request.causes

    assert asyncio.run(main()) == (ProbeOutcome.REFUSED, [NOT_HTTP2])


@pytest.mark.skipif(NGHTTPD is None, reason="nghttpd is not installed")
def test_a_path_of_a_pod_that_speaks_http_2_only(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("yes")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert NGHTTPD is not None
    command = [NGHTTPD, "--no-tls", "-a", "127.0.0.1", "-d", str(tmp_path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while listening("127.0.0.1", port) is not Listening.YES:
                assert server.poll() is None
            assert asked(f"127.0.0.1:{port}", ProbeSpec("http", "/ready", http2=True)) == (ProbeOutcome.ANSWERED, [])
            found = asked(f"127.0.0.1:{port}", ProbeSpec("http", "/other", http2=True))
            assert found == (ProbeOutcome.REFUSED, ["it answered the probe with 404"])
        finally:
            server.terminate()


def test_answers_that_are_none() -> None:
    answer = Http2Answer()
    assert problem_with(answer) == "it answered the probe with nothing"
    answer.problem = "it closed the connection"
    assert problem_with(answer) == "it closed the connection"
    head, body = check_request("10.0.0.1:50051", "a.B")
    assert (head.method, head.authority, body) == (b"POST", b"10.0.0.1:50051", b"\0\0\0\0\x05\x0a\x03a.B")


@pytest.mark.parametrize(
    ("protocol", "readiness", "probe"),
    [
        ("auto", Readiness(), ProbeSpec()),
        ("auto", Readiness("/up"), ProbeSpec("http", "/up")),
        ("h2c", Readiness("/up"), ProbeSpec("http", "/up", http2=True)),
        ("h2c", Readiness(grpc=""), ProbeSpec("grpc", http2=True)),
        ("h2c", Readiness(grpc="a.B"), ProbeSpec("grpc", http2=True, service="a.B")),
    ],
)
def test_how_a_process_is_asked(protocol: str, readiness: Readiness, probe: ProbeSpec) -> None:
    process = Process(["server"], readiness=readiness)
    assert readiness_probe(Revision("a", hosts=["*"], process=process, protocol=protocol)) == probe
