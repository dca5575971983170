"""Authorisers that do everything wrong, behind real sockets: their requests are refused, and nothing is left."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import pytest

from activator.config.model.file import Config
from activator.config.specs import FiltersSpec, ForwardAuthSpec, RevisionSpec, RoutingSpec
from activator.data_plane.phases import WAITING
from activator.data_plane.plane import DataPlane
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.window import DIAL_WINDOW_INITIAL
from activator.messages import SetRevision
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.data_plane.proxy.proxy_fakes import Client, request_head

TIMEOUT_S = 0.3
PATIENCE_S = 20.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Running:
    """A data plane with one revision without pods: a request that was let through waits in its queue."""

    def __init__(self, data: DataPlane) -> None:
        self.data = data

    def begin(self) -> tuple[ProxiedExchange, Client]:
        client = Client()
        exchange = self.data.proxy.open(request_head(Cookie="a=b"), client)
        exchange.request_end([])
        exchange.begin()
        return exchange, client

    async def ask(self) -> tuple[ProxiedExchange, Client]:
        exchange, client = self.begin()
        await until(lambda: exchange.over or exchange.phase == WAITING)
        return exchange, client


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():  # noqa: ASYNC110  (of another end of a connection)
            await asyncio.sleep(0.005)


def run(serve: Serve, main: Callable[[Running], Awaitable[None]], timeout_s: float = TIMEOUT_S, host: str = "") -> None:
    """Run `main` with an authoriser that handles each of its connections by `serve`."""

    async def inside() -> None:
        errors: list[BaseException] = []
        tasks = TaskGroupOwner(lambda _name, error: errors.append(error))
        data = DataPlane(Config(), time.monotonic, lambda _message: None, Rng(1), tasks)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except ConnectionError:
                pass  # the other side has given up
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        auth = ForwardAuthSpec(host or "127.0.0.1", port, False, f"127.0.0.1:{port}", "/verify", (), 0.0, timeout_s)
        filters = FiltersSpec(forward_auth=auth)
        spec = RevisionSpec(key="default/app", routing=RoutingSpec(hosts=("app.test",)), filters=filters)
        data.apply([SetRevision(spec)])
        await main(Running(data))
        for pool in list(data._dials.pools):
            assert isinstance(pool, PodPool)
            pool.close()
        await until(lambda: data._dials.connections == 0)
        counters = data.tables.throttlers["default/app"].counters
        assert counters.quiet == 0 and data.proxy.active == 0
        data.wheel.close()
        server.close()
        await server.wait_closed()
        await tasks.close()
        assert errors == [] and data.errors_total == 0

    asyncio.run(inside())


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    reset_at_close(writer)


async def resets_in_the_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
    await writer.drain()
    await asyncio.sleep(0.02)
    reset_at_close(writer)


def reset_at_close(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def closes_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pass


async def closes_without_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)


async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def trickles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + b"y" * 1000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def trickles_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def floods_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def floods_one_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nX-More: ")
    while True:
        writer.write(b"y" * 1000)
        await writer.drain()


async def floods_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"3e8\r\n" + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def floods_a_body_until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        writer.write(b"y" * 1000)
        await writer.drain()


async def floods_trailers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    while True:
        writer.write(b"X-More: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def floods_interim_responses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()


async def switches_protocols(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    await reader.read()


async def speaks_something_else(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.test ESMTP\r\n")
    await reader.read()


async def has_two_lengths(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n")
    await reader.read()


async def answers_before_it_is_asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


@pytest.mark.parametrize(
    "serve",
    [
        resets,
        resets_in_the_answer,
        closes_at_once,
        closes_without_an_answer,
        is_silent,
        trickles,
        trickles_a_body,
        floods_headers,
        floods_one_header,
        floods_a_body,
        floods_a_body_until_the_end,
        floods_trailers,
        floods_interim_responses,
        switches_protocols,
        speaks_something_else,
        has_two_lengths,
        answers_before_it_is_asked,
    ],
    ids=lambda serve: str(serve.__name__),
)
def test_nobody_is_let_through(serve: Serve) -> None:
    async def main(running: Running) -> None:
        begun = [running.begin() for _ in range(5)]
        started_s = time.monotonic()
        await until(lambda: all(exchange.over for exchange, _ in begun))
        for _, client in begun:
            assert (client.status, client.reason, client.retry_after) == (503, "auth_unavailable", "1")
        assert time.monotonic() - started_s < PATIENCE_S / 2

    run(serve, main)


async def sends_two_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await head_of(reader)
        refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
        writer.write(refusal + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


async def sends_a_second_answer_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
    await asyncio.sleep(0.05)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


@pytest.mark.parametrize("serve", [sends_two_answers, sends_a_second_answer_later])
def test_a_second_answer_is_nobodys(serve: Serve) -> None:
    async def main(running: Running) -> None:
        for _ in range(3):
            _, client = await running.ask()
            assert (client.status, client.body, client.reason) == (403, b"no", "auth_denied")
            await asyncio.sleep(0.07)

    run(serve, main)


async def sends_an_interim_response_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await head_of(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")


async def closes_after_each_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def ends_its_answer_by_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await head_of(reader)
    writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")


@pytest.mark.parametrize(
    "serve", [sends_an_interim_response_first, closes_after_each_answer, ends_its_answer_by_the_end]
)
def test_unusual_answers_that_are_valid_count(serve: Serve) -> None:
    async def main(running: Running) -> None:
        for _ in range(20):
            exchange, client = await running.ask()
            assert not exchange.over and client.silent() and client.interim == []
            exchange.client_gone()

    run(serve, main, timeout_s=PATIENCE_S)


def test_an_idle_connection_that_was_closed_costs_no_request() -> None:
    """The authoriser closes in the moment in which the next question is sent."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await head_of(reader)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await head_of(reader)  # and no answer

    async def main(running: Running) -> None:
        for number in range(1, 6):
            exchange, _ = await running.ask()
            assert not exchange.over and connections == number
            exchange.client_gone()

    run(serve, main, timeout_s=PATIENCE_S)


def test_an_unknown_name() -> None:
    async def main(running: Running) -> None:
        exchange, client = await running.ask()
        assert (client.status, client.reason) == (503, "auth_unavailable"), exchange
        assert b"it accepts no connection" in client.body

    run(closes_at_once, main, timeout_s=PATIENCE_S, host="nobody.invalid")


def test_a_name_is_resolved() -> None:
    async def main(running: Running) -> None:
        exchange, _ = await running.ask()
        assert not exchange.over
        exchange.client_gone()

    run(closes_after_each_answer, main, timeout_s=PATIENCE_S, host="localhost")


def test_clients_that_leave_end_their_questions() -> None:
    open_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            await reader.read()
        finally:
            open_connections -= 1

    async def main(running: Running) -> None:
        begun = [running.begin() for _ in range(DIAL_WINDOW_INITIAL)]
        await until(lambda: open_connections == DIAL_WINDOW_INITIAL)
        for exchange, _ in begun:
            exchange.client_gone()
        await until(lambda: open_connections == 0)

    run(serve, main, timeout_s=PATIENCE_S)


def test_a_reload_during_questions() -> None:
    answer = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await answer.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.read()

    async def main(running: Running) -> None:
        begun = [running.begin() for _ in range(10)]
        await asyncio.sleep(0.05)
        running.data._renew_filters()
        begun += [running.begin() for _ in range(10)]
        await asyncio.sleep(0.05)
        answer.set()
        await until(lambda: all(exchange.phase == WAITING for exchange, _ in begun))
        for exchange, _ in begun:
            exchange.client_gone()

    run(serve, main, timeout_s=PATIENCE_S)
