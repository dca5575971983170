"""The load client of the demo: a separate process, whose keep-alive connections send one request after the other.

    python -m activator.demo.load_client HOST:PORT CONNECTIONS SECONDS

With 0 seconds each connection sends one request. Prints a line of JSON every REPORT_S and a last one at the end:
requests, failures, latencies in ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

REPORT_S = 0.25
ANSWER_TIMEOUT_S = 30.0
_REQUEST = b"GET / HTTP/1.1\r\nHost: demo.localhost\r\nUser-Agent: activator-demo\r\n\r\n"


class Tally:
    """The measurements so far."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self.failures = 0

    def line(self, elapsed_s: float) -> str:
        """Return the measurements as a line of JSON."""
        ordered = sorted(self.latencies_ms)
        return json.dumps(
            {
                "requests": len(ordered) + self.failures,
                "failures": self.failures,
                "rps": round(len(ordered) / elapsed_s, 1) if elapsed_s > 0 else 0.0,
                "p50_ms": percentile(ordered, 0.50),
                "p99_ms": percentile(ordered, 0.99),
            }
        )


def percentile(ordered: list[float], share: float) -> float:
    """Return a percentile of an ascending list; 0 if it is empty."""
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 2) if ordered else 0.0


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Send a request. Return True if the response was a 200 with a complete body."""
    writer.write(_REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = await reader.readexactly(length)
    return head.startswith(b"HTTP/1.1 200 ") and len(body) == length


async def _connection(host: str, port: int, until_s: float, tally: Tally) -> None:
    """Send at least one request, and more until `until_s`; connect again after a failure."""
    is_first = True  # at least one request, however short the time
    while is_first or time.monotonic() < until_s:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            tally.failures += 1
            await asyncio.sleep(0.05)
            continue
        try:
            while is_first or time.monotonic() < until_s:
                is_first = False
                began_s = time.monotonic()
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    is_success = await _exchange(reader, writer)
                if is_success:
                    tally.latencies_ms.append((time.monotonic() - began_s) * 1000.0)
                else:
                    tally.failures += 1
        except (OSError, EOFError, TimeoutError):
            tally.failures += 1
        finally:
            writer.close()


async def load(address: str, connections: int, seconds: float) -> None:
    """Send requests for `seconds`; print the results every REPORT_S and at the end."""
    host, _, port = address.rpartition(":")
    tally = Tally()
    began_s = time.monotonic()
    until_s = began_s + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_connection(host, int(port), until_s, tally))
        while time.monotonic() < until_s:
            await asyncio.sleep(REPORT_S)
            print(tally.line(time.monotonic() - began_s), flush=True)
    print(tally.line(seconds), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is for the demo
        asyncio.run(load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
