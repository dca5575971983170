"""Asking a pod whether it answers: its port accepts, or a path answers 2xx or 3xx.

"Ready" has to mean that a real exchange on the data port worked. Part of the control side: the waits here are ordinary
asyncio waits with a timeout each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum

from activator.clock import Now
from activator.config import (
    PROBE_BACKOFF_INITIAL_S,
    PROBE_BACKOFF_MAX_S,
    PROBE_TIMEOUT_MAX_S,
    PROBE_TIMEOUT_MIN_S,
    PROBE_TIMEOUT_RTTS,
    PROBE_TIMEOUT_S,
    PROBES_AT_ONCE_MAX,
    PROBES_HURRIED_MAX,
)
from activator.message import Fields, Headers, RequestHead, ResponseHead
from activator.state.messages import Change, Probed, ProbeOrder, StartProbe
from activator.tasks import TaskGroupOwner, wait_for
from activator.wire.response import ResponseParser, ResponseSink
from activator.wire.serialise import request_bytes
from lb.rng import Rng

_READ_BYTES = 16 * 1024

log = logging.getLogger("activator.probing")


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


class Ask(Enum):
    """What came of asking a pod once."""

    ANSWERED = "answered"
    REFUSED = "refused"  # known at once
    SILENT = "silent"  # not within the timeout


async def ask(address: str, http_get: str, timeout_s: float) -> Ask:
    """As `answers`, with silence told from refusal. Never raises for what a network or a pod does."""
    try:
        async with asyncio.timeout(timeout_s):
            # A bound of its own, far beyond the other, so that what ends here is known to be silence.
            return Ask.ANSWERED if await answers(address, http_get, 10.0 * timeout_s) else Ask.REFUSED
    except TimeoutError:
        return Ask.SILENT


class Patience:
    """How long to wait for an answer, from how long the last ones of the same revision took.

    A timeout that does not know the distance to the pods is a cliff: beyond it no pod is ever ready.
    """

    def __init__(self) -> None:
        self._slowest_s: float = PROBE_TIMEOUT_S / PROBE_TIMEOUT_RTTS  # of late, falling slowly

    def answered(self, took_s: float) -> None:
        self._slowest_s = max(took_s, 0.875 * self._slowest_s)

    def timeout_s(self, silences: int) -> float:
        """After so many silences in a row: each doubles it."""
        first_s = max(PROBE_TIMEOUT_MIN_S, PROBE_TIMEOUT_RTTS * self._slowest_s)
        return float(min(first_s * 2.0 ** min(silences, 8), PROBE_TIMEOUT_MAX_S))


class Prober:
    """Asks the pods it is told to ask, each with a backoff of its own, until they answer.

    One bad pod never delays another: each is a task of its own, and only the asking itself is bounded, by
    PROBES_AT_ONCE_MAX. When requests wait, `hurry` cuts backoffs short. `ask_pod` asks one pod once,
    `wait` sits out a backoff.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        rng: Rng,
        now: Now,
        ask_pod: Callable[[str, str, float], Coroutine[None, None, Ask]] = ask,
        wait: Callable[[asyncio.Event, float], Coroutine[None, None, bool]] = wait_for,
    ) -> None:
        self._tasks = tasks
        self._submit = submit
        self._rng = rng
        self._now = now
        self._ask_pod = ask_pod
        self._wait = wait
        self._at_once = asyncio.Semaphore(PROBES_AT_ONCE_MAX)
        self._running: dict[str, dict[str, asyncio.Task[None]]] = {}  # by revision and identity
        self._pausing: dict[str, dict[str, asyncio.Event]] = {}  # by revision: who sits out a backoff
        self._patience: dict[str, Patience] = {}
        self.asked_totals: dict[Ask, int] = dict.fromkeys(Ask, 0)
        self.errors_total: int = 0

    def order(self, orders: list[ProbeOrder]) -> None:
        """Start and stop probes."""
        for order in orders:
            running = self._running.setdefault(order.key, {})
            former = running.pop(order.identity, None)
            if former is not None:
                former.cancel()
            if isinstance(order, StartProbe):
                running[order.identity] = self._tasks.start("probe", self._until_it_answers(order))
            elif not running:
                del self._running[order.key]
                self._patience.pop(order.key, None)

    def hurry(self, key: str) -> None:
        """Requests wait for this revision: ask now, not after the backoff; a bounded number of pods."""
        pausing = self._pausing.get(key)
        if pausing:
            for event in list(pausing.values())[:PROBES_HURRIED_MAX]:
                event.set()

    async def _until_it_answers(self, order: StartProbe) -> None:
        backoff_s = PROBE_BACKOFF_INITIAL_S
        silences = 0
        while True:
            found = await self._ask_once(order, silences)
            if found is Ask.ANSWERED:
                break
            silences = silences + 1 if found is Ask.SILENT else 0
            # Jitter: pods that died together part.
            hurried = await self._pause(order, backoff_s * (0.5 + float(self._rng.below(512)) / 1024.0))
            backoff_s = PROBE_BACKOFF_INITIAL_S if hurried else min(backoff_s * 2.0, PROBE_BACKOFF_MAX_S)
        self._submit(Probed(order.key, order.identity))

    async def _ask_once(self, order: StartProbe, silences: int) -> Ask:
        patience = self._patience.setdefault(order.key, Patience())
        async with self._at_once:
            begun_s = self._now()
            try:
                found = await self._ask_pod(order.address, "", patience.timeout_s(silences))
            except Exception:  # a defect: the pod is asked again all the same
                self.errors_total += 1
                log.exception("could not ask the pod %s of %s", order.identity, order.key)
                found = Ask.REFUSED
        self.asked_totals[found] += 1
        if found is Ask.ANSWERED:
            patience.answered(self._now() - begun_s)
        return found

    async def _pause(self, order: StartProbe, seconds: float) -> bool:
        """Sit out a backoff; True if it was cut short."""
        event = asyncio.Event()
        pausing = self._pausing.setdefault(order.key, {})
        pausing[order.identity] = event
        try:
            return await self._wait(event, seconds)
        finally:
            if pausing.get(order.identity) is event:
                del pausing[order.identity]
            if not pausing:
                self._pausing.pop(order.key, None)
