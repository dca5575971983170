"""The load client if wrk is not installed: keep-alive connections that each send one request after the other.

    python -m bench.client HOST:PORT CONNECTIONS SECONDS HEADERS /TARGET

Rules
  1. It prints one line of JSON, the fields of `bench.generator.Summary`, as wrk does with its script.
  2. Errors are counted as by wrk: refused connections, connections broken during a request, responses that are not 2xx,
     requests without a response for longer than ANSWER_TIMEOUT_S.
  3. It is slower than wrk, so if client and upstream share a core, the proxy is further from saturation: compare
     figures only within one run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import httptools
import msgspec
import uvloop

from bench.generator import ANSWER_TIMEOUT_S, Summary, percentile, request_head

_DIAL_AGAIN_S = 0.1


class Tally:
    """The results of all connections."""

    def __init__(self) -> None:
        self.stopped = False
        self.latencies_s: list[float] = []
        self.bytes = 0
        self.connect = 0
        self.read = 0
        self.status = 0
        self.timeout = 0

    def summary(self, elapsed_s: float) -> Summary:
        ordered = sorted(self.latencies_s)
        return Summary(
            requests=len(ordered),
            duration_us=round(elapsed_s * 1e6),
            bytes=self.bytes,
            p50_us=percentile(ordered, 0.50) * 1e6,
            p99_us=percentile(ordered, 0.99) * 1e6,
            connect=self.connect,
            read=self.read,
            write=0,  # failed writes are counted as broken connections
            status=self.status,
            timeout=self.timeout,
        )


class Connection(asyncio.Protocol):
    """A connection with one outstanding request at any time."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self.closed = asyncio.Event()
        self._request = request
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sent_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._tally.bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sent_s is not None and not self._tally.stopped:
            self._tally.read += 1
        self.closed.set()

    def on_message_complete(self) -> None:
        if self._sent_s is None:  # a response without a request
            self._tally.read += 1
            self.abort()
            return
        if not self._tally.stopped:
            self._tally.latencies_s.append(time.perf_counter() - self._sent_s)
            if not 200 <= self._parser.get_status_code() < 300:
                self._tally.status += 1
        self._sent_s = None
        if self._tally.stopped or not self._parser.should_keep_alive():
            self.abort()
        else:
            self._send()

    def waits_too_long(self) -> bool:
        return self._sent_s is not None and time.perf_counter() - self._sent_s > ANSWER_TIMEOUT_S

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)


async def _keep_asking(host: str, port: int, request: bytes, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    while not tally.stopped:
        connection = Connection(request, tally)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await loop.create_connection(lambda connection=connection: connection, host, port)  # type: ignore[misc]
        except OSError:  # includes TimeoutError
            tally.connect += 1
            await asyncio.sleep(_DIAL_AGAIN_S)
            continue
        try:
            while not connection.closed.is_set():
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        await connection.closed.wait()
                except TimeoutError:
                    if connection.waits_too_long():
                        tally.timeout += 1
                        connection.abort()
        finally:
            connection.abort()


async def load(host: str, port: int, connections: int, seconds: float, request: bytes) -> Summary:
    """Send requests for `seconds`."""
    tally = Tally()
    began_s = time.perf_counter()
    tasks = [asyncio.create_task(_keep_asking(host, port, request, tally)) for _ in range(connections)]
    await asyncio.sleep(seconds)
    tally.stopped = True
    elapsed_s = time.perf_counter() - began_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally.summary(elapsed_s)


def main() -> None:
    address, connections, seconds, headers, target = sys.argv[1:]
    host, _, port = address.rpartition(":")
    request = request_head(target, int(headers))
    summary = uvloop.run(load(host, int(port), int(connections), float(seconds), request))
    print(msgspec.json.encode(summary).decode(), flush=True)


if __name__ == "__main__":
    main()
