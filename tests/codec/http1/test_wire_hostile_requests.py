"""What must be refused is, for its reason, however it is cut and whatever stands before and behind."""

from __future__ import annotations

import time

import pytest

from activator.codec.http1.request import RequestLimits, RequestParser
from activator.runtime.reasons import Reason
from tests.codec.http1.hostile_requests import CHUNKED, HOSTILE, H, post
from tests.codec.http1.recording import Message, RequestRun, Requests, all_ways

BEFORE = b"GET /before HTTP/1.1\r\nHost: b\r\n\r\n"


def refused(data: bytes, reason: Reason, limits: RequestLimits | None = None) -> None:
    (before,) = RequestRun([BEFORE]).sink.complete
    for pieces in all_ways(data):
        check(RequestRun(pieces, limits), [], reason)
        check(RequestRun([BEFORE, *pieces], limits), [before], reason)
    check(RequestRun([BEFORE + data + BEFORE], limits), [before], reason)


def check(run: RequestRun, complete: list[Message], reason: Reason) -> None:
    assert run.error is not None
    assert run.error.reason is reason, run.error
    assert run.error.detail
    assert run.sink.complete == complete


@pytest.mark.parametrize(("data", "reason"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile(data: bytes, reason: Reason) -> None:
    if len(data) > 2_000:  # byte by byte is measured below
        for pieces in ([data], [data[i : i + 1_000] for i in range(0, len(data), 1_000)], [BEFORE + data + BEFORE]):
            run = RequestRun(pieces)
            check(run, RequestRun([BEFORE]).sink.complete if pieces[0].startswith(BEFORE) else [], reason)
    else:
        refused(data, reason)


@pytest.mark.parametrize(
    ("data", "fine", "reason"),
    [
        (post(b"Content-Length: 11\r\n", b"12345678901"), False, Reason.BODY_TOO_LARGE),
        (post(b"Content-Length: 10\r\n", b"1234567890"), True, None),
        (post(CHUNKED, b"5\r\n12345\r\n6\r\n123456\r\n0\r\n\r\n"), False, Reason.BODY_TOO_LARGE),
        (post(CHUNKED, b"5\r\n12345\r\n5\r\n12345\r\n0\r\n\r\n"), True, None),
        (b"GET /23456789 HTTP/1.1\r\n" + H + b"\r\n", True, None),
        (b"GET /234567890 HTTP/1.1\r\n" + H + b"\r\n", False, Reason.TARGET_TOO_LONG),
        (b"GET / HTTP/1.1\r\n" + H + b"X: 1\r\nY: 2\r\n\r\n", True, None),
        (b"GET / HTTP/1.1\r\n" + H + b"X: 1\r\nY: 2\r\nZ: 3\r\n\r\n", False, Reason.HEADERS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n" + H + b"X: " + b"x" * 70 + b"\r\n\r\n", True, None),
        (b"GET / HTTP/1.1\r\n" + H + b"X: " + b"x" * 71 + b"\r\n\r\n", False, Reason.HEADERS_TOO_LARGE),
        (post(CHUNKED, b"1;34567\r\nx\r\n0\r\n\r\n"), True, None),
        (post(CHUNKED, b"1;345678\r\nx\r\n0\r\n\r\n"), False, Reason.BAD_REQUEST),
        (post(CHUNKED, b"0\r\nX: 456\r\n\r\n"), True, None),
        (post(CHUNKED, b"0\r\nX: 4567\r\n\r\n"), False, Reason.HEADERS_TOO_LARGE),
    ],
)
def test_limits_to_the_byte(data: bytes, fine: bool, reason: Reason | None) -> None:
    limits = RequestLimits(
        header_bytes=102, headers=3, body_bytes=10, target_bytes=9, chunk_overhead_bytes=7, trailers_bytes=10
    )
    if fine:
        for pieces in all_ways(data):
            run = RequestRun(pieces, limits)
            assert run.error is None
            assert len(run.sink.complete) == 1
    else:
        assert reason is not None
        refused(data, reason, limits)


def test_a_body_too_large_is_refused_before_its_head_is_delivered() -> None:
    run = RequestRun([post(b"Content-Length: 11\r\n")], RequestLimits(body_bytes=10))
    assert run.error is not None
    assert run.sink.messages == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000,
        b"GET /" + b"x" * 40_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 40_000,
        post(CHUNKED, b"1;" + b"x" * 40_000),
        post(CHUNKED, b"0\r\nX: " + b"x" * 40_000),
    ],
)
def test_byte_by_byte_costs_no_more_than_the_limit_allows(data: bytes) -> None:
    """One 1 MB header fed byte by byte was measured to take 11 s of CPU in llhttp."""
    started_s = time.process_time()
    run = RequestRun([data[i : i + 1] for i in range(len(data))])
    assert run.error is not None
    assert time.process_time() - started_s < 2.0


def test_overhead_is_bounded_per_chunk_not_per_body() -> None:
    sink = Requests()
    parser = RequestParser(sink, RequestLimits())
    parser.feed(post(CHUNKED))
    for _ in range(20):
        assert parser.feed((b"1;" + b"e" * 10_000 + b"\r\nx\r\n") * 20) is None
    assert len(sink.messages[0].body) == 400
