"""Any bytes, in any pieces: calls of the sink or one WireError, and the same ones however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.http1.hostile_requests import HOSTILE
from tests.codec.http1.recording import RequestRun, ResponseRun

# Fragments of messages, in any order: nearer to the edges of the grammar than bytes at random.
REQUEST_PARTS = [
    b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"OPTIONS * HTTP/1.0\r\n", b"Host: a\r\n", b"Host: b\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n", b"Upgrade: websocket\r\n",
    b"Proxy-Connection: close\r\n", b"Expect: 100-continue\r\n", b"X: \x00\r\n", b"\r\n", b"\r\n\r\n", b"\r", b"\n",
    b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\nX-T: 1\r\n\r\n", b"1;x=y\r\n", b"hello", b" ", b":", b"\xff",
]  # fmt: skip
RESPONSE_PARTS = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 404 No\r\n", b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n", b"HTTP/1.1 304 Not Modified\r\n", *REQUEST_PARTS[5:],
]  # fmt: skip

request_bytes = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(REQUEST_PARTS), max_size=14).map(b"".join),
    st.lists(st.sampled_from([data for _, data, _ in HOSTILE if len(data) < 500]), max_size=3).map(b"".join),
)
response_bytes = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(RESPONSE_PARTS), max_size=14).map(b"".join),
)
cuts = st.lists(st.integers(0, 400), max_size=8)

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
VALID_REQUESTS = [
    b"GET /a HTTP/1.1\r\nHost: a\r\nAccept: x\r\n\r\n",
    POST + b"Content-Length: 7\r\n\r\n\r\n\r\nabc",
    POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n1;e\r\nx\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\nProxy-Connection: close\r\n\r\n",
]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(place for place in at if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(request_bytes, cuts)
def test_any_bytes_as_requests(data: bytes, at: list[int]) -> None:
    whole = RequestRun([data])
    pieces = RequestRun(cut(data, at))
    single = RequestRun([data[i : i + 1] for i in range(len(data))])
    for run in (pieces, single):
        assert run.sink.complete == whole.sink.complete
        assert [message.head for message in run.sink.messages] == [message.head for message in whole.sink.messages]
        assert (run.error is None) == (whole.error is None), (run.error, whole.error)
        if whole.error is None:
            assert run.sink.messages == whole.sink.messages
            assert run.parser.in_head == whole.parser.in_head
            assert run.parser.body_remaining == whole.parser.body_remaining


@pytest.mark.parametrize("field", [b"Transfer-Encoding:", b"Transfer-Encoding: gzip", b"Content-Length:", b"X : 1"])
def test_a_head_that_is_not_complete_is_judged_alike_however_it_comes(field: bytes) -> None:
    data = b"GET / HTTP/1.1\r\n" + field + b"\r\n"
    whole = RequestRun([data])
    single = RequestRun([data[i : i + 1] for i in range(len(data))])
    assert (whole.error is None) == (single.error is None)
    assert RequestRun([data + b"\r\n"]).error is not None


@given(response_bytes, cuts, st.booleans())
def test_any_bytes_as_responses(data: bytes, at: list[int], head_request: bool) -> None:
    whole = ResponseRun([data], head_request, eof=True)
    pieces = ResponseRun(cut(data, at), head_request, eof=True)
    single = ResponseRun([data[i : i + 1] for i in range(len(data))], head_request, eof=True)
    for run in (pieces, single):
        assert run.sink.interims == whole.sink.interims
        assert run.parser.complete == whole.parser.complete
        assert run.parser.keep_alive == whole.parser.keep_alive
        assert (run.error is None) == (whole.error is None), (run.error, whole.error)
        if whole.parser.complete:
            assert run.sink.messages == whole.sink.messages


@given(st.lists(st.sampled_from(VALID_REQUESTS), min_size=1, max_size=5), cuts)
def test_pipelined_requests_are_the_same_in_any_pieces(messages: list[bytes], at: list[int]) -> None:
    expected = [RequestRun([message]).sink.messages[0] for message in messages]
    run = RequestRun(cut(b"".join(messages), at))
    assert run.error is None
    assert run.sink.complete == expected
