"""A plain HTTP/1.1 client over a socket that shows what came, byte for byte: no repair, no retry, no pool.

It shares nothing with `activator.wire`: what reads an answer here is not what wrote it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Self

from tests.e2e.raw_connection import RawConnection

TIMEOUT_S = 20.0


class CutShortError(Exception):
    """The connection ended before the answer did."""


class Answer:
    """One response; header names are lowered, `interim` are the statuses of the 1xx before it."""

    def __init__(self, status: int, phrase: str, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.phrase = phrase
        self.headers = headers
        self.interim: list[int] = []
        self.body = b""
        self.trailers: list[tuple[str, str]] = []

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.headers}, {self.body[:200]!r})"

    def header(self, name: str) -> str:
        """The one value of a header; empty when there is none."""
        values = self.all(name)
        assert len(values) <= 1, (name, values)
        return values[0] if values else ""

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]

    @property
    def reason(self) -> str:
        return self.header("activator-reason")

    @property
    def framing(self) -> str:
        """How the end of the body is told: "chunked", "length" or "close"."""
        if "chunked" in self.all("transfer-encoding"):
            return "chunked"
        return "length" if self.all("content-length") else "close"


def has_body(answer: Answer, method: str) -> bool:
    return method != "HEAD" and answer.status not in {204, 304}


def request(
    target: str = "/", method: str = "GET", host: str = "a.test", headers: str = "", body: bytes | None = None
) -> bytes:
    """A request as bytes; `headers` are lines with their ends; a body goes with its length."""
    if body is not None:
        headers += f"Content-Length: {len(body)}\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode() + (body or b"")


def chunked(*pieces: bytes, trailers: str = "") -> bytes:
    """A chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + f"0\r\n{trailers}\r\n".encode()


class Client(RawConnection):
    """One connection. Reads raise CutShortError where the answer ends too early."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S, receive_buffer: int = 0) -> None:
        host, _, port = address.rpartition(":")
        is_unix = address.startswith("unix:")
        sock = socket.socket(socket.AF_UNIX) if is_unix else socket.socket()
        sock.settimeout(timeout_s)
        if not is_unix:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(address.removeprefix("unix:") if is_unix else (host, int(port)))
        super().__init__(sock)

    def secure(self, context: ssl.SSLContext, server_name: str) -> None:
        """Go on over TLS; before anything is sent."""
        self._file.close()
        self.socket = context.wrap_socket(self.socket, server_hostname=server_name)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, data: bytes) -> Answer:
        """Send one request and read its answer."""
        self.send(data)
        return self.answer(data.split(b" ", 1)[0].decode("latin-1"))

    def answer(self, method: str = "GET") -> Answer:
        """The next answer, whole."""
        answer = self.head()
        self.body(answer, method)
        return answer

    def head(self) -> Answer:
        """The next final head; its body is still to be read."""
        interim: list[int] = []
        while True:
            line = self._line()
            version, status, phrase = (line + " ").split(" ", 2)
            assert version in {"HTTP/1.1", "HTTP/1.0"}, line
            answer = Answer(int(status), phrase.strip(), self._fields())
            if answer.status >= 200:
                answer.interim = interim
                return answer
            interim.append(answer.status)

    def body(self, answer: Answer, method: str = "GET") -> None:
        """Read what belongs to `answer`."""
        if not has_body(answer, method):
            return
        if answer.framing == "chunked":
            pieces = []
            while size := int(self._line().partition(";")[0], 16):
                pieces.append(self.read(size))
                assert self.read(2) == b"\r\n"
            answer.body = b"".join(pieces)
            answer.trailers = self._fields()
        elif answer.framing == "length":
            answer.body = self.read(int(answer.header("content-length")))
        else:
            answer.body = self.rest()

    def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        try:
            data = self._file.read(size)
        except ConnectionError as error:
            raise CutShortError(str(error)) from error
        if len(data) < size:
            raise CutShortError(f"{len(data)} bytes of {size}: {data[-200:]!r}")
        return data

    def rest(self) -> bytes:
        """Everything until the other side closes; CutShortError when it does so with a reset."""
        try:
            return self._file.read()
        except ConnectionError as error:
            raise CutShortError(str(error)) from error

    def _line(self) -> str:
        try:
            line = self._file.readline()
        except ConnectionError as error:
            raise CutShortError(str(error)) from error
        if not line.endswith(b"\r\n"):
            raise CutShortError(f"in a line: {line!r}")
        return line[:-2].decode("latin-1")

    def _fields(self) -> list[tuple[str, str]]:
        fields = []
        while line := self._line():
            name, _, value = line.partition(":")
            fields.append((name.lower(), value.strip()))
        return fields


def ask(address: str, data: bytes, timeout_s: float = TIMEOUT_S) -> Answer:
    """One request on a connection of its own."""
    with Client(address, timeout_s) as client:
        return client.ask(data)


# --- many at once ---------------------------------------------------------------------------------------------------


class Visitor:
    """One of many clients at once: an asyncio connection that sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> Visitor:
        if address.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, data: bytes, timeout_s: float = 60.0) -> Answer:
        """Send a request and read its answer. Raises CutShortError."""
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(data)
                return await self._answer()
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise CutShortError(repr(error)) from error

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass

    async def _answer(self) -> Answer:
        reader = self._reader
        lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        _, status, phrase = (lines[0] + " ").split(" ", 2)
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        answer = Answer(int(status), phrase.strip(), fields)
        if answer.framing == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                answer.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
        elif answer.framing == "length":
            answer.body = await reader.readexactly(int(answer.header("content-length")))
        else:
            answer.body = await reader.read()
        return answer


async def burst_on(address: str, count: int, data: bytes, timeout_s: float = 60.0) -> list[Answer | Exception]:
    """`count` requests at the same time, each on a connection of its own that is open before any request goes out."""
    visitors = await asyncio.gather(*(Visitor.connect(address) for _ in range(count)))
    try:
        return [
            one if isinstance(one, Answer) else _as_exception(one)
            for one in await asyncio.gather(
                *(visitor.ask(data, timeout_s) for visitor in visitors), return_exceptions=True
            )
        ]
    finally:
        await asyncio.gather(*(visitor.close() for visitor in visitors))


def _as_exception(error: BaseException) -> Exception:
    if not isinstance(error, Exception):
        raise error
    return error


def burst(address: str, count: int, data: bytes, timeout_s: float = 60.0) -> list[Answer | Exception]:
    return asyncio.run(burst_on(address, count, data, timeout_s))


def failures(answers: list[Answer | Exception]) -> list[Answer | Exception]:
    """Those that are not a 200."""
    return [one for one in answers if not isinstance(one, Answer) or one.status != 200]
