"""What is written is what was meant, and our own parsers read it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http1.serialise import (
    chunk,
    interim_bytes,
    last_chunk,
    plain_response,
    request_bytes,
    response_bytes,
)
from activator.codec.http1.target import METHODS
from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from tests.codec.http1.recording import RequestRun, ResponseRun

FIELDS = Fields.from_pairs([(b"Host", b"a"), (b"X-A", b"1")])


@pytest.mark.parametrize(
    ("length", "has_body", "framing"),
    [
        (-1, False, b""),
        (0, False, b"Content-Length: 0\r\n"),
        (5, True, b"Content-Length: 5\r\n"),
        (10**12, True, b"Content-Length: 1000000000000\r\n"),
        (-1, True, b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_request(length: int, has_body: bool, framing: bytes) -> None:
    head = RequestHead(b"PUT", b"/x", b"a", FIELDS, length, has_body)
    assert request_bytes(head) == b"PUT /x HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n" + framing + b"\r\n"


@pytest.mark.parametrize(
    ("length", "has_body", "http_1_0", "close", "end"),
    [
        (3, True, False, False, b"Content-Length: 3\r\n"),
        (3, True, False, True, b"Content-Length: 3\r\nConnection: close\r\n"),
        (3, True, True, False, b"Content-Length: 3\r\nConnection: keep-alive\r\n"),
        (-1, True, False, False, b"Transfer-Encoding: chunked\r\n"),
        (-1, True, True, True, b"Connection: close\r\n"),
        (3, False, False, False, b"Content-Length: 3\r\n"),  # HEAD, 304
        (-1, False, False, False, b""),  # 204
    ],
)
def test_response(length: int, has_body: bool, http_1_0: bool, close: bool, end: bytes) -> None:
    head = ResponseHead(200, b"Fine", Fields.from_pairs([(b"Server", b"s")]), length, has_body)
    assert response_bytes(head, http_1_0, close) == b"HTTP/1.1 200 Fine\r\nServer: s\r\n" + end + b"\r\n"


def test_interim() -> None:
    head = ResponseHead(103, b"Early Hints", Fields.from_pairs([(b"Link", b"</a>")]), -1, False)
    assert interim_bytes(head) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


def test_chunks() -> None:
    assert chunk(b"") == b""
    assert chunk(b"0123456789abcdef") == b"10\r\n0123456789abcdef\r\n"
    assert chunk(b"x" * 70_000) == b"11170\r\n" + b"x" * 70_000 + b"\r\n"
    assert last_chunk([]) == b"0\r\n\r\n"
    assert last_chunk([(b"X", b"1"), (b"Y", b"")]) == b"0\r\nX: 1\r\nY: \r\n\r\n"


def test_plain_response() -> None:
    whole = plain_response(503, b"busy\n", [(b"Retry-After", b"1")], True, False, False)
    assert whole == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n"
        b"Content-Length: 5\r\nConnection: close\r\n\r\nbusy\n"
    )
    assert plain_response(503, b"busy\n", [(b"Retry-After", b"1")], True, False, True) == whole[:-5]
    assert plain_response(499, b"", [], False, True, False).startswith(b"HTTP/1.1 499 \r\n")


tokens = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789!#$%&'*+.^`|~", min_size=1, max_size=12)
# What says where a request came from is not sent on as it came, and from behind a body not at all.
CLAIMS = (b"x-forwarded", b"x-real-ip", b"x-request-id")
names = tokens.map(lambda token: b"X-" + token.encode()).filter(lambda name: not name.lower().startswith(CLAIMS))
values = st.binary(max_size=20).map(
    lambda raw: bytes(byte if byte >= 0x20 and byte != 0x7F else 0x41 for byte in raw).strip(b" \t")
)
headers = st.lists(st.tuples(names, values), max_size=8)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=4)


@given(st.sampled_from(sorted(METHODS - {b"GET", b"HEAD", b"TRACE"})), headers, bodies, headers, st.booleans())
def test_requests_come_back(
    method: bytes, fields: Headers, body: list[bytes], trailers: Headers, chunked: bool
) -> None:
    joined = b"".join(body)
    fields = [(b"Host", b"a.b:1"), *fields]
    length = -1 if chunked else len(joined)
    head = RequestHead(method, b"/p?q", b"a.b:1", Fields.from_pairs(fields), length, chunked or bool(joined))
    if chunked:
        raw = request_bytes(head) + b"".join(chunk(piece) for piece in body) + last_chunk(trailers)
    else:
        raw = request_bytes(head) + joined
    run = RequestRun([raw])
    assert run.error is None
    (message,) = run.sink.complete
    expected = (method, b"/p?q", b"a.b:1", head.headers.block, head.content_length, head.has_body, True, False)
    assert message.head == expected
    assert message.body == joined
    assert message.trailers == (trailers if chunked else [])


@given(st.sampled_from([200, 206, 404, 503, 599]), headers, bodies, headers, st.booleans())
def test_responses_come_back(status: int, fields: Headers, body: list[bytes], trailers: Headers, chunked: bool) -> None:
    joined = b"".join(body)
    length = -1 if chunked else len(joined)
    head = ResponseHead(status, b"Why not", Fields.from_pairs(fields), length, chunked or bool(joined))
    if chunked:
        raw = response_bytes(head, False, False) + b"".join(chunk(piece) for piece in body) + last_chunk(trailers)
    else:
        raw = response_bytes(head, False, False) + joined
    run = ResponseRun([raw])
    assert run.error is None
    (message,) = run.sink.messages
    assert message.head == (status, b"Why not", head.headers.block, head.content_length, head.has_body)
    assert message.body == joined
    assert message.trailers == (trailers if chunked else [])
    assert run.parser.keep_alive
