"""`python -m bench slow-clients`: how long others wait behind a client that uploads or reads slowly.

The pod takes one request at a time, and each proxy is told so. One client is slow; others, one after the other, ask
for something small until they are answered with a 200, since nginx has no line: it refuses what the pod has no room
for. The longest wait counts. None is longer than the slow client's stay.

The clients tell a segment size as on Ethernet. On loopback, with segments of 64 KiB, the kernel gives each connection
some 2.6 MB to send from, and would itself buffer the whole of the answer.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from pathlib import Path

from bench import header, results
from bench.peers import ONE_AT_A_TIME, REFERENCE, Peer
from bench.processes import LOOPBACK, BenchError, find_program, running
from bench.results import Document, Result

SEGMENT_BYTES = 1_400
UPLOAD_BYTES = 60 * 1024
UPLOAD_BYTES_PER_S = 10_000
ANSWER_BYTES = 900 * 1024
READER_STAYS_S = 10.0  # then it gives up
NEXT_COMES_S = 0.1  # after the one before
ASKS_AGAIN_S = 0.02

_HOST = b"Host: bench.localhost\r\n\r\n"


class _Pod(asyncio.Protocol):
    """Answers each request when it is here whole: large where that is asked for."""

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
    """Send a body slowly. Raises BenchError where it is not answered."""
    loop = asyncio.get_running_loop()
    with await _connect(port) as sock:
        await loop.sock_sendall(sock, b"POST /upload HTTP/1.1\r\nContent-Length: %d\r\n" % UPLOAD_BYTES + _HOST)
        for position in range(0, UPLOAD_BYTES, UPLOAD_BYTES_PER_S // 10):
            await loop.sock_sendall(sock, b"x" * min(UPLOAD_BYTES_PER_S // 10, UPLOAD_BYTES - position))
            await asyncio.sleep(0.1)
        if not (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 200"):
            raise BenchError("the upload was not answered with a 200")


async def _read_nothing(port: int) -> None:
    """Ask for much, and read nothing of it."""
    with await _connect(port, 4096) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, b"GET /large HTTP/1.1\r\n" + _HOST)
        await asyncio.sleep(READER_STAYS_S)


async def _wait(port: int) -> float:
    """For how long a client asks until it has its answer, in seconds."""
    loop = asyncio.get_running_loop()
    begun_s = time.monotonic()
    while True:
        with await _connect(port) as sock:
            await loop.sock_sendall(sock, b"GET /small HTTP/1.1\r\n" + _HOST)
            if (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 200"):
                return time.monotonic() - begun_s
        await asyncio.sleep(ASKS_AGAIN_S)


async def _measure(peer: Peer, folder: Path) -> list[float]:
    """How long others wait behind an upload, and behind a reader."""
    loop = asyncio.get_running_loop()
    pod = await loop.create_server(_Pod, LOOPBACK, 0, backlog=64)
    assert peer.prepare is not None
    started = peer.prepare(folder / peer.name, pod.sockets[0].getsockname()[1])
    waits = []
    with running(started.command, folder / f"{peer.name}.log", None, started.environment) as child:
        await asyncio.sleep(1.0)
        child.check_alive()
        await _wait(started.port)
        for is_slow in (_upload, _read_nothing):
            first = asyncio.create_task(is_slow(started.port))
            longest_s = 0.0
            while not first.done():
                await asyncio.sleep(NEXT_COMES_S)
                longest_s = max(longest_s, await _wait(started.port))
            await first
            waits.append(longest_s)
    pod.close()
    return waits


def run(json_path: str | None) -> int:
    """The whole of `python -m bench slow-clients`. Raises BenchError."""
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
    columns = ["proxy", "behind an upload, s", "ratio", "behind a reader, s", "ratio"]
    print("\n" + results.table(columns, rows))
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
