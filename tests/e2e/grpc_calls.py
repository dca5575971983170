"""gRPC calls made by hand over the client of http2_client.py, so that nothing retries or judges them but the test."""

from __future__ import annotations

from dataclasses import dataclass

from tests.e2e.http2_client import Http2Client, Reply
from tests.http2.grpc_service import path

UNAVAILABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL = 14, 4, 12, 13
FIELDS = [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "by hand")]


def framed(message: bytes) -> bytes:
    """Not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def messages(data: bytes) -> list[bytes]:
    """Those that are there whole."""
    found = []
    while len(data) >= 5 and len(data) >= 5 + (size := int.from_bytes(data[1:5], "big")):
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of a call. `code` -1: the stream was reset, or the answer was no gRPC."""

    code: int
    words: str
    answers: list[bytes]
    pushback_ms: int | None
    is_trailers_only: bool
    reply: Reply


def begin(client: Http2Client, method: str, timeout: str = "", **more: str) -> int:
    """The head of a call; its stream."""
    fields = [*FIELDS, *([("grpc-timeout", timeout)] if timeout else []), *more.items()]
    return client.begin(path(method), "POST", fields, end=False)


def start(client: Http2Client, method: str, *requests: bytes, timeout: str = "") -> int:
    """A call with all of its messages; its stream."""
    number = begin(client, method, timeout)
    client.send(number, b"".join(framed(request) for request in requests), end=True)
    return number


def outcome(client: Http2Client, number: int) -> Outcome:
    """Waits for its end."""
    reply = client.answer(number)
    ends = reply.trailers or reply.headers
    status = dict(ends).get("grpc-status", "")
    pushback = dict(ends).get("grpc-retry-pushback-ms")
    good = reply.ended and reply.status == 200 and reply.header("content-type").startswith("application/grpc")
    return Outcome(
        int(status) if good and status else -1,
        dict(ends).get("grpc-message", ""),
        messages(reply.body),
        int(pushback) if pushback is not None else None,
        not reply.trailers and not reply.body,
        reply,
    )


def call(client: Http2Client, method: str, *requests: bytes, timeout: str = "") -> Outcome:
    return outcome(client, start(client, method, *requests, timeout=timeout))
