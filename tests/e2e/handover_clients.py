"""Clients that live through an upgrade: they run beside the test in a thread with an event loop of its own.

Rules
  1. A client never repairs anything: what is cut, late, doubled or out of order is a failure of its outcome.
  2. A client connects again where its connection had ended before it sent the next request, and only there.
  3. Every request has an ID of its own in X-Id, which the program writes down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import itertools
import json
import select
import ssl
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from websockets.asyncio.client import connect, unix_connect

from tests.e2e.handover_program import PATTERN
from tests.e2e.http_client import Answer
from tests.e2e.running import eventually

PATIENCE_S = 60.0  # for one read of a client
REQUEST_S = 20.0  # for one short request
INTERVAL_S = 0.05  # between two steps of an exchange
PIECES = 3_000  # of an upload or a download: for longer than any test, unless it is let end
PIECE_BYTES = 20_000
IDS = itertools.count()

T = TypeVar("T")


def next_id(kind: str) -> str:
    """An ID that no other request of this test run has."""
    return f"{kind}-{next(IDS)}"


def head(target: str, name: str, method: str = "GET", host: str = "a.test", fields: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nX-Id: {name}\r\n{fields}\r\n".encode()


class Background:
    """Runs coroutines in a thread of its own; those that are left at the end are cancelled."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.05)  # transports close within a few turns of the loop


class Connection:
    """One HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: str, tls: ssl.SSLContext | None = None, limit: int = 65_536) -> Connection:
        if address.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        name = "localhost" if tls is not None else None
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name, limit=limit))

    def has_ended(self) -> bool:
        """True if the other side has closed, whether or not this event loop has read of it."""
        if self.reader.at_eof() or self.writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(0))

    async def head(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        return Answer(int(lines[0].split(" ")[1]), lines[0], fields)

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body as it comes; IncompleteReadError where it ends too early."""
        if answer.framing == "chunked":
            while True:
                async with asyncio.timeout(PATIENCE_S):
                    size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
                    data = await self.reader.readexactly(size + 2)
                if not size:
                    return
                yield data[:-2]
        assert answer.framing == "length", answer
        left = int(answer.header("content-length"))
        while left:
            async with asyncio.timeout(PATIENCE_S):
                data = await self.reader.read(min(left, 65_536))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            yield data

    async def ask(self, data: bytes) -> Answer:
        """Send a request and read its answer."""
        self.writer.write(data)
        answer = await self.head()
        async for piece in self.pieces(answer):
            answer.body += piece
        return answer

    def close(self) -> None:
        self.writer.transport.abort()


class Outcome:
    """What one long exchange has seen so far; `gap_s` is the longest time between two signs of life."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.gap_s = 0.0
        self.last_s = time.monotonic()
        self.complete = False

    def __repr__(self) -> str:
        return f"{self.name}: {self.steps} steps, longest gap {self.gap_s:.2f} s, complete: {self.complete}"

    def step(self) -> None:
        now_s = time.monotonic()
        if self.steps:
            self.gap_s = max(self.gap_s, now_s - self.last_s)
        self.last_s = now_s
        self.steps += 1


class Exchanges:
    """Long exchanges, all of which go on until `let_end`: `outcomes` of all, and what they end with."""

    def __init__(self, background: Background, record: Path) -> None:
        self._background = background
        self._name = next_id("streams")
        self._end = record.with_name(f"{record.name}.{self._name}")  # as the program has it
        self._ending = False
        self.outcomes: list[Outcome] = []
        self._futures: list[concurrent.futures.Future[None]] = []

    def events(self, address: str, interval_s: float = INTERVAL_S, tls: ssl.SSLContext | None = None) -> None:
        """An event stream."""
        outcome = self._new("events")
        self._start(self._events(outcome, address, interval_s, tls))

    def websocket(self, address: str, interval_s: float = INTERVAL_S, tls: ssl.SSLContext | None = None) -> None:
        """A WebSocket that echoes one message after the other."""
        outcome = self._new("websocket")
        self._start(self._websocket(outcome, address, interval_s, tls))

    def upload(self, address: str, interval_s: float = INTERVAL_S, chunked: bool = False) -> None:
        """A body that is sent piece by piece; the answer says what of it has come."""
        outcome = self._new("upload")
        self._start(self._upload(outcome, address, interval_s, chunked))

    def download(self, address: str, interval_s: float = INTERVAL_S) -> None:
        """A body that the client reads piece by piece."""
        outcome = self._new("download")
        self._start(self._download(outcome, address, interval_s))

    def all_kinds(self, address: str) -> None:
        self.events(address)
        self.websocket(address)
        self.upload(address)
        self.upload(address, chunked=True)
        self.download(address)

    def wait_progress(self, steps: int = 3) -> None:
        """Wait until each exchange has made so many more steps; raises what one has failed with."""
        before = [outcome.steps for outcome in self.outcomes]

        def check() -> bool:
            for future in self._futures:
                if future.done():
                    future.result()
            return all(one.steps >= had + steps for one, had in zip(self.outcomes, before, strict=True))

        eventually(check, f"progress of {self.outcomes}")

    def unfinished(self) -> int:
        return sum(not future.done() for future in self._futures)

    def let_end(self) -> None:
        self._ending = True
        self._end.touch()

    def cut(self, timeout_s: float) -> list[Outcome]:
        """Wait until all have ended in whatever way, and return those that were not complete."""
        concurrent.futures.wait(self._futures, timeout_s)
        assert self.unfinished() == 0, ("some hang", self.outcomes)
        return [one for one in self.outcomes if not one.complete]

    def longest_gap_s(self) -> float:
        """Return the longest gap of all since the last call."""
        longest_s = max(one.gap_s for one in self.outcomes)
        for one in self.outcomes:
            one.gap_s = 0.0
        return longest_s

    def finish(self, gap_s: float, timeout_s: float = PATIENCE_S) -> None:
        """Let all end; AssertionError unless each is complete, without a pause longer than `gap_s`."""
        self.let_end()
        concurrent.futures.wait(self._futures, timeout_s)
        failed = [
            (outcome, "hangs" if not future.done() else repr(future.exception()))
            for outcome, future in zip(self.outcomes, self._futures, strict=True)
            if not future.done() or future.exception() is not None or not outcome.complete
        ]
        assert not failed, failed
        paused = [one for one in self.outcomes if one.gap_s > gap_s]
        assert not paused, (f"pauses of more than {gap_s} s", paused)

    # --- within ---

    def _new(self, kind: str) -> Outcome:
        outcome = Outcome(next_id(kind))
        self.outcomes.append(outcome)
        return outcome

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._futures.append(self._background.start(work))

    async def _pause(self, interval_s: float) -> None:
        if not self._ending:
            await asyncio.sleep(interval_s)

    async def _events(self, outcome: Outcome, address: str, interval_s: float, tls: ssl.SSLContext | None) -> None:
        connection = await Connection.open(address, tls)
        try:
            connection.writer.write(head(f"/events/{self._name}/{interval_s}", outcome.name))
            answer = await connection.head()
            assert answer.status == 200, answer
            received = b""
            async for piece in connection.pieces(answer):
                outcome.step()
                received += piece
            assert all_events(received), received[-200:]
            outcome.complete = True
        finally:
            connection.close()

    async def _websocket(self, outcome: Outcome, address: str, interval_s: float, tls: ssl.SSLContext | None) -> None:
        fields = {"X-Id": outcome.name}
        more: dict[str, Any] = {"additional_headers": fields, "compression": None, "ping_interval": None}
        if address.startswith("unix:"):
            opening = unix_connect(address.removeprefix("unix:"), "ws://a.test/ws", open_timeout=PATIENCE_S, **more)
        else:
            scheme = "ws" if tls is None else "wss"
            uri = f"{scheme}://{address}/ws"
            more |= {} if tls is None else {"ssl": tls, "server_hostname": "localhost"}
            opening = connect(uri, open_timeout=PATIENCE_S, proxy=None, **more)
        async with opening as client:
            while not self._ending:
                message = f"{outcome.steps} " + "x" * (outcome.steps % 200)
                await client.send(message)
                async with asyncio.timeout(PATIENCE_S):
                    assert await client.recv() == message
                outcome.step()
                await self._pause(interval_s)
        outcome.complete = True

    async def _upload(self, outcome: Outcome, address: str, interval_s: float, chunked: bool) -> None:
        body = [b"%d " % number * 1_000 for number in range(PIECES)]
        size = sum(len(piece) for piece in body)
        framing = "Transfer-Encoding: chunked\r\n" if chunked else f"Content-Length: {size}\r\n"
        connection = await Connection.open(address)
        try:
            connection.writer.write(head("/plain/0", outcome.name, "POST", fields=framing))
            for piece in body:
                connection.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                async with asyncio.timeout(PATIENCE_S):
                    await connection.writer.drain()
                outcome.step()
                await self._pause(interval_s)
            answer = await connection.ask(b"0\r\n\r\n" if chunked else b"")
            assert answer.status == 200, answer
            outcome.step()
            told = json.loads(answer.body)
            digest = hashlib.sha256(b"".join(body)).hexdigest()
            assert (told["id"], told["size"], told["sha256"]) == (outcome.name, size, digest), told
            outcome.complete = True
        finally:
            connection.close()

    async def _download(self, outcome: Outcome, address: str, interval_s: float) -> None:
        size = PIECES * PIECE_BYTES
        connection = await Connection.open(address)
        try:
            connection.writer.write(head(f"/down/{size}", outcome.name))
            answer = await connection.head()
            assert answer.status == 200, answer
            assert int(answer.header("content-length")) == size, answer
            digest = hashlib.sha256()
            for _ in range(PIECES):
                async with asyncio.timeout(PATIENCE_S):
                    digest.update(await connection.reader.readexactly(PIECE_BYTES))
                outcome.step()
                await self._pause(interval_s)
            expected = hashlib.sha256((PATTERN[:251] * (size // 251 + 1))[:size])
            assert digest.digest() == expected.digest(), "other bytes"
            outcome.complete = True
        finally:
            connection.close()


def all_events(received: bytes) -> bool:
    """True for a whole event stream: all numbers in their order, and the end."""
    *numbers, last = received.removesuffix(b"\n\n").split(b"\n\n")
    return last == b"data: done" and numbers == [b"data: %d" % number for number in range(len(numbers))]


class ShortRequests:
    """`keeping` clients with keep-alive connections, and `fresh` ones that connect for each request.

    `answered`: the IDs of the requests that were answered with 200. `failed`: what became of all others.
    """

    def __init__(self, address: str, keeping: int, fresh: int, pause_s: float = 0.0) -> None:
        self.answered: list[str] = []
        self.failed: list[str] = []
        self.longest_s = 0.0
        self._address = address
        self._counts = (keeping, fresh)
        self._pause_s = pause_s
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Send requests until `stop` is called."""
        keeping, fresh = self._counts
        await asyncio.gather(
            *(self._client(True) for _ in range(keeping)), *(self._client(False) for _ in range(fresh))
        )

    async def _client(self, keeps: bool) -> None:
        connection: Connection | None = None
        try:
            while not self._stopped:
                if connection is not None and connection.has_ended():
                    connection.close()
                    connection = None
                connection = await self._request(connection, keeps)
                await asyncio.sleep(self._pause_s)
        finally:
            if connection is not None:
                connection.close()

    async def _request(self, connection: Connection | None, keeps: bool) -> Connection | None:
        """Send one request, on a new connection if there is none; the connection for the next one."""
        name = next_id("short")
        began_s = time.monotonic()
        where = "a new" if connection is None else "a used"
        continues = False
        try:
            connection = connection or await Connection.open(self._address)
            async with asyncio.timeout(REQUEST_S):
                answer = await connection.ask(head("/plain/0", name))
            if answer.status == 200 and json.loads(answer.body)["id"] == name:
                self.answered.append(name)
            else:
                self.failed.append(f"{name}: {answer}")
            continues = keeps and "close" not in answer.header("connection")
        except (OSError, asyncio.IncompleteReadError) as error:
            self.failed.append(f"{name} on {where} connection after {time.monotonic() - began_s:.3f} s: {error!r}")
            await asyncio.sleep(0.02)
        finally:
            if connection is not None and not continues:
                connection.close()
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        return connection if continues else None
