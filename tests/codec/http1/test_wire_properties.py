"""Any bytes, in any pieces: calls of the sink or one WireError, and the same ones however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from activator.codec.http1.lenient import LenientResponseParser
from activator.codec.http1.request import RequestLimits, RequestParser
from activator.codec.http1.response import ResponseParser
from tests.codec.http1.hostile_requests import HOSTILE
from tests.codec.http1.recording import Message, RequestRun, Requests, ResponseRun, Responses, feed_pieces

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


# Heads of which one repeats another, or its fields behind another line.
FIELDS = [
    b"Host: a\r\nAccept: x\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
    b"Host: a\r\nConnection: keep-alive, x-own\r\nX-Own: 1\r\ntraceparent: 00\r\n\r\n",
    b"Host: a\r\nContent-Length: 0\r\n\r\n",
    b"Host: a\r\nContent-Length: 3\r\n\r\nabc",
    b"Host: a\r\nConnection: close\r\n\r\n",
    b"Host: a\r\nConnection: keep-alive\r\nProxy-Connection: keep-alive\r\n\r\n",
    b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
]
LINES = [
    b"GET /a HTTP/1.1\r\n", b"GET /b HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"BREW /a HTTP/1.1\r\n",
    b"HEAD /a HTTP/1.1\r\n",
    b"GET http://other/x HTTP/1.1\r\n", b"GET /a HTTP/1.0\r\n", b"TRACE /a HTTP/1.1\r\n", b"GET /a b HTTP/1.1\r\n",
]  # fmt: skip
repeating_requests = st.lists(
    st.tuples(st.sampled_from(LINES[:3] * 4 + LINES), st.sampled_from(FIELDS[:3] * 4 + FIELDS)).map(b"".join),
    min_size=2,
    max_size=8,
)


@given(repeating_requests, st.booleans())
def test_a_request_that_repeats_another_is_read_like_a_first_one(messages: list[bytes], in_one_read: bool) -> None:
    run = RequestRun([b"".join(messages)] if in_one_read else messages)
    alone = [RequestRun([message]) for message in messages]
    expected: list[Message] = []
    for one in alone:
        expected += one.sink.complete
        if one.error is not None or not one.sink.keep_alive[0]:
            break
    assert run.sink.complete == expected
    ended = len(run.sink.keep_alive) > 0 and not run.sink.keep_alive[-1]
    assert (run.error is None) == (ended or all(one.error is None for one in alone))
    heads = [one.sink.heads[0] for one in alone[: len(expected)]]
    for head, first in zip(run.sink.heads, heads, strict=False):
        assert (head.claims, head.named, head.traceparent, head.upgrade) == (
            first.claims, first.named, first.traceparent, first.upgrade,
        )  # fmt: skip


@given(st.lists(st.tuples(repeating_requests, cuts, st.integers(0, 300)), min_size=2, max_size=6))
def test_the_parser_of_a_closed_connection_reads_like_a_new_one(
    connections: list[tuple[list[bytes], list[int], int]],
) -> None:
    """Each connection ends somewhere, also within a message; some are paused, as during a response."""
    parser: RequestParser | None = None
    reused = 0
    for messages, at, missing in connections:
        data = b"".join(messages)
        pieces = cut(data[: max(len(data) - missing, 1)] if missing < 100 else data, at)
        new = RequestRun(pieces)
        sink = Requests()
        if parser is None:
            parser = RequestParser(sink, RequestLimits())
        else:
            parser.begin(sink)
            reused += 1
        error = feed_pieces(parser.feed, pieces)
        assert (error is None) == (new.error is None)
        assert sink.messages == new.sink.messages
        for head, other in zip(sink.heads, new.sink.heads, strict=True):
            assert (head.claims, head.named, head.traceparent, head.upgrade) == (
                other.claims, other.named, other.traceparent, other.upgrade,
            )  # fmt: skip
        if missing % 3 == 0:
            parser.pause()
            parser.feed(b"GET /left HTTP/1.1\r\n")
        parser.retire()
        if not parser.is_reusable():
            parser = None
    event(f"reused {reused} times")


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nDate: x\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\nDate: x\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
]
BODIES = [b"ok", b"no", b"", b"o", b"2\r\nok\r\n0\r\n\r\n", b"okHTTP/1.1 200 OK"]


@given(
    st.lists(
        st.tuples(st.sampled_from(ANSWERS[:2] * 6 + ANSWERS), st.sampled_from(BODIES[:1] * 6 + BODIES), st.booleans()),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from([0, 0, 0, 1, 30, 90]),
    st.booleans(),
)
def test_a_response_that_repeats_another_is_read_like_a_first_one(
    answers: list[tuple[bytes, bytes, bool]], place: int, lenient: bool
) -> None:
    sink = Responses()
    parser = LenientResponseParser(sink) if lenient else ResponseParser(sink)
    for head, body, head_request in answers:
        pieces = cut(head + body, [place])
        alone = ResponseRun(pieces, head_request, lenient=lenient)
        sink.messages.clear()
        sink.interims.clear()
        parser.expect(head_request)
        error = feed_pieces(parser.feed, pieces)
        assert (error and error.reason) == (alone.error and alone.error.reason)
        assert (sink.messages, sink.interims) == (alone.sink.messages, alone.sink.interims)
        assert (parser.complete, parser.keep_alive) == (alone.parser.complete, alone.parser.keep_alive)
        if error is not None or not parser.complete or not parser.keep_alive:
            return
