"""Long runs in constant memory: large bodies, many requests, many connections, many that are cut. `make soak`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from tests.e2e.apache_bench import ab
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pair import paired
from tests.e2e.pods import GoneError, PodSide
from tests.e2e.running import Activator, eventually, resident_bytes

MIB = 1 << 20
GIB = 1 << 30
TEN_GIB = 10 * GIB
PIECE = bytes(range(256)) * 4096
SLACK_BYTES = 24 * MIB  # buffers of connections, and what an allocator keeps


def serve(side: PodSide) -> None:
    """`/down`: ten GiB; `/up`: counts what comes; anything else: a small answer."""
    while True:
        asked = side.head()
        if asked.target == "/down":
            side.send(f"HTTP/1.1 200 OK\r\nContent-Length: {TEN_GIB}\r\n\r\n".encode())
            for _ in range(TEN_GIB // len(PIECE)):
                side.send(PIECE)
        elif asked.target == "/up":
            left = int(asked.all("content-length")[0])
            while left > 0:
                data = side._file.read1(min(left, 4 * MIB))
                if not data:
                    raise GoneError
                left -= len(data)
            side.answer(b"all of it")
        else:
            side.body(asked)
            side.answer()
            # What a pod keeps of a million requests makes its collector hold all of its threads for seconds.
            side.pod.requests.clear()


@pytest.fixture
def activator(run_activator: RunActivator) -> Iterator[Activator]:
    with paired(serve, run_activator) as pair:
        yield pair.activator


class Watch:
    """How much memory the activator takes at most while something goes on."""

    def __init__(self, activator: Activator) -> None:
        activator.ask("/metrics")  # the first connection loads the server of the admin port
        self._pid = activator.process.pid
        self._stop = threading.Event()
        self.before = self.most = resident_bytes(self._pid)
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.most - self.before < SLACK_BYTES, f"{self.before:,} bytes became {self.most:,}"

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.most = max(self.most, resident_bytes(self._pid))


@pytest.mark.soak
def test_ten_gib_down(activator: Activator) -> None:
    with Client(activator.address) as client, Watch(activator):
        client.send(request("/down"))
        assert client.head().header("content-length") == str(TEN_GIB)
        left = TEN_GIB
        buffer = bytearray(4 * MIB)
        while left:
            count = client._file.readinto1(memoryview(buffer)[: min(left, len(buffer))])
            assert count
            left -= count


@pytest.mark.soak
def test_ten_gib_up(activator: Activator) -> None:
    with Client(activator.address) as client, Watch(activator):
        client.send(request("/up", "POST", headers=f"Content-Length: {TEN_GIB}\r\n"))
        for _ in range(TEN_GIB // len(PIECE)):
            client.send(PIECE)
        assert client.answer("POST").body == b"all of it"


def crowd(activator: Activator, program: str, count: int, *words: str) -> None:
    ab(program, f"http://{activator.address}/", count, "-c", "64", *words, timeout_s=1200.0)


@pytest.mark.soak
def test_a_million_requests(activator: Activator, need_program: Callable[[str], str]) -> None:
    program = need_program("ab")
    crowd(activator, program, 20_000, "-k")  # buffers and caches have their size then
    with Watch(activator):
        crowd(activator, program, 1_000_000, "-k")


@pytest.mark.soak
def test_a_hundred_thousand_connections(activator: Activator, need_program: Callable[[str], str]) -> None:
    program = need_program("ab")
    crowd(activator, program, 5_000)
    with Watch(activator):
        crowd(activator, program, 100_000)
    assert activator.ask("/metrics")[2].count(b"activator_client_connections 0.0") == 1


@pytest.mark.parametrize("transfers", [400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_transfers_that_are_cut(activator: Activator, transfers: int) -> None:
    def cut(count: int) -> None:
        for turn in range(count):
            with socket.create_connection((activator.host, activator.port), timeout=60) as sock:
                if turn % 2:
                    sock.sendall(request("/down"))
                    sock.recv(4096)
                else:
                    sock.sendall(request("/up", "POST", headers=f"Content-Length: {GIB}\r\n") + PIECE[:100_000])

    cut(100)
    with Watch(activator):
        threads = [threading.Thread(target=cut, args=(transfers // 8,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    eventually(lambda: activator.revision("a")["in_flight"] == 0)
