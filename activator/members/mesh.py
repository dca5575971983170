"""Connections between members: dialled or accepted, authenticated, and passed to their receiver.

Rules
  1. No data of a connection has an effect before the handshake (handshake.py), which is limited to HANDSHAKE_S and
     GREETING_BYTES_MAX a frame. At most HANDSHAKES_MAX are under way, HANDSHAKES_OF_ONE_MAX from one address; further
     connections are closed at once.
  2. A connection is for one pair: two replicas as a whole, or one data plane of each. `accepts` decides whether this
     replica wants it; `met` gets the socket, and owns it from then on.
  3. Each refused connection is counted by its reason. In each REFUSED_LOG_INTERVAL_S, at most one accepted and one
     dialled connection are logged as refused.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from activator.members.handshake import (
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    Greeting,
    HandshakeClient,
    HandshakeError,
    HandshakeServer,
    NotWantedError,
    PeerIdentity,
    SessionKeys,
    refusal,
)
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner

HANDSHAKE_S: Final = 2.0
DIAL_S: Final = 2.0
HANDSHAKES_MAX: Final = 256
HANDSHAKES_OF_ONE_MAX: Final = 64
REFUSED_LOG_INTERVAL_S: Final = 10.0
ACCEPT_RETRY_S: Final = 0.5  # delay after accept(2) has failed, for instance without free descriptors
USER_TIMEOUT_MS: Final = 10_000  # unacknowledged data ends the connection after that (tcp(7))
BACKLOG: Final = 128
PORT_MAX: Final = 65535

_LENGTH: Final = struct.Struct("<I")

log = logging.getLogger("activator.members")


class VacantError(Exception):
    """The connection to an address was refused: no process listens there."""


class Connection:
    """An authenticated connection. `is_dialled`: this side has dialled it. `version` is that of the protocol."""

    def __init__(
        self, sock: socket.socket, own: int, identity: PeerIdentity, keys: SessionKeys, is_dialled: bool, version: int
    ) -> None:
        self.sock = sock
        self.own = own  # our data plane, or 0 for the replica as a whole
        self.identity = identity
        self.keys = keys
        self.is_dialled = is_dialled
        self.version = version


class Mesh:
    """The connections of one replica.

    `identity(data_plane)` returns the identity of a data plane, or of the replica as a whole (0). `accepts(greeting)`
    raises HandshakeError to refuse a connection.
    """

    def __init__(
        self,
        key: bytes,
        group: str,
        identity: Callable[[int], PeerIdentity],
        accepts: Callable[[Greeting], None],
        met: Callable[[Connection], None],
        now: Now,
        tasks: TaskGroupOwner,
    ) -> None:
        self._key = key
        self._group = group
        self._identity_of = identity
        self._accepts = accepts
        self._met = met
        self._now = now
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._under_way: Counter[str] = Counter()  # handshakes of accepted connections, by host
        self._logged_s = {True: float("-inf"), False: float("-inf")}  # by whether the connection was dialled
        self.refused_total: Counter[str] = Counter()  # by the kind of reason

    # --- accepting ---

    def listen(self, address: str) -> str:
        """Bind, accept connections, and return the bound address. Raises StartError."""
        host, port = split(address)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise StartError(f"members.listen {address}: {error.strerror or error}") from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise StartError(f"members.listen {address}: {error.strerror or error}") from error
        sock.setblocking(False)
        self._socket = sock
        self._loop.add_reader(sock.fileno(), self._accept, sock)
        return f"{host}:{sock.getsockname()[1]}"

    def close(self) -> None:
        """Stop accepting. To be called last: others take a refused connection as a sign that this replica has ended."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())  # before the descriptor can be another one's
            self._socket.close()
            self._socket = None

    def _accept(self, sock: socket.socket) -> None:
        """Accept one connection. The loop calls this again while more of them are pending.

        A task that awaited `loop.sock_accept` could be cancelled with an accepted connection, which would leak.
        """
        try:
            accepted, address = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("a member cannot be accepted: %s", error.strerror or error)
            self._loop.remove_reader(sock.fileno())
            self._loop.call_later(ACCEPT_RETRY_S, self._accept_again, sock)
            return
        accepted.setblocking(False)
        host = str(address[0])
        if self._under_way.total() >= HANDSHAKES_MAX or self._under_way[host] >= HANDSHAKES_OF_ONE_MAX:
            self.refused_total["too many"] += 1
            accepted.close()
            return
        self._under_way[host] += 1
        greeting = self._tasks.start("member", self._greet(accepted, host))
        greeting.add_done_callback(partial(_close_if_cancelled, accepted))

    def _accept_again(self, sock: socket.socket) -> None:
        """Watch the listening socket again, unless it has been closed."""
        if self._socket is sock:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    async def _greet(self, sock: socket.socket, host: str) -> None:
        """Run the handshake of an accepted connection within HANDSHAKE_S."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._answer(sock)
        except (HandshakeError, OSError, TimeoutError) as error:
            sock.close()
            self._count_and_log_refused(host, error, False)
        except BaseException:
            sock.close()
            raise
        finally:
            self._under_way[host] -= 1
            if not self._under_way[host]:
                del self._under_way[host]

    async def _answer(self, sock: socket.socket) -> None:
        """Run the listener's part of a handshake. Raises HandshakeError, OSError."""
        prepare(sock)
        listener = HandshakeServer(self._key, self._group)
        try:
            await self._write(sock, listener.take_opening(await self._read(sock), os.urandom(NONCE_BYTES)))
            await self._write(sock, listener.take_proof(await self._read(sock), self._identity_of(0)))
            greeting = listener.take_greeting(await self._read(sock))
            self._accepts(greeting)
        except HandshakeError as error:
            await self._write(sock, refusal(str(error)))
            raise
        welcome, keys = listener.welcome()
        await self._write(sock, welcome)
        self._accepts(greeting)  # again, because the state may have changed during the handshake
        self._met(Connection(sock, greeting.wanted, greeting.identity, keys, False, listener.version))

    def _count_and_log_refused(self, host: str, error: Exception, is_dialled: bool) -> None:
        """Count and log a refused connection, unless it is only not needed."""
        if isinstance(error, NotWantedError):
            return
        kind = "refused" if isinstance(error, HandshakeError) else "no handshake"
        self.refused_total[kind] += 1
        now_s = self._now()
        if now_s - self._logged_s[is_dialled] >= REFUSED_LOG_INTERVAL_S and kind == "refused":
            self._logged_s[is_dialled] = now_s
            log.warning("%s is refused as a member: %s", host, error)

    # --- dialling ---

    async def dial(self, address: str, own: int, wanted: int, expected: int = 0) -> Connection:
        """Connect and authenticate. Raises VacantError, HandshakeError, OSError or TimeoutError."""
        async with asyncio.timeout(DIAL_S):
            family, kind, protocol, _, sockaddr = await self._resolve(address)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(DIAL_S):
                await self._loop.sock_connect(sock, sockaddr)
            prepare(sock)
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._handshake(sock, own, wanted, expected)
        except OSError as error:
            sock.close()
            if error.errno == errno.ECONNREFUSED:
                raise VacantError from error
            raise
        except HandshakeError as error:
            sock.close()
            self._count_and_log_refused(address, error, True)
            raise
        except BaseException:
            sock.close()
            raise

    async def _resolve(self, address: str) -> Any:
        """Return the first result of `getaddrinfo` for the address. Raises OSError."""
        try:
            host, port = split(address)
            if not 0 < port <= PORT_MAX:
                raise ValueError(f"its port is not one of 1 to {PORT_MAX}")
            return (await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        except ValueError as error:  # an invalid port, or an invalid host name (UnicodeError)
            raise OSError(errno.EINVAL, f"{address!r} is not an address: {error}") from error

    async def _handshake(self, sock: socket.socket, own: int, wanted: int, expected: int) -> Connection:
        identity = self._identity_of(own)
        dialer = HandshakeClient(self._key, identity, wanted, expected, os.urandom(NONCE_BYTES))
        await self._write(sock, dialer.opening)
        await self._write(sock, dialer.take_challenge(await self._read(sock)))
        await self._write(sock, dialer.take_answer(await self._read(sock)))
        other, keys = dialer.take_welcome(await self._read(sock))
        if other.replica == identity.replica:
            raise HandshakeError("that is this replica itself")
        return Connection(sock, own, other, keys, True, dialer.version)

    # --- frames of the handshake ---

    async def _read(self, sock: socket.socket) -> bytes:
        length = _LENGTH.unpack(await self._exactly(sock, _LENGTH.size))[0]
        if not 0 < length <= GREETING_BYTES_MAX:
            raise HandshakeError("malformed frame")
        return await self._exactly(sock, length)

    async def _exactly(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self._loop.sock_recv(sock, size - len(data))
            if not part:
                raise ConnectionResetError("the connection has ended")
            data += part
        return data

    async def _write(self, sock: socket.socket, frame: bytes) -> None:
        await self._loop.sock_sendall(sock, _LENGTH.pack(len(frame)) + frame)


def _close_if_cancelled(sock: socket.socket, task: asyncio.Task[None]) -> None:
    """Close the socket of a task that was cancelled, perhaps before it began."""
    if task.cancelled():
        sock.close()


def split(address: str) -> tuple[str, int]:
    """Return host and port of an address. Raises ValueError if the port is no number."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def prepare(sock: socket.socket) -> None:
    """Set the options that all connections between members have."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
