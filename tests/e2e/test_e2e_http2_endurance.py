"""HTTP/2 in constant memory: many streams and resets on one connection, large bodies. `make soak` has the long runs,
the others a small slice of each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.pods import GoneError, PodSide, ScriptedPod
from tests.e2e.running import PROGRAMS, Activator, configured, eventually
from tests.e2e.test_e2e_endurance import PIECE, Watch
from tests.http2.raw_client import Frame, RawClient, headers_frame, reset_frame

MIB = 1 << 20
GIB = 1 << 30
soak = pytest.mark.soak


def serve(side: PodSide) -> None:
    """As big_http2.js, over HTTP/1.1; other answers are small."""
    while True:
        asked = side.head()
        _, _, size = asked.target.partition("/down/")
        if size:
            side.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
            for _ in range(int(size) // len(PIECE)):
                side.send(PIECE)
        elif "chunked" in asked.all("transfer-encoding"):
            count = 0
            while length := int(side._line(), 16):
                left = length
                while left > 0:
                    data = side._file.read1(min(left, 4 * MIB))
                    if not data:
                        raise GoneError
                    left -= len(data)
                count += length
                assert side._line() == ""
            assert side._line() == ""
            side.answer(str(count).encode())
        else:
            side.answer()
            # What a pod keeps of a million requests makes its collector hold all of its threads for seconds.
            side.pod.requests.clear()


@pytest.fixture(scope="module", params=["h1", "h2c"])
def activator(
    request: pytest.FixtureRequest, run_shared_activator: RunActivator, need_program: Callable[[str], str]
) -> Iterator[Activator]:
    if request.param == "h1":
        with ScriptedPod(serve) as pod:
            yield started(run_shared_activator, pod.address, "h1")
        return
    command = [need_program("node"), str(PROGRAMS / "big_http2.js")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield started(run_shared_activator, f"127.0.0.1:{int(process.stdout.readline())}", "h2c")
        finally:
            process.kill()


def started(run: RunActivator, address: str, protocol: str) -> Activator:
    activator = run(configured([{"name": "a", "hosts": ["*"], "pods": [address], "protocol": protocol}]))
    activator.wait_ready_pods("a")
    return activator


# --- streams ---


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=soak)])
def test_streams_on_one_connection(activator: Activator, count: int, need_program: Callable[[str], str]) -> None:
    program = need_program("h2load")

    def load(streams: int) -> None:
        command = [program, "-n", str(streams), "-c", "1", "-m", "100", f"http://{activator.address}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=True)
        assert re.search(rf"{streams} succeeded, 0 failed, 0 errored, 0 timeout", done.stdout), done.stdout
        assert re.search(rf"status codes: {streams} 2xx", done.stdout), done.stdout

    load(5_000)  # buffers and caches have their size then
    with Watch(activator):
        load(count)
    activator.wait_idle()


def connected(activator: Activator) -> RawClient:
    client = RawClient(activator.host, activator.port, patience_s=20.0)
    client.handshake()
    return client


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=soak)])
def test_resets_among_answers_on_one_connection(activator: Activator, count: int) -> None:
    """As clients do that cancel much: each answer makes up for one reset."""
    with connected(activator) as client, Watch(activator):
        client.replenish = True  # or the window of the connection is used up after some 16,000 answers
        stream = 1
        for _ in range(count):
            client.request(stream)
            client.send(reset_frame(stream))
            client.request(stream + 2)
            end = client.until_end_of(stream + 2)
            assert isinstance(end, Frame) and end.ends_stream, (end, client.goaway)
            assert client.status(stream + 2) == 200, client.goaway
            client.heads.clear()
            client.bodies.clear()
            stream += 4
        assert client.goaway is None
    activator.wait_idle()


@pytest.mark.parametrize("connections", [5, pytest.param(110, marks=soak)])
def test_resets_at_once_on_many_connections(activator: Activator, connections: int) -> None:
    """As many as a connection may have: none of them is ended, and nothing is left."""
    resets = 900
    with Watch(activator):
        for _ in range(connections):
            with connected(activator) as client:
                frames = []
                for number in range(resets):
                    block = client.block(client.fields())
                    frames += [headers_frame(1 + 2 * number, block), reset_frame(1 + 2 * number)]
                client.pump(b"".join(frames))
                last = 1 + 2 * resets
                client.request(last)
                end = client.until_end_of(last)
                assert isinstance(end, Frame) and end.ends_stream, (end, client.log)
                assert client.status(last) == 200, client.log
    activator.wait_idle()


# --- bodies ---


def curl(activator: Activator, need_program: Callable[[str], str], *words: str, feed: int = 0) -> str:
    """What it prints; `feed`: so many bytes come on its input."""
    command = [need_program("curl"), "-sS", "--fail", "--http2-prior-knowledge", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(feed // len(PIECE)):
            process.stdin.write(PIECE)
        process.stdin.close()
        printed = process.stdout.read().decode()
        assert process.wait(60) == 0
        return printed


@pytest.mark.parametrize("size", [128 * MIB, pytest.param(10 * GIB, marks=soak)])
def test_a_large_answer(activator: Activator, size: int, need_program: Callable[[str], str]) -> None:
    url = f"http://{activator.address}/down"
    curl(activator, need_program, "-o", "/dev/null", f"{url}/{8 * MIB}")
    with Watch(activator):
        taken = curl(activator, need_program, "-o", "/dev/null", "-w", "%{size_download}", f"{url}/{size}")
        assert int(taken) == size
    eventually(lambda: activator.revision("a")["in_flight"] == 0)


@pytest.mark.parametrize("size", [128 * MIB, pytest.param(10 * GIB, marks=soak)])
def test_a_large_request(activator: Activator, size: int, need_program: Callable[[str], str]) -> None:
    url = f"http://{activator.address}/up"
    curl(activator, need_program, "-T", "-", url, feed=8 * MIB)
    with Watch(activator):
        assert curl(activator, need_program, "-T", "-", url, feed=size) == str(size)
    eventually(lambda: activator.revision("a")["in_flight"] == 0)
