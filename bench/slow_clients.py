"""`python -m bench slow-clients`: how long other clients wait for one that uploads or reads slowly.

The pod takes one request at a time, and each proxy is configured for that. One client is slow; others, one after the
other, repeat a small request until they get a 200, since nginx has no line and refuses what the pod has no room for.
The figure is the longest wait. None is longer than the slow client stays connected.

The clients announce the segment size of Ethernet. With the 64 KiB segments of the loopback interface the kernel gives
each connection a send buffer of some 2.6 MB and would itself hold the complete response.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from pathlib import Path

from bench import header, results
from bench.peers import ONE_AT_A_TIME, REFERENCE, Peer, before_pod
from bench.processes import LOOPBACK, BenchError, find_program
from bench.results import Document, Result

SEGMENT_BYTES = 1_400
UPLOAD_BYTES = 60 * 1024
UPLOAD_BYTES_PER_S = 10_000
ANSWER_BYTES = 900 * 1024
READER_STAYS_S = 10.0  # before it disconnects
NEXT_COMES_S = 0.1  # between two other clients
ASKS_AGAIN_S = 0.02

_HOST = b"Host: bench.localhost\r\n\r\n"


class _Pod(asyncio.Protocol):
    """Answers each request when it is complete; the response is large on request."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if end and len(body) >= length:
            self._data = b""
            answer = b"x" * (ANSWER_BYTES if head.startswith(b"GET /large") else 2)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


async def _connect(port: int, receive_bytes: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, port))
    return sock


async def _upload(port: int) -> None:
    """Send a body slowly. Raises BenchError if it is not answered."""
    loop = asyncio.get_running_loop()
    with await _connect(port) as sock:
        await loop.sock_sendall(sock, b"POST /upload HTTP/1.1\r\nContent-Length: %d\r\n" % UPLOAD_BYTES + _HOST)
        for position in range(0, UPLOAD_BYTES, UPLOAD_BYTES_PER_S // 10):
            await loop.sock_sendall(sock, b"x" * min(UPLOAD_BYTES_PER_S // 10, UPLOAD_BYTES - position))
            await asyncio.sleep(0.1)
        if not (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 200"):
            raise BenchError("the upload was not answered with 200")


async def _read_nothing(port: int) -> None:
    """Request a large response and read none of it."""
    with await _connect(port, 4096) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, b"GET /large HTTP/1.1\r\n" + _HOST)
        await asyncio.sleep(READER_STAYS_S)


async def _wait(port: int) -> float:
    """Return for how many seconds a client repeats its request until it is answered with 200."""
    loop = asyncio.get_running_loop()
    begun_s = time.monotonic()
    while True:
        with await _connect(port) as sock:
            await loop.sock_sendall(sock, b"GET /small HTTP/1.1\r\n" + _HOST)
            if (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 200"):
                return time.monotonic() - begun_s
        await asyncio.sleep(ASKS_AGAIN_S)


async def _measure(peer: Peer, folder: Path) -> list[float]:
    """Return how long others wait during a slow upload, and during a slow download."""
    waits = []
    async with before_pod(peer, _Pod, folder) as (_, port):
        await _wait(port)
        for is_slow in (_upload, _read_nothing):
            first = asyncio.create_task(is_slow(port))
            longest_s = 0.0
            while not first.done():
                await asyncio.sleep(NEXT_COMES_S)
                longest_s = max(longest_s, await _wait(port))
            await first
            waits.append(longest_s)
    return waits


def run(json_path: str | None) -> int:
    """Run `python -m bench slow-clients`. Raises BenchError."""
    peers = [peer for peer in ONE_AT_A_TIME if peer.program is None or find_program(peer.program) is not None]
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    waits: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for peer in peers:
            waits[peer.name] = asyncio.run(_measure(peer, Path(name)))
            print(peer.name, *(f"{wait_s:.3f} s" for wait_s in waits[peer.name]), flush=True)
    reference = waits.get(REFERENCE, [0.0, 0.0])
    rows = []
    measured = []
    for peer in peers:
        row = [peer.name]
        for kind, wait_s, reference_s in zip(("upload", "reader"), waits[peer.name], reference, strict=True):
            ratio = wait_s / reference_s if reference_s else None
            row += [results.figure(wait_s, 3), results.figure(ratio, 4)]
            measured.append(Result(f"slow_clients.{kind}.{peer.name}", wait_s, "s", True, dict(peer.params)))
        rows.append(row)
    columns = ["proxy", "during an upload, s", "ratio", "during a download, s", "ratio"]
    print("\n" + results.table(columns, rows))
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
