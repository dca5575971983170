"""Upgrades: what a request offers, which 101 is taken, and that nothing after it is parsed. RFC 9110 7.8."""

from __future__ import annotations

import pytest

from activator.codec.http1.request import RequestLimits, RequestParser
from activator.codec.http1.response import ResponseParser
from activator.codec.http1.serialise import request_bytes, response_bytes
from activator.codec.message import RequestHead, ResponseHead
from activator.runtime.reasons import Reason
from tests.codec.http1.recording import Requests, Responses, all_ways

ASKED = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: %b\r\nSec-X: 1\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-Y: 2\r\n\r\n"
RAW = b"\x81\x05hello\r\n\r\nHTTP/1.1 200 OK\r\n\r\n\x00"


class Stopping(Requests):
    """As the connection does: nothing is parsed between the end of a request and its answer."""

    parser: RequestParser

    def request_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        super().request_end(trailers)
        self.parser.pause()


def asked(data: bytes) -> RequestHead:
    sink = Requests()
    assert RequestParser(sink, RequestLimits()).feed(data) is None
    return sink.heads[0]


@pytest.mark.parametrize(
    ("offered", "upgrade"),
    [
        (b"websocket", b"websocket"),
        (b"WebSocket", b"websocket"),
        (b"h2c, websocket", b"h2c, websocket"),
        (b"a\r\nUpgrade: b", b"a, b"),
    ],
)
def test_what_a_request_offers(offered: bytes, upgrade: bytes) -> None:
    head = asked(ASKED % offered)
    assert head.upgrade == upgrade
    assert head.headers.get(b"upgrade") is None
    assert head.headers.get(b"sec-x") == b"1"
    sent = request_bytes(head)
    assert sent.endswith(b"\r\nConnection: upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n")
    assert asked(sent).upgrade == upgrade


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_what_is_no_offer(data: bytes) -> None:
    assert asked(data).upgrade == b""


def test_what_follows_an_offer_is_not_parsed() -> None:
    data = ASKED % b"websocket" + RAW
    for pieces in all_ways(data):
        sink = Stopping()
        sink.parser = RequestParser(sink, RequestLimits())
        for piece in pieces:
            assert sink.parser.feed(piece) is None
        assert len(sink.complete) == 1
        assert sink.parser.take_unparsed() == RAW
        assert sink.parser.take_unparsed() == b""


def test_the_next_request_after_an_offer_that_was_declined() -> None:
    sink = Stopping()
    sink.parser = RequestParser(sink, RequestLimits())
    assert sink.parser.feed(ASKED % b"websocket" + b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n") is None
    assert sink.parser.resume() is None
    assert [head.target for head in sink.heads] == [b"/chat", b"/next"]


class Switching(Responses):
    heads: list[ResponseHead]

    def response_head(self, head: ResponseHead) -> None:
        super().response_head(head)
        self.heads = [*getattr(self, "heads", []), head]


def test_a_101_that_was_asked_for_begins_a_raw_stream() -> None:
    for pieces in all_ways(SWITCHED + RAW):
        sink = Switching()
        parser = ResponseParser(sink)
        parser.expect(False, b"h2c, websocket")
        for piece in pieces:
            assert parser.feed(piece) is None
        assert parser.tunnelling
        (message,) = sink.messages
        assert message.body == RAW
        assert not message.trailers
        assert parser.feed_eof() is None
        assert message == sink.messages[0]
        assert parser.complete
        assert not parser.keep_alive
        written = response_bytes(sink.heads[0], False, False)
        assert written.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
        assert written.endswith(b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b"Sec-Y: 2" in written


def test_a_length_of_zero_is_borne_and_not_passed_on() -> None:
    for pieces in all_ways(SWITCHED.replace(b"Sec-Y: 2", b"Content-Length: 0\r\nSec-Y: 2") + RAW):
        sink = Switching()
        parser = ResponseParser(sink)
        parser.expect(False, b"websocket")
        for piece in pieces:
            assert parser.feed(piece) is None
        assert sink.messages[0].body == RAW
        written = response_bytes(sink.heads[0], False, False)
        assert b"ontent-" not in written
        assert b"Sec-Y: 2" in written


def test_interim_answers_before_the_switch() -> None:
    sink = Switching()
    parser = ResponseParser(sink)
    parser.expect(False, b"websocket")
    assert parser.feed(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SWITCHED + RAW) is None
    assert [status for status, _, _ in sink.interims] == [103]
    assert sink.messages[0].body == RAW


def test_an_offer_may_be_declined() -> None:
    sink = Switching()
    parser = ResponseParser(sink)
    parser.expect(False, b"websocket")
    assert parser.feed(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno") is None
    assert parser.complete
    assert parser.keep_alive
    parser.expect(False)
    error = parser.feed(SWITCHED)
    assert error is not None, "an offer counts for one request"


@pytest.mark.parametrize(
    ("offered", "data"),
    [
        (b"", SWITCHED),
        (b"h2c", SWITCHED),
        (b"websocket", SWITCHED.replace(b"Connection: Upgrade\r\n", b"")),
        (b"websocket", SWITCHED.replace(b"Upgrade: WebSocket\r\n", b"")),
        (b"websocket, x", SWITCHED.replace(b"WebSocket", b"websocket, x")),
        (b"websocket", SWITCHED.replace(b"HTTP/1.1", b"HTTP/1.0")),
        (b"websocket", SWITCHED.replace(b"Sec-Y: 2", b"Content-Length: 3")),
        (b"websocket", SWITCHED.replace(b"Sec-Y: 2", b"Transfer-Encoding: chunked")),
    ],
)
def test_a_101_that_is_refused(offered: bytes, data: bytes) -> None:
    for pieces in all_ways(data):
        sink = Switching()
        parser = ResponseParser(sink)
        parser.expect(False, offered)
        errors = [error for piece in pieces if (error := parser.feed(piece)) is not None]
        assert errors
        assert errors[0].reason is Reason.BAD_RESPONSE
        assert sink.messages == []
