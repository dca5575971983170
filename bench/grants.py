"""The latency of a slot that another worker or replica grants: one request at a time, on connections to both.

Rules
  1. One of two workers owns the revision. Requests on connections to the other one wait for a grant; with
     `container_concurrency: 1` no slot is lent for longer. So the connections form two groups by their median. With two
     replicas (`--replicas`) the connections alternate between them, and each grant is a signed message over TCP.
  2. As a lower bound of a grant, the round trip of a message between two event loops is measured as well.
  3. There is no other load: the figures are latencies of an idle machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from bench import header, results
from bench.peers import Started, activator, choose
from bench.processes import LOOPBACK, BenchError, answers, free_port, running
from bench.results import Document, Result, figure
from bench.upstream import BODY_BYTES

CONNECTIONS = 16
REQUEST = b"GET /small HTTP/1.1\r\nHost: bench.localhost\r\n\r\n"
REPLICAS_MEET_S = 4.0  # after this time, two new replicas share a view
_GAP_MIN_S = 20e-6  # with a smaller gap, all connections went to one worker


def run(requests: int, replicas: bool, json_path: str | None) -> int:
    """Run `python -m bench grants`: with `requests` on each connection. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        port = free_port()
        with running([sys.executable, "-m", "bench.upstream", f"{LOOPBACK}:{port}"], folder / "upstream.log") as pod:
            pod.wait_until(answers(port, "/small", BODY_BYTES["small"]))
            one, *others = two_replicas(folder, port) if replicas else two_workers(folder, port)
            with contextlib.ExitStack() as stack:
                for started in (one, *others):
                    log = folder / f"activator{started.port}.log"
                    proxy = stack.enter_context(running(started.command, log, None, started.environment))
                    proxy.wait_until(answers(started.port, "/small", BODY_BYTES["small"]))
                if others:
                    time.sleep(REPLICAS_MEET_S)
                medians = sorted(_medians([one.port, *[other.port for other in others]], requests))
    local_s, remote_s = _groups(medians)
    floor_s = there_and_back(requests)
    rows = [
        [f"a request, its {'replica' if replicas else 'worker'} has the slot", figure(local_s * 1e6, 0)],
        [f"a request, another {'replica' if replicas else 'worker'} grants the slot", figure(remote_s * 1e6, 0)],
        ["the difference", figure((remote_s - local_s) * 1e6, 0)],
        ["a message between two event loops, there and back", figure(floor_s * 1e6, 0)],
    ]
    print("\n" + results.table(["p50", "us"], rows))
    if json_path is not None:
        named = {"local": local_s, "remote": remote_s, "difference": remote_s - local_s, "there_and_back": floor_s}
        between: dict[str, results.Value] = {"between": "replicas" if replicas else "workers"}
        found = [Result(f"grants.{name}.p50", value * 1e6, "us", True, between) for name, value in named.items()]
        results.write(json_path, Document(head, found))
    return 0


def two_workers(folder: Path, upstream_port: int) -> list[Started]:
    (peer,) = choose("activator-cc1", "2")
    assert peer.prepare is not None
    return [peer.prepare(folder / "activator", upstream_port)]


def two_replicas(folder: Path, upstream_port: int) -> list[Started]:
    key = folder / "members.key"
    key.write_text(os.urandom(32).hex())
    addresses = [f"{LOOPBACK}:{free_port()}" for _ in range(2)]
    return [
        activator(1, f'members: {{listen: "{address}", peers: {json.dumps(addresses)}, key_file: {key}}}')(
            folder / f"activator{place}", upstream_port
        )
        for place, address in enumerate(addresses)
    ]


def _medians(ports: list[int], requests: int) -> list[float]:
    """Return the median of each connection, in seconds; requests are sent one by one on alternating connections."""
    places = [ports[place % len(ports)] for place in range(CONNECTIONS)]
    connections = [socket.create_connection((LOOPBACK, port), 10.0) for port in places]
    took: list[list[float]] = [[] for _ in connections]
    try:
        for _ in range(requests):
            for sock, found in zip(connections, took):
                began_s = time.perf_counter()
                sock.sendall(REQUEST)
                _read_answer(sock)
                found.append(time.perf_counter() - began_s)
    finally:
        for sock in connections:
            sock.close()
    return [statistics.median(found) for found in took]


def _read_answer(sock: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < BODY_BYTES["small"]:
        more = sock.recv(65536)
        if not more:
            raise BenchError("the activator has closed a connection")
        data += more
    if not data.startswith(b"HTTP/1.1 200 "):
        raise BenchError(f"an answer that is not 200: {data[:100]!r}")


def _groups(medians: list[float]) -> tuple[float, float]:
    """Return the medians of the connections below and above the widest gap."""
    gaps = [(after - before, place) for place, (before, after) in enumerate(itertools.pairwise(medians), 1)]
    gap_s, place = max(gaps)
    if gap_s < _GAP_MIN_S:
        raise BenchError("all connections went to one worker: try again")
    return statistics.median(medians[:place]), statistics.median(medians[place:])


def there_and_back(times: int) -> float:
    """Return the median round trip in seconds between two processes with the program's event loop."""
    one, other = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            one.close()
            _in_loop(_echo(other))
        finally:
            os._exit(0)
    other.close()
    try:
        return _in_loop(_ask(one, times))
    finally:
        one.close()
        os.waitpid(child, 0)


def _in_loop(story: Coroutine[Any, Any, float]) -> float:
    import uvloop

    return uvloop.run(story)


async def _echo(sock: socket.socket) -> float:
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    while data := await loop.sock_recv(sock, 4096):
        sock.send(data)
    return 0.0


async def _ask(sock: socket.socket, times: int) -> float:
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    took = []
    for _ in range(times):
        await asyncio.sleep(0.0005)
        began_s = time.perf_counter()
        sock.send(b"x" * 100)
        await loop.sock_recv(sock, 4096)
        took.append(time.perf_counter() - began_s)
    return statistics.median(took)
