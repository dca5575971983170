"""Server and client of the gRPC service for tests, with grpclib: pure Python on h2 and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from grpclib.client import Channel, StreamStreamMethod, StreamUnaryMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Server

from tests.http2.grpc_service import (
    ANSWER_SIZES,
    CALLS_AT_ONCE,
    CASES,
    CLIENT_STREAM,
    DUPLEX,
    ECHO_INITIAL,
    ECHO_TRAILING,
    ENDED,
    INITIAL_VALUE,
    LARGE_ANSWER,
    LARGE_REQUEST,
    PLAIN_STATUS,
    REQUEST_SIZES,
    SERVER_STREAM,
    SPECIAL_STATUS,
    TRAILING_VALUE,
    UNARY,
    UNIMPLEMENTED,
    Message,
    WrongError,
    count_in,
    message,
    must,
    must_be_sizes,
    parsed,
    path,
    size_of,
)
from tests.http2.raw_client import trusting


class Identity(CodecBase):
    """Messages are bytes already."""

    __content_subtype__ = "proto"  # what a content-type without a subtype means

    def encode(self, message: Any, message_type: Any) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


# --- server ---


async def _begin(stream: Any) -> None:
    metadata = stream.metadata
    if ECHO_INITIAL in metadata:
        await stream.send_initial_metadata(metadata={ECHO_INITIAL: metadata[ECHO_INITIAL]})


async def _end(stream: Any) -> None:
    if ECHO_TRAILING in stream.metadata:
        await stream.send_trailing_metadata(metadata={ECHO_TRAILING: stream.metadata[ECHO_TRAILING]})


async def _obey(asked: Message) -> None:
    if asked.sleep_s:
        await asyncio.sleep(asked.sleep_s)
    if asked.status is not None:
        raise GRPCError(Status(asked.status[0]), asked.status[1])


async def _unary(stream: Any) -> None:
    await _begin(stream)
    asked = parsed(await stream.recv_message())
    await _obey(asked)
    await stream.send_message(asked.answers[0] if asked.answers else b"")
    await _end(stream)


async def _client_stream(stream: Any) -> None:
    await _begin(stream)
    await stream.send_message(message(sum([size_of(data) async for data in _all(stream)])))
    await _end(stream)


async def _server_stream(stream: Any) -> None:
    await _begin(stream)
    await _answer(stream, parsed(await stream.recv_message()))
    await _end(stream)


async def _answer(stream: Any, asked: Message) -> None:
    await _obey(asked)
    for answer in asked.answers:
        await stream.send_message(answer)


async def _all(stream: Any) -> AsyncIterator[bytes]:
    while (data := await stream.recv_message()) is not None:
        yield data


class Service:
    def __init__(self) -> None:
        self.ended = 0

    async def duplex(self, stream: Any) -> None:
        watched = False
        await _begin(stream)
        try:
            async for data in _all(stream):
                asked = parsed(data)
                watched |= asked.watched
                await _answer(stream, asked)
        finally:
            self.ended += watched
        await _end(stream)

    async def count(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(message(count=self.ended))

    def __mapping__(self) -> dict[str, Handler]:
        return {
            path(ENDED): Handler(self.count, Cardinality.UNARY_UNARY, bytes, bytes),
            path(UNARY): Handler(_unary, Cardinality.UNARY_UNARY, bytes, bytes),
            path(CLIENT_STREAM): Handler(_client_stream, Cardinality.STREAM_UNARY, bytes, bytes),
            path(SERVER_STREAM): Handler(_server_stream, Cardinality.UNARY_STREAM, bytes, bytes),
            path(DUPLEX): Handler(self.duplex, Cardinality.STREAM_STREAM, bytes, bytes),
        }


def serve(port: int, started: Callable[[int], None]) -> None:
    """Until it is killed."""

    async def run() -> None:
        server = Server([Service()], codec=Identity())
        await server.start("127.0.0.1", port)
        listening: Any = server._server
        started(listening.sockets[0].getsockname()[1])
        await server.wait_closed()

    asyncio.run(run())


# --- client ---


class Client:
    """Each case is a method that raises `WrongError`."""

    def __init__(self, channel: Channel, patience_s: float) -> None:
        self.channel = channel
        self.patience_s = patience_s
        self.unary = UnaryUnaryMethod(channel, path(UNARY), bytes, bytes)
        self.client_stream = StreamUnaryMethod(channel, path(CLIENT_STREAM), bytes, bytes)
        self.server_stream = UnaryStreamMethod(channel, path(SERVER_STREAM), bytes, bytes)
        self.duplex = StreamStreamMethod(channel, path(DUPLEX), bytes, bytes)

    async def must_fail(self, call: Awaitable[object], code: int, text: str | None = None) -> None:
        try:
            answer = await call
        except GRPCError as error:
            must(error.status.value, code, f"status ({error.message})")
            if text is not None:
                must(error.message, text, "message of the status")
        else:
            raise WrongError(f"no status {code}, but {str(answer)[:100]}")

    async def empty_unary(self) -> None:
        must(await self.unary(b"", timeout=self.patience_s), b"", "the answer")

    async def large_unary(self) -> None:
        answer = await self.unary(message(LARGE_REQUEST, answers=[LARGE_ANSWER]), timeout=self.patience_s)
        must_be_sizes([answer], [LARGE_ANSWER])

    async def client_streaming(self) -> None:
        answer = await self.client_stream([message(size) for size in REQUEST_SIZES], timeout=self.patience_s)
        must_be_sizes([answer], [sum(REQUEST_SIZES)])

    async def server_streaming(self) -> None:
        answers = await self.server_stream(message(answers=ANSWER_SIZES), timeout=self.patience_s)
        must_be_sizes(answers, ANSWER_SIZES)

    async def ping_pong(self) -> None:
        async with self.duplex.open(timeout=self.patience_s) as stream:
            for size, answer in zip(REQUEST_SIZES, ANSWER_SIZES, strict=True):
                await stream.send_message(message(size, answers=[answer]))
                must_be_sizes([await stream.recv_message() or b""], [answer])
            await stream.end()
            must(await stream.recv_message(), None, "a further answer")

    async def empty_stream(self) -> None:
        async with self.duplex.open(timeout=self.patience_s) as stream:
            await stream.send_request(end=True)
            must(await stream.recv_message(), None, "an answer")

    async def cancel_after_begin(self) -> None:
        async with self.client_stream.open(timeout=self.patience_s) as stream:
            await stream.send_message(message(1))
            await stream.cancel()
        await self.empty_unary()

    async def cancel_after_first_response(self) -> None:
        async with self.duplex.open(timeout=self.patience_s) as stream:
            await stream.send_message(message(REQUEST_SIZES[0], answers=[ANSWER_SIZES[0]], watched=True))
            must_be_sizes([await stream.recv_message() or b""], ANSWER_SIZES[:1])
            await stream.cancel()
        await self.empty_unary()

    async def timeout_on_sleeping_server(self) -> None:
        for timeout_s in (0.001, 0.2):
            asked = [message(REQUEST_SIZES[0], answers=[1], sleep_s=1.0)]
            try:
                await self.duplex(asked, timeout=timeout_s)
            except TimeoutError:
                continue
            except GRPCError as error:
                must(error.status, Status.DEADLINE_EXCEEDED, "status")
            else:
                raise WrongError("answered in spite of the timeout")

    async def status_code_and_message(self) -> None:
        asked = message(status=PLAIN_STATUS)
        await self.must_fail(self.unary(asked, timeout=self.patience_s), *PLAIN_STATUS)
        await self.must_fail(self.duplex([asked], timeout=self.patience_s), *PLAIN_STATUS)

    async def special_status_message(self) -> None:
        asked = message(status=SPECIAL_STATUS)
        await self.must_fail(self.unary(asked, timeout=self.patience_s), *SPECIAL_STATUS)

    async def unimplemented_method(self) -> None:
        call = UnaryUnaryMethod(self.channel, path("Missing"), bytes, bytes)
        await self.must_fail(call(b"", timeout=self.patience_s), UNIMPLEMENTED)

    async def unimplemented_service(self) -> None:
        call = UnaryUnaryMethod(self.channel, path(UNARY, "test.Missing"), bytes, bytes)
        await self.must_fail(call(b"", timeout=self.patience_s), UNIMPLEMENTED)

    async def custom_metadata(self) -> None:
        sent: dict[str, str | bytes] = {ECHO_INITIAL: INITIAL_VALUE, ECHO_TRAILING: TRAILING_VALUE}
        for method in (self.unary, self.duplex):
            async with method.open(timeout=self.patience_s, metadata=sent) as stream:
                await stream.send_message(message(answers=[1]), end=True)
                await stream.recv_initial_metadata()
                initial = dict(stream.initial_metadata or {})
                must(initial.get(ECHO_INITIAL), INITIAL_VALUE, "initial metadata")
                must_be_sizes([await stream.recv_message() or b""], [1])
                await stream.recv_trailing_metadata()
                trailing = dict(stream.trailing_metadata or {})
                must(trailing.get(ECHO_TRAILING), TRAILING_VALUE, "trailing metadata")

    async def many_at_once(self) -> None:
        calls = [self.unary(message(10, answers=[20]), timeout=self.patience_s) for _ in range(CALLS_AT_ONCE)]
        must_be_sizes([one or b"" for one in await asyncio.gather(*calls)], [20] * CALLS_AT_ONCE)

    async def cancellation_reaches_server(self) -> None:
        count = UnaryUnaryMethod(self.channel, path(ENDED), bytes, bytes)
        before = count_in(await count(b"", timeout=self.patience_s) or b"")
        await self.cancel_after_first_response()
        give_up_s = time.monotonic() + self.patience_s
        while count_in(await count(b"", timeout=self.patience_s) or b"") <= before:
            if time.monotonic() > give_up_s:
                raise WrongError("the server did not hear of it")


def run_cases(target: str, *, ca: Path | None, authority: str, patience_s: float) -> dict[str, str]:
    """What is wrong with each case; empty for one that is as it must be."""
    if authority:
        raise ValueError("grpclib says no other authority than its target")
    host, _, port = target.rpartition(":")

    async def run() -> dict[str, str]:
        tls = trusting(ca) if ca is not None else None
        found = {}
        async with Channel(host, int(port), ssl=tls, codec=Identity()) as channel:
            client = Client(channel, patience_s)
            for case in CASES:
                try:
                    await getattr(client, case)()
                    found[case] = ""
                except (WrongError, GRPCError, OSError, ValueError, StreamTerminatedError) as error:
                    found[case] = str(error)[:1_000] or repr(error)
        return found

    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(run())
    return {}
