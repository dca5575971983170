"""Heads made of HTTP/2 fields are those that `codec/http1` makes of the same message in HTTP/1.1."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http1.request import RequestLimits
from activator.codec.http2.field import Field, field_of
from activator.codec.http2.heads import (
    NOT_IN_REQUESTS,
    NOT_IN_RESPONSES,
    RequestReader,
    ResponseReader,
    trailers_of,
    write_request,
    write_response,
)
from activator.codec.http2.hpack.decoder import HpackDecoder
from activator.codec.http2.hpack.encoder import HpackEncoder
from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from tests.codec.http1.recording import RequestRun, ResponseRun

Pairs = list[tuple[bytes, bytes]]
INTERNAL_NAMES = (b"knative-serving-revision", b"knative_serving_namespace", b"k-original-host", b"activator-revision")

tokens = st.sampled_from([b"a", b"b-c", b"1", b"x" * 40, b"accept", b"user-agent"])
values = st.one_of(
    st.sampled_from([b"", b"1", b"a b", b"a\tb", b"\xc3\xa9", b"a, b", b'"q"', b"x" * 300, b"=:;"]),
    st.binary(max_size=10).map(lambda found: bytes(byte for byte in found if byte >= 0x20 and byte != 0x7F).strip()),
)
SPECIAL = [
    (b"cookie", b"a=1"),
    (b"te", b"trailers"),
    (b"expect", b"100-continue"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"x_forwarded_proto", b"https"),
    (b"forwarded", b"for=1.2.3.4"),
    (b"x-real-ip", b"1.1.1.1"),
    (b"x-request-id", b"7"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"k-original-host", b"evil"),
    (b"k-network-probe", b"probe"),
    (b"activator-reason", b"x"),
    (b"activator_reason", b"x"),
    (b"proxy-authorization", b"Basic x"),
    (b"proxy-authenticate", b"Basic"),
    (b"trailer", b"a"),
    (b"priority", b"u=1"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    (b"grpc-timeout", b"1S"),
]
fields = st.lists(st.one_of(st.tuples(tokens, values), st.sampled_from(SPECIAL)), max_size=8)
methods = st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE", b"PATCH", b"FOO", b"get"])
targets = st.sampled_from([b"/", b"/a?b=c", b"/%20", b'/"x"', b"/a|b", b"//x", b"*", b"/<>", b"/\\", b"/" + b"p" * 300])
authorities = st.sampled_from(
    [
        b"app.test",
        b"APP.test",
        b"a:80",
        b"a:",
        b"[::1]:8080",
        b"1.2.3.4",
        b"",
        b"a b",
        b"u@h",
        b"a:99999",
        b"a/b",
        b"x" * 99,
    ]
)
lengths = st.sampled_from([-1, 0, 1, 100, 2**40])


def of_http1(
    method: bytes, target: bytes, host: bytes, pairs: Pairs, length: int, chunked: bool
) -> RequestHead | Reason:
    lines = [b"%b %b HTTP/1.1" % (method, target), b"host: " + host]
    lines += [b"%b: %b" % pair for pair in pairs]
    if length >= 0:
        lines.append(b"content-length: %d" % length)
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    run = RequestRun([b"\r\n".join([*lines, b"", b""])])
    if run.error is not None:
        return run.error.reason
    return run.sink.heads[0]


def of_http2(method: bytes, target: bytes, host: bytes, pairs: Pairs, length: int, ended: bool) -> RequestHead | Reason:
    found: Pairs = [(b":method", method), (b":path", target), (b":scheme", b"http"), (b":authority", host), *pairs]
    if length >= 0:
        found.append((b"content-length", b"%d" % length))
    return read(found, ended)


def read(pairs: Pairs, ended: bool = True) -> RequestHead | Reason:
    try:
        return RequestReader(RequestLimits()).read([field_of(*pair) for pair in pairs], ended)
    except WireError as error:
        return error.reason


def once(pairs: Pairs) -> Pairs:
    """Several of these mean something else in HTTP/2, which has tests of its own."""
    single = {b"cookie", b"traceparent", b"te"}
    return [pair for at, pair in enumerate(pairs) if pair[0] not in single or pair[0] not in dict(pairs[:at])]


def lowered(pairs: Headers) -> list[tuple[bytes, bytes]]:
    return sorted((name.lower(), value) for name, value in pairs)


@given(methods, targets, authorities, fields, lengths, st.booleans())
def test_a_request_is_the_same_in_either(
    method: bytes, target: bytes, host: bytes, pairs: Pairs, length: int, has_body: bool
) -> None:
    has_body = has_body and length != 0
    if not has_body and length > 0:
        has_body = True
    pairs = once(pairs)
    before = of_http1(method, target, host, pairs, length, has_body and length < 0)
    after = of_http2(method, target, host, pairs, length, not has_body)
    if isinstance(before, Reason) or isinstance(after, Reason):
        assert before == after
        return
    assert after.method == before.method and after.target == before.target and after.authority == before.authority
    assert after.has_body == before.has_body and after.has_internal == before.has_internal
    if length < 0 and not has_body and method in {b"POST", b"PUT", b"PATCH"}:
        assert after.content_length == 0  # said where servers of HTTP/1.1 want it
    else:
        assert after.content_length == before.content_length
    assert [one.lower() for one in after.claims] == [one.lower() for one in before.claims]
    assert after.traceparent.lower() == before.traceparent.lower()
    assert lowered(after.headers.pairs()) == [
        (name, host.lower().removesuffix(b":") if name == b"host" else value)
        for name, value in lowered(before.headers.pairs())
    ]
    assert after.upgrade == before.upgrade == b""
    assert b"\n" not in after.headers.block.replace(b"\r\n", b"") and b"\0" not in after.headers.block


@given(st.sampled_from([200, 201, 204, 304, 404, 500, 999]), fields, lengths, st.booleans())
def test_a_response_is_the_same_in_either(status: int, pairs: Pairs, length: int, head_request: bool) -> None:
    pairs = [pair for pair in pairs if pair[0] != b"te"]
    ended = length == 0 or status in {204, 304} or head_request
    lines = [b"HTTP/1.1 %d X" % status, *[b"%b: %b" % pair for pair in pairs]]
    if length >= 0:
        lines.append(b"content-length: %d" % length)
    elif not ended:
        lines.append(b"transfer-encoding: chunked")
    run = ResponseRun([b"\r\n".join([*lines, b"", b""])], head_request)
    assert run.error is None
    before = run.sink.heads[0]
    found: Pairs = [(b":status", b"%d" % status), *pairs]
    if length >= 0:
        found.append((b"content-length", b"%d" % length))
    after = ResponseReader().read([field_of(*pair) for pair in found], ended, head_request)
    assert after.status == before.status and after.has_body == before.has_body
    if length >= 0 or not ended:
        assert after.content_length == before.content_length
    assert lowered(after.headers.pairs()) == lowered(before.headers.pairs())


@given(methods, targets, authorities, fields, lengths, st.booleans())
def test_what_is_written_reads_the_same(
    method: bytes, target: bytes, host: bytes, pairs: Pairs, length: int, has_body: bool
) -> None:
    has_body = (has_body or length > 0) and length != 0
    head = of_http1(method, target, host, once(pairs), length, has_body and length < 0)
    if isinstance(head, Reason):
        return
    block = write_request(HpackEncoder(NOT_IN_REQUESTS), head, b"pod:80", False)
    read_fields: list[Field] = []
    assert HpackDecoder().decode(block, 0, len(block), read_fields, 1 << 20, 1000)
    again = RequestReader(RequestLimits()).read(read_fields, not has_body)
    assert (again.method, again.target, again.authority) == (head.method, head.target, head.authority)
    assert again.has_body == head.has_body
    assert lowered(again.headers.pairs()) == [
        (name, head.authority if name == b"host" else value) for name, value in lowered(head.headers.pairs())
    ]


GOOD: Pairs = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"app.test"), (b":path", b"/")]


def but(**others: bytes | None) -> Pairs:
    """GOOD with other pseudo-header fields, or without them."""
    changed = {b":" + name.encode(): value for name, value in others.items()}
    found = [(name, changed.pop(name, value)) for name, value in GOOD]
    return [(name, value) for name, value in [*found, *changed.items()] if value is not None]


def test_the_good_one_is_read() -> None:
    assert isinstance(read(GOOD), RequestHead)


@pytest.mark.parametrize(
    "pairs",
    [
        but(method=None),
        but(scheme=None),
        but(path=None),
        but(authority=None),
        but(method=b""),
        but(path=b""),
        but(scheme=b"ftp"),
        but(scheme=b"http\r\n"),
        but(path=b"/ HTTP/1.1\r\nx: y"),
        but(path=b"/\0"),
        but(path=b"/a b"),
        but(path=b"/#x"),
        but(path=b"a"),
        but(path=b"*"),
        but(path=b"http://app.test/"),
        but(method=b"GET /x HTTP/1.1\r\n"),
        but(method=b"G T"),
        but(method=b"G\tT"),
        but(authority=b"a\r\nb"),
        but(authority=b"a b"),
        but(authority=b"u@a"),
        but(authority=b""),
        but(status=b"200"),
        but(protocol=b"websocket"),
        but(other=b"x"),
        *([*GOOD, pair] for pair in GOOD),
        [*GOOD[:3], (b"a", b"b"), GOOD[3]],
        [*GOOD, (b"host", b"other.test")],
        [*GOOD, (b"host", b"app.test"), (b"host", b"app.test")],
        [*but(authority=None), (b"host", b"a"), (b"host", b"b")],
        [*but(authority=None), (b"host", b"a b")],
        [*but(authority=None), (b"host", b"")],
        [*GOOD, (b"Upper", b"x")],
        [*GOOD, (b"HOST", b"app.test")],
        [*GOOD, (b"", b"x")],
        [*GOOD, (b"a b", b"x")],
        [*GOOD, (b"a:b", b"x")],
        [*GOOD, (b"a\r\nb", b"x")],
        [*GOOD, (b"a\0", b"x")],
        [*GOOD, (b"\xe9", b"x")],
        *([*GOOD, (b"a", value)] for value in (b"x\r\ny: z", b"x\ny", b"x\ry", b"x\0", b" x", b"x ", b"\tx", b"x\x7f")),
        *([*GOOD, (name, b"x")] for name in (b"connection", b"keep-alive", b"proxy-connection", b"upgrade")),
        [*GOOD, (b"transfer-encoding", b"chunked")],
        [*GOOD, (b"transfer_encoding", b"chunked")],
        [*GOOD, (b"content_length", b"5")],
        [*GOOD, (b"te", b"gzip")],
        [*GOOD, (b"te", b"trailers, deflate")],
        [*GOOD, (b"content-length", b"1")],
        [*GOOD, (b"content-length", b"0"), (b"content-length", b"0")],
        *([*GOOD, (b"content-length", value)] for value in (b"", b"+0", b"-0", b"0x0", b"0,0", b"1" * 20, b"\xd9\xa1")),
    ],
    ids=repr,
)
def test_what_could_be_read_in_two_ways_is_refused(pairs: Pairs) -> None:
    assert read(pairs) is Reason.BAD_REQUEST


def test_what_is_only_unusual_is_not() -> None:
    for pairs, authority in (
        ([*but(authority=None), (b"host", b"App.test")], b"app.test"),
        ([*GOOD, (b"host", b"APP.test")], b"app.test"),
        ([*GOOD, (b"te", b"Trailers")], b"app.test"),
        (but(method=b"OPTIONS", path=b"*"), b"app.test"),
        ([*GOOD, (b"content-length", b"00")], b"app.test"),
    ):
        head = read(pairs)
        assert isinstance(head, RequestHead) and head.authority == authority
        assert head.headers.block.lower().count(b"\r\nhost:") == 1


def test_crumbs_of_cookies_are_one_field() -> None:
    head = read([*GOOD, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2")])
    assert isinstance(head, RequestHead) and head.headers.get(b"cookie") == b"a=1; b=2"


def test_connect() -> None:
    assert read([(b":method", b"CONNECT"), (b":authority", b"a:443")], False) is Reason.METHOD_NOT_SUPPORTED
    connect = but(method=b"CONNECT", protocol=b"connect-udp")
    assert read(connect, False) is Reason.UPGRADE_NOT_SUPPORTED
    head = read(but(method=b"CONNECT", protocol=b"WebSocket"), False)
    assert isinstance(head, RequestHead) and head.method == b"GET" and head.upgrade == b"websocket"
    assert not head.has_body and len(head.headers.get(b"sec-websocket-key") or b"") == 24
    block = write_request(HpackEncoder(NOT_IN_REQUESTS), head, b"pod:80", True)
    found: list[Field] = []
    HpackDecoder().decode(block, 0, len(block), found, 1 << 20, 100)
    names = {field.name: field.value for field in found}
    assert names[b":method"] == b"CONNECT" and names[b":protocol"] == b"websocket" and names[b":scheme"] == b"https"
    assert b"sec-websocket-key" not in names


@pytest.mark.parametrize("status", [b"", b"99", b"1000", b"20", b"2 0", b"200 ", b"\xb2\xb0\xb0", b"0200", b"101"])
def test_statuses_that_are_none(status: bytes) -> None:
    with pytest.raises(WireError):
        ResponseReader().read([field_of(b":status", status)], False, False)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(b"a", b"b"), (b":status", b"200")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b":status", b"200"), (b":method", b"GET")],
        [(b":status", b"200"), (b"connection", b"close")],
        [(b":status", b"200"), (b"transfer-encoding", b"chunked")],
        [(b":status", b"200"), (b"content-length", b"1"), (b"content-length", b"2")],
        [(b":status", b"200"), (b"A", b"b")],
        [(b":status", b"200"), (b"a", b"b\r\nc: d")],
    ],
    ids=repr,
)
def test_responses_that_are_malformed(pairs: Pairs) -> None:
    with pytest.raises(WireError) as caught:
        ResponseReader().read([field_of(*pair) for pair in pairs], False, False)
    assert caught.value.reason is Reason.BAD_RESPONSE


@given(st.sampled_from([200, 204, 304, 404]), fields, lengths)
def test_a_written_response_reads_the_same(status: int, pairs: Pairs, length: int) -> None:
    pairs = [pair for pair in pairs if pair[0] not in {b"te", b"proxy-authorization", b"proxy-authenticate"}]
    has_body = length != 0 and status not in {204, 304}
    head = ResponseHead(status, b"", Fields.from_pairs(pairs), length if has_body else -1, has_body)
    block = write_response(HpackEncoder(NOT_IN_RESPONSES), head)
    found: list[Field] = []
    assert HpackDecoder().decode(block, 0, len(block), found, 1 << 20, 1000)
    again = ResponseReader().read(found, not has_body, False)
    assert again.status == status and again.has_body == has_body
    assert lowered(again.headers.pairs()) == lowered(pairs)


def test_trailers() -> None:
    good = [field_of(b"a", b"b"), field_of(b"x-forwarded-for", b"1"), field_of(b"grpc-status", b"0")]
    assert trailers_of(good, True, True) == [(b"a", b"b"), (b"grpc-status", b"0")]
    for name in INTERNAL_NAMES:
        assert trailers_of([field_of(name, b"x")], True, True) == [], "a client's never reach a pod"
    for name in (b":status", b":path", b"connection", b"transfer-encoding", b"A", b":x"):
        with pytest.raises(WireError):
            trailers_of([field_of(name, b"x")], True, False)
    for name in (b"host", b"content-length", b"content_length"):
        assert trailers_of([field_of(name, b"1")], True, False) == []
        with pytest.raises(WireError):
            trailers_of([field_of(name, b"1")], True, True)
    with pytest.raises(WireError):
        trailers_of([], False, True)


def test_what_is_never_indexed_stays_so() -> None:
    """RFC 7541 6.2.3: from hop to hop; in either direction, also when it comes again."""
    secret = field_of(b"x-api-key", b"abc", True)
    plain = field_of(b"accept", b"*/*")
    pseudo = [field_of(b":method", b"GET"), field_of(b":scheme", b"http"), field_of(b":path", b"/")]
    request = RequestReader(RequestLimits()).read([*pseudo, field_of(b"host", b"a"), secret, plain], True)
    answer = ResponseReader().read([field_of(b":status", b"200"), secret, plain], False, False)
    to_pod, to_client = HpackEncoder(NOT_IN_REQUESTS), HpackEncoder(NOT_IN_RESPONSES)
    for blocks in (
        [write_request(to_pod, request, b"", False) for _ in range(4)],
        [write_response(to_client, answer) for _ in range(4)],
    ):
        decoder = HpackDecoder()
        for block in blocks:
            read: list[Field] = []
            assert decoder.decode(block, 0, len(block), read, 1 << 20, 100)
            (found,) = [field for field in read if field.name == b"x-api-key"]
            assert found.never_indexed and found.value == b"abc"
        assert [field.name for field in decoder.table()].count(b"x-api-key") == 0
        assert b"accept" in [field.name for field in decoder.table()]


def request_of(head: RequestHead) -> tuple[object, ...]:
    headers = head.headers
    said = (head.method, head.target, head.authority, headers.block, headers.never_indexed, head.content_length)
    return (*said, head.has_body, head.upgrade, head.claims, head.traceparent, head.has_internal, head.takes_trailers)


def test_the_same_fields_again_give_the_same_head_and_another_object() -> None:
    """The decoder gives the same list for the same block. What is done to a head is done to it alone."""
    pairs = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"a.test"),
        (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"x-forwarded-for", b"1.2.3.4"), (b"activator-revision", b"r"),
        (b"te", b"trailers"), (b"traceparent", b"00-1"), (b"content-length", b"3"),
    ]  # fmt: skip
    fields = [field_of(*pair) for pair in pairs] + [field_of(b"x-api-key", b"k", True)]
    other = [field_of(*pair) for pair in pairs[:4]]
    reader = RequestReader(RequestLimits())
    expected = request_of(RequestReader(RequestLimits()).read(fields, False))
    heads = []
    for _ in range(3):
        head = reader.read(fields, False)
        assert request_of(head) == expected
        head.headers = head.headers.with_line(b"X-Added", b"1")
        head.content_length, head.has_body, head.target = 7, False, b"/other"
        heads.append(head)
    assert len({id(head) for head in heads}) == len({id(head.headers) for head in heads}) == 3
    with pytest.raises(WireError):
        reader.read(fields, True)  # its body is missing
    assert request_of(reader.read(fields, False)) == expected
    assert reader.read(other, True).content_length == 0 and reader.read(other, False).has_body
    with pytest.raises(WireError):
        reader.read(other[:2], True)
    assert request_of(reader.read(fields, False)) == expected


def test_each_websocket_has_a_key_of_its_own() -> None:
    pairs = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), (b":scheme", b"http"), (b":path", b"/")]
    fields = [field_of(*pair) for pair in [*pairs, (b":authority", b"a.test")]]
    reader = RequestReader(RequestLimits())
    heads = [reader.read(fields, False) for _ in range(5)]
    assert {head.upgrade for head in heads} == {b"websocket"}
    assert len({head.headers.get(b"sec-websocket-key") for head in heads}) == 5


def test_the_same_fields_of_an_answer_again() -> None:
    reader = ResponseReader()
    fields = [field_of(b":status", b"200"), field_of(b"content-length", b"5"), field_of(b"a", b"b", True)]
    for ended, head_request in ((False, False), (False, False), (False, True), (True, True), (False, False)):
        head, fresh = (one.read(fields, ended, head_request) for one in (reader, ResponseReader()))
        assert head.headers is not fresh.headers and head.headers.never_indexed == fresh.headers.never_indexed
        assert (head.status, head.reason_phrase, head.headers.block, head.content_length, head.has_body) == (
            fresh.status, fresh.reason_phrase, fresh.headers.block, fresh.content_length, fresh.has_body
        )  # fmt: skip
        head.headers = head.headers.with_line(b"x", b"y")
        head.status, head.content_length, head.has_body = 502, 0, False
    with pytest.raises(WireError):
        reader.read(fields, True, False)


def test_credentials_are_never_indexed_whatever_was_said_of_them() -> None:
    """They need not be among the lines that are told so: those cost a look at each line of the head."""
    pseudo = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
    names = (b"authorization", b"cookie")
    fields = [field_of(*pair) for pair in pseudo] + [field_of(name, b"secret", True) for name in names]
    request = RequestReader(RequestLimits()).read(fields, True)
    answer = ResponseReader().read(
        [field_of(b":status", b"200"), field_of(b"set-cookie", b"secret", True)], False, False
    )
    assert request.headers.never_indexed == answer.headers.never_indexed == frozenset()
    to_pod, to_client = HpackEncoder(NOT_IN_REQUESTS), HpackEncoder(NOT_IN_RESPONSES)
    decoders = HpackDecoder(), HpackDecoder()
    for _ in range(4):
        blocks = write_request(to_pod, request, b"", False), write_response(to_client, answer)
        for decoder, block in zip(decoders, blocks, strict=True):
            read: list[Field] = []
            assert decoder.decode(block, 0, len(block), read, 1 << 20, 100)
            secrets = [field for field in read if field.value == b"secret"]
            assert secrets and all(field.never_indexed for field in secrets)
            assert not [field for field in decoder.table() if field.value == b"secret"]


@pytest.mark.parametrize(("method", "is_head"), [(b"HEAD", True), (b"GET", False)])
def test_a_refused_head_is_known(method: bytes, is_head: bool) -> None:
    reader = RequestReader(RequestLimits(target_bytes=10))
    pseudo = [field_of(b":method", method), field_of(b":scheme", b"http"), field_of(b":path", b"/" + b"a" * 20)]
    with pytest.raises(WireError):
        reader.read([*pseudo, field_of(b":authority", b"a")], True)
    assert reader.is_head() is is_head


def test_a_request_id_is_a_literal_that_the_pod_does_not_keep() -> None:
    """Whatever the spelling, length and position; elsewhere than at the end it is a line like any other."""
    encoder, oracle = HpackEncoder(), hpack.Decoder()
    for value in (b"1", b"2", b"2", b"x" * 126, b"x" * 127, b"x" * 300, b"", b" padded "):
        for lines in (b"\r\nA: 1\r\nX-Request-Id: %b", b"\r\nX-Request-Id: %b"):
            head = RequestHead(b"GET", b"/", b"a.test", Fields(lines % value), -1, False)
            data = write_request(encoder, head, b"", False)
            assert list(oracle.decode(data, raw=True))[-1] == (b"x-request-id", value.strip())
    assert b"x-request-id" not in {name for name, _ in oracle.header_table.dynamic_entries}
