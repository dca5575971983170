"""What real clients and servers send, and every other proxy accepts: accepted here, and sent on in a strict shape.

Seen of curl, Java's HttpClient, Go, python-requests, Prometheus' clients, Vault, WebDAV and old servers.
"""

from __future__ import annotations

import re

import pytest

from activator.codec.http1.request import RequestLimits
from activator.codec.http1.serialise import request_bytes, response_bytes
from activator.codec.message import Fields
from tests.codec.http1.recording import RequestRun, ResponseRun, all_ways
from tests.codec.http1.test_wire_request import only
from tests.codec.http1.test_wire_response import ok

H = b"Host: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
STRICT_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ (/|\*)[!$&'()*+,./:;=?@0-9A-Za-z_~%\[\]^`{|}-]* HTTP/1\.1\r\n")


def request(line: bytes, fields: bytes = H, body: bytes = b"") -> bytes:
    return line + b"\r\n" + fields + b"\r\n" + body


def lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\r\n\r\n").split(b"\r\n")


# (what sends it, the bytes, what the pod is sent)
REQUESTS = [
    (
        "Java's HttpClient: h2c offered with a POST",
        request(
            b"POST /x HTTP/1.1",
            H + b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEA\r\nUpgrade: h2c\r\nContent-Length: 2\r\n",
            b"hi",
        ),
        [b"POST /x HTTP/1.1", b"Host: a", b"Content-Length: 2"],
    ),
    (
        "h2c offered with a chunked POST",
        request(b"POST / HTTP/1.1", H + b"Connection: upgrade\r\nUpgrade: h2c\r\n" + CHUNKED, b"2\r\nhi\r\n0\r\n\r\n"),
        [b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
    ),
    (
        "TLS offered with a POST",
        request(b"POST / HTTP/1.1", H + b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\nContent-Length: 2\r\n", b"hi"),
        [b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 2"],
    ),
    (
        "h2c offered with a POST in HTTP/1.0",
        request(
            b"POST / HTTP/1.0",
            H + b"Connection: upgrade, keep-alive\r\nUpgrade: h2c\r\nContent-Length: 2\r\n",
            b"hi",
        ),
        [b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 2"],
    ),
    (
        "Prometheus",
        request(b'GET /api/v1/query?query=up{job="x"}|y HTTP/1.1'),
        [b"GET /api/v1/query?query=up{job=%22x%22}|y HTTP/1.1", b"Host: a"],
    ),
    ("curl", request(b"GET /<a>\\b HTTP/1.1"), [b"GET /%3Ca%3E%5Cb HTTP/1.1", b"Host: a"]),
    (
        "absolute-form with quotes",
        request(b'GET http://a?q="x" HTTP/1.1'),
        [b"GET /?q=%22x%22 HTTP/1.1", b"Host: a"],
    ),
    (
        "Go: a GET with a body of unknown length",
        request(b"GET / HTTP/1.1", H + CHUNKED, b"2\r\nhi\r\n0\r\n\r\n"),
        [b"GET / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
    ),
    (
        "HEAD with chunks",
        request(b"HEAD / HTTP/1.1", H + CHUNKED, b"0\r\n\r\n"),
        [b"HEAD / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
    ),
    ("Vault", request(b"LIST /v1/secret HTTP/1.1"), [b"LIST /v1/secret HTTP/1.1", b"Host: a"]),
    ("WebDAV", request(b"VERSION-CONTROL /x HTTP/1.1"), [b"VERSION-CONTROL /x HTTP/1.1", b"Host: a"]),
    (
        "an unknown method with a body",
        request(b"BREW /pot HTTP/1.1", H + b"Content-Length: 2\r\n", b"hi"),
        [b"BREW /pot HTTP/1.1", b"Host: a", b"Content-Length: 2"],
    ),
    (
        "an unknown method with chunks",
        request(b"BREW /pot HTTP/1.1", H + CHUNKED, b"2\r\nhi\r\n0\r\n\r\n"),
        [b"BREW /pot HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
    ),
    (
        "an unknown method in HTTP/1.0",
        request(b"BREW /pot HTTP/1.0", H + b"Connection: keep-alive\r\n"),
        [b"BREW /pot HTTP/1.1", b"Host: a"],
    ),
    ("a method of RTSP", request(b"DESCRIBE / HTTP/1.1"), [b"DESCRIBE / HTTP/1.1", b"Host: a"]),
    ("a method in small letters", request(b"get / HTTP/1.1"), [b"get / HTTP/1.1", b"Host: a"]),
    ("absolute-form, another port", request(b"GET http://a:80/x HTTP/1.1"), [b"GET /x HTTP/1.1", b"Host: a:80"]),
    (
        "absolute-form against Host (RFC 9112 3.2.2)",
        request(b"GET http://b/x HTTP/1.1", b"X: 1\r\nHost: a\r\nY: 2\r\n"),
        [b"GET /x HTTP/1.1", b"X: 1", b"Host: b", b"Y: 2"],
    ),
    (
        "absolute-form against Host, which stands last",
        request(b"GET http://b/x HTTP/1.1", b"X: 1\r\nHost: a\r\n"),
        [b"GET /x HTTP/1.1", b"X: 1", b"Host: b"],
    ),
    ("empty port", request(b"GET / HTTP/1.1", b"Host: a.test:\r\n"), [b"GET / HTTP/1.1", b"Host: a.test:"]),
    ("empty port, IPv6", request(b"GET / HTTP/1.1", b"Host: [::1]:\r\n"), [b"GET / HTTP/1.1", b"Host: [::1]:"]),
    ("HTTP/1.2 (RFC 9110 2.5)", request(b"GET / HTTP/1.2"), [b"GET / HTTP/1.1", b"Host: a"]),
    (
        "HTTP/1.9 with chunks",
        request(b"POST / HTTP/1.9", H + CHUNKED, b"2\r\nhi\r\n0\r\n\r\n"),
        [b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
    ),
    *[
        (
            f"chunk extension {extension!r}",
            request(
                b"POST / HTTP/1.1",
                H + CHUNKED,
                b"1%b\r\nh\r\n1\r\ni\r\n00%b\r\nX-T: 1\r\n\r\n" % (extension, extension),
            ),
            [b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked"],
        )
        for extension in (
            b";a", b";a=b", b' ;a="b"', b"\t; a", b';\ta = "b c;\\"\\\\"', b";a;b=c ;d", b';a=""', b';a="\xe9"'
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize(("data", "sent"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS])
def test_requests(data: bytes, sent: list[bytes]) -> None:
    sink = only(data)  # in every cut, and with another request behind it
    head = sink.heads[0]
    assert head.upgrade == b""
    written = request_bytes(head)
    assert STRICT_LINE.match(written)
    assert lines(written) == sent
    body = sink.messages[0].body
    if head.has_body and data.count(b"hi") + data.count(b"h\r\n1"):
        assert body == b"hi"
    if b"X-T" in data:
        assert sink.messages[0].trailers == [(b"X-T", b"1")]


def test_an_upgrade_behind_a_post_is_not_taken_and_the_one_behind_it_is() -> None:
    post = request(b"POST / HTTP/1.1", H + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n", b"hi")
    get = request(b"GET / HTTP/1.1", H + b"Connection: upgrade\r\nUpgrade: websocket\r\n")
    for pieces in all_ways(post + post + get):
        run = RequestRun(pieces)
        assert run.error is None
        assert [(head.method, head.upgrade) for head in run.sink.heads] == [
            (b"POST", b""),
            (b"POST", b""),
            (b"GET", b"websocket"),
        ]


def test_a_line_that_llhttp_refuses_is_limited_as_others_are() -> None:
    limits = RequestLimits(header_bytes=100, headers=1)
    for fields in (H + b"X: 1\r\n", b"Host: " + b"a" * 90 + b"\r\n"):
        for pieces in all_ways(request(b"BREW / HTTP/1.1", fields)):
            assert RequestRun(pieces, limits).error is not None
    for pieces in all_ways(request(b"BREW / HTTP/1.2", H + b"X : 1\r\n")):
        assert RequestRun(pieces).error is not None, "the fields are judged all the same"


ANSWERS = [
    ("CL twice the same", ok(b"Content-Length: 3\r\nX: 1\r\ncontent-length: 3\r\n", b"abc"), 200, b"abc"),
    ("CL in a list", ok(b"Content-Length: 3, 3 ,3\r\n", b"abc"), 200, b"abc"),
    ("CL twice, with zeros", ok(b"Content-Length: 3\r\nContent-Length: 03\r\n", b"abc"), 200, b"abc"),
    ("status 600", ok(b"Content-Length: 3\r\n", b"abc", b"HTTP/1.1 600 X"), 600, b"abc"),
    ("status 999 (LinkedIn)", ok(b"Content-Length: 3\r\n", b"abc", b"HTTP/1.1 999 Denied"), 999, b"abc"),
    ("status 700 in chunks", ok(CHUNKED, b"3\r\nabc\r\n0\r\n\r\n", b"HTTP/1.1 700 X"), 700, b"abc"),
    ("a space after the chunk sizes", ok(CHUNKED, b"3 \r\nabc\r\n0   \r\n\r\n"), 200, b"abc"),
    ("a tab after a chunk size", ok(CHUNKED, b"3\t\r\nabc\r\n0\r\n\r\n"), 200, b"abc"),
    ("a space after a chunk extension", ok(CHUNKED, b"3 ; a = b \r\nabc\r\n0\r\n\r\n"), 200, b"abc"),
    (
        "framing in the trailers",
        ok(CHUNKED, b"3\r\nabc\r\n0\r\nContent-Length: 1\r\nX-T: 1\r\nHost: b\r\n\r\n"),
        200,
        b"abc",
    ),
]


@pytest.mark.parametrize(("data", "status", "body"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
def test_answers(data: bytes, status: int, body: bytes) -> None:
    for pieces in all_ways(data):
        run = ResponseRun(pieces)
        assert run.error is None, pieces
        assert run.parser.complete and run.parser.keep_alive
        (message,) = run.sink.messages
        assert (message.head[0], message.body) == (status, body)
        assert message.trailers == ([(b"X-T", b"1")] if b"X-T" in data else [])
        written = response_bytes(run.sink.heads[0], False, False)
        assert written.startswith(b"HTTP/1.1 %d " % status)
        assert written.lower().count(b"content-length") + written.count(b"chunked") == 1
        run.parser.expect(False)  # the connection can be used again
        assert run.parser.feed(ok(b"Content-Length: 1\r\n", b"n")) is None
        assert run.sink.messages[1].body == b"n"


def test_a_426_says_what_to_upgrade_to() -> None:
    fields = b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n"
    head = ResponseRun([ok(fields, line=b"HTTP/1.1 426 Upgrade Required")]).sink.heads[0]
    assert head.headers.pairs() == [(b"Upgrade", b"websocket, h2c"), (b"Connection", b"upgrade")]
    assert ResponseRun([ok(fields)]).sink.heads[0].headers == Fields(b"")


def test_trailers_that_only_knative_and_this_program_give_a_meaning() -> None:
    """A pod behind queue-proxy would obey them; they never come from a client."""
    trailers = b"Knative-Serving-Revision: r\r\nK-Original-Host: h\r\nActivator_Revision: a\r\nX-T: 1\r\n\r\n"
    data = request(b"POST / HTTP/1.1", H + b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n0\r\n" + trailers)
    assert only(data).messages[0].trailers == [(b"X-T", b"1")]
