"""Sinks that remember, and feeding in every way: whole, byte by byte, in two pieces, with a tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from activator.codec.http1.lenient import LenientResponseParser
from activator.codec.http1.request import RequestLimits, RequestParser, RequestSink
from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.runtime.errors import WireError

Feed = Callable[[bytes], WireError | None]


class Message:
    """What a sink heard of one message."""

    def __init__(self, head: tuple[object, ...]) -> None:
        self.head = head
        self.body = b""
        self.trailers: Headers | None = None  # None: it has not ended

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.head)

    def __repr__(self) -> str:
        return f"Message{self._key()}"

    def _key(self) -> tuple[object, ...]:
        return (self.head, self.body, self.trailers)


class Requests(RequestSink):
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.heads: list[RequestHead] = []
        self.keep_alive: list[bool] = []
        self.body_calls = 0

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        assert not self.messages or self.messages[-1].trailers is not None, "a head inside a message"
        self.heads.append(head)
        self.keep_alive.append(keep_alive)
        self.messages.append(
            Message(
                (
                    head.method,
                    head.target,
                    head.authority,
                    head.headers.block,
                    head.content_length,
                    head.has_body,
                    keep_alive,
                    http_1_0,
                )
            )
        )

    def request_body(self, data: bytes) -> None:
        assert data
        assert self.messages[-1].trailers is None
        self.messages[-1].body += data
        self.body_calls += 1

    def request_end(self, trailers: Headers) -> None:
        assert self.messages[-1].trailers is None
        self.messages[-1].trailers = trailers

    @property
    def complete(self) -> list[Message]:
        return [message for message in self.messages if message.trailers is not None]


class Responses(ResponseSink):
    def __init__(self) -> None:
        self.interims: list[tuple[int, bytes, bytes]] = []
        self.messages: list[Message] = []
        self.heads: list[ResponseHead] = []

    def interim_head(self, head: ResponseHead) -> None:
        assert not head.has_body
        self.interims.append((head.status, head.reason_phrase, head.headers.block))

    def response_head(self, head: ResponseHead) -> None:
        self.heads.append(head)
        self.messages.append(
            Message((head.status, head.reason_phrase, head.headers.block, head.content_length, head.has_body))
        )

    def response_body(self, data: bytes) -> None:
        assert data
        assert self.messages[-1].trailers is None
        self.messages[-1].body += data

    def response_end(self, trailers: Headers) -> None:
        assert self.messages[-1].trailers is None
        self.messages[-1].trailers = trailers


class RequestRun:
    """One parser that was fed some bytes in some pieces."""

    def __init__(self, pieces: list[bytes], limits: RequestLimits | None = None) -> None:
        self.sink = Requests()
        self.parser = RequestParser(self.sink, limits or RequestLimits())
        self.error = feed_pieces(self.parser.feed, pieces)


class ResponseRun:
    def __init__(
        self, pieces: list[bytes], head_request: bool = False, eof: bool = False, lenient: bool = False
    ) -> None:
        self.sink = Responses()
        self.parser = LenientResponseParser(self.sink) if lenient else ResponseParser(self.sink)
        self.parser.expect(head_request)
        self.error = feed_pieces(self.parser.feed, pieces)
        if eof and self.error is None:
            self.error = self.parser.feed_eof()


def feed_pieces(feed: Feed, pieces: list[bytes]) -> WireError | None:
    """Feed until the first error, which must then be said again."""
    for piece in pieces:
        error = feed(piece)
        if error is not None:
            again = feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert again is not None
            assert again.reason is error.reason
            return error
    return None


def all_ways(data: bytes) -> Iterator[list[bytes]]:
    """Whole, byte by byte, and cut in two at every place (at some, if it is long)."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for cut in range(1, len(data), 1 + len(data) // 200):
        yield [data[:cut], data[cut:]]
