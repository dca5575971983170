"""Two forwarders that parse nothing: the floor under a proxy in Python, as rows of `python -m bench load`.

    python -m bench.floor transports|descriptors PORT POD_HOST:POD_PORT WORKERS

`transports` uses protocols on uvloop's transports. `descriptors` has an epoll of its own, polled by uvloop, accepts in
batches, reads with os.readv into one buffer and sends with os.write.

Rules
  1. Each client connection has a connection to the pod of its own; bytes pass unchanged in both directions.
  2. If the first read of a client connection contains `Connection: close`, as wrk sends it with `--close`, the
     forwarder removes this line, uses a kept connection to the pod if there is one, adds the line to the answer, and
     closes the client's connection after the answer. It finds the end of an answer by counting: all answers must be as
     long as the first of the process, whose Content-Length it reads. It reports a longer answer and closes both
     connections; after a shorter one the client waits until its own timeout. The heads of the request and of the
     answer must arrive in one read each.
  3. There are no limits, timeouts, retries or header fields about the client, and HTTP is not checked.
  4. While one side cannot take more bytes, the other is not read. An error closes both connections and is reported on
     stderr.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
from typing import cast

import uvloop

CLOSE = b"Connection: close\r\n"

_BACKLOG = 1024
_BUFFER_BYTES = 256_000  # as uvloop's
_EVENTS = 256  # per turn
_DIAL_TIMEOUT_S = 1.0

Address = tuple[str, int]


def report(error: object) -> None:
    print(f"floor: {error}", file=sys.stderr, flush=True)


class AnswerError(Exception):
    """An answer whose end cannot be found by counting."""


class AnswerCount:
    """The length of the answers, which is that of the first."""

    def __init__(self) -> None:
        self._answer_bytes = 0

    def left(self, first: bytes) -> int:
        """Return how many bytes follow the first piece of an answer. Raises AnswerError."""
        if not self._answer_bytes:
            self._answer_bytes = _length(first)
        return self.after(self._answer_bytes, len(first))

    @staticmethod
    def after(left: int, size: int) -> int:
        """Return how many bytes follow a piece of this size. Raises AnswerError."""
        if size > left:
            raise AnswerError(f"an answer is {size - left} bytes longer than the first")
        return left - size


def _length(first: bytes) -> int:
    head, end, _ = first.partition(b"\r\n\r\n")
    _, name, value = head.lower().partition(b"\r\ncontent-length:")
    if not end or not name:
        raise AnswerError("the first read of an answer has no complete head with a Content-Length")
    return len(head) + len(end) + int(value.partition(b"\r\n")[0])


def with_close(answer: bytes) -> bytes:
    return answer.replace(b"\r\n", b"\r\n" + CLOSE, 1)


# --- on uvloop's transports -----------------------------------------------------------------------------------------


class _Side(asyncio.Protocol):
    """One of two connections; what arrives is written to the other."""

    transport: asyncio.Transport
    other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's type is not a subclass

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            report(exc)
        other = self.part()
        if other is not None:
            other.transport.close()

    def pair(self, other: _Side) -> None:
        self.other, other.other = other, self

    def part(self) -> _Side | None:
        """Separate both sides; return the other."""
        other = self.other
        if other is not None:
            self.other = other.other = None
        return other


class _KeptPod(_Side):
    """A connection to the pod that serves one client after the other."""

    def __init__(self, kept: list[_KeptPod], count: AnswerCount) -> None:
        self._kept = kept
        self._count = count
        self._left = 0  # bytes of the answer; 0: it has not begun

    def data_received(self, data: bytes) -> None:
        client = self.other
        try:
            if client is None:
                raise AnswerError("an answer without a request")
            if self._left:
                self._left = self._count.after(self._left, len(data))
                client.transport.write(data)
            else:
                self._left = self._count.left(data)
                client.transport.write(with_close(data))
        except AnswerError as error:
            report(error)
            self.transport.abort()
            return
        if self._left == 0:
            self.part()
            client.transport.close()
            self.transport.resume_reading()  # the client may have paused it
            self._kept.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._kept:
            self._kept.remove(self)
        super().connection_lost(exc)


class _Client(_Side):
    """A client's connection, which gets one to the pod with its first bytes."""

    def __init__(self, forwarder: TransportForwarder) -> None:
        self._forwarder = forwarder

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is None:
            self._forwarder.first(self, data)
        else:
            other.transport.write(data)


class TransportForwarder:
    """The forwarder on uvloop's transports."""

    def __init__(self, pod: Address) -> None:
        self._pod = pod
        self._kept: list[_KeptPod] = []
        self._count = AnswerCount()
        self._dials: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self), sock=listener, backlog=_BACKLOG)
        await server.serve_forever()

    def first(self, client: _Client, data: bytes) -> None:
        """Forward the first bytes of a client."""
        closes = CLOSE in data
        if closes:
            data = data.replace(CLOSE, b"", 1)
            if self._kept:
                pod = self._kept.pop()
                pod.pair(client)
                pod.transport.write(data)
                return
        client.transport.pause_reading()
        dial = asyncio.get_running_loop().create_task(self._dial(client, data, closes))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _dial(self, client: _Client, data: bytes, closes: bool) -> None:
        pod = _KeptPod(self._kept, self._count) if closes else _Side()
        try:
            await asyncio.get_running_loop().create_connection(lambda: pod, *self._pod)
        except OSError as error:
            report(error)
            client.transport.abort()
            return
        if client.transport.is_closing():
            pod.transport.close()
            return
        pod.pair(client)
        pod.transport.write(data)
        client.transport.resume_reading()


# --- by descriptor --------------------------------------------------------------------------------------------------


class DescriptorForwarder:
    """The forwarder with its own epoll. It connects to the pod synchronously, as suits the loopback interface."""

    def __init__(self, pod: Address) -> None:
        self._pod = pod
        self._epoll = select.epoll()
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._buffers = [self._view]
        self._others: dict[int, int] = {}  # both directions
        self._new: set[int] = set()  # clients that have sent nothing
        self._kept: list[int] = []  # connections to the pod without a client
        self._left: dict[int, int] = {}  # bytes of the answer, by connection to the pod; 0: it has not begun
        self._unsent: dict[int, bytes] = {}  # by the connection that takes no more
        self._count = AnswerCount()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled."""
        listener.listen(_BACKLOG)
        self._listener = listener
        self._epoll.register(listener, select.EPOLLIN)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._epoll.fileno(), self._turn)
        await loop.create_future()

    def _turn(self) -> None:
        others, left, unsent = self._others, self._left, self._unsent
        for number, _ in self._epoll.poll(0, _EVENTS):
            other = others.get(number)
            if other is None:
                self._unpaired(number)
            elif unsent and (number in unsent or other in unsent):
                self._blocked(number, other)
            elif data := self._read(number):
                if left and number in left:
                    self._answered(number, other, data)
                else:
                    self._send(number, other, data)

    def _unpaired(self, number: int) -> None:
        if number == self._listener.fileno():
            self._accept()
        elif number in self._new:
            if data := self._read(number):
                self._first(number, bytes(data))
        elif number in self._kept and self._read(number):
            self._drop(number, "an answer without a request")
        # Otherwise it was closed in this turn.

    def _read(self, number: int) -> memoryview | None:
        try:
            size = os.readv(number, self._buffers)
        except BlockingIOError:  # the event was that of a connection closed in this turn
            return None
        except OSError as error:
            self._drop(number, error)
            return None
        if size == 0:
            self._drop(number)
            return None
        return self._view[:size]

    def _send(self, number: int, other: int, data: memoryview | bytes) -> None:
        try:
            sent = os.write(other, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._drop(other, error)
            return
        if sent < len(data):
            self._unsent[other] = bytes(data[sent:])
            self._epoll.modify(number, 0)
            self._epoll.modify(other, select.EPOLLOUT)

    def _blocked(self, number: int, other: int) -> None:
        """Continue to send to this connection; or, if the other one is blocked, this one has failed."""
        data = self._unsent.pop(number, None)
        if data is None:
            self._drop(number, "a connection failed before its bytes were sent")
            return
        self._send(other, number, data)
        if number in self._others and number not in self._unsent:
            self._epoll.modify(number, select.EPOLLIN)
            self._epoll.modify(other, select.EPOLLIN)
            self._finish_if_complete(other, number)

    def _accept(self) -> None:
        while True:
            try:
                number, _ = self._listener._accept()  # type: ignore[attr-defined]  # without an object for each
            except BlockingIOError:
                return
            os.set_blocking(number, False)
            self._epoll.register(number, select.EPOLLIN)
            self._new.add(number)

    def _first(self, client: int, data: bytes) -> None:
        closes = CLOSE in data
        if closes:
            data = data.replace(CLOSE, b"", 1)
        try:
            pod = self._kept.pop() if closes and self._kept else self._dial()
        except OSError as error:
            self._drop(client, error)
            return
        self._new.discard(client)
        self._others[client], self._others[pod] = pod, client
        if closes:
            self._left[pod] = 0
        self._send(client, pod, data)

    def _dial(self) -> int:
        pod = socket.create_connection(self._pod, _DIAL_TIMEOUT_S)
        pod.setblocking(False)
        pod.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.register(pod, select.EPOLLIN)
        return pod.detach()

    def _answered(self, pod: int, client: int, data: memoryview) -> None:
        left = self._left[pod]
        out: memoryview | bytes = data
        try:
            if left:
                left = self._count.after(left, len(data))
            else:
                first = bytes(data)
                left, out = self._count.left(first), with_close(first)
        except AnswerError as error:
            self._drop(pod, error)
            return
        self._left[pod] = left
        self._send(pod, client, out)
        self._finish_if_complete(pod, client)

    def _finish_if_complete(self, pod: int, client: int) -> None:
        """Close the client's connection and keep the pod's if all of the answer has been sent."""
        if self._left.get(pod) != 0 or client in self._unsent:
            return
        del self._left[pod], self._others[pod], self._others[client]
        os.close(client)
        self._kept.append(pod)

    def _drop(self, number: int, error: object = None) -> None:
        """Close the connection and the other one of its pair."""
        if error is not None:
            report(error)
        if number in self._kept:
            self._kept.remove(number)
        other = self._others.get(number)
        for one in (number,) if other is None else (number, other):
            self._others.pop(one, None)
            self._left.pop(one, None)
            self._unsent.pop(one, None)
            self._new.discard(one)
            os.close(one)


FORWARDERS: dict[str, type[TransportForwarder | DescriptorForwarder]] = {
    "transports": TransportForwarder,
    "descriptors": DescriptorForwarder,
}


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # each worker has its own
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by accepted connections
    listener.setblocking(False)
    listener.bind(("127.0.0.1", port))
    return listener


def main() -> None:
    kind, port, pod, workers = sys.argv[1:]
    host, _, pod_port = pod.rpartition(":")
    for _ in range(int(workers) - 1):
        if os.fork() == 0:
            break
    uvloop.run(FORWARDERS[kind]((host, int(pod_port))).serve(_listener(int(port))))


if __name__ == "__main__":
    main()
