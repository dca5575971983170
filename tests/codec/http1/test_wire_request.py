"""Requests: what is delivered for well-formed input, however it is cut."""

from __future__ import annotations

import pytest

from activator.codec.http1.request import RequestLimits, RequestParser
from activator.codec.http1.serialise import request_bytes
from activator.codec.http1.target import METHODS
from activator.runtime.reasons import Reason
from tests.codec.http1.recording import RequestRun, Requests, all_ways

NEXT = b"GET /next HTTP/1.1\r\nHost: next\r\n\r\n"


def only(data: bytes, limits: RequestLimits | None = None) -> Requests:
    """Feed one whole message in all ways, alone and with the next request behind; what the sink heard."""
    first = RequestRun([data], limits)
    assert first.error is None, first.error
    for pieces in all_ways(data):
        run = RequestRun(pieces, limits)
        assert run.error is None, (run.error, pieces)
        assert run.sink.messages == first.sink.messages, pieces
        assert not run.parser.in_head
        assert not run.parser.in_message
        assert run.parser.body_remaining == 0
    (message,) = first.sink.complete
    for pieces in all_ways(data + NEXT):
        run = RequestRun(pieces, limits)
        assert run.error is None, (run.error, pieces)
        if first.sink.keep_alive[0]:
            assert run.sink.complete[0] == message
            assert run.sink.heads[1].target == b"/next"
        else:
            assert run.sink.messages == [message]
    return first.sink


def test_plain_get() -> None:
    sink = only(b"GET /a?b=c HTTP/1.1\r\nHost: Example.com:80\r\nAccept: */*\r\nX-Empty:\r\nX-Obs: \xe9\r\n\r\n")
    head = sink.heads[0]
    assert (head.method, head.target, head.authority) == (b"GET", b"/a?b=c", b"example.com:80")
    assert head.headers.pairs() == [
        (b"Host", b"Example.com:80"),
        (b"Accept", b"*/*"),
        (b"X-Empty", b""),
        (b"X-Obs", b"\xe9"),
    ]
    assert (head.content_length, head.has_body) == (-1, False)
    assert sink.keep_alive == [True]


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"

BODIES = [
    (b"Content-Length: 5\r\n\r\nhello", 5, b"hello", []),
    (b"Content-Length: 0\r\n\r\n", 0, b"", []),
    (b"content-length: 005 \r\n\r\nhello", 5, b"hello", []),
    (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", -1, b"", []),
    (
        b"Transfer-Encoding:  Chunked \r\n\r\n5\r\nhello\r\n00B\r\n\r\n\r\n\r\n0\r\n\r\n\r\n000\r\n\r\n",
        -1,
        b"hello\r\n\r\n\r\n0\r\n\r\n",
        [],
    ),
    (CHUNKED + b'1;a=b;c="d;e"\r\nx\r\n0;z\r\nX-T: 1\r\nX-U: 2\r\n\r\n', -1, b"x", [(b"X-T", b"1"), (b"X-U", b"2")]),
    (CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: x\r\nCookie: y\r\nX-T: 1\r\n\r\n", -1, b"x", [(b"X-T", b"1")]),
]


@pytest.mark.parametrize(("rest", "length", "body", "trailers"), BODIES)
def test_bodies(rest: bytes, length: int, body: bytes, trailers: list[tuple[bytes, bytes]]) -> None:
    sink = only(b"POST / HTTP/1.1\r\nHost: a\r\n" + rest)
    assert sink.heads[0].content_length == length
    assert sink.heads[0].has_body == (length != 0)
    assert sink.messages[0].body == body
    assert sink.messages[0].trailers == trailers
    assert sink.heads[0].headers.pairs() == [(b"Host", b"a")]


def test_what_connection_names_is_kept_apart() -> None:
    fields = b"X-A: 1\r\nX-C: 3\r\nConnection: X-A, close, x-b\r\nx-B: 2\r\nX-Forwarded-For: 1.2.3.4\r\n"
    (head,) = RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n"]).sink.heads
    assert head.named == b"\r\nX-A: 1\r\nx-B: 2"
    assert [head.received(name) for name in (b"x-a", b"x-b", b"x-c", b"x-d")] == [b"1", b"2", b"3", None]
    assert head.headers.get(b"x-a") is None
    (plain,) = RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n"]).sink.heads
    assert (plain.named, plain.received(b"x-a"), plain.received(b"x-b")) == (b"", b"1", None)


@pytest.mark.parametrize(
    ("line", "target", "authority"),
    [
        (b"GET / ", b"/", b"h"),
        (b"GET //x/../y ", b"//x/../y", b"h"),
        (b"GET /?a[]=`x`&b=%zz ", b"/?a[]=`x`&b=%zz", b"h"),
        (b"OPTIONS * ", b"*", b"h"),
        (b"GET http://H/x?y ", b"/x?y", b"h"),  # RFC 9112 3.2.2
        (b"GET HTTPS://h ", b"/", b"h"),
        (b"GET http://h?x/y ", b"/?x/y", b"h"),
        (b"OPTIONS http://h ", b"*", b"h"),  # RFC 9112 3.2.4
        (b"OPTIONS http://h/ ", b"/", b"h"),
    ],
)
def test_targets(line: bytes, target: bytes, authority: bytes) -> None:
    head = only(line + b"HTTP/1.1\r\nHost: h\r\n\r\n").heads[0]
    assert (head.target, head.authority) == (target, authority)


@pytest.mark.parametrize(
    "host",
    [b"a", b"a-b.C_d~1", b"127.0.0.1:8080", b"[::1]", b"[2001:db8::1]:443", b"[::ffff:1.2.3.4]", b"a:0", b"a \t"],
)
def test_hosts(host: bytes) -> None:
    head = only(b"GET / HTTP/1.1\r\nhost: " + host + b"\r\n\r\n").heads[0]
    assert head.authority == host.rstrip().lower()
    assert head.headers.pairs() == [(b"host", host.rstrip())]
    assert head.headers.block == b"\r\nhost: " + host  # as received


@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods(method: bytes) -> None:
    assert only(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n").heads[0].method == method


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (b"Connection: X-A, , x-b\r\nX-A: 1\r\nx-B: 2\r\nX-C: 3\r\n", [(b"X-C", b"3")]),
        (b"X-A: 1\r\nConnection: keep-alive\r\nConnection: x-a\r\nKeep-Alive: timeout=5\r\n", []),
        (b"Proxy-Connection: close\r\nProxy-Authorization: x\r\nProxy-Authenticate: y\r\n", []),
        (b"TE: gzip\r\nConnection: TE\r\n", []),
        (b"TE: gzip, trailers\r\nConnection: TE\r\n", [(b"TE", b"trailers"), (b"Connection", b"TE")]),
        (b"Trailer: X-T\r\nExpect: 100-continue\r\n", [(b"Trailer", b"X-T"), (b"Expect", b"100-continue")]),
        (b"Upgrade: h2c\r\nHTTP2-Settings: x\r\nConnection: Upgrade, HTTP2-Settings\r\n", []),  # RFC 9110 7.8: ignored
        (b"Upgrade: websocket\r\n", []),  # not named by Connection: no upgrade
        (b"Connection: Upgrade\r\n", []),
        (b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 0\r\n", []),
        (b"X_Forwarded: 1\r\n", []),
    ],
)
def test_hop_by_hop_fields(fields: bytes, kept: list[tuple[bytes, bytes]]) -> None:
    assert only(b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n").heads[0].headers.pairs() == [
        (b"Host", b"a"),
        *kept,
    ]


@pytest.mark.parametrize(
    ("version", "fields", "keep_alive"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: x, Close\r\n", False),
        (b"1.1", b"Connection: keep-alive\r\nConnection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Upgrade: websocket\r\nConnection: upgrade\r\n", False),  # RFC 9110 7.8: ignored in HTTP/1.0
    ],
)
def test_keep_alive(version: bytes, fields: bytes, keep_alive: bool) -> None:
    sink = only(b"GET / HTTP/" + version + b"\r\nHost: a\r\n" + fields + b"\r\n")
    assert sink.keep_alive == [keep_alive]


def test_http_1_0_without_host_names_its_pod() -> None:
    head = only(b"GET / HTTP/1.0\r\n\r\n").heads[0]
    assert (head.authority, head.headers.pairs()) == (b"", [])
    assert request_bytes(head, b"10.0.0.1:80") == b"GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\n\r\n"
    head = only(b"GET http://H:1/ HTTP/1.0\r\n\r\n").heads[0]
    assert (head.authority, head.headers.pairs()) == (b"h:1", [(b"Host", b"h:1")])


def test_empty_lines_before_a_request_do_not_begin_it() -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\r\n"
    for pieces in all_ways(data):
        run = RequestRun(pieces)
        assert run.error is None
        assert len(run.sink.complete) == 1
        assert not run.parser.in_head
        assert run.parser.feed(b"\r") is None
        assert run.parser.feed(b"\n\r\n" + NEXT) is None
        assert len(run.sink.complete) == 2


def test_the_request_after_close_is_ignored() -> None:
    run = RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"\x00garbage", NEXT])
    assert run.error is None
    assert len(run.sink.messages) == 1


def test_attributes_on_the_way() -> None:
    parser = RequestParser(Requests(), RequestLimits())
    seen = []
    for piece in (b"POST / HT", b"TP/1.1\r\nHost: a\r\nContent-Length: 4\r\n", b"\r\n", b"xy", b"zw"):
        assert parser.feed(piece) is None
        seen.append((parser.in_head, parser.in_message, parser.body_remaining))
    assert seen == [(True, True, 0), (True, True, 0), (False, True, 4), (False, True, 2), (False, False, 0)]
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (parser.in_head, parser.in_message, parser.body_remaining) == (False, True, -1)


def test_small_chunks_are_delivered_together() -> None:
    sink = Requests()
    parser = RequestParser(sink, RequestLimits())
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert parser.feed(b"1\r\nx\r\n" * 2_000) is None
    assert (sink.body_calls, len(sink.messages[0].body)) == (1, 2_000)


class Pausing(Requests):
    """Pauses after every request."""

    def __init__(self) -> None:
        super().__init__()
        self.parser: RequestParser | None = None

    def request_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        super().request_end(trailers)
        assert self.parser is not None
        self.parser.pause()


def test_pause_stops_between_pipelined_requests() -> None:
    sink = Pausing()
    parser = RequestParser(sink, RequestLimits())
    sink.parser = parser
    assert parser.feed(NEXT * 3 + NEXT[:10]) is None
    assert len(sink.complete) == 1
    assert parser.feed(NEXT[10:]) is None
    for expected in (2, 3, 4, 4):
        assert parser.resume() is None
        assert len(sink.complete) == expected


def test_known_lines_and_hosts_are_not_mixed_up() -> None:
    sink = Requests()
    parser = RequestParser(sink, RequestLimits())
    requests = [(b"GET", b"/a", b"h1"), (b"GET", b"/a", b"h1"), (b"PUT", b"/a", b"h2"), (b"GET", b"/a", b"h1")]
    for method, target, host in requests:
        assert parser.feed(method + b" " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") is None
    assert [(head.method, head.target, head.authority) for head in sink.heads] == requests
    assert parser.feed(b"GET http://h1/a HTTP/1.1\r\nHost: h1\r\n\r\n") is None
    assert parser.feed(b"GET http://h1/a HTTP/1.1\r\nHost: h2\r\n\r\n") is None
    assert parser.feed(b"GET /a HTTP/1.1\r\nHost: h2\r\n\r\n") is None
    assert [(head.authority, head.headers.pairs()) for head in sink.heads[5:]] == [
        (b"h1", [(b"Host", b"h1")]),
        (b"h2", [(b"Host", b"h2")]),
    ]


def test_a_new_line_before_repeated_fields_counts_for_the_limit_of_the_head() -> None:
    fields = b" HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 700 + b"\r\n\r\n"
    long = b"GET /" + b"p" * 900 + fields
    for pieces in ([b"GET /" + fields, long], [b"GET /" + fields, long[:500], long[500:]]):
        run = RequestRun(pieces, RequestLimits(header_bytes=1024))
        assert run.error is not None and run.error.reason is Reason.HEADERS_TOO_LARGE
        assert len(run.sink.complete) == 1
