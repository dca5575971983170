"""One exchange of a client: where it goes, its connection, and how its outcome is told."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Final, NamedTuple

from websockets.exceptions import InvalidStatus, WebSocketException

from tests.e2e.handover_clients import Connection
from tests.e2e.http_client import Answer
from tests.soak.ledger import CUT, HANG, OK, REFUSED, Outcome

REQUEST_S: Final = 40.0  # the longest time of a short request


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


class Attempt:
    """One exchange that has no outcome yet. `port` and `heard` as in Outcome."""

    def __init__(self, kind: str, target: Target, name: str) -> None:
        self.kind = kind
        self.target = target
        self.name = name
        self.began_s = time.monotonic()
        self.port = 0
        self.heard = False

    def outcome(self, error: BaseException | None) -> Outcome:
        """Its outcome, now that it has ended."""
        target = self.target
        result, detail = (OK, "") if error is None else (result_of(error), repr(error)[:200])
        where = (self.kind, target.door, target.revision, self.name)
        return Outcome(*where, self.began_s, time.monotonic(), result, self.port, detail, self.heard)


class Client(Connection):
    """A connection to a door. `heard`: something has come over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bool) -> None:
        super().__init__(reader, writer)
        self.heard = heard

    async def head(self) -> Answer:
        try:
            answer = await super().head()
        except asyncio.IncompleteReadError as error:
            self.heard = self.heard or bool(error.partial)
            raise
        self.heard = True
        return answer

    @property
    def port(self) -> int:
        """The client's."""
        port: int = self.writer.get_extra_info("sockname")[1]
        return port


class WrongError(Exception):
    """A response with a status or with bytes that it must not have; the message is the result."""


def result_of(error: BaseException) -> str:
    """Return the result of a request that ended with this exception."""
    if isinstance(error, WrongError):
        return str(error)
    if isinstance(error, TimeoutError):
        return HANG
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


async def connected(attempt: Attempt, receive_buffer_bytes: int = 0) -> socket.socket:
    """Connect to a door; the kernel buffers about so much of what comes (0: its default)."""
    host, _, port = attempt.target.address.rpartition(":")
    sock = socket.socket()
    try:
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        attempt.port = sock.getsockname()[1]
    except BaseException:
        sock.close()
        raise
    return sock


async def opened(attempt: Attempt, receive_buffer_bytes: int = 0) -> Client:
    """Connect, and shake hands where the door has TLS."""
    tls = attempt.target.tls
    sock = await connected(attempt, receive_buffer_bytes)
    try:
        name = None if tls is None else "localhost"
        return Client(*await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name), tls is not None)
    except BaseException:
        sock.close()
        raise
