"""Responses: what is delivered and what is refused, however it is cut."""

from __future__ import annotations

import pytest

from activator.codec.http1.response import ResponseParser
from activator.codec.message import Headers
from activator.runtime.reasons import Reason
from tests.codec.http1.recording import ResponseRun, Responses, all_ways

BAD = Reason.BAD_RESPONSE
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def ok(fields: bytes, body: bytes = b"", line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return line + b"\r\n" + fields + b"\r\n" + body


def only(data: bytes, head_request: bool = False, eof: bool = False) -> ResponseRun:
    first = ResponseRun([data], head_request, eof)
    for pieces in all_ways(data):
        run = ResponseRun(pieces, head_request, eof)
        assert run.error is None, (run.error, pieces)
        assert run.parser.complete
        assert run.parser.started
        assert run.parser.keep_alive == first.parser.keep_alive
        assert run.sink.interims == first.sink.interims
        assert run.sink.messages == first.sink.messages
    (message,) = first.sink.messages
    assert message.trailers is not None
    return first


# line, fields, body on the wire, HEAD, what is declared, has a body, body, keep-alive
DELIVERED = [
    (b"HTTP/1.1 200 OK", b"Content-Length: 3\r\n", b"abc", False, 3, True, b"abc", True),
    (b"HTTP/1.1 200 OK", b"Content-Length: 0\r\n", b"", False, 0, False, b"", True),
    (b"HTTP/1.1 200 OK", b"Content-Length: 3\r\nConnection: close\r\n", b"abc", False, 3, True, b"abc", False),
    (b"HTTP/1.1 200 OK", CHUNKED, b"3\r\nabc\r\n0\r\n\r\n", False, -1, True, b"abc", True),
    (b"HTTP/1.1 200 OK", b"Content-Length: 3\r\n", b"", True, 3, False, b"", True),
    (b"HTTP/1.1 200 OK", CHUNKED, b"", True, -1, False, b"", True),
    (b"HTTP/1.1 200 OK", b"", b"", True, -1, False, b"", True),
    (b"HTTP/1.1 204 No Content", b"", b"", False, -1, False, b"", True),
    (b"HTTP/1.1 204 No Content", b"Content-Length: 0\r\n", b"", False, -1, False, b"", True),
    (b"HTTP/1.1 204 No Content", b"Content-Length: 3\r\n", b"", False, -1, False, b"", False),
    (b"HTTP/1.1 304 Not Modified", b"Content-Length: 3\r\n", b"", False, 3, False, b"", True),
    (b"HTTP/1.1 304 Not Modified", CHUNKED, b"", False, -1, False, b"", True),
    (b"HTTP/1.0 200 OK", b"Content-Length: 3\r\n", b"abc", False, 3, True, b"abc", False),
    (b"HTTP/1.0 200 OK", b"Content-Length: 3\r\nConnection: keep-alive\r\n", b"abc", False, 3, True, b"abc", True),
    (b"HTTP/1.1 200 OK", b"Content-Length: 0\r\nProxy-Connection: close\r\n", b"", False, 0, False, b"", True),
    (b"HTTP/1.1 599 Odd \xe9\t!", b"Content-Length: 0\r\n", b"", False, 0, False, b"", True),
    (b"HTTP/1.1 200", b"Content-Length: 0\r\n", b"", False, 0, False, b"", True),
    (b"HTTP/1.1 200 ", b"Content-Length: 0\r\n", b"", False, 0, False, b"", True),
]


@pytest.mark.parametrize(("line", "fields", "raw", "head", "length", "has_body", "body", "keep_alive"), DELIVERED)
def test_delivered(
    line: bytes, fields: bytes, raw: bytes, head: bool, length: int, has_body: bool, body: bytes, keep_alive: bool
) -> None:
    run = only(ok(fields, raw, line), head)
    heard = run.sink.heads[0]
    assert (heard.status, heard.reason_phrase) == (int(line[9:12]), line[13:])
    assert (heard.content_length, heard.has_body, heard.headers.pairs()) == (length, has_body, [])
    assert run.sink.messages[0].body == body
    assert run.parser.keep_alive == keep_alive
    if keep_alive:  # the next response on the connection is read as such
        for pieces in all_ways(ok(b"Content-Length: 1\r\n", b"n", b"HTTP/1.1 201 Created")):
            again = ResponseRun([ok(fields, raw, line)], head)
            again.parser.expect(False)
            assert not again.parser.started
            for piece in pieces:
                assert again.parser.feed(piece) is None
            assert (again.sink.heads[1].status, again.sink.messages[1].body) == (201, b"n")


def test_close_delimited() -> None:
    run = only(ok(b"Connection: keep-alive\r\n", b"abc\r\n\r\n"), eof=True)
    assert (run.sink.messages[0].body, run.parser.keep_alive) == (b"abc\r\n\r\n", False)
    assert only(ok(b""), eof=True).sink.messages[0].body == b""


def test_a_length_in_an_interim_response_is_ignored() -> None:
    """It must not be there (RFC 9110 8.6), but every other proxy takes it."""
    data = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\nLink: </a>\r\n\r\n" + ok(b"Content-Length: 2\r\n", b"hi")
    run = only(data)
    assert run.sink.interims == [(103, b"Early Hints", b"\r\nLink: </a>")]


def test_interim_responses() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: close\r\n\r\n"
    run = only(b"HTTP/1.1 100 Continue\r\n\r\n" + early + ok(b"Content-Length: 1\r\n", b"x"))
    assert run.sink.interims == [(100, b"Continue", b""), (103, b"Early Hints", b"\r\nLink: </a>")]
    assert run.parser.keep_alive


def test_fields_are_end_to_end_only() -> None:
    fields = (
        b"Server: s\r\nConnection: X-A, keep-alive\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n"
        b"Proxy-Authenticate: x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nTrailer: X-T\r\nContent-Length: 0\r\n"
    )
    expected = [(b"Server", b"s"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b"), (b"Trailer", b"X-T")]
    assert only(ok(fields)).sink.heads[0].headers.pairs() == expected


def test_trailers() -> None:
    run = only(ok(CHUNKED, b"1\r\nx\r\n0\r\nGrpc-Status: 0\r\nSet-Cookie: x\r\n\r\n"))
    assert run.sink.messages[0].trailers == [(b"Grpc-Status", b"0")]


# where the idea is from, the bytes; all on a GET
HOSTILE = [
    # --- status line: RFC 9112 4, facts
    ("status 099", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1 099 X")),
    ("status 20", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1 20 X")),
    ("status 2000", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1 2000 X")),
    ("two spaces", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1  200 OK")),
    ("HTTP/0.9", ok(b"Content-Length: 0\r\n", line=b"HTTP/0.9 200 OK")),
    ("HTTP/2.0", ok(b"Content-Length: 0\r\n", line=b"HTTP/2.0 200 OK")),
    ("RTSP", ok(b"Content-Length: 0\r\n", line=b"RTSP/1.0 200 OK")),
    ("control byte in the reason", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1 200 O\x01K")),
    ("bare CR in the reason", ok(b"Content-Length: 0\r\n", line=b"HTTP/1.1 200 O\rK")),
    ("empty line before it", b"\r\n" + ok(b"Content-Length: 0\r\n")),
    ("not HTTP", b"hello"),
    ("TLS alert", b"\x15\x03\x01\x00\x02"),
    # --- framing: RFC 9112 6, facts
    ("CL and TE", ok(b"Content-Length: 3\r\n" + CHUNKED, b"0\r\n\r\n")),
    ("TE and CL", ok(CHUNKED + b"Content-Length: 3\r\n", b"0\r\n\r\n")),
    ("CL twice, not the same", ok(b"Content-Length: 3\r\nContent-Length: 4\r\n", b"abc")),
    ("CL twice, the second no number", ok(b"Content-Length: 3\r\nContent-Length: x\r\n", b"abc")),
    ("CL list, not the same", ok(b"Content-Length: 3, 4\r\n", b"abc")),
    ("CL list with nothing in it", ok(b"Content-Length: 3,\r\n", b"abc")),
    ("CL twice and TE", ok(b"Content-Length: 3\r\nContent-Length: 3\r\n" + CHUNKED, b"0\r\n\r\n")),
    ("CL too large", ok(b"Content-Length: 18446744073709551615\r\n")),
    ("TE gzip", ok(b"Transfer-Encoding: gzip\r\n", b"abc")),
    ("TE unknown", ok(b"Transfer-Encoding: cow\r\n", b"abc")),
    ("TE gzip, chunked", ok(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n")),
    ("TE twice", ok(CHUNKED + CHUNKED, b"0\r\n\r\n")),
    ("TE in 1.0", ok(CHUNKED, b"0\r\n\r\n", b"HTTP/1.0 200 OK")),
    ("Transfer_Encoding", ok(b"Transfer_Encoding: chunked\r\nContent-Length: 0\r\n")),
    ("chunk size", ok(CHUNKED, b"x\r\n")),
    ("chunk too long", ok(CHUNKED, b"1\r\nxy\r\n0\r\n\r\n")),
    ("chunk extension", ok(CHUNKED, b"1;" + b"x" * 20_000)),
    ("trailers", ok(CHUNKED, b"0\r\n" + b"X: 1\r\n" * 1_400)),
    # --- fields
    ("obs-fold", ok(b"X: 1\r\n 2\r\nContent-Length: 0\r\n")),
    ("bare LF behind the first line", b"HTTP/1.1 200 OK\r\nContent-Length: 0\n\n"),
    ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    ("space before the colon", ok(b"Content-Length : 0\r\n")),
    ("too many fields", ok(b"X: 1\r\n" * 257)),
    ("head too large", ok(b"X: " + b"x" * 70_000)),
    ("Connection names Content-Length", ok(b"Connection: content-length\r\nContent-Length: 0\r\n")),
    # --- interim
    ("101 nobody asked for", ok(b"Upgrade: websocket\r\nConnection: upgrade\r\n", line=b"HTTP/1.1 101 Switching")),
    ("101 without Upgrade", ok(b"", line=b"HTTP/1.1 101 Switching Protocols")),
    ("1xx with a body", ok(b"Content-Length: 1\r\n", b"x", b"HTTP/1.1 100 Continue")),
    ("1xx chunked", ok(CHUNKED, b"0\r\n\r\n", b"HTTP/1.1 103 Early Hints")),
    ("1xx without end", b"HTTP/1.1 102 Processing\r\n\r\n" * 17),
]


@pytest.mark.parametrize("data", [case[1] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile(data: bytes) -> None:
    cuts = list(all_ways(data)) if len(data) < 2_000 else [[data], [data[:900], data[900:]]]
    for pieces in [*cuts, [data + ok(b"Content-Length: 0\r\n")]]:
        run = ResponseRun(pieces)
        assert run.error is not None, pieces
        assert run.error.reason is BAD
        assert not run.parser.complete
        assert not run.parser.keep_alive
        assert all(message.trailers is None for message in run.sink.messages)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nX : y\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\nA: b\r\n",
        b"HTTP/1.1 200 OK\r\nX: \x00\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Lengthy : 1\r\n",
    ],
)
def test_a_bad_line_of_a_head_that_does_not_end_is_refused_at_once(data: bytes) -> None:
    for pieces in all_ways(data):
        run = ResponseRun(pieces)
        assert run.error is not None and run.error.reason is BAD, pieces


@pytest.mark.parametrize("tail", [b"x", b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize(
    ("data", "head"),
    [(ok(b"Content-Length: 1\r\n", b"x"), False), (ok(CHUNKED, b"0\r\n\r\n"), False), (ok(b""), True)],
)
def test_bytes_after_a_response_spoil_the_connection(data: bytes, head: bool, tail: bytes) -> None:
    for pieces in ([data + tail], [data, tail], [data[:-1], data[-1:] + tail]):
        run = ResponseRun(pieces, head)
        assert run.error is not None
        assert run.error.reason is BAD
        assert run.parser.complete  # the response itself stands
        assert not run.parser.keep_alive
        assert len(run.sink.messages) == 1


class Reusing(Responses):
    """Sends the next request as soon as a response has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.parser: ResponseParser | None = None

    def response_end(self, trailers: Headers) -> None:
        super().response_end(trailers)
        assert self.parser is not None
        if self.parser.keep_alive:
            self.parser.expect(False)


def test_a_response_sent_ahead_never_answers_the_next_request() -> None:
    sink = Reusing()
    parser = ResponseParser(sink)
    sink.parser = parser
    parser.expect(False)
    first = ok(b"Content-Length: 1\r\n", b"1")
    assert parser.feed(first) is None
    error = parser.feed(first + first)
    assert error is not None
    assert len(sink.messages) == 2
    parser.expect(False)  # in vain
    assert parser.feed(first) is not None
    assert len(sink.messages) == 2


def test_nothing_is_expected_at_first() -> None:
    sink = Responses()
    error = ResponseParser(sink).feed(ok(b"Content-Length: 0\r\n"))
    assert error is not None
    assert error.reason is BAD
    assert sink.messages == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        ok(b"Content-Length: 3\r\n", b"ab"),
        ok(CHUNKED, b"3\r\nabc\r\n0\r\n"),
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_a_truncated_response_is_told(data: bytes) -> None:
    run = ResponseRun([data], eof=True)
    assert run.error is not None
    assert run.error.reason is Reason.POD_CLOSED
    assert run.parser.started == (data != b"")
    assert not run.parser.complete
