"""The clients of the endurance test: all kinds, at a steady rate, each of which judges its own answers.

Rules
  1. A client repairs nothing and repeats nothing; it connects again only where its connection had ended before it sent.
  2. Every request has an ID that no other has. One that is not idempotent has an ID that begins with ONCE.
  3. A client that leaves has no outcome; what must not happen of it shows in the figures at the end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tests.e2e.handover_clients import Background, Connection, all_events, head, next_id
from tests.e2e.handover_program import PATTERN
from tests.e2e.http_client import Answer
from tests.http2.raw_client import CLOSED, MAX_WINDOW, Ending, Event, RawClient, data_frame
from tests.soak.executions import ONCE
from tests.soak.ledger import CUT, OK, REFUSED, Ledger, Outcome

REQUEST_S: Final = 40.0  # the longest time of a short request
STREAM_S: Final = (2.0, 20.0)  # the length of a stream
PIECE: Final = b"0123456789abcdef" * 1_024
PIECES: Final = 40
DOWN_BYTES: Final = 1_500_000
DOWN_DIGEST: Final = hashlib.sha256((PATTERN[:251] * (DOWN_BYTES // 251 + 1))[:DOWN_BYTES]).digest()
SLOW_BYTES: Final = 8_000_000
SLOW_PIECE_BYTES: Final = 65_536
SLOW_DIGEST: Final = hashlib.sha256((PATTERN[:251] * (SLOW_BYTES // 251 + 1))[:SLOW_BYTES]).digest()
RECEIVE_BUFFER_BYTES: Final = 16_384


class Target(NamedTuple):
    """A revision at a door. `record`: the file of its programs, beside which a file ends an event stream."""

    door: str
    address: str
    revision: str
    record: Path
    tls: ssl.SSLContext | None = None

    @property
    def host(self) -> str:
        return f"{self.revision}.test"


class WrongError(Exception):
    """A response with a status or with bytes that it must not have; the message is the result."""


def result_of(error: BaseException) -> str:
    """Return the result of a request that ended with this exception."""
    if isinstance(error, WrongError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, InvalidStatus):
        reason = error.response.headers.get("activator-reason", "")
        return f"{error.response.status_code} {reason}".strip()
    if isinstance(error, asyncio.IncompleteReadError | OSError | WebSocketException):
        return CUT
    return f"{type(error).__name__}: {error}"[:200]


def check(answer: Answer, name: str, size: int = 0, digest: str = "") -> None:
    """Raise WrongError unless a program has answered this request, with this body."""
    if answer.status != 200:
        raise WrongError(f"{answer.status} {answer.reason}".strip())
    told = json.loads(answer.body)
    if told["id"] != name or told["size"] != size or (digest and told["sha256"] != digest):
        raise WrongError(f"another response: {told}")


async def opened(target: Target, receive_buffer_bytes: int = 0) -> Connection:
    """Connect to a door; the kernel buffers about so much of what comes (0: its default)."""
    if not receive_buffer_bytes:
        return await Connection.open(target.address, target.tls)
    host, _, port = target.address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return Connection(*await asyncio.open_connection(sock=sock))
    except BaseException:
        sock.close()
        raise


class Crowd:
    """The clients that are at work. `stream_s`: the shortest and the longest stream."""

    def __init__(self, ledger: Ledger, background: Background, seed: int, stream_s: tuple[float, float]) -> None:
        self._stream_s = stream_s
        self._ledger = ledger
        self._background = background
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._futures: list[concurrent.futures.Future[None]] = []
        self._threads: list[threading.Thread] = []

    # --- all clients ---

    def shorts(self, target: Target, clients: int, pause_s: float, fresh: bool = False) -> None:
        """Short requests, on a connection that is kept or on a fresh one for each."""
        for _ in range(clients):
            self._start(self._shorts(target, pause_s, fresh))

    def streams(self, target: Target, kind: str, clients: int = 1) -> None:
        """Exchanges of one kind, one after the other: `events`, `websocket`, `upload`, `chunked` or `download`."""
        exchanges: dict[str, Callable[[Target], Awaitable[None]]] = {
            "events": self._events,
            "websocket": self._websocket,
            "upload": self._upload,
            "chunked": self._chunked,
            "download": self._download,
            "slow download": self._slow_download,
            "leaves": self._leaves,
        }
        for _ in range(clients):
            self._start(self._again(exchanges[kind], target))

    def http2(self, target: Target, clients: int, pause_s: float) -> None:
        for number in range(clients):
            chance = random.Random(self._chance.random())
            name = f"http2-{number} of {target.revision} at {target.door}"
            self._threads.append(
                threading.Thread(target=self._http2, args=(target, pause_s, chance), name=name, daemon=True)
            )
            self._threads[-1].start()

    def stop(self) -> None:
        """Let every exchange end."""
        self._stopped.set()
        for future in self._futures:
            future.result(REQUEST_S + self._stream_s[1] + 20.0)
        for thread in self._threads:
            thread.join(REQUEST_S)
        self._futures, self._threads = [], []

    # --- within ---

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._futures.append(self._background.start(work))

    async def _again(self, exchange: Callable[[Target], Awaitable[None]], target: Target) -> None:
        while not self._stopped.is_set():
            await exchange(target)
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))

    def _record(
        self, kind: str, target: Target, name: str, began_s: float, port: int, error: BaseException | None
    ) -> None:
        result = OK if error is None else result_of(error)
        detail = "" if error is None else repr(error)[:200]
        self._ledger.record(
            Outcome(kind, target.door, target.revision, name, began_s, time.monotonic(), result, port, detail)
        )

    async def _shorts(self, target: Target, pause_s: float, fresh: bool) -> None:
        connection: Connection | None = None
        try:
            while not self._stopped.is_set():
                if connection is not None and (fresh or connection.has_ended()):
                    connection.close()
                    connection = None
                connection = await self._short(target, connection, "fresh" if fresh else "kept")
                await asyncio.sleep(self._chance.uniform(0.0, 2.0 * pause_s))
        finally:
            if connection is not None:
                connection.close()

    async def _short(self, target: Target, connection: Connection | None, kind: str) -> Connection | None:
        """Send one request; the connection for the next one."""
        once = self._chance.random() < 0.4
        name = next_id(ONCE + "short" if once else "short")
        body = b"x" * self._chance.choice((1, 300, 20_000)) if once else b""
        fields = f"Content-Length: {len(body)}\r\n" if once else ""
        data = head(f"/plain/{self._chance.choice((0, 0, 0.02))}", name, "POST" if once else "GET", target.host, fields)
        began_s = time.monotonic()
        port, goes_on = 0, False
        kind = f"{kind}, TLS" if target.tls is not None else kind
        try:
            async with asyncio.timeout(REQUEST_S):
                connection = connection or await Connection.open(target.address, target.tls)
                port = connection.writer.get_extra_info("sockname")[1]
                answer = await connection.ask(data + body)
            check(answer, name, len(body))
            goes_on = "close" not in answer.header("connection")
            self._record(kind, target, name, began_s, port, None)
        except Exception as error:
            self._record(kind, target, name, began_s, port, error)
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
        name = next_id((ONCE + kind if once else kind).replace(" ", "-"))
        began_s = time.monotonic()
        port = 0
        connection: Connection | None = None
        error: Exception | None = None
        try:
            connection = await opened(target, receive_buffer_bytes)
            port = connection.writer.get_extra_info("sockname")[1]
            await do(connection, name)
        except Exception as raised:
            error = raised
        finally:
            if connection is not None:
                connection.close()
        self._record(kind, target, name, began_s, port, error)

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
        name = next_id(ONCE + "websocket")
        began_s = time.monotonic()
        port, number = 0, 0
        error: Exception | None = None
        until_s = began_s + self._chance.uniform(*self._stream_s)
        host, _, at = target.address.rpartition(":")
        more: dict[str, Any] = {"host": host, "port": int(at), "additional_headers": {"X-Id": name}}
        more |= {"compression": None, "ping_interval": None, "proxy": None, "open_timeout": REQUEST_S}
        try:
            async with connect(f"ws://{target.host}/ws", **more) as client:
                port = client.local_address[1]
                while time.monotonic() < until_s:
                    message = f"{number} " + "x" * (number % 200)
                    await client.send(message)
                    async with asyncio.timeout(REQUEST_S):
                        if await client.recv() != message:
                            raise WrongError("another message")
                    number += 1
                    await asyncio.sleep(0.1)
        except Exception as raised:
            error = raised
        self._record("websocket", target, name, began_s, port, error)

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
                async with asyncio.timeout(REQUEST_S):
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
                async with asyncio.timeout(REQUEST_S):
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
        try:
            connection = await Connection.open(target.address, target.tls)
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
        except OSError:
            await asyncio.sleep(0.1)
        self._ledger.count("leaves", "left")

    def _http2(self, target: Target, pause_s: float, chance: random.Random) -> None:
        host, _, port = target.address.rpartition(":")
        while not self._stopped.is_set():
            try:
                with RawClient(host, int(port), path="/plain/0", authority=target.host, patience_s=REQUEST_S) as client:
                    client.handshake()
                    for number in range(chance.randrange(1, 60)):
                        if client.goaway is not None or client.closed or self._stopped.is_set():
                            break
                        self._stream(client, 1 + 2 * number, target, chance)
                        self._stopped.wait(chance.uniform(0.0, 2.0 * pause_s))
                        client.drain()
            except (OSError, AssertionError):
                self._stopped.wait(0.1)  # no request was under way

    def _stream(self, client: RawClient, stream: int, target: Target, chance: random.Random) -> None:
        """One request. One that a GOAWAY leaves out was not processed, and is none."""
        once = chance.random() < 0.4
        name = next_id(ONCE + "http2" if once else "http2")
        began_s = time.monotonic()
        port = client.socket.getsockname()[1]
        error: Exception | None = None
        try:
            client.request(stream, "POST" if once else "GET", [("x-id", name)], end=not once)
            if once:
                client.send(data_frame(stream, b"x" * chance.choice((1, 300, 10_000)), end=True))
            end = client.until_end_of(stream)
            _check_stream(client, stream, end)
        except Exception as raised:
            error = raised
        last = MAX_WINDOW if client.goaway is None else int.from_bytes(client.goaway.payload[:4], "big") & MAX_WINDOW
        if error is not None and last < stream:
            self._ledger.count("HTTP/2", "left out by GOAWAY")
        else:
            self._record("HTTP/2", target, name, began_s, port, error)
        client.heads.clear()
        client.bodies.clear()


def _check_stream(client: RawClient, stream: int, end: Event) -> None:
    """Raise WrongError unless a stream has ended with a whole response."""
    if isinstance(end, Ending):
        raise WrongError(CUT if end is CLOSED else "no response in time")
    fields = dict(client.heads[stream][-1]) if stream in client.heads else {}
    if not end.ends_stream:
        raise WrongError(f"reset with {end.code}, {fields}")
    if fields.get(":status") != "200":
        raise WrongError(f"{fields.get(':status')} {fields.get('activator-reason', '')}".strip())
    if client.bodies.get(stream, 0) != int(fields["content-length"]):
        raise WrongError(f"{client.bodies.get(stream, 0)} bytes, {fields}")
