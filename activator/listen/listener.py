"""The listening sockets of one worker, and what has to be done for all client connections together."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from activator.clock import Deadline
from activator.config import HALF_CLOSE_SWEEP_S, LISTEN_BACKLOG
from activator.errors import StartError
from activator.listen.connection import Listening
from activator.tasks import pause

_TCP_CLOSE = 7
_TCP_CLOSE_WAIT = 8


def bind(address: str) -> socket.socket:
    """A listening socket on `host:port`. Raises StartError with what to do."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, sockaddr = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {os.strerror(error.errno or 0)}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(sockaddr)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            hint = "the port is in use; stop the other program or choose another address"
        else:
            hint = os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {address}: {hint}") from error
    return sock


def address_of(sock: socket.socket) -> str:
    """`host:port` as bound, so that port 0 shows what it became."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


class Server:
    """Accepts on sockets that are bound already, until it is drained."""

    def __init__(self, listening: Listening, sockets: list[socket.socket]) -> None:
        self._listening = listening
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._sweep = _HalfCloseSweep(listening)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            factory = self._listening.connection
            self._servers.append(
                await loop.create_server(factory, sock=sock, backlog=LISTEN_BACKLOG)  # type: ignore[arg-type]
            )
        self._sweep.arm()

    async def drain(self, timeout_s: float) -> bool:
        """Stop accepting, let answers in progress finish. False when the time was not enough and some were cut."""
        listening = self._listening
        listening.draining = True
        for server in self._servers:
            server.close()
        for connection in list(listening.connections):
            connection.drain()
        finished = await self._wait_for_connections(timeout_s)
        for connection in list(listening.connections):
            connection.abort(True)
        listening.wheel.cancel(self._sweep)
        return finished

    async def _wait_for_connections(self, timeout_s: float) -> bool:
        listening = self._listening
        deadline_s = listening.now() + timeout_s
        while listening.connections:
            if listening.now() >= deadline_s:
                return False
            for connection in list(listening.connections):
                connection.drain()
            await pause(0.02)
        return True


class _HalfCloseSweep(Deadline):
    """Looks once a second at the sockets that are not being read: an end of file does not announce itself there."""

    def __init__(self, listening: Listening) -> None:
        super().__init__()
        self._listening = listening

    def arm(self) -> None:
        self._listening.wheel.arm(self, self._listening.now() + HALF_CLOSE_SWEEP_S)

    def expired(self, now_s: float) -> None:
        for connection in list(self._listening.paused):
            if connection.socket_state() in (_TCP_CLOSE, _TCP_CLOSE_WAIT):
                connection.peer_has_gone()
        self.arm()
