"""The clients of the endurance test: all kinds, at a steady rate, each of which judges its own answers.

Rules
  1. A client repairs nothing and repeats nothing; it connects again only where its connection had ended before it sent.
  2. Every request has an ID that no other has. One that is not idempotent has an ID that begins with ONCE.
  3. A client that leaves has no outcome; what must not happen of it shows in the figures at the end.
  4. Every exchange ends: one that hangs is given up after a bounded time, as is a client, and is a violation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import random
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from websockets.asyncio.client import connect

from tests.e2e.handover_clients import Background, Connection, all_events, head, next_id
from tests.e2e.handover_program import PATTERN
from tests.soak.attempts import REQUEST_S, Attempt, Client, Target, WrongError, check, connected, opened
from tests.soak.executions import ONCE
from tests.soak.http2_client import Http2Client
from tests.soak.ledger import HANG, LEFT, Ledger

STREAM_S: Final = (2.0, 20.0)  # the length of a stream
PIECE: Final = b"0123456789abcdef" * 1_024
PIECES: Final = 40
DOWN_BYTES: Final = 1_500_000
DOWN_DIGEST: Final = hashlib.sha256((PATTERN[:251] * (DOWN_BYTES // 251 + 1))[:DOWN_BYTES]).digest()
SLOW_BYTES: Final = 8_000_000
SLOW_PIECE_BYTES: Final = 65_536
SLOW_DIGEST: Final = hashlib.sha256((PATTERN[:251] * (SLOW_BYTES // 251 + 1))[:SLOW_BYTES]).digest()
RECEIVE_BUFFER_BYTES: Final = 16_384
END_S: Final = 20.0


class Crowd:
    """The clients that are at work.

    `stream_s`: the shortest and the longest stream; `request_s`: the longest time of a short request; `end_s`: beyond
    its longest exchange, for a client to end on a busy machine.
    """

    def __init__(
        self,
        ledger: Ledger,
        background: Background,
        seed: int,
        stream_s: tuple[float, float],
        request_s: float = REQUEST_S,
        end_s: float = END_S,
    ) -> None:
        self._stream_s = stream_s
        self._request_s = request_s
        self._longest_s = 2.0 * request_s + stream_s[1]  # of an exchange: a wait before it and one in it
        self._end_s = end_s
        self._ledger = ledger
        self._background = background
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._futures: list[tuple[str, concurrent.futures.Future[None]]] = []
        self._threads: list[threading.Thread] = []

    # --- all clients ---

    def shorts(self, target: Target, clients: int, pause_s: float, fresh: bool = False) -> None:
        """Short requests, on a connection that is kept or on a fresh one for each."""
        kind = ("fresh" if fresh else "kept") + (", TLS" if target.tls is not None else "")
        for _ in range(clients):
            self._start(kind, target, self._shorts(kind, target, pause_s, fresh))

    def streams(self, target: Target, kind: str, clients: int = 1) -> None:
        """Exchanges of one kind, one after the other: its kind is a key of `exchanges`."""
        exchanges: dict[str, Callable[[Target], Awaitable[None]]] = {
            "events": self._events,
            "websocket": self._websocket,
            "upload": self._upload,
            "chunked upload": self._chunked,
            "download": self._download,
            "slow download": self._slow_download,
            "leaves": self._leaves,
        }
        for _ in range(clients):
            self._start(kind, target, self._again(exchanges[kind], target))

    def http2(self, target: Target, clients: int, pause_s: float) -> None:
        """Streams, one after the other, on connections that are kept for some of them."""
        self._ledger.expect("HTTP/2", target.door, target.revision)
        for number in range(clients):
            chance = random.Random(self._chance.random())
            client = Http2Client(self._ledger, target, pause_s, chance, self._stopped, self._request_s)
            name = f"http2-{number} of {target.revision} at {target.door}"
            self._threads.append(threading.Thread(target=client.run, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Let every exchange end. A client that does not, or that fails, is a violation."""
        self._stopped.set()
        give_up_s = time.monotonic() + self._longest_s + self._end_s
        for name, future in self._futures:
            try:
                future.result(max(give_up_s - time.monotonic(), 0.0))
            except Exception as error:
                future.cancel()
                self._ledger.violate(f"the client {name} has not ended as it should: {error!r}"[:1_000])
        for thread in self._threads:
            thread.join(max(give_up_s - time.monotonic(), 0.0))
            if thread.is_alive():
                self._ledger.violate(f"the client {thread.name} has not ended in time")
        self._futures, self._threads = [], []

    # --- within ---

    def _start(self, kind: str, target: Target, work: Coroutine[Any, Any, None]) -> None:
        self._ledger.expect(kind, target.door, target.revision)
        self._futures.append((f"{kind} of {target.revision} at the {target.door}", self._background.start(work)))

    async def _again(self, exchange: Callable[[Target], Awaitable[None]], target: Target) -> None:
        while not self._stopped.is_set():
            await exchange(target)
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))

    async def _shorts(self, kind: str, target: Target, pause_s: float, fresh: bool) -> None:
        connection: Client | None = None
        try:
            while not self._stopped.is_set():
                if connection is not None and (fresh or connection.has_ended()):
                    connection.close()
                    connection = None
                connection = await self._short(kind, target, connection)
                await asyncio.sleep(self._chance.uniform(0.0, 2.0 * pause_s))
        finally:
            if connection is not None:
                connection.close()

    async def _short(self, kind: str, target: Target, connection: Client | None) -> Client | None:
        """Send one request; the connection for the next one."""
        once = self._chance.random() < 0.4
        name = next_id(ONCE + "short" if once else "short")
        body = b"x" * self._chance.choice((1, 300, 20_000)) if once else b""
        fields = f"Content-Length: {len(body)}\r\n" if once else ""
        data = head(f"/plain/{self._chance.choice((0, 0, 0.02))}", name, "POST" if once else "GET", target.host, fields)
        attempt = Attempt(kind, target, name)
        goes_on = False
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._request_s):
                connection = connection or await opened(attempt)
                attempt.port = connection.port
                answer = await connection.ask(data + body)
            check(answer, name, len(body))
            goes_on = "close" not in answer.header("connection")
        except Exception as raised:
            error = raised
        attempt.heard = connection is not None and connection.heard
        self._ledger.record(attempt.outcome(error))
        if error is not None:
            await asyncio.sleep(0.1)
        if connection is not None and not goes_on:
            connection.close()
            return None
        return connection

    async def _exchange(
        self,
        kind: str,
        target: Target,
        once: bool,
        do: Callable[[Connection, str], Awaitable[None]],
        receive_buffer_bytes: int = 0,
    ) -> None:
        """One exchange on a connection of its own."""
        attempt = Attempt(kind, target, next_id((ONCE + kind if once else kind).replace(" ", "-")))
        connection: Client | None = None
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._longest_s):
                connection = await opened(attempt, receive_buffer_bytes)
                await do(connection, attempt.name)
        except Exception as raised:
            error = raised
        finally:
            if connection is not None:
                attempt.heard = connection.heard
                connection.close()
        self._ledger.record(attempt.outcome(error))

    async def _events(self, target: Target) -> None:
        async def do(connection: Connection, name: str) -> None:
            end = target.record.with_name(f"{target.record.name}.{name}")
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._chance.uniform(*self._stream_s), end.touch)
            try:
                connection.writer.write(head(f"/events/{name}/0.2", name, host=target.host))
                answer = await connection.head()
                if answer.status != 200:
                    raise WrongError(f"{answer.status} {answer.reason}".strip())
                received = b"".join([piece async for piece in connection.pieces(answer)])
                if not all_events(received):
                    raise WrongError(f"an incomplete stream: {received[-60:]!r}")
            finally:
                timer.cancel()
                end.unlink(missing_ok=True)

        await self._exchange("events", target, False, do)

    async def _websocket(self, target: Target) -> None:
        attempt = Attempt("websocket", target, next_id(ONCE + "websocket"))
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._longest_s):
                await self._echo(attempt)
        except Exception as raised:
            error = raised
        self._ledger.record(attempt.outcome(error))

    async def _echo(self, attempt: Attempt) -> None:
        number = 0
        until_s = attempt.began_s + self._chance.uniform(*self._stream_s)
        more: dict[str, Any] = {"additional_headers": {"X-Id": attempt.name}, "compression": None}
        more |= {"ping_interval": None, "proxy": None, "open_timeout": self._request_s}
        with await connected(attempt) as sock:
            async with connect(f"ws://{attempt.target.host}/ws", sock=sock, **more) as client:
                attempt.heard = True
                while time.monotonic() < until_s:
                    message = f"{number} " + "x" * (number % 200)
                    await client.send(message)
                    async with asyncio.timeout(self._request_s):
                        if await client.recv() != message:
                            raise WrongError("another message")
                    number += 1
                    await asyncio.sleep(0.1)

    async def _upload(self, target: Target) -> None:
        await self._sent(target, "upload", f"Content-Length: {PIECES * len(PIECE)}\r\n", PIECE, b"")

    async def _chunked(self, target: Target) -> None:
        chunk = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
        await self._sent(target, "chunked upload", "Transfer-Encoding: chunked\r\n", chunk, b"0\r\n\r\n")

    async def _sent(self, target: Target, kind: str, framing: str, piece: bytes, end: bytes) -> None:
        """An upload in pieces."""

        async def do(connection: Connection, name: str) -> None:
            connection.writer.write(head("/plain/0", name, "POST", target.host, framing))
            pause_s = self._chance.uniform(*self._stream_s) / PIECES
            for _ in range(PIECES):
                connection.writer.write(piece)
                async with asyncio.timeout(self._request_s):
                    await connection.writer.drain()
                if connection.has_ended():
                    break
                await asyncio.sleep(pause_s)
            answer = await connection.ask(end)
            check(answer, name, PIECES * len(PIECE), hashlib.sha256(PIECE * PIECES).hexdigest())

        await self._exchange(kind, target, True, do)

    async def _download(self, target: Target) -> None:
        async def do(connection: Connection, name: str) -> None:
            connection.writer.write(head(f"/down/{DOWN_BYTES}", name, host=target.host))
            answer = await connection.head()
            if answer.status != 200:
                raise WrongError(f"{answer.status} {answer.reason}".strip())
            pause_s = self._chance.uniform(*self._stream_s) / (DOWN_BYTES // len(PIECE))
            digest = hashlib.sha256()
            left = DOWN_BYTES
            while left:
                async with asyncio.timeout(self._request_s):
                    data = await connection.reader.readexactly(min(left, len(PIECE)))
                digest.update(data)
                left -= len(data)
                await asyncio.sleep(pause_s)
            if digest.digest() != DOWN_DIGEST:
                raise WrongError("other bytes")

        await self._exchange("download", target, False, do)

    async def _slow_download(self, target: Target) -> None:
        """A download into a small buffer of the kernel, so that the proxy has to hold most of it."""

        async def do(connection: Connection, name: str) -> None:
            connection.writer.write(head(f"/down/{SLOW_BYTES}", name, host=target.host))
            answer = await connection.head()
            if answer.status != 200:
                raise WrongError(f"{answer.status} {answer.reason}".strip())
            pause_s = self._chance.uniform(*self._stream_s) / (SLOW_BYTES // SLOW_PIECE_BYTES)
            digest = hashlib.sha256()
            async for piece in connection.pieces(answer):
                digest.update(piece)
                await asyncio.sleep(pause_s * len(piece) / SLOW_PIECE_BYTES)
            if digest.digest() != SLOW_DIGEST:
                raise WrongError("other bytes")

        await self._exchange("slow download", target, False, do, RECEIVE_BUFFER_BYTES)

    async def _leaves(self, target: Target) -> None:
        """Begin some exchange and leave in the middle, with a close or a reset."""
        kind = self._chance.choice(("/plain/0.3", f"/down/{DOWN_BYTES}", "/events/never/0.05", "upload"))
        name = next_id(ONCE + "left" if kind == "upload" else "left")
        result = LEFT
        try:
            async with asyncio.timeout(self._request_s):
                connection = await opened(Attempt("leaves", target, name))
            if kind == "upload":
                connection.writer.write(
                    head("/plain/0", name, "POST", target.host, "Content-Length: 900000\r\n") + PIECE
                )
            else:
                connection.writer.write(head(kind, name, host=target.host))
            await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.2, 1.0)))
            if self._chance.random() < 0.5:
                sock = connection.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        except TimeoutError:
            result = HANG
            self._ledger.violate(f"{name} could not connect to the {target.door} in time")
        except OSError:
            result = "not connected"
            await asyncio.sleep(0.1)
        self._ledger.count("leaves", target.door, target.revision, result)
