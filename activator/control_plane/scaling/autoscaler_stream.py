"""The connection to Knative's autoscaler: a WebSocket on which batches of figures are sent as protobuf.

Rules
  1. It lasts as long as the program runs. A broken connection is dialled again: at once if the autoscaler announced a
     restart, otherwise with a growing backoff with jitter, which a waiting request shortens.
  2. `send` never waits and never fails. Without a connection nothing is kept: `on_connected` is called when it is
     restored, and the owner of the figures then sends the current ones.
  3. A peer that does not answer pings counts as disconnected.
  4. An internal error ends a connection, never the stream; it is counted and logged like errors of tasks (`on_error`).

Source: knative.dev/serving pkg/activator/stat_reporter.go, knative.dev/pkg/websocket (v1.23).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import aiohttp

from activator.control_plane.scaling.concurrency import ConcurrencyStat
from activator.control_plane.scaling.statistics_pb2 import Stat, WireStatMessage, WireStatMessages
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.tasks import OnTaskError, wait_for
from lb.rng import Rng

AUTOSCALER_CONNECT_TIMEOUT_S: Final = 3.0
AUTOSCALER_PING_S: Final = 20.0 / 3.0  # between two pings; an answer may take half of it
AUTOSCALER_SEND_TIMEOUT_S: Final = 10.0
AUTOSCALER_BATCH_MAX: Final = 1_000  # revisions in one message
AUTOSCALER_BATCHES_MAX: Final = 64  # waiting to be sent; the oldest are dropped, because newer ones are current
AUTOSCALER_BACKOFF_INITIAL_S: Final = 0.1
AUTOSCALER_BACKOFF_FACTOR: Final = 1.3
AUTOSCALER_BACKOFF_MAX_S: Final = 15.0
AUTOSCALER_EXPEDITED_S: Final = 0.05  # shortest pause between two dials while a request waits to be reported

log = logging.getLogger("activator.autoscaler")

_RESTARTING = 1012  # the close code of a server that restarts (RFC 6455, IANA registry)


def encode_batch(stats: list[ConcurrencyStat], pod_name: str) -> bytes:
    """Encode a batch for the autoscaler."""
    messages = []
    for stat in stats:
        namespace, _, name = stat.key.partition("/")
        figures = Stat(
            pod_name=pod_name, average_concurrent_requests=stat.average_concurrency, request_count=stat.request_count
        )
        messages.append(WireStatMessage(namespace=namespace, name=name, stat=figures))
    return WireStatMessages(messages=messages).SerializeToString(deterministic=True)


class AutoscalerStream:
    """The stream of figures. `url` is ws://…; `on_connected` is called whenever a connection has been made."""

    def __init__(
        self,
        url: str,
        pod_name: str,
        on_connected: Callable[[], None],
        now: Now,
        rng: Rng,
        on_error: OnTaskError,
    ) -> None:
        self.url = url
        self._pod_name = pod_name
        self._on_connected = on_connected
        self._now = now
        self._rng = rng
        self._on_error = on_error
        self._batches: deque[list[ConcurrencyStat]] = deque()
        self._has_batches = asyncio.Event()
        self._dial_wanted = asyncio.Event()  # cuts a backoff short
        self.is_connected: bool = False
        self.disconnected_s: float = now()  # since when, while there is no connection
        self.connections_total: int = 0
        self.errors_total: int = 0  # established connections that broke, as Knative counts them
        self.failed_dials_total: int = 0
        self.sent_total: int = 0  # batches
        self.dropped_total: int = 0  # batches without a connection, or on one that was too slow

    def send(self, stats: list[ConcurrencyStat]) -> None:
        """Queue these figures for the loop's next turn, in one batch with others that are sent until then.

        A hundred revisions that are reported in one turn must not push each other out.
        """
        if not self.is_connected:
            self.dropped_total += 1
            self._dial_wanted.set()
            return
        if self._batches and len(self._batches[-1]) + len(stats) <= AUTOSCALER_BATCH_MAX:
            self._batches[-1].extend(stats)
        else:
            if len(self._batches) >= AUTOSCALER_BATCHES_MAX:
                self._batches.popleft()
                self.dropped_total += 1
            self._batches.append(list(stats))
        self._has_batches.set()

    def unreachable_for_s(self) -> float:
        """Return how long there has been no connection, in seconds; 0.0 while there is one."""
        return 0.0 if self.is_connected else self._now() - self.disconnected_s

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        backoff = Backoff(
            AUTOSCALER_BACKOFF_INITIAL_S,
            AUTOSCALER_BACKOFF_MAX_S,
            self._rng,
            factor=AUTOSCALER_BACKOFF_FACTOR,
            jitter=(1.0, 1.5),
        )
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                try:
                    at_once = await self._connect_once(session)
                except Exception as error:  # The task must survive: without it the autoscaler receives nothing.
                    self._on_error("autoscaler", error)
                    at_once = None
                if at_once is not None:
                    backoff.reset()
                    if at_once:
                        continue
                if await self._pause(backoff.next_s()):
                    backoff.reset()

    async def _pause(self, seconds: float) -> bool:
        """Wait for a backoff; return True if a request ended it early, though not before AUTOSCALER_EXPEDITED_S."""
        self._dial_wanted.clear()
        least_s = min(seconds, AUTOSCALER_EXPEDITED_S)
        await wait_for(asyncio.Event(), least_s)
        return await wait_for(self._dial_wanted, max(seconds - least_s, 0.001))

    async def _connect_once(self, session: aiohttp.ClientSession) -> bool | None:
        """Make and serve one connection. Return None if there was none, True to dial again at once."""
        try:
            async with asyncio.timeout(AUTOSCALER_CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(self.url, heartbeat=AUTOSCALER_PING_S, max_msg_size=1 << 16)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.failed_dials_total += 1
            if self.failed_dials_total == 1 or self.connections_total:
                log.debug("no connection to the autoscaler at %s: %r", self.url, error)
            return None
        try:
            self._begin()
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(socket), name="autoscaler writer")
                await self._read(socket)
                writer.cancel()
        except* (aiohttp.ClientError, OSError, TimeoutError) as errors:
            log.debug("the connection to the autoscaler broke: %r", errors.exceptions)
        finally:
            self._end()
            await socket.close()
        log.warning("the connection to the autoscaler at %s is closed (close code %s)", self.url, socket.close_code)
        return socket.close_code == _RESTARTING

    def _begin(self) -> None:
        """Record a connection, and have the owner of the figures send the current ones."""
        self.is_connected = True
        self.connections_total += 1
        self._batches.clear()
        log.info("connected to the autoscaler at %s", self.url)
        self._on_connected()

    def _end(self) -> None:
        self.is_connected = False
        self.disconnected_s = self._now()
        self.errors_total += 1
        self._batches.clear()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Read until the connection ends: the autoscaler sends no messages, but pongs and the end arrive by reading."""
        async for _ in socket:
            pass

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send the queued batches until cancelled."""
        while True:
            self._has_batches.clear()
            while self._batches:
                async with asyncio.timeout(AUTOSCALER_SEND_TIMEOUT_S):
                    await socket.send_bytes(encode_batch(self._batches.popleft(), self._pod_name))
                self.sent_total += 1
            await self._has_batches.wait()
