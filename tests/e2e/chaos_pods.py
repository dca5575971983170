"""Pods that misbehave as each request asks them to, and notice when a request is not what it should be.

Rules
  1. The target says everything: `/<nonce>?do=<deed>&size=<bytes>&body=<bytes>`. What goes back is made of the nonce,
     and so is what a request brings: a byte of another exchange shows.
  2. What was broken is kept in `violations`.
  3. A request is being worked on from its head until its answer is sent or its connection is closed by whoever.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from urllib.parse import parse_qs, urlsplit

ESTABLISHED = 1
NOT_IDEMPOTENT = {"POST", "PATCH"}
_STORM = 12


def material(nonce: str, size: int) -> bytes:
    """`size` bytes that belong to one request only."""
    return (f"{nonce}:".encode() * (size // (len(nonce) + 1) + 1))[:size]


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side gets a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Asked:
    """One request as a pod has it; `trailers` are lines."""

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        parts = urlsplit(self.target)
        self.is_garbled = self.fields.get("x-target") != self.target  # a client that babbles: nothing is owed to it
        words = {name: values[0] for name, values in parse_qs("" if self.is_garbled else parts.query).items()}
        self.nonce = parts.path.lstrip("/")
        self.deed = words.get("do", "length")
        self.size = int(words.get("size", "0"))
        self.body = int(words.get("body", "0"))
        self.has_body = "content-length" in self.fields or "transfer-encoding" in self.fields


class ChaosPod:
    """One pod. `limit`: how many requests it may have at a time; `seen` is shared by the pods of a revision."""

    def __init__(self, seed: int, limit: int, seen: dict[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._random = random.Random(seed)
        self._limit = limit
        self._seen = seen
        self._tls = tls
        self._working: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self.violations: list[str] = []
        self.served = 0

    async def open(self) -> str:
        """Its address."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve(reader, writer):
                self._working.pop(writer, None)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._working.pop(writer, None)
            self._tasks.discard(task)
            writer.close()

    def _begins(self, writer: asyncio.StreamWriter, asked: Asked) -> None:
        self.served += 1
        self._seen[asked.nonce] = self._seen.get(asked.nonce, 0) + 1
        if self._seen[asked.nonce] > 1 and not asked.is_garbled and asked.method in NOT_IDEMPOTENT:
            self.violations.append(f"{asked.method} {asked.target} was sent twice")
        self._working = {one: nonce for one, nonce in self._working.items() if _is_open(one)}
        self._working[writer] = asked.nonce
        if len(self._working) > self._limit:
            self.violations.append(f"{len(self._working)} at a time: {sorted(self._working.values())}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when the connection is not to be used again."""
        asked = Asked((await reader.readuntil(b"\r\n\r\n"))[:-4])
        self._begins(writer, asked)
        deed = asked.deed
        if self._seen[asked.nonce] > 1 and deed.startswith("once-"):
            deed = "length"  # the second try goes well
        deed = deed.removeprefix("once-")
        if deed.startswith("early-"):
            return await self._answer_early(deed, asked, reader, writer)
        if deed == "stall":
            await asyncio.sleep(30.0)
            return False
        if deed in {"reset", "close"}:
            if deed == "reset":
                reset(writer)
            return False
        if "100-continue" in asked.fields.get("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._body(asked, reader)
        if deed.startswith("tunnel"):
            return await self._tunnel(deed, asked, reader, writer)
        return await self._answer(deed, asked, writer)

    async def _body(self, asked: Asked, reader: asyncio.StreamReader) -> None:
        """Read the request's body and compare."""
        data = b""
        if "content-length" in asked.fields:
            data = await reader.readexactly(int(asked.fields["content-length"]))
        elif asked.has_body:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                data += (await reader.readexactly(size + 2))[:-2]
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                if not asked.is_garbled and line != f"X-Trailer: {asked.nonce}\r\n".encode():
                    self.violations.append(f"{asked.target}: trailer {line!r}")
        if asked.has_body and not asked.is_garbled and data != material(asked.nonce, asked.body):
            self.violations.append(f"{asked.target}: another body: {len(data)} {data[:80]!r}")

    def _head(self, asked: Asked, framing: str, version: str = "1.1", status: str = "200 OK") -> bytes:
        return f"HTTP/{version} {status}\r\nX-Nonce: {asked.nonce}\r\n{framing}\r\n".encode()

    async def _answer_early(
        self, deed: str, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Nothing of the body is read before the answer, and after it what comes until the end, or nothing at all."""
        close = "Connection: close\r\n" if deed == "early-close" else ""
        data = b"" if asked.method == "HEAD" else material(asked.nonce, asked.size)
        writer.write(self._head(asked, f"{close}Content-Length: {asked.size}\r\n") + data)
        await writer.drain()
        self._working.pop(writer, None)
        if deed == "early-deaf":
            await asyncio.sleep(0.2)
            return False
        if close:
            while await reader.read(65536):
                pass
            return False
        await self._body(asked, reader)
        return True

    async def _answer(self, deed: str, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if deed == "garbage":
            writer.write(bytes(self._random.randrange(256) for _ in range(200)))
            return False
        if deed == "storm":
            writer.write(self._head(asked, "", status="103 Early Hints") * self._random.randrange(1, _STORM))
        elif deed == "endless-storm":
            writer.write(self._head(asked, "", status="103 Early Hints") * 100)
        pieces = self._pieces(deed, asked)
        if deed.startswith("cut-"):
            return self._cut(deed, pieces, writer)
        if deed == "slow":
            for piece in pieces[:-1]:
                writer.write(piece)
                await asyncio.sleep(0.005)
            pieces = pieces[-1:]
        elif deed == "poison":
            pieces.append(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        writer.write(b"".join(pieces))
        self._working.pop(writer, None)
        await writer.drain()
        if deed == "then-half-close" and writer.can_write_eof():
            writer.write_eof()
            await asyncio.sleep(0.05)
        elif deed == "then-reset":
            await asyncio.sleep(0.01)
            reset(writer)
        return deed not in {"until-close", "poison", "then-close", "then-half-close", "then-reset"}

    def _pieces(self, deed: str, asked: Asked) -> list[bytes]:
        """The answer: its head, its body in pieces, and what ends it."""
        data = material(asked.nonce, asked.size)
        chunked = deed in {"chunked", "cut-chunks", "cut-chunks-reset"}
        if chunked:
            pieces = [self._head(asked, "Transfer-Encoding: chunked\r\n")]
        elif deed == "until-close":
            pieces = [self._head(asked, "", "1.0")]
        else:
            pieces = [self._head(asked, f"Content-Length: {len(data)}\r\n")]
        if asked.method == "HEAD":
            return pieces
        while data:
            size = self._random.choice((1, 1000, 70_000, 300_000))
            piece, data = data[:size], data[size:]
            pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            pieces.append(f"0\r\nX-Trailer: {asked.nonce}\r\n\r\n".encode())
        return pieces

    def _cut(self, deed: str, pieces: list[bytes], writer: asyncio.StreamWriter) -> bool:
        """Send a part of the answer and close, in order or with a reset."""
        whole = pieces[0] if "head" in deed else b"".join(pieces)
        writer.write(whole[: self._random.randrange(1, len(whole))])
        if deed.endswith("-reset"):
            reset(writer)
        return False

    async def _tunnel(
        self, deed: str, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """`tunnel`: everything back until the end; the other deeds end it in between."""
        writer.write(self._head(asked, "Connection: upgrade\r\nUpgrade: chaos\r\n", status="101 Switching Protocols"))
        if deed == "tunnel-silent":
            await reader.read()
            return False
        if deed == "tunnel-says-and-ends":
            writer.write(material(asked.nonce, asked.size))
            if writer.can_write_eof():
                writer.write_eof()
                await reader.read()
            return False
        while data := await reader.read(65536):
            if deed == "tunnel-reset":
                reset(writer)
                return False
            writer.write(data)
            await writer.drain()
        return False


def _is_open(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    if sock is None:
        return False
    try:
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return False
    return state[0] == ESTABLISHED
