"""gRPC through the activator: foreign libraries as clients and servers, and what a proxy owes to gRPC itself."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.grpc_calls import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    UNAVAILABLE,
    UNIMPLEMENTED,
    begin,
    call,
    framed,
    messages,
    outcome,
    start,
)
from tests.e2e.http2_client import Http2Client
from tests.e2e.http2_pods import Http2Pod, PodStream
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import (
    PROGRAMS,
    Activator,
    configured,
    environment,
    eventually,
    figures,
    gated,
    process_revision,
)
from tests.e2e.test_e2e_tls import Files
from tests.http2.grpc_processes import PROGRAM, ask, serving
from tests.http2.grpc_program import LIBRARIES
from tests.http2.grpc_service import CASES, CLIENT_STREAM, DUPLEX, SERVER_STREAM, UNARY, message, size_of

# grpclib's server answers what it does not know without a content-type, and grpclib's client insists on one.
KNOWN = {("grpclib", "grpclib"): {"unimplemented_method", "unimplemented_service"}}


@pytest.fixture(autouse=True, scope="module")
def libraries(need: Callable[[bool, str], None]) -> None:
    for package in ("grpc", "grpclib"):
        need(importlib.util.find_spec(package) is not None, f"the Python package {package}")


def revision(address: str, **more: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "pods": [address], "protocol": "h2c", **more}


def started(run_activator: RunActivator, address: str, **more: Any) -> Activator:
    activator = run_activator(configured([revision(address, **more)]))
    activator.wait_ready_pods("a")
    return activator


async def echo(stream: PodStream) -> None:
    """A gRPC server that sends each message back, until the client ends."""
    stream.head(200, [("content-type", "application/grpc")])
    while (data := await stream.chunk()) is not None:
        await stream.send(data)
    stream.end([("grpc-status", "0")])


async def holding(stream: PodStream) -> None:
    """Answers nothing until the test says `release`."""
    body = await stream.body()
    while not stream.connection.pod.released.is_set():  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0.005)
    stream.head(200, [("content-type", "application/grpc")])
    await stream.send(body)
    stream.end([("grpc-status", "0")])


# --- the interop cases ---


@pytest.fixture(scope="module", params=LIBRARIES)
def interop(
    request: pytest.FixtureRequest, run_shared_activator: RunActivator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Activator, Files]]:
    """The library of the server, and the activator before it, with a listener in the clear and one with TLS."""
    files = Files(tmp_path_factory.mktemp("tls"))
    with serving(request.param) as port:
        activator = run_shared_activator(
            configured([revision(f"127.0.0.1:{port}")], listen=["127.0.0.1:0", files.listener()])
        )
        activator.wait_ready_pods("a")
        yield request.param, activator, files
        activator.wait_idle()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", LIBRARIES)
def test_interop(interop: tuple[str, Activator, Files], client: str, tls: bool) -> None:
    server, activator, files = interop
    second = activator.wait_log(r" serving on (\S+ \S+)").split(", ")[1]
    port = second.split("/")[0].rpartition(":")[2]
    found = ask(client, f"localhost:{port}" if tls else activator.address, ca=files.authority if tls else None)
    assert tuple(found) == CASES
    known = KNOWN.get((client, server), set())
    assert {case: problem for case, problem in found.items() if problem and case not in known} == {}


def test_a_server_with_tls(run_activator: RunActivator, tmp_path: Path) -> None:
    """`protocol: h2`: the pod sees https."""
    files = Files(tmp_path, "pod.test")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    with Http2Pod(echo, tls=context) as pod:
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        activator = started(run_activator, pod.address, protocol="h2", tls=tls)
        with Http2Client(activator.address) as client:
            assert call(client, DUPLEX, b"one", b"two").answers == [b"one", b"two"]
        (stream,) = pod.requests
        assert (stream.header(":scheme"), stream.header("te")) == ("https", "trailers")


# --- from zero ---


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_kinds_of_calls_start_the_server(run_activator: RunActivator, tmp_path: Path, library: str) -> None:
    """All wait for one start, on one connection; streams have begun to send before there is a server."""
    gate = tmp_path / "gate"
    program = gated([*PROGRAM, "serve", library, "{port}"], gate)
    activator = run_activator(configured([{**process_revision(program), "protocol": "h2c"}]))
    assert figures(activator)["processes"] == 0
    with Http2Client(activator.address) as client:
        unary = start(client, UNARY, message(5, answers=[7]))
        up = begin(client, CLIENT_STREAM)
        client.send(up, framed(message(10)))
        down = start(client, SERVER_STREAM, message(answers=[1, 20_000, 3]))
        both = begin(client, DUPLEX)
        client.send(both, framed(message(answers=[5])))
        eventually(lambda: activator.revision("app")["queued"] == 4)
        gate.touch()
        client.head(both)
        client.send(up, framed(message(20)), end=True)
        client.wait_size(both, 8)
        assert [size_of(one) for one in messages(client.replies[both].body)] == [5]
        client.send(both, framed(message(answers=[6, 7])), end=True)
        sizes = {
            number: (found.code, [size_of(one) for one in found.answers])
            for number in (unary, up, down, both)
            for found in [outcome(client, number)]
        }
        assert sizes == {unary: (0, [7]), up: (0, [30]), down: (0, [1, 20_000, 3]), both: (0, [5, 6, 7])}


@pytest.mark.parametrize("client", LIBRARIES)
def test_the_libraries_wait_for_a_cold_start(run_activator: RunActivator, client: str) -> None:
    program = [*PROGRAM, "serve", "grpclib", "{port}"]
    activator = run_activator(configured([{**process_revision(program), "protocol": "h2c"}]))
    found = ask(client, activator.address, patience_s=20.0)
    known = KNOWN.get((client, "grpclib"), set())
    # (0.2 s is no time for a start)
    assert {case: problem for case, problem in found.items() if problem and case not in known} == {}


# --- deadlines ---


def test_a_deadline_that_is_shorter_than_the_start(run_activator: RunActivator, tmp_path: Path) -> None:
    program = gated([*PROGRAM, "serve", "grpclib", "{port}"], tmp_path / "gate")
    activator = run_activator(configured([{**process_revision(program), "protocol": "h2c"}]))
    with Http2Client(activator.address) as client:
        began_s = time.monotonic()
        found = call(client, UNARY, message(), timeout="300m")
        assert (found.code, found.is_trailers_only) == (DEADLINE_EXCEEDED, True)
        assert 0.3 <= time.monotonic() - began_s < 5.0
        assert found.reply.reason == "queue_timeout"
    (tmp_path / "gate").touch()


def in_seconds(timeout: str | None) -> float:
    assert timeout is not None
    return int(timeout[:-1]) * {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}[timeout[-1]]


def test_the_pod_is_told_what_is_left_of_the_deadline(run_activator: RunActivator) -> None:
    with Http2Pod(holding) as pod:
        activator = started(run_activator, pod.address, container_concurrency=1)
        with Http2Client(activator.address) as client:
            first = start(client, UNARY, b"first", timeout="50S")
            eventually(lambda: pod.working == 1)
            began_s = time.monotonic()
            second = start(client, UNARY, b"second", timeout="20S")
            eventually(lambda: activator.revision("a")["queued"] == 1)
            eventually(lambda: time.monotonic() - began_s > 0.2)
            pod.release()
            assert (outcome(client, first).code, outcome(client, second).code) == (0, 0)
            took_s = time.monotonic() - began_s
        at_once, late = (in_seconds(stream.header("grpc-timeout")) for stream in pod.requests)
        assert 49.0 < at_once <= 50.0
        assert 20.0 - took_s - 0.1 <= late < 19.9


# --- refusals ---


def test_refusals(run_activator: RunActivator) -> None:
    with Http2Pod(holding) as pod:
        one = revision(pod.address, container_concurrency=1, queue={"depth": 1})
        activator = run_activator(configured([{**one, "hosts": ["a.test"]}]))
        activator.wait_ready_pods("a")
        with Http2Client(activator.address) as client:
            held = [start(client, UNARY, b"held")]
            eventually(lambda: pod.working == 1)
            held.append(start(client, UNARY, b"waits"))
            eventually(lambda: activator.revision("a")["queued"] == 1)
            found = call(client, UNARY, b"too many")
            assert (found.code, found.is_trailers_only, found.reply.reason) == (UNAVAILABLE, True, "queue_full")
            assert found.pushback_ms is not None and found.pushback_ms >= 1_000
            assert found.words == "the queue of the revision is full"
            client.authority = "other.test"
            found = call(client, UNARY, b"nobody's")
            assert (found.code, found.pushback_ms, found.is_trailers_only) == (UNIMPLEMENTED, None, True)
            pod.release()
            assert [outcome(client, number).code for number in held] == [0, 0]
        assert pod.most == 1


def test_a_call_that_is_cancelled_in_line_leaves_it(run_activator: RunActivator) -> None:
    with Http2Pod(holding) as pod:
        activator = started(run_activator, pod.address, container_concurrency=1)
        with Http2Client(activator.address) as client:
            first = start(client, UNARY, b"first")
            eventually(lambda: pod.working == 1)
            second = start(client, UNARY, b"second")
            eventually(lambda: activator.revision("a")["queued"] == 1)
            client.reset(second)
            eventually(lambda: activator.revision("a")["queued"] == 0)
            pod.release()
            assert outcome(client, first).code == 0
        assert len(pod.requests) == 1


def test_grpc_web_is_refused_with_a_status_of_http(run_activator: RunActivator) -> None:
    with Http2Pod(echo) as pod:
        activator = run_activator(configured([{**revision(pod.address), "hosts": ["a.test"]}]))
        with Http2Client(activator.address, authority="other.test") as client:
            fields = [("content-type", "application/grpc-web+proto"), ("te", "trailers")]
            reply = client.ask("/test.Interop/Unary", "POST", fields, framed(b""))
            assert (reply.status, reply.reason, reply.header("grpc-status")) == (404, "no_route", "")


# --- the limit of one ---


def test_twenty_streams_of_one_connection_are_served_one_by_one(run_activator: RunActivator) -> None:
    with Http2Pod(echo) as pod:
        activator = started(run_activator, pod.address, container_concurrency=1)
        with Http2Client(activator.address) as client:
            for _ in range(5):
                numbers = {start(client, DUPLEX, b"%d" % number, b"x" * 3_000): number for number in range(20)}
                for stream, number in numbers.items():
                    found = outcome(client, stream)
                    assert (found.code, found.answers) == (0, [b"%d" % number, b"x" * 3_000])
        assert pod.most == 1
        assert len(pod.requests) == 100


# --- ends ---


class Streaming:
    """grpc_stream.py at a target."""

    def __init__(self, target: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "grpc_stream.py"), target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**environment(), "GRPC_VERBOSITY": "NONE"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()

    def talk(self) -> None:
        """A message there and one back."""
        count = len(self.lines)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        eventually(lambda: len(self.lines) > count, "the answer")
        assert self.lines[-1] == "answered"

    def status(self, *, end: bool = False) -> str:
        """The last line, once it is there."""
        if end and self.process.stdin is not None:
            self.process.stdin.close()
        return eventually(lambda: next((line for line in self.lines if line.startswith("status")), ""), "its status")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_drain_lets_a_stream_finish(run_activator: RunActivator, library: str) -> None:
    with serving(library) as port:
        activator = started(run_activator, f"127.0.0.1:{port}")
        with Streaming(activator.address) as streaming:
            streaming.talk()
            activator.signal(signal.SIGTERM)
            activator.wait_log("INFO activator.* draining$")
            for _ in range(3):
                streaming.talk()
            assert activator.process.poll() is None
            assert streaming.status(end=True) == "status 0"
            assert activator.wait_end() == 0


def test_a_server_that_is_killed_in_mid_stream(run_activator: RunActivator) -> None:
    """The client is told at once; the next call starts another server."""
    program = [*PROGRAM, "serve", "grpclib", "{port}"]
    activator = run_activator(configured([{**process_revision(program), "protocol": "h2c"}]))
    with Streaming(activator.address) as streaming:
        streaming.talk()
        for pid in activator.processes():
            with contextlib.suppress(OSError):  # one may end with the other
                if "grpc_program" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        # An answer that has begun can only be reset, with INTERNAL_ERROR, which the client calls INTERNAL.
        assert streaming.status().split()[:2] == ["status", str(INTERNAL)]
    with Http2Client(activator.address) as client:
        assert call(client, UNARY, message(answers=[1])).code == 0


def test_a_server_that_is_gone_before_it_answers(run_activator: RunActivator) -> None:
    with Http2Pod(holding) as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            number = start(client, UNARY, b"lost")
            eventually(lambda: pod.working == 1)
            pod.close_connections()
            found = outcome(client, number)
            assert (found.code, found.is_trailers_only, found.reply.reason) == (UNAVAILABLE, True, "pod_closed")


# --- servers that are none ---


def test_a_pod_that_speaks_http_1(run_activator: RunActivator) -> None:
    def script(side: PodSide) -> None:
        side._file.read(1)
        side.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with ScriptedPod(script) as pod:
        activator = started(run_activator, pod.address)
        with Http2Client(activator.address) as client:
            found = call(client, UNARY, b"")
            assert found.code == INTERNAL and "does not speak HTTP/2" in found.words
            assert client.ask("/").status == 502


def test_a_pod_with_tls_but_without_h2(run_activator: RunActivator, tmp_path: Path) -> None:
    files = Files(tmp_path, "pod.test")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    one, _ = listener.accept()
                    with context.wrap_socket(one, server_side=True) as secured:
                        secured.recv(100)
                except (ssl.SSLError, ConnectionError):
                    continue  # a probe
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        activator = started(run_activator, address, protocol="h2", tls=tls)
        with Http2Client(activator.address) as client:
            found = call(client, UNARY, b"")
            assert (found.code, found.reply.reason) == (UNAVAILABLE, "tls_failed")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# --- what is told about it ---


def test_the_log_and_the_figures(run_activator: RunActivator, tmp_path: Path) -> None:
    """A call is a request like any other; what is refused has its reason."""
    with Http2Pod(echo) as pod:
        log = tmp_path / "access.log"
        path = tmp_path / "logged.yaml"
        one = {**revision(pod.address), "hosts": ["a.test"]}
        path.write_text(json.dumps(configured([one], access_log="json")))
        activator = run_activator(arguments=["-c", str(path)], prefix=["sh", "-c", 'exec "$@" > "$0"', str(log)])
        activator.wait_ready_pods("a")
        with Http2Client(activator.address) as client:
            assert call(client, UNARY, b"x" * 95).code == 0
            client.authority = "other.test"
            assert call(client, UNARY, b"x").code == UNIMPLEMENTED
        activator.wait_idle()

        def lines() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in log.read_text().splitlines()]
            return found if len(found) == 2 else []

        first, second = eventually(lines)
        assert [first[name] for name in ("protocol", "status", "request_bytes", "response_bytes")] == [
            "HTTP/2",
            200,
            100,
            100,
        ]
        assert [first[name] for name in ("grpc_status", "pod_protocol")] == ["OK", "HTTP/2"]
        assert [second[name] for name in ("protocol", "reason", "grpc_status")] == [
            "HTTP/2",
            "no_route",
            "UNIMPLEMENTED",
        ]
        counted = 'activator_grpc_calls_total{namespace="default",revision="a",grpc_status="OK"} 1'
        assert counted in activator.ask("/metrics")[2].decode()
        shown = activator.revision("a")
        assert (shown["requests"], shown["in_flight"], shown["failed"]) == (1, 0, {})
