"""`python -m bench slow`: slow pods, with and without keep-alive, behind haproxy and the activator.

Each combination has its own pod, which answers after a fixed time, and clients that send the next request as soon as
they have a response. The figure is the number of responses in a fixed time: a proxy that is slow to open connections
has fewer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench import header, results
from bench.peers import Peer, choose
from bench.processes import LOOPBACK, running
from bench.results import Document, Result

REQUEST = b"GET /small HTTP/1.1\r\nHost: bench.localhost\r\n\r\n"
# Service time in seconds, clients, duration in seconds: enough for a few requests of each client.
SHAPES = (
    (0.01, 20, 4.0),
    (0.01, 100, 4.0),
    (0.25, 100, 5.0),
    (0.5, 100, 8.0),
    (2.0, 50, 8.2),
    (30.0, 50, 61.0),
)


class _Pod(asyncio.Protocol):
    def __init__(self, service_s: float, keeps: bool) -> None:
        self._service_s = service_s
        self._keeps = keeps

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):  # one request at a time, without a body
            asyncio.get_running_loop().call_later(self._service_s, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            close = b"" if self._keeps else b"Connection: close\r\n"
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + close + b"\r\nok")
            if not self._keeps:
                self._transport.close()


async def _ask(port: int, until_s: float) -> int:
    """Send requests in sequence; return how many were answered in time."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    count = 0
    try:
        while time.monotonic() < until_s:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            count += time.monotonic() <= until_s and head.startswith(b"HTTP/1.1 200")
    finally:
        writer.close()
    return count


async def _measure(peer: Peer, folder: Path, service_s: float, keeps: bool, clients: int, length_s: float) -> float:
    """Return the responses per second."""
    loop = asyncio.get_running_loop()
    pod = await loop.create_server(lambda: _Pod(service_s, keeps), LOOPBACK, 0, backlog=1024)
    assert peer.prepare is not None
    started = peer.prepare(folder / f"{peer.name}-{service_s}-{keeps}", pod.sockets[0].getsockname()[1])
    with running(started.command, folder / f"{peer.name}.log", None, started.environment) as child:
        await asyncio.sleep(1.0)
        child.check_alive()
        until_s = time.monotonic() + length_s
        counts = await asyncio.gather(*(_ask(started.port, until_s) for _ in range(clients)))
    pod.close()
    return sum(counts) / length_s


def run(json_path: str | None) -> int:
    """Run `python -m bench slow`. Raises BenchError and UsageError."""
    peers = choose("haproxy,activator-cc0")
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    rows: list[list[str]] = []
    measured: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for service_s, clients, length_s in SHAPES:
            for keeps in (True, False):
                figures = [
                    asyncio.run(_measure(peer, Path(name), service_s, keeps, clients, length_s)) for peer in peers
                ]
                kind = "kept alive" if keeps else "closes"
                ratio = figures[1] / figures[0] if figures[0] else 0.0
                rows.append(
                    [f"{service_s:g} s, {kind}", str(clients), *(f"{one:.1f}" for one in figures), f"{ratio:.3f}"]
                )
                print("  ".join(rows[-1]), flush=True)
                for peer, figure in zip(peers, figures, strict=True):
                    params: dict[str, str | int | float | bool | None] = {
                        "service_s": service_s,
                        "keep_alive": keeps,
                        "clients": clients,
                    }
                    measured.append(Result(f"slow.{peer.name}", figure, "answers/s", False, params))
    print("\n" + results.table(["pod", "clients", *(f"{peer.name} /s" for peer in peers), "ratio"], rows))
    if json_path is not None:
        results.write(json_path, Document(head, measured))
    return 0
