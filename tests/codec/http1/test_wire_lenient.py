"""Old servers: what is put in order where a revision asks for it, and what stays refused."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from activator.codec.http1.lenient import normalised
from activator.codec.http1.response import RESPONSE_HEAD_BYTES_MAX
from activator.codec.http1.serialise import response_bytes
from tests.codec.http1.recording import ResponseRun, all_ways

OLD = [
    ("bare line feeds", b"HTTP/1.0 200 OK\nContent-Length: 2\nX: y\n\nhi"),
    ("only the last line", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\nhi"),
    ("every other line", b"HTTP/1.1 200 OK\nContent-Length: 2\r\nX: y\n\r\nhi"),
    ("empty lines before", b"\r\n\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nhi"),
    ("a continued line", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX:\r\n  y\r\n\r\nhi"),
    ("a space before the colon", b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\nX\t : y\r\n\r\nhi"),
    ("nothing old", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nhi"),
]


@pytest.mark.parametrize(("shape", "data"), OLD, ids=[shape for shape, _ in OLD])
def test_old_shapes_are_put_in_order(shape: str, data: bytes) -> None:
    for pieces in all_ways(data):
        run = ResponseRun(pieces, lenient=True)
        assert run.error is None, (shape, pieces)
        (message,) = run.sink.messages
        assert message.body == b"hi" and message.trailers is not None
        sent = response_bytes(run.sink.heads[0], False, False)
        assert b"\r\nX: y\r\n" in sent and sent.count(b"\n") == sent.count(b"\r\n")
    strict = ResponseRun([data])
    assert (strict.error is None) is (shape == "nothing old"), "only where it is asked for"


REFUSED = [
    ("two lengths", b"HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 3\n\nhi"),
    ("a length that is folded", b"HTTP/1.1 200 OK\nContent-Length: 2\n 3\n\nhi"),
    ("a length and chunks", b"HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked\n\n0\r\n\r\n"),
    ("a bare CR", b"HTTP/1.1 200 OK\nX: a\rb\nContent-Length: 0\n\n"),
    ("a folded status line", b"HTTP/1.1 200\n OK\nContent-Length: 0\n\n"),
    ("no name", b"HTTP/1.1 200 OK\n: x\nContent-Length: 0\n\n"),
    ("a line without a colon", b"HTTP/1.1 200 OK\nnonsense\nContent-Length: 0\n\n"),
    ("a NUL", b"HTTP/1.1 200 OK\nX: \0\nContent-Length: 0\n\n"),
    ("chunks with bare line feeds", b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n"),
    ("bytes that nobody asked for", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhiHTTP/1.1 200 OK\n\n"),
]


@pytest.mark.parametrize(("shape", "data"), REFUSED, ids=[shape for shape, _ in REFUSED])
def test_what_could_be_read_in_two_ways_stays_refused(shape: str, data: bytes) -> None:
    for pieces in all_ways(data):
        assert ResponseRun(pieces, lenient=True).error is not None, (shape, pieces)


def test_a_head_is_bounded() -> None:
    lines = [b"X: " + b"y" * 1000 + b"\n"] * (RESPONSE_HEAD_BYTES_MAX // 1000 + 1)
    run = ResponseRun([b"HTTP/1.1 200 OK\n", *lines], lenient=True)
    assert run.error is not None and "too large" in run.error.detail
    run = ResponseRun([b"HTTP/1.1 200 OK\nContent-Length: 0\n"] + [b"X: y\n"] * 300 + [b"\n"], lenient=True)
    assert run.error is not None and "too many" in run.error.detail


def test_interim_answers_and_answers_without_a_body() -> None:
    run = ResponseRun([b"HTTP/1.1 100 Continue\n\nHTTP/1.1 204 No Content\nX : y\n\n"], lenient=True)
    assert run.error is None
    assert [head.status for head in run.sink.heads] == [204] and len(run.sink.interims) == 1


NAMES = st.from_regex(rb"[A-Za-z]([A-Za-z-]{0,8})", fullmatch=True).filter(
    lambda name: name.lower() not in {b"connection", b"content-length", b"host", b"te", b"trailer", b"upgrade"}
)
VALUES = st.from_regex(rb"[!-9;-~]([ -~]{0,8}[!-~])?", fullmatch=True)


@given(
    fields=st.lists(st.tuples(NAMES, VALUES), max_size=5),
    data=st.data(),
)
def test_any_old_shape_of_a_head_is_what_it_was(fields: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """A head in today's shape, spoilt line by line as old servers do it, comes out as it was."""
    strict = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n"
    old = b"HTTP/1.1 200 OK" + data.draw(st.sampled_from([b"\n", b"\r\n"]))
    for name, value in fields:
        old += name + data.draw(st.sampled_from([b"", b" ", b"\t "])) + b":"
        old += data.draw(st.sampled_from([b" ", b"\r\n ", b"\n\t"])) + value
        old += data.draw(st.sampled_from([b"\n", b"\r\n"]))
    old += data.draw(st.sampled_from([b"\n", b"\r\n"]))
    assert normalised(old) == strict
