"""The load client of `python -m bench flood` and `pod-flood`: a fixed rate of requests, independent of the latency.

    python -m bench.paced_client HOST:PORT RATE SECONDS HOST_HEADER [PATH]

It prints one line of JSON, the fields of `bench.generator.Summary`. A request is sent at its scheduled time if a
connection is free; otherwise the wait for a connection is part of its latency.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.client import Tally

CONNECTIONS = 32


async def _connection(address: tuple[str, int], due: asyncio.Queue[float], request: bytes, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection(*address)
    try:
        while True:
            due_s = await due.get()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            tally.latencies_s.append(time.perf_counter() - due_s)
            tally.bytes += len(head) + length
            if not head.startswith(b"HTTP/1.1 200"):
                tally.status += 1
    except (OSError, asyncio.IncompleteReadError):
        tally.read += 1
    finally:
        writer.close()


async def load(address: tuple[str, int], rate: float, seconds: float, host: str, path: str = "/small") -> Tally:
    """Send requests at this rate for this many seconds."""
    tally = Tally()
    due: asyncio.Queue[float] = asyncio.Queue()
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    tasks = [asyncio.create_task(_connection(address, due, request, tally)) for _ in range(CONNECTIONS)]
    began_s = time.perf_counter()
    for number in range(round(rate * seconds)):
        due_s = began_s + number / rate
        if due_s > time.perf_counter():
            await asyncio.sleep(due_s - time.perf_counter())
        due.put_nowait(due_s)
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally


def main() -> None:
    address, rate, seconds, host, *path = sys.argv[1:]
    ip, _, port = address.rpartition(":")
    gc.disable()  # its pauses would appear as latency of the proxy
    tally = uvloop.run(load((ip, int(port)), float(rate), float(seconds), host, *path))
    print(msgspec.json.encode(tally.summary(float(seconds))).decode(), flush=True)


if __name__ == "__main__":
    main()
