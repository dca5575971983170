"""Pods that count themselves: how many requests each has at once, by what it has seen itself.

Rules
  1. A request is there from its head until its answer is written, or until its connection has ended.
  2. The end of a connection may be in the kernel's queue while the next request is read from another one. Before a pod
     says that it has too many, it looks whether the connections of the others have ended: then those do not count.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Self, cast


class CountingPod(asyncio.Protocol):
    """One connection to one pod."""

    def __init__(self, pods: CountingPods, port: int) -> None:
        self._pods = pods
        self._port = port
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._answers: list[asyncio.TimerHandle] = []  # one for each request that is there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pods.connections.add(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            _, _, self._data = self._data.partition(b"\r\n\r\n")
            self._pods.began(self._port, self)
            self._answers.append(asyncio.get_running_loop().call_later(self._pods.takes_s, self._answer))

    def connection_lost(self, error: Exception | None) -> None:
        self._pods.ended(self._port, self)
        self._pods.connections.discard(self)
        self._transport = None
        while self._answers:
            self._answers.pop().cancel()

    def answer_now(self) -> None:
        """All requests that are there, however long they were to take."""
        while self._answers:
            self._answer()

    def has_ended(self) -> bool:
        """Its other side has closed, whether or not that was noticed here."""
        if self._transport is None:
            return True
        sock = self._transport.get_extra_info("socket")
        peeked = socket.socket(fileno=os.dup(sock.fileno()))
        try:
            return peeked.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            peeked.close()

    def _answer(self) -> None:
        self._answers.pop(0).cancel()
        if self._transport is not None:
            self._pods.ended(self._port, self)
            self._pods.answered += 1
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


class CountingPods:
    """`count` pods in a thread, at this host; each request takes `takes_s`."""

    def __init__(self, count: int, takes_s: float, host: str = "127.0.0.1") -> None:
        self.takes_s = takes_s
        self._host = host
        self.answered = 0
        self.began_total = 0
        self.most = 0  # at one pod at one time
        self.addresses: list[str] = []
        self.connections: set[CountingPod] = set()
        self._open: dict[int, dict[CountingPod, None]] = {}
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(count,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def in_flight(self) -> int:
        """What has come to all pods and is not answered."""
        return sum(len(there) for there in self._open.values())

    def answer_now(self) -> None:
        """All requests that are at a pod now, however long they were to take."""

        def answer() -> None:
            for connection in list(self.connections):
                connection.answer_now()

        self._loop.call_soon_threadsafe(answer)

    def began(self, port: int, connection: CountingPod) -> None:
        self.began_total += 1
        there = self._open[port]
        there[connection] = None
        if len(there) > self.most:
            for other in [other for other in there if other is not connection and other.has_ended()]:
                del there[other]
            self.most = max(self.most, len(there))

    def ended(self, port: int, connection: CountingPod) -> None:
        self._open[port].pop(connection, None)

    def _run(self, count: int) -> None:
        asyncio.set_event_loop(self._loop)
        servers = [self._loop.run_until_complete(self._listen()) for _ in range(count)]
        self._started.set()
        self._loop.run_forever()
        for server in servers:
            server.close()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        sock = socket.socket()
        sock.bind((self._host, 0))
        port = sock.getsockname()[1]
        self._open[port] = {}
        self.addresses.append(f"{self._host}:{port}")
        return await self._loop.create_server(lambda: CountingPod(self, port), sock=sock)
