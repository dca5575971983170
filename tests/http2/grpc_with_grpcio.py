"""Server and client of the gRPC service for tests, with grpcio: C underneath, synchronous, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from tests.http2.grpc_service import (
    ANSWER_SIZES,
    CALLS_AT_ONCE,
    CANCELLED,
    CASES,
    CLIENT_STREAM,
    DEADLINE_EXCEEDED,
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
    SERVICE,
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

CODES = {code.value[0]: code for code in grpc.StatusCode}

# --- server ---


def _echo(context: Any) -> None:
    for key, value in context.invocation_metadata():
        if key == ECHO_INITIAL:
            context.send_initial_metadata([(key, value)])
        elif key == ECHO_TRAILING:
            context.set_trailing_metadata([(key, value)])


def _obey(asked: Message, context: Any) -> None:
    if asked.sleep_s:
        time.sleep(asked.sleep_s)
    if asked.status is not None:
        context.abort(CODES[asked.status[0]], asked.status[1])


def _unary(data: bytes, context: Any) -> bytes:
    _echo(context)
    asked = parsed(data)
    _obey(asked, context)
    return asked.answers[0] if asked.answers else b""


def _client_stream(requests: Iterator[bytes], context: Any) -> bytes:
    _echo(context)
    return message(sum(size_of(one) for one in requests))


def _server_stream(data: bytes, context: Any) -> Iterator[bytes]:
    _echo(context)
    asked = parsed(data)
    _obey(asked, context)
    yield from asked.answers


class _Duplex:
    def __init__(self) -> None:
        self.ended = 0

    def duplex(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        watched = threading.Event()
        context.add_callback(lambda: self._count(watched))
        _echo(context)
        for data in requests:
            asked = parsed(data)
            if asked.watched:
                watched.set()
            _obey(asked, context)
            yield from asked.answers

    def _count(self, watched: threading.Event) -> None:
        self.ended += watched.is_set()

    def count(self, data: bytes, context: Any) -> bytes:
        return message(count=self.ended)


def serve(port: int, started: Callable[[int], None]) -> None:
    """Until it is killed."""
    duplex = _Duplex()
    handlers = {
        ENDED: grpc.unary_unary_rpc_method_handler(duplex.count),
        UNARY: grpc.unary_unary_rpc_method_handler(_unary),
        CLIENT_STREAM: grpc.stream_unary_rpc_method_handler(_client_stream),
        SERVER_STREAM: grpc.unary_stream_rpc_method_handler(_server_stream),
        DUPLEX: grpc.stream_stream_rpc_method_handler(duplex.duplex),
    }
    server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    started(bound)
    server.wait_for_termination()


# --- client ---


class Client:
    """Each case is a method that raises `WrongError`."""

    def __init__(self, channel: Any, patience_s: float) -> None:
        self.patience_s = patience_s
        self.unary = channel.unary_unary(path(UNARY))
        self.client_stream = channel.stream_unary(path(CLIENT_STREAM))
        self.server_stream = channel.unary_stream(path(SERVER_STREAM))
        self.duplex = channel.stream_stream(path(DUPLEX))
        self.channel = channel

    def must_fail(self, call: Callable[[], object], code: int, text: str | None = None) -> None:
        try:
            answer = call()
        except grpc.RpcError as error:
            must(error.code().value[0], code, f"status ({error.details()})")
            if text is not None:
                must(error.details(), text, "message of the status")
        else:
            raise WrongError(f"no status {code}, but {str(answer)[:100]}")

    def empty_unary(self) -> None:
        must(self.unary(b"", timeout=self.patience_s), b"", "the answer")

    def large_unary(self) -> None:
        answer = self.unary(message(LARGE_REQUEST, answers=[LARGE_ANSWER]), timeout=self.patience_s)
        must_be_sizes([answer], [LARGE_ANSWER])

    def client_streaming(self) -> None:
        answer = self.client_stream(iter([message(size) for size in REQUEST_SIZES]), timeout=self.patience_s)
        must_be_sizes([answer], [sum(REQUEST_SIZES)])

    def server_streaming(self) -> None:
        must_be_sizes(self.server_stream(message(answers=ANSWER_SIZES), timeout=self.patience_s), ANSWER_SIZES)

    def ping_pong(self) -> None:
        """The next request goes out once the answer to the last is there."""
        turn = threading.Semaphore(1)

        def requests() -> Iterator[bytes]:
            for size, answer in zip(REQUEST_SIZES, ANSWER_SIZES, strict=True):
                if not turn.acquire(timeout=self.patience_s):
                    return
                yield message(size, answers=[answer])

        found = []
        for answer in self.duplex(requests(), timeout=self.patience_s):
            found.append(answer)
            turn.release()
        must_be_sizes(found, ANSWER_SIZES)

    def empty_stream(self) -> None:
        must(list(self.duplex(iter(()), timeout=self.patience_s)), [], "answers")

    def cancel_after_begin(self) -> None:
        over = threading.Event()

        def requests() -> Iterator[bytes]:
            yield message(1)
            over.wait(self.patience_s)

        call = self.client_stream.future(requests(), timeout=self.patience_s)
        call.cancel()
        over.set()
        must(call.code().value[0], CANCELLED, "status")

    def cancel_after_first_response(self) -> None:
        over = threading.Event()

        def requests() -> Iterator[bytes]:
            yield message(REQUEST_SIZES[0], answers=[ANSWER_SIZES[0]], watched=True)
            over.wait(self.patience_s)

        call = self.duplex(requests(), timeout=self.patience_s)
        must(size_of(next(call)), ANSWER_SIZES[0], "size of the first answer")
        call.cancel()
        over.set()
        must(call.code().value[0], CANCELLED, "status")

    def timeout_on_sleeping_server(self) -> None:
        for timeout_s in (0.001, 0.2):
            asked = iter([message(REQUEST_SIZES[0], answers=[1], sleep_s=1.0)])
            call = self.duplex(asked, timeout=timeout_s)
            self.must_fail(lambda call=call: list(call), DEADLINE_EXCEEDED)  # type: ignore[misc]

    def status_code_and_message(self) -> None:
        asked = message(status=PLAIN_STATUS)
        self.must_fail(lambda: self.unary(asked, timeout=self.patience_s), *PLAIN_STATUS)
        self.must_fail(lambda: list(self.duplex(iter([asked]), timeout=self.patience_s)), *PLAIN_STATUS)

    def special_status_message(self) -> None:
        asked = message(status=SPECIAL_STATUS)
        self.must_fail(lambda: self.unary(asked, timeout=self.patience_s), *SPECIAL_STATUS)

    def unimplemented_method(self) -> None:
        call = self.channel.unary_unary(path("Missing"))
        self.must_fail(lambda: call(b"", timeout=self.patience_s), UNIMPLEMENTED)

    def unimplemented_service(self) -> None:
        call = self.channel.unary_unary(path(UNARY, "test.Missing"))
        self.must_fail(lambda: call(b"", timeout=self.patience_s), UNIMPLEMENTED)

    def custom_metadata(self) -> None:
        sent = [(ECHO_INITIAL, INITIAL_VALUE), (ECHO_TRAILING, TRAILING_VALUE)]
        _, call = self.unary.with_call(message(answers=[1]), metadata=sent, timeout=self.patience_s)
        duplex = self.duplex(iter([message(answers=[1])]), metadata=sent, timeout=self.patience_s)
        must_be_sizes(duplex, [1])
        for one in (call, duplex):
            must(dict(one.initial_metadata()).get(ECHO_INITIAL), INITIAL_VALUE, "initial metadata")
            must(dict(one.trailing_metadata()).get(ECHO_TRAILING), TRAILING_VALUE, "trailing metadata")

    def many_at_once(self) -> None:
        calls = [self.unary.future(message(10, answers=[20]), timeout=self.patience_s) for _ in range(CALLS_AT_ONCE)]
        must_be_sizes([call.result() for call in calls], [20] * CALLS_AT_ONCE)

    def cancellation_reaches_server(self) -> None:
        count = self.channel.unary_unary(path(ENDED))
        before = count_in(count(b"", timeout=self.patience_s))
        self.cancel_after_first_response()
        give_up_s = time.monotonic() + self.patience_s
        while count_in(count(b"", timeout=self.patience_s)) <= before:
            if time.monotonic() > give_up_s:
                raise WrongError("the server did not hear of it")
            time.sleep(0.01)


def run_cases(target: str, *, ca: Path | None, authority: str, patience_s: float) -> dict[str, str]:
    """What is wrong with each case; empty for one that is as it must be."""
    options = [("grpc.default_authority", authority)] if authority else []
    if ca is None:
        channel = grpc.insecure_channel(target, options=options)
    else:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.read_bytes()), options=options)
    with channel:
        client = Client(channel, patience_s)
        found = {}
        for case in CASES:
            try:
                getattr(client, case)()
                found[case] = ""
            except (WrongError, grpc.RpcError, ValueError) as error:
                found[case] = str(error)[:1_000] or repr(error)
        return found
