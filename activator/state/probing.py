"""Asking a pod whether it answers: its port accepts, or a path answers 2xx or 3xx.

"Ready" has to mean that a real exchange on the data port worked. Part of the control side: the waits here are ordinary
asyncio waits with a timeout each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from activator.config import PROBE_BACKOFF_INITIAL_S, PROBE_BACKOFF_MAX_S, PROBE_TIMEOUT_S
from activator.message import Fields, Headers, RequestHead, ResponseHead
from activator.state.messages import Change, Probed, ProbeOrder, StartProbe
from activator.tasks import TaskGroupOwner, pause
from activator.wire.response import ResponseParser, ResponseSink
from activator.wire.serialise import request_bytes
from lb.rng import Rng

_READ_BYTES = 16 * 1024


def split_address(address: str) -> tuple[str, int]:
    """`10.0.0.1:80` and `[::1]:80` taken apart."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def answers(address: str, http_get: str, timeout_s: float) -> bool:
    """Whether the pod takes a connection, and answers `http_get` well if that is not empty. Never raises."""
    host, port = split_address(address)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            if not http_get:
                return True
            return await _get(reader, writer, address, http_get)
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()


class _FirstHead(ResponseSink):
    def __init__(self) -> None:
        self.status = 0

    def interim_head(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def response_body(self, data: bytes) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        pass


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, path: str) -> bool:
    sink = _FirstHead()
    parser = ResponseParser(sink)
    parser.expect(False)
    host = address.encode()
    headers: Headers = [(b"Host", host), (b"User-Agent", b"activator-probe"), (b"Connection", b"close")]
    writer.write(request_bytes(RequestHead(b"GET", path.encode(), host, Fields.from_pairs(headers), -1, False)))
    while sink.status == 0:
        data = await reader.read(_READ_BYTES)
        if not data or parser.feed(data) is not None:
            return False
    return 200 <= sink.status < 400


class Prober:
    """Asks the pods it is told to ask, each with a backoff of its own, until they answer."""

    def __init__(self, tasks: TaskGroupOwner, submit: Callable[[Change], None], rng: Rng) -> None:
        self._tasks = tasks
        self._submit = submit
        self._rng = rng
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    def order(self, orders: list[ProbeOrder]) -> None:
        """Start and stop probes."""
        for order in orders:
            running = self._running.pop((order.key, order.identity), None)
            if running is not None:
                running.cancel()
            if isinstance(order, StartProbe):
                self._running[(order.key, order.identity)] = self._tasks.start("probe", self._ask(order))

    async def _ask(self, order: StartProbe) -> None:
        backoff_s = PROBE_BACKOFF_INITIAL_S
        while not await answers(order.address, "", PROBE_TIMEOUT_S):
            await pause(
                backoff_s * (0.5 + float(self._rng.below(512)) / 1024.0)
            )  # jitter: pods that died together part
            backoff_s = min(backoff_s * 2.0, PROBE_BACKOFF_MAX_S)
        self._submit(Probed(order.key, order.identity))
