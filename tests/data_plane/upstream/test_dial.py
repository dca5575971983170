"""Dials over real sockets on uvloop: in whatever moment one is given up or reset, it ends once and leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from activator.codec.message import Headers, ResponseHead
from activator.data_plane.plane import HELD_BODY_BYTES
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.dial import Dial, DialContext, PodAddress
from activator.data_plane.upstream.http1_connection import Http1PodConnection
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.runtime.buffered_writer import WRITE_AT_ONCE_BYTES, WriteBatcher
from activator.runtime.clock import Deadline, TimingWheel
from activator.runtime.reasons import Reason
from activator.runtime.tasks import TaskGroupOwner
from tests.conftest import DEEP
from tests.data_plane.proxy.proxy_fakes import request_head

_RESET = struct.pack("ii", 1, 0)


class Harness:
    """What a worker gives to its pools, on the running loop."""

    def __init__(self) -> None:
        self.errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, what: self.errors.append(what))
        self.wheel = TimingWheel(time.monotonic, loop.call_later, self.errors.append)
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append((name, error)))
        self.turn = WriteBatcher(loop.call_soon, self.errors.append)
        self.context = DialContext(loop, self.wheel, self.tasks.start, self.turn)

    def pool(self, address: PodAddress) -> Http1Pool:
        return Http1Pool(self.context, time.monotonic, address, 5.0)

    async def close(self) -> None:
        await asyncio.sleep(0.05)  # sockets are closed at the end of a turn
        await self.tasks.close()
        self.wheel.close()


class Post(PodUser):
    """One request with a body that is here already, and how it ended."""

    def __init__(self, body: bytes) -> None:
        super().__init__(request_head("POST", length=len(body)))
        self.body = body
        self.ends: list[str] = []
        self.ended = asyncio.Event()
        self.pod: PodStream | None = None

    def _end(self, how: str) -> None:
        self.ends.append(how)
        self.ended.set()

    def connected(self, pod: PodStream) -> None:
        self.pod = pod
        pod.send_request(self.head, [self.body])
        pod.send_end([])

    def connect_failed(self, reason: Reason) -> None:
        self._end(reason.value)

    def response_interim(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        self._end("answered")

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        self._end(reason.value)

    def pod_blocked(self) -> None:
        pass

    def pod_drained(self) -> None:
        pass

    def expired(self, now_s: float) -> None:
        raise AssertionError("nobody armed it")


class Resetting:
    """A pod in a thread of its own; each connection ends with a reset, at a point that its number chooses."""

    POINTS = ("accepted", "first byte", "some of the body", "a moment later", "answered")

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.context = context
        self.connections = 0
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(1024)
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(20.0)
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            number = self.connections
            self.connections += 1
            sock.settimeout(0.2)
            try:
                self._serve(sock, number)
            except (OSError, ssl.SSLError):
                pass
            sock.close()

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        point = self.POINTS[number % len(self.POINTS)]
        if point == "accepted":
            return
        if self.context is None:
            self._read_and_answer(sock, point, number)
        elif point == "first byte":
            sock.recv(1)  # of the handshake
        else:
            with self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) as secured:
                secured.do_handshake()
                if point != "a moment later":  # else in the moment in which the handshake is over
                    self._read_and_answer(secured, point, number)

    def _read_and_answer(self, sock: socket.socket, point: str, number: int) -> None:
        if point == "first byte":
            sock.recv(1)
        elif point == "some of the body":
            sock.recv(5000)
        elif point == "a moment later":
            time.sleep(0.0002 * (number % 3))
        else:
            sock.recv(1000)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the pod, and of who dials it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


def descriptors() -> int:
    """Open ones, but for what nobody refers to any more."""

    async def nothing() -> None:
        pass

    run(nothing)  # the first loop of a process opens some for good
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def armed_dials(wheel: TimingWheel) -> list[Deadline]:
    found: list[Deadline] = []
    for ring in wheel._slots:
        entry = ring.wheel_next
        while entry is not None and entry is not ring:
            if isinstance(entry, Dial):
                found.append(entry)
            entry = entry.wheel_next
    return found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(scenario())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize("tls", [False, True])
def test_resets_at_every_point_leave_nothing_behind(tls: bool, tmp_path: Path) -> None:
    """A descriptor that was closed twice would be a bystander's, or SIGABRT; `make deep`: 10^5 dials."""
    server, client = contexts(tmp_path)
    pod = Resetting(server if tls else None)
    wanted = (90_000 if not tls else 10_000) if DEEP else (3_000 if not tls else 300)
    # Around what is written at once, and what a socket takes.
    sizes = (0, 100, WRITE_AT_ONCE_BYTES - 200, WRITE_AT_ONCE_BYTES, 20_000, HELD_BODY_BYTES, 300_000)

    async def scenario() -> None:
        harness = Harness()
        address = PodAddress("127.0.0.1", pod.port, client if tls else None)
        bystanders = [socket.socketpair() for _ in range(20)]  # whoever closes a number twice closes one of these
        done = 0
        ends: dict[str, int] = {}
        while done < wanted:
            pool = harness.pool(address)
            posts = [Post(b"x" * sizes[(done + number) % len(sizes)]) for number in range(40)]
            for post in posts:
                pool.checkout(post, 0.0, time.monotonic())
            async with asyncio.timeout(60.0):
                for post in posts:
                    await post.ended.wait()
            pool.close()
            for post in posts:
                assert len(post.ends) == 1, post.ends
                ends[post.ends[0]] = ends.get(post.ends[0], 0) + 1
            assert pool.window.new == 0 and pool.statistics()["dialling"] == pool.statistics()["waiting"] == 0
            done += len(posts)
            for one, other in bystanders:
                one.send(b"x")
                assert other.recv(1) == b"x"
        await harness.close()
        assert harness.context.connections == 0 and not harness.context.pools
        assert armed_dials(harness.wheel) == []
        assert harness.errors == []
        assert len(ends) > 1, ends
        for pair in bystanders:
            for one in pair:
                one.close()

    before = descriptors()
    try:
        run(scenario)
        assert descriptors() == before
    finally:
        pod.close()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("how", ["abandon", "expired"])
def test_a_dial_may_be_given_up_in_any_turn(tls: bool, how: str, tmp_path: Path) -> None:
    """Cancelling takes effect a turn later: a connection that is made until then must not be served."""
    server, client = contexts(tmp_path)
    opened: list[int] = []

    async def one(turns: int, address: PodAddress) -> None:
        harness = Harness()
        failed: list[Reason] = []
        pool = harness.pool(address)
        connection = Http1PodConnection(pool, time.monotonic, harness.turn)
        dial = Dial(harness.context, connection, lambda _dial, reason: failed.append(reason))
        pool._dials[connection] = dial
        pool.window.dialled()
        harness.context.connections += 1
        dial.start(address, 5.0, time.monotonic())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_open = pool.statistics()["open"] == 1
        if was_open:
            opened.append(turns)
        else:
            pool._dials.pop(connection)
            pool.window.new_ended()
            harness.context.connections -= 1
        if how == "abandon":
            dial.abandon()
        else:
            dial.expired(time.monotonic())
        assert failed == ([] if was_open or how == "abandon" else [Reason.CONNECT_TIMEOUT])
        await asyncio.sleep(0.02)
        assert (pool.statistics()["open"] == 1) == was_open, "what was given up is not served"
        assert connection.is_usable() == was_open
        pool.close()
        await harness.close()
        assert harness.errors == [] and armed_dials(harness.wheel) == [] and harness.context.connections == 0

    async def scenario() -> None:
        accepted = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", 0, ssl=server if tls else None
        )
        address = PodAddress("127.0.0.1", accepted.sockets[0].getsockname()[1], client if tls else None)
        for turns in range(0, 60, 4) if tls else range(10):
            await one(turns, address)
        accepted.close()
        await asyncio.sleep(0.1)

    before = descriptors()
    run(scenario)
    assert descriptors() == before
    assert tls or opened, "the turns went past the end of the dial"


def test_where_connections_are_scarce_an_idle_one_of_another_pod_is_closed() -> None:
    async def scenario() -> None:
        harness = Harness()
        harness.context.connections_max = 3

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readline():
                while await reader.readline() not in {b"\r\n", b""}:
                    pass
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        pods = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(6)]
        pools = [harness.pool(PodAddress("127.0.0.1", one.sockets[0].getsockname()[1])) for one in pods]
        for pool in pools:
            post = Post(b"")
            pool.checkout(post, 1.0, time.monotonic())
            async with asyncio.timeout(20.0):
                await post.ended.wait()
            assert post.ends == ["answered"]
            assert harness.context.connections <= 3
        assert sum(pool.statistics()["idle"] for pool in pools) == 3
        for pool in pools:
            pool.close()
        await harness.close()
        for one in pods:
            one.close()
        await asyncio.sleep(0.05)
        assert harness.context.connections == 0 and harness.errors == []

    run(scenario)


def test_without_descriptors_a_request_can_be_repeated_later(caplog: pytest.LogCaptureFixture) -> None:
    """As haproxy and nginx do it: 503 is for a fault that passes."""

    async def scenario() -> None:
        harness = Harness()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pool = harness.pool(PodAddress("127.0.0.1", listener.getsockname()[1]))
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            post = Post(b"")
            try:
                with socket.socket() as free:  # the lowest number, which the next descriptor would get
                    lowest = free.fileno()
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
                pool.checkout(post, 0.0, time.monotonic())
                async with asyncio.timeout(5.0):
                    await post.ended.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert post.ends == [Reason.OVERLOADED.value]
            assert "cannot open connections to pods" in caplog.text
            pool.close()
        await harness.close()
        assert harness.errors == []

    uvloop.run(scenario())
