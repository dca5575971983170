"""The block of fields against what llhttp itself would have delivered, field by field."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser
from hypothesis import example, given
from hypothesis import strategies as st

from activator.codec.http1 import field_names
from activator.codec.http1 import fields as wire_fields
from activator.codec.http1.field_names import kind_of
from activator.codec.http1.fields import end_of_line, internal_names
from activator.codec.http1.serialise import request_bytes, response_bytes
from activator.codec.message import Fields, Headers
from activator.runtime.reasons import Reason
from tests.codec.http1.recording import RequestRun, ResponseRun

KINDS = field_names._KINDS
NOT_END_TO_END = frozenset(KINDS) - {b"host", b"traceparent"}
LINE = b"OPTIONS / HTTP/1.1"
STATUS = b"HTTP/1.1 204 No Content"


class FieldCollector:
    """llhttp's own account of one head and of the trailers behind it."""

    def __init__(self) -> None:
        self.headers: Headers = []
        self.trailers: Headers = []
        self.head_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        (self.trailers if self.head_complete else self.headers).append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.head_complete = True


def llhttp_on(parser_type: type[HttpRequestParser | HttpResponseParser], data: bytes) -> FieldCollector | None:
    """None where llhttp refuses the head."""
    collector = FieldCollector()
    try:
        parser_type(collector).feed_data(data)
    except HttpParserUpgrade:
        pass
    except HttpParserError:
        if not collector.head_complete:
            return None
    return collector


def end_to_end(headers: Headers) -> Headers:
    """What a proxy may send on, computed the slow and plain way."""
    named = {
        token.strip(b" \t").lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    kept = [(name, value) for name, value in headers if name.lower() not in NOT_END_TO_END | named]
    if any(
        name.lower() == b"te" and b"trailers" in [token.strip(b" \t") for token in value.lower().split(b",")]
        for name, value in headers
    ):
        kept += [(b"TE", b"trailers"), (b"Connection", b"TE")]
    return kept


def spelled(name: bytes, capitals: int) -> bytes:
    return bytes(byte - 32 if 97 <= byte <= 122 and capitals >> i & 1 else byte for i, byte in enumerate(name))


special = st.builds(spelled, st.sampled_from(sorted(KINDS)), st.integers(0, 2**20 - 1))
near = st.builds(lambda name, at, byte: name[:at] + byte + name[at + 1 :], special, st.integers(0, 18), st.binary())
ordinary = st.from_regex(re.compile(rb"[!#$%&'*+.^_`|~0-9a-zA-Z-]{1,20}"), fullmatch=True)
listed = st.lists(
    st.sampled_from([b"close", b"keep-alive", b"x-a", b"TE", b"trailers", b"chunked", b"Accept", b"", b"gzip"]),
    max_size=3,
).map(b", ".join)
values = st.one_of(
    listed, st.integers(0, 10**19).map(lambda n: b"%d" % n), st.binary(max_size=12), st.sampled_from([b"h", b"a:1"])
)
space = st.sampled_from([b"", b" ", b"\t", b"  ", b" \t "])
lines = st.builds(
    lambda name, before, value, after: name + b":" + before + value + after,
    st.one_of(special, near, ordinary, st.sampled_from([b"X-A", b"Accept", b"Cookie"])),
    space,
    values,
    space,
)
# Mostly what passes, now and then what must not.
tame = st.builds(
    lambda name, value: name + b": " + value,
    st.sampled_from([b"X-A", b"accept", b"Keep-Alive", b"Proxy-Authorization", b"TE", b"Connection", b"User-Agent"]),
    st.sampled_from([b"", b"1", b"x-a", b"keep-alive, accept", b"trailers", b"a: b", b"\xe9"]),
)
heads = st.lists(st.one_of(tame, tame, lines), max_size=10)


@given(heads, st.sampled_from([b"", b"X-Tail: 1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: tail\r\n\r\n"]))
@example([b"Connection: x-a", b"X-A: 1", b"TE: trailers"], b"")
def test_a_request_block_is_what_llhttp_would_have_delivered(fields: list[bytes], tail: bytes) -> None:
    head = b"\r\n".join([LINE, b"Host: a", *fields]) + b"\r\n\r\n"
    reference = llhttp_on(HttpRequestParser, head)
    run = RequestRun([head + tail])
    if reference is None:
        assert not run.sink.heads
    if run.sink.heads:
        assert reference is not None
        assert run.sink.heads[0].headers.pairs() == end_to_end(reference.headers)
        written = request_bytes(run.sink.heads[0])
        assert written.count(b"\r\n\r\n") == 1
        assert written.endswith(b"\r\n\r\n")
        for pieces in ([head], [head[i : i + 1] for i in range(len(head))]):
            again = RequestRun(pieces)
            assert again.sink.heads[0].headers.block == run.sink.heads[0].headers.block


def once(fields: list[bytes]) -> list[bytes]:
    """Without repetitions of a length, which llhttp does not take of answers; where they differ nobody does."""
    lengths = {field for field in fields if field.lower().startswith(b"content-length:")}
    values = {value.strip(b" \t") for field in lengths for value in field.partition(b":")[2].split(b",")}
    if len(lengths) + len(values) < 2 or not all(map(bytes.isdigit, values)) or len(set(map(int, values))) > 1:
        return fields
    return [b"Content-Length: %b" % values.pop(), *(field for field in fields if field not in lengths)]


@given(heads, st.sampled_from([b"", b"X-Tail: 1\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Tail: 1\r\n\r\n"]))
def test_a_response_block_is_what_llhttp_would_have_delivered(fields: list[bytes], tail: bytes) -> None:
    head = b"\r\n".join([STATUS, *fields]) + b"\r\n\r\n"
    reference = llhttp_on(HttpResponseParser, b"\r\n".join([STATUS, *once(fields)]) + b"\r\n\r\n")
    run = ResponseRun([head + tail])
    if reference is None:
        assert not run.sink.heads
    if run.sink.heads:
        assert reference is not None
        assert run.sink.heads[0].headers.pairs() == end_to_end(reference.headers)
        assert response_bytes(run.sink.heads[0], False, False).count(b"\r\n\r\n") == 1
        single = ResponseRun([head[i : i + 1] for i in range(len(head))])
        assert single.sink.heads[0].headers.block == run.sink.heads[0].headers.block


@given(st.lists(lines, max_size=4), st.lists(st.integers(0, 200), max_size=4))
def test_trailers_are_what_llhttp_would_have_delivered(fields: list[bytes], at: list[int]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"1\r\nx\r\n0\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"
    places = [0, *sorted(place for place in at if place < len(body)), len(body)]
    run = ResponseRun([head, *[body[a:b] for a, b in pairwise(places) if a < b]])
    if run.parser.complete:
        framing = tuple(name + b":" for name in (*wire_fields._PROTECTED, b"content_length", b"transfer_encoding"))
        others = [field for field in fields if not field.lower().startswith(framing)]  # llhttp reads those as in a head
        body = b"1\r\nx\r\n0\r\n" + b"".join(field + b"\r\n" for field in others) + b"\r\n"
        reference = llhttp_on(HttpResponseParser, head + body)
        assert reference is not None
        dropped = wire_fields.NOT_IN_TRAILERS | wire_fields._PROTECTED | {b"content_length", b"transfer_encoding"}
        expected = [pair for pair in reference.trailers if pair[0].lower() not in dropped]
        assert run.sink.messages[0].trailers == expected


@pytest.mark.parametrize("before", [b"", b"Content-Length: 1\r\n", b"Accept: x\r\nConnection: x-a\r\nX-A: 1\r\n"])
def test_a_block_keeps_the_bytes_as_they_were(before: bytes) -> None:
    kept = b"Host:a\r\nX:  1 \t\r\nX-B: \xc3\xa4  b\r\nX-C:"
    run = RequestRun([b"POST / HTTP/1.1\r\n" + before + kept + b"\r\n\r\n1"])
    accept = b"\r\nAccept: x" if b"Accept" in before else b""
    assert run.sink.heads[0].headers.block == accept + b"\r\n" + kept


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("capitals", [0, 1, 0b1000_0000_0001, 2**20 - 1])
def test_special_names(name: bytes, capitals: int) -> None:
    written = spelled(name, capitals)
    for before, after in ((b"", b""), (b"X: 1\r\n", b" v"), (b"\r\n", b":")):
        line = written + b":" + after
        data = before + line + b"\r\nNext: 1"
        assert kind_of(data, len(before), len(before) + len(line)) == KINDS[name]
    for other in (b"x" + written, written + b"x", written[:-1], written[:-1] + b"x", written[:1] + b":" + written[2:]):
        assert kind_of(other + b":", 0, len(other) + 1) == KINDS.get(other.lower(), field_names.ORDINARY)
        assert kind_of(other + b":" + b"1" * 20, 0, len(other) + 21) == KINDS.get(other.lower(), field_names.ORDINARY)


INTERNAL_NAMES = [b"Knative-Serving-Revision", b"knative_serving_namespace", b"K-Original-Host", b"k_original_host"]
INTERNAL_NAMES += [b"Activator-Priority", b"ACTIVATOR_X", b"activator-"]


@pytest.mark.parametrize("name", INTERNAL_NAMES)
def test_internal_names(name: bytes) -> None:
    for data in (name + b":", name + b": 1"):
        assert kind_of(data, 0, len(data)) == field_names.INTERNAL
    for other in (name[:4], b"x" + name, name[:6] + b"x" + name[6:], b"Accept", b"Act", b"K", b"a", b"Actor-1"):
        data = other + b": 1"
        assert kind_of(data, 0, len(data)) == field_names.ORDINARY
    head = RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\n%b: 1\r\nX: 2\r\n\r\n" % name]).sink.heads[0]
    assert head.has_internal and head.headers.get(name.lower()) == b"1", "it is for us: the proxy takes it out"
    assert internal_names(head) == {name.lower()}
    assert head.headers.without(internal_names(head)).block == b"\r\nHost: a\r\nX: 2"
    assert not RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\nAccept: 1\r\n\r\n"]).sink.heads[0].has_internal


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"\t", b"x", b"yz", b"\x00"])).map(b"".join), st.data())
def test_ends_of_lines(data: bytes, draw: st.DataObject) -> None:
    pos = draw.draw(st.integers(0, len(data)))
    stop = draw.draw(st.integers(pos, len(data)))
    assert end_of_line(data, pos, stop) == data.find(b"\r\n", pos, stop)


def test_lengths() -> None:
    for length in (0, 9, 10, 10**17, 10**18 - 1, 10**18, 2**63 - 1):
        for text in (b"Content-Length: %d", b"content-length:%d", b"CONTENT-LENGTH: \t%d ", b"Content-Length: 0%d"):
            run = RequestRun([b"POST / HTTP/1.1\r\nHost: a\r\n" + text % length + b"\r\n\r\n"])
            if len(b"%d" % length) == 19 and b"0%d" in text:  # more digits than we take
                assert run.error is not None
                assert run.error.reason is Reason.BAD_REQUEST
            else:
                assert run.sink.heads[0].content_length == length


def test_fields() -> None:
    fields = Fields.from_pairs([(b"Accept", b"x"), (b"X-A", b""), (b"x-a", b"2")])
    assert fields.block == b"\r\nAccept: x\r\nX-A: \r\nx-a: 2"
    assert fields.pairs() == [(b"Accept", b"x"), (b"X-A", b""), (b"x-a", b"2")]
    assert (fields.get(b"accept"), fields.get(b"x-a"), fields.get(b"x"), fields.get(b"ccept")) == (
        b"x",
        b"",
        None,
        None,
    )
    longer = fields.with_line(b"Host", b"h")
    assert fields.get(b"host") is None, "fields are shared"
    fields = longer
    assert fields.get(b"host") == b"h"
    assert fields == Fields(b"\r\nAccept:x\t\r\nX-A:\r\nx-a: 2\r\nHost: h")
    assert hash(fields) == hash(Fields(fields.block))
    assert fields != Fields(b"")
    assert Fields(b"").pairs() == []
    assert fields != []
    assert repr(Fields.from_pairs([(b"A", b"1")])) == "Fields([(b'A', b'1')])"


@given(st.lists(st.tuples(ordinary, st.sampled_from([b"", b"1", b"a: b", b"\xff"]))))
def test_fields_come_back_as_pairs(pairs: Headers) -> None:
    assert Fields.from_pairs(pairs).pairs() == pairs
    appended = Fields(b"")
    for name, value in pairs:
        appended = appended.with_line(name, value)
    assert appended == Fields.from_pairs(pairs)
    for name, value in {name.lower(): value for name, value in reversed(pairs)}.items():
        assert appended.get(name) == value
        left = appended.without(frozenset({name}))
        assert left.pairs() == [pair for pair in pairs if pair[0].lower() != name]
