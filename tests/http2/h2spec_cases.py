"""The cases of h2spec 2.6 as data, by its numbers: 146, and the one that it adds with `--strict`.

`run_case(case, host, port)` runs one against any server and says how it ended. The server must answer a GET of `path`
with a body of at least five bytes.

Rules (those of h2spec)
  1. A connection error is shown by GOAWAY with one of the codes, or by the end of the connection.
  2. A stream error is shown by RST_STREAM or GOAWAY with one of the codes, or by the end of the connection.
  3. `Verdict.exact` is stricter: a frame with one of the codes came.

Three cases differ from h2spec: 8.1.2.3/2 leaves out nothing but `:method`; the DATA frame of 4.2/1 has 2^14 bytes,
which fit into the first window, whatever the server announced; the HEADERS frame of 4.2/3 is longer than that.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.http2.raw_client import (
    CLOSED,
    DEFAULT_FRAME_SIZE,
    MAX_WINDOW,
    PATIENCE_S,
    PREFACE,
    Code,
    Ending,
    Event,
    Fields,
    Flag,
    Frame,
    RawClient,
    Setting,
    Type,
    continuation_frame,
    data_frame,
    frame,
    goaway_frame,
    headers_frame,
    integer,
    ping_frame,
    priority_field,
    priority_frame,
    push_promise_frame,
    reset_frame,
    settings_frame,
    window_frame,
)

Step = Callable[[RawClient], None]
PING = b"h2spec\0\0"
TEST = b"test"


class SkippedError(Exception):
    """The case does not apply to this server."""


class FailedError(Exception):
    """A step on the way did not go as it must."""


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    exact: bool = False  # by a frame with one of the codes that are asked for
    skipped: str = ""
    expected: str = ""
    seen: Sequence[str] = ()

    def __str__(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        return f"{'passed' if self.passed else 'failed'}: expected {self.expected}; seen {'; '.join(self.seen)}"


# --- what is expected ---


class Expectation:
    """`judge` says yes, no, or None for "go on reading"; `is_exact` whether that was more than an end."""

    def judge(self, event: Event) -> bool | None:
        raise NotImplementedError

    def is_exact(self, event: Event) -> bool:
        return isinstance(event, Frame)


def _names(codes: Iterable[Code]) -> str:
    return " or ".join(code.name for code in codes)


@dataclass(frozen=True)
class ConnectionFails(Expectation):
    codes: tuple[Code, ...]

    def judge(self, event: Event) -> bool | None:
        if isinstance(event, Ending):
            return event is CLOSED
        return True if event.type == Type.GOAWAY and event.code in self.codes else None

    def __str__(self) -> str:
        return f"a connection error {_names(self.codes)}"


@dataclass(frozen=True)
class StreamFails(Expectation):
    codes: tuple[Code, ...]

    def judge(self, event: Event) -> bool | None:
        if isinstance(event, Ending):
            return event is CLOSED
        return True if event.type in (Type.GOAWAY, Type.RST_STREAM) and event.code in self.codes else None

    def __str__(self) -> str:
        return f"a stream error {_names(self.codes)}"


@dataclass(frozen=True)
class Closes(Expectation):
    def judge(self, event: Event) -> bool | None:
        return event is CLOSED if isinstance(event, Ending) else None

    def is_exact(self, event: Event) -> bool:
        return True

    def __str__(self) -> str:
        return "the end of the connection"


@dataclass(frozen=True)
class First(Expectation):
    """The first frame of a type (of all types: `type` None) decides."""

    what: str
    type: Type | None
    holds: Callable[[Frame], bool] = lambda event: True
    or_closed: bool = False
    until: bool = False  # not the first: any of this type

    def judge(self, event: Event) -> bool | None:
        if isinstance(event, Ending):
            return self.or_closed and event is CLOSED
        if self.type is not None and event.type != self.type:
            return None
        holds = self.holds(event)
        return None if self.until and not holds else holds

    def __str__(self) -> str:
        return self.what + (" or the end of the connection" if self.or_closed else "")


def response(stream: int = 1) -> Expectation:
    return First(f"HEADERS on stream {stream}", Type.HEADERS, lambda event: event.stream == stream)


def pong(data: bytes = bytes(8), *, or_closed: bool = False) -> Expectation:
    return First("PING with ACK", Type.PING, lambda event: event.is_ack and event.payload == data, or_closed=or_closed)


def data_of(length: int) -> Expectation:
    return First(f"DATA of {length} bytes", Type.DATA, lambda event: len(event.payload) == length)


ANY_DATA = First("DATA", Type.DATA)
ANY_PING = First("PING", Type.PING)
SETTINGS_ACKED = First("SETTINGS with ACK", Type.SETTINGS, lambda event: event.is_ack)
SETTINGS_FIRST = First("SETTINGS as the first frame", None, lambda e: e.type == Type.SETTINGS and not e.is_ack)


def connection(*codes: Code) -> Expectation:
    return ConnectionFails(codes)


def stream(*codes: Code) -> Expectation:
    return StreamFails(codes)


PROTOCOL, FLOW, SIZE = Code.PROTOCOL_ERROR, Code.FLOW_CONTROL_ERROR, Code.FRAME_SIZE_ERROR
COMPRESSION, STREAM_CLOSED = Code.COMPRESSION_ERROR, Code.STREAM_CLOSED


# --- what the client does ---


def request(
    stream: int = 1,
    method: str = "GET",
    *,
    extra: Fields = (),
    first: Fields = (),
    without: Iterable[str] = (),
    end: bool = True,
    whole: bool = True,
    pad: int | None = None,
    priority: bytes | None = None,
    before: bytes = b"",
    after: bytes = b"",
) -> Step:
    """HEADERS; `first` and `extra`: fields around those of a request; `before` and `after`: bytes around the block."""

    def step(client: RawClient) -> None:
        block = before + client.block([*first, *client.fields(method, extra, without)]) + after
        client.send(headers_frame(stream, block, end=end, whole=whole, pad=pad, priority=priority))

    return step


def post(stream: int = 1, *, whole: bool = True) -> Step:
    return request(stream, "POST", end=False, whole=whole)


def trailers(name: str, value: str, *, end: bool) -> Step:
    return lambda client: _send(client, headers_frame(1, client.block([(name, value)]), end=end))


def send(data: bytes) -> Step:
    return lambda client: _send(client, data)


def _send(client: RawClient, data: bytes) -> None:
    client.send(data)


def data(stream: int = 1, content: bytes = TEST, *, end: bool = True, pad: bytes | None = None) -> Step:
    return send(data_frame(stream, content, end=end, pad=pad))


def priority(stream: int = 1, depends_on: int = 0, weight: int = 255, *, exclusive: bool = False) -> Step:
    return send(priority_frame(stream, priority_field(depends_on, weight, exclusive=exclusive)))


def reset(stream: int = 1, code: int = Code.CANCEL) -> Step:
    return send(reset_frame(stream, code))


def settings(*pairs: tuple[int, int]) -> Step:
    return send(settings_frame(*pairs))


def initial_window(size: int) -> Step:
    return settings((Setting.INITIAL_WINDOW_SIZE, size))


def ping(content: bytes = bytes(8), *, ack: bool = False) -> Step:
    return send(ping_frame(content, ack=ack))


def window(stream: int, increment: int) -> Step:
    return send(window_frame(stream, increment))


def long_field(number: int = 0) -> Fields:
    """A field of 4,000 bytes."""
    return [(f"x-dummy{number}", "x" * 4_000)]


def continuation(stream: int = 1, *, whole: bool = True) -> Step:
    return lambda client: _send(client, continuation_frame(stream, client.block(long_field()), whole=whole))


def continued_after(*cuts: int) -> Step:
    """A request whose block is cut at these bytes."""

    def step(client: RawClient) -> None:
        block = client.block(client.fields())
        ends = [*cuts, len(block)]
        client.send(headers_frame(1, block[: ends[0]], whole=False))
        for begin, end in pairwise(ends):
            client.send(continuation_frame(1, block[begin:end], whole=end == len(block)))

    return step


def bare_continuation(client: RawClient) -> None:
    client.send(continuation_frame(1, client.block(client.fields())))


def same_block_continuation(client: RawClient) -> None:
    """The block of a request in HEADERS that end the block and the stream, and again in CONTINUATION."""
    block = client.block(client.fields())
    client.send(headers_frame(1, block) + continuation_frame(1, block))


def wait_for(expectation: Expectation) -> Step:
    def step(client: RawClient) -> None:
        verdict = judge(client, expectation)
        if not verdict.passed:
            raise FailedError(str(verdict))

    return step


def stream_over(client: RawClient) -> None:
    """Until the server ended stream 1."""
    event = client.until_end_of(1)
    if not isinstance(event, Frame) or (event.type == Type.RST_STREAM and event.code != Code.NO_ERROR):
        raise FailedError(f"stream 1 did not end: {event}")


def same_request_again(client: RawClient) -> None:
    """The same bytes twice, the first of them answered in between."""
    sent = headers_frame(1, client.block(client.fields()))
    client.send(sent)
    stream_over(client)
    client.send(sent)


def too_long_data(client: RawClient) -> None:
    client.send(data_frame(1, b"x" * (_frame_size(client) + 1), end=True))


def _frame_size(client: RawClient) -> int:
    size = client.settings.get(Setting.MAX_FRAME_SIZE, DEFAULT_FRAME_SIZE)
    if size > 2**20:
        raise SkippedError(f"the server takes frames of {size} bytes")
    return size


def too_long_headers(client: RawClient) -> None:
    fields = [*client.fields()]
    block = client.block(fields)
    number = 0
    while len(block) <= _frame_size(client):
        block += client.block(long_field(number))
        number += 1
    client.send(headers_frame(1, block))


def more_streams_than_allowed(client: RawClient) -> None:
    limit = client.settings.get(Setting.MAX_CONCURRENT_STREAMS)
    if limit is None or limit > 5_000:
        raise SkippedError(f"the server sets no limit to streams, or one that is out of reach ({limit})")
    client.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, 0)))
    block = client.block(client.fields())
    client.send(b"".join(headers_frame(1 + 2 * number, block) for number in range(limit + 1)))


def bad_padding_of_headers(client: RawClient) -> None:
    block = client.block(client.fields())
    payload = bytes([len(block) + 2]) + block
    client.send(frame(Type.HEADERS, Flag.END_STREAM | Flag.END_HEADERS | Flag.PADDED, 1, payload))


def push_promise(client: RawClient) -> None:
    client.send(push_promise_frame(1, 3, client.block(client.fields())))


def table_size_over_limit(client: RawClient) -> None:
    size = client.settings.get(Setting.HEADER_TABLE_SIZE, 4_096) + 1
    client.send(headers_frame(1, integer(size, 5, 0x20) + client.block(client.fields())))


def smaller_table(client: RawClient) -> None:
    client.encoder.header_table_size = 128  # the next block begins with the update
    client.request(1)


# --- the table ---

# Section of h2spec: (section of RFC 7540, of RFC 9113); of HPACK the section of RFC 7541, which is still in force.
SECTIONS = {
    "generic/1": ("3.5", "3.4"),
    "generic/2": ("5.1", "5.1"),
    "generic/3.1": ("6.1", "6.1"),
    "generic/3.2": ("6.2", "6.2"),
    "generic/3.3": ("6.3", "6.3"),
    "generic/3.4": ("6.4", "6.4"),
    "generic/3.5": ("6.5", "6.5"),
    "generic/3.7": ("6.7", "6.7"),
    "generic/3.8": ("6.8", "6.8"),
    "generic/3.9": ("6.9", "6.9"),
    "generic/3.10": ("6.10", "6.10"),
    "generic/4": ("8.1", "8.1"),
    "generic/5": ("4.3", "4.3"),
    "http2/3.5": ("3.5", "3.4"),
    "http2/4.1": ("4.1", "4.1"),
    "http2/4.2": ("4.2", "4.2"),
    "http2/4.3": ("4.3", "4.3"),
    "http2/5.1": ("5.1", "5.1"),
    "http2/5.1.1": ("5.1.1", "5.1.1"),
    "http2/5.1.2": ("5.1.2", "5.1.2"),
    "http2/5.3.1": ("5.3.1", "5.3.2"),
    "http2/5.4.1": ("5.4.1", "5.4.1"),
    "http2/5.5": ("5.5", "5.5"),
    "http2/6.1": ("6.1", "6.1"),
    "http2/6.2": ("6.2", "6.2"),
    "http2/6.3": ("6.3", "6.3"),
    "http2/6.4": ("6.4", "6.4"),
    "http2/6.5": ("6.5", "6.5"),
    "http2/6.5.2": ("6.5.2", "6.5.2"),
    "http2/6.5.3": ("6.5.3", "6.5.3"),
    "http2/6.7": ("6.7", "6.7"),
    "http2/6.8": ("6.8", "6.8"),
    "http2/6.9": ("6.9", "6.9"),
    "http2/6.9.1": ("6.9.1", "6.9.1"),
    "http2/6.9.2": ("6.9.2", "6.9.2"),
    "http2/6.10": ("6.10", "6.10"),
    "http2/7": ("7", "7"),
    "http2/8.1": ("8.1", "8.1"),
    "http2/8.1.2": ("8.1.2", "8.2.1"),
    "http2/8.1.2.1": ("8.1.2.1", "8.3"),
    "http2/8.1.2.2": ("8.1.2.2", "8.2.2"),
    "http2/8.1.2.3": ("8.1.2.3", "8.3.1"),
    "http2/8.1.2.6": ("8.1.2.6", "8.1.1"),
    "http2/8.2": ("8.2", "8.4"),
    "hpack/2.3.3": ("RFC 7541, 2.3.3", "RFC 7541, 2.3.3"),
    "hpack/4.2": ("RFC 7541, 4.2", "RFC 7541, 4.2"),
    "hpack/5.2": ("RFC 7541, 5.2", "RFC 7541, 5.2"),
    "hpack/6.1": ("RFC 7541, 6.1", "RFC 7541, 6.1"),
    "hpack/6.3": ("RFC 7541, 6.3", "RFC 7541, 6.3"),
}

NO_PRIORITY = "RFC 9113 has no dependencies any more: a server may ignore this one."
CLOSED_SOFTER = "RFC 9113 allows to ignore this after RST_STREAM, and asks for no error where the stream is forgotten."


@dataclass(frozen=True)
class Case:
    number: str  # as h2spec names it: part/section/number
    title: str
    steps: tuple[Step, ...]
    expected: Expectation
    changed: str = ""  # what RFC 9113 says otherwise
    strict: bool = False  # h2spec runs it with --strict only
    handshake: bool = True
    needs_body: int = 0  # so many bytes in the body of the answer
    section: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "section", self.number.rpartition("/")[0])

    @property
    def rfc7540(self) -> str:
        return SECTIONS[self.section][0]

    @property
    def rfc9113(self) -> str:
        return SECTIONS[self.section][1]


def case(number: str, title: str, *rest: Step | Expectation, changed: str = "", **more: bool | int) -> Case:
    """The steps, and last what is expected."""
    *steps, expected = rest
    assert isinstance(expected, Expectation)
    assert all(callable(step) for step in steps)
    return Case(number, title, tuple(steps), expected, changed, **more)  # type: ignore[arg-type]


def hpack_field(number: int, title: str, representation: str) -> Case:
    """A request that ends with a field in one of the representations of HPACK."""
    return case(f"generic/5/{number}", title, request(after=bytes.fromhex(representation)), response())


USER_AGENT, USER_AGENT_HUFFMAN = "0a757365722d6167656e74", "87b505b161cc5a93"
X_TEST, X_TEST_HUFFMAN = "06782d74657374", "85f2b24a84ff"
H2SPEC, H2SPEC_HUFFMAN = "06683273706563", "849c48aca4"
UNKNOWN_FRAME = frame(0x16, 0, 0, bytes(8))
NEGATIVE_WINDOW = (
    initial_window(3),
    wait_for(SETTINGS_ACKED),
    request(),
    wait_for(ANY_DATA),
    initial_window(2),
    wait_for(SETTINGS_ACKED),
    window(1, 2),
)

GENERIC = [
    case("generic/1/1", "the preface of a client", send(PREFACE), initial_window(65_535), SETTINGS_FIRST,
         handshake=False),
    case("generic/2/1", "PRIORITY on an idle stream", priority(), ping(), pong()),
    case("generic/2/2", "WINDOW_UPDATE on a half-closed stream", initial_window(0), request(), window(1, 1), ANY_DATA,
         needs_body=1),
    case("generic/2/3", "PRIORITY on a half-closed stream", initial_window(0), request(), priority(), window(1, 1),
         ANY_DATA, needs_body=1),
    case("generic/2/4", "RST_STREAM on a half-closed stream", request(), reset(), ping(), pong(or_closed=True)),
    case("generic/2/5", "PRIORITY on a closed stream", request(), stream_over, priority(), ping(), pong()),
    case("generic/3.1/1", "DATA", post(), data(), response()),
    case("generic/3.1/2", "several DATA frames", post(), data(end=False), data(), response()),
    case("generic/3.1/3", "DATA with padding", post(), data(pad=bytes(5)), response()),
    case("generic/3.2/1", "HEADERS", request(), response()),
    case("generic/3.2/2", "HEADERS with padding", request(pad=8), response()),
    case("generic/3.2/3", "HEADERS with priority", request(priority=priority_field(0, 255)), response()),
    case("generic/3.3/1", "PRIORITY with weight 1", priority(weight=0), request(), response()),
    case("generic/3.3/2", "PRIORITY with weight 256", priority(weight=255), request(), response()),
    case("generic/3.3/3", "PRIORITY with a dependency", priority(3, 1, 0), request(), response()),
    case("generic/3.3/4", "PRIORITY, exclusive", priority(1, 0, 0, exclusive=True), request(), response()),
    case("generic/3.3/5", "PRIORITY on an idle stream, then a request on a lower one", priority(3), request(),
         response()),
    case("generic/3.4/1", "RST_STREAM", request(end=False), reset(), ping(), pong(or_closed=True)),
    case("generic/3.5/1", "SETTINGS, all of them",
         settings((1, 4_096), (2, 1), (3, 100), (4, 65_535), (5, 16_384), (6, 100)), SETTINGS_ACKED),
    case("generic/3.7/1", "PING", ping(PING), pong(PING)),
    case("generic/3.8/1", "GOAWAY", send(goaway_frame(0, Code.NO_ERROR, b"h2spec")), ping(PING),
         pong(PING, or_closed=True)),
    case("generic/3.9/1", "WINDOW_UPDATE of the connection", window(0, 1), ping(), pong()),
    case("generic/3.9/2", "WINDOW_UPDATE of a stream", request(), window(1, 1), response()),
    case("generic/3.10/1", "CONTINUATION", continued_after(5), response()),
    case("generic/3.10/2", "several CONTINUATION frames", continued_after(5, 10), response()),
    case("generic/4/1", "a GET request", request(), response()),
    case("generic/4/2", "a HEAD request", request(method="HEAD"), response()),
    case("generic/4/3", "a POST request", post(), data(), response()),
    case("generic/4/4", "a POST request with trailers", request(1, "POST", extra=[("trailer", "x-test")], end=False),
         data(end=False), trailers("x-test", "ok", end=True), response()),
    hpack_field(1, "an indexed field", "ba"),
    hpack_field(2, "a literal that is indexed, known name, Huffman", f"40{USER_AGENT_HUFFMAN}{H2SPEC_HUFFMAN}"),
    hpack_field(3, "a literal that is indexed, known name", f"40{USER_AGENT}{H2SPEC}"),
    hpack_field(4, "a literal that is indexed, new name", f"40{X_TEST}{H2SPEC}"),
    hpack_field(5, "a literal that is indexed, new name, Huffman", f"40{X_TEST_HUFFMAN}{H2SPEC_HUFFMAN}"),
    hpack_field(6, "a literal that is not indexed, known name", f"00{USER_AGENT}{H2SPEC}"),
    hpack_field(7, "a literal that is not indexed, known name, Huffman", f"00{USER_AGENT_HUFFMAN}{H2SPEC_HUFFMAN}"),
    hpack_field(8, "a literal that is not indexed, new name", f"00{X_TEST}{H2SPEC}"),
    hpack_field(9, "a literal that is not indexed, new name, Huffman", f"00{X_TEST_HUFFMAN}{H2SPEC_HUFFMAN}"),
    hpack_field(10, "a literal that is never indexed, known name", f"10{USER_AGENT}{H2SPEC}"),
    hpack_field(11, "a literal that is never indexed, known name, Huffman", f"10{USER_AGENT_HUFFMAN}{H2SPEC_HUFFMAN}"),
    hpack_field(12, "a literal that is never indexed, new name", f"10{X_TEST}{H2SPEC}"),
    hpack_field(13, "a literal that is never indexed, new name, Huffman", f"10{X_TEST_HUFFMAN}{H2SPEC_HUFFMAN}"),
    case("generic/5/14", "an update of the table's size", smaller_table, response()),
    case("generic/5/15", "two updates of the table's size", request(before=bytes.fromhex("3f613fe11f")), response()),
]  # fmt: skip

FRAMES = [
    case("http2/3.5/1", "the preface of a client", send(PREFACE), initial_window(65_535), SETTINGS_FIRST,
         handshake=False),
    case("http2/3.5/2", "no preface", send(b"INVALID CONNECTION PREFACE\r\n\r\n"), connection(PROTOCOL),
         handshake=False),
    case("http2/4.1/1", "a frame of unknown type", send(UNKNOWN_FRAME), ping(), pong()),
    case("http2/4.1/2", "undefined flags", send(frame(Type.PING, 0x16, 0, bytes(8))), ANY_PING),
    case("http2/4.1/3", "the reserved bit", send(frame(Type.PING, 0x16, 0x8000_0000, bytes(8))), ANY_PING),
    case("http2/4.2/1", "DATA of 2^14 bytes", post(), data(1, b"x" * DEFAULT_FRAME_SIZE), response()),
    case("http2/4.2/2", "DATA longer than the server takes", post(), too_long_data, stream(SIZE)),
    case("http2/4.2/3", "HEADERS longer than the server takes", too_long_headers, connection(SIZE)),
    case("http2/4.3/1", "a block that cannot be decoded", send(headers_frame(1, b"\x40")), connection(COMPRESSION)),
    case("http2/4.3/2", "PRIORITY within a header block", request(end=False, whole=False), priority(), continuation(),
         connection(PROTOCOL)),
    case("http2/4.3/3", "HEADERS of another stream within a header block", request(end=False, whole=False), request(3),
         continuation(), connection(PROTOCOL)),
]  # fmt: skip

STREAMS = [
    case("http2/5.1/1", "idle: DATA", data(), stream(PROTOCOL, STREAM_CLOSED)),
    case("http2/5.1/2", "idle: RST_STREAM", reset(), connection(PROTOCOL)),
    case("http2/5.1/3", "idle: WINDOW_UPDATE", window(1, 100), connection(PROTOCOL)),
    case("http2/5.1/4", "idle: CONTINUATION", bare_continuation, connection(PROTOCOL)),
    case("http2/5.1/5", "half-closed (remote): DATA", request(), data(), stream(STREAM_CLOSED)),
    case("http2/5.1/6", "half-closed (remote): HEADERS", request(), request(), stream(STREAM_CLOSED)),
    case("http2/5.1/7", "half-closed (remote): CONTINUATION", same_block_continuation, stream(STREAM_CLOSED, PROTOCOL)),
    case("http2/5.1/8", "closed: DATA after RST_STREAM", request(end=False), reset(), data(), stream(STREAM_CLOSED),
         changed=CLOSED_SOFTER),
    case("http2/5.1/9", "closed: HEADERS after RST_STREAM", request(end=False), reset(), request(),
         stream(STREAM_CLOSED), changed=CLOSED_SOFTER),
    case("http2/5.1/10", "closed: CONTINUATION after RST_STREAM", request(end=False), reset(), continuation(),
         stream(STREAM_CLOSED, PROTOCOL)),
    case("http2/5.1/11", "closed: DATA", request(), stream_over, data(), stream(STREAM_CLOSED), changed=CLOSED_SOFTER),
    case("http2/5.1/12", "closed: HEADERS", same_request_again, connection(STREAM_CLOSED), changed=CLOSED_SOFTER),
    case("http2/5.1/13", "closed: CONTINUATION", request(), stream_over, continuation(),
         connection(STREAM_CLOSED, PROTOCOL)),
    case("http2/5.1.1/1", "an even stream", request(2), connection(PROTOCOL)),
    case("http2/5.1.1/2", "a stream lower than the last", request(5), request(3), connection(PROTOCOL)),
    case("http2/5.1.2/1", "one stream more than the server takes", more_streams_than_allowed,
         stream(PROTOCOL, Code.REFUSED_STREAM)),
    case("http2/5.3.1/1", "HEADERS that depend on their own stream", request(priority=priority_field(1)),
         stream(PROTOCOL), changed=NO_PRIORITY),
    case("http2/5.3.1/2", "PRIORITY that depends on its own stream", priority(1, 1), stream(PROTOCOL),
         changed=NO_PRIORITY),
    case("http2/5.4.1/1", "a connection error closes", send(frame(Type.PING, 0, 3, bytes(8))), Closes()),
    case("http2/5.4.1/2", "a connection error is told with GOAWAY", send(frame(Type.PING, 0, 3, bytes(8))),
         First("GOAWAY", Type.GOAWAY), strict=True),
    case("http2/5.5/1", "an unknown frame", send(UNKNOWN_FRAME), ping(), pong()),
    case("http2/5.5/2", "an unknown frame within a header block", request(whole=False), send(UNKNOWN_FRAME),
         connection(PROTOCOL)),
]  # fmt: skip

FRAME_TYPES = [
    case("http2/6.1/1", "DATA on stream 0", data(0), connection(PROTOCOL)),
    case("http2/6.1/2", "DATA on a half-closed stream", request(method="POST"), data(), stream(STREAM_CLOSED)),
    case("http2/6.1/3", "DATA with more padding than payload", request(1, "POST", extra=[("content-length", "4")],
         end=False), send(frame(Type.DATA, Flag.END_STREAM | Flag.PADDED, 1, b"\x06Test")), connection(PROTOCOL)),
    case("http2/6.2/1", "PRIORITY after HEADERS without END_HEADERS", request(end=False, whole=False), priority(),
         continuation(), connection(PROTOCOL)),
    case("http2/6.2/2", "HEADERS of another stream after HEADERS without END_HEADERS", request(end=False, whole=False),
         request(3), continuation(), connection(PROTOCOL)),
    case("http2/6.2/3", "HEADERS on stream 0", request(0), connection(PROTOCOL)),
    case("http2/6.2/4", "HEADERS with more padding than payload", bad_padding_of_headers, stream(PROTOCOL)),
    case("http2/6.3/1", "PRIORITY on stream 0", priority(0), connection(PROTOCOL)),
    case("http2/6.3/2", "PRIORITY of 4 bytes", request(), send(frame(Type.PRIORITY, 0, 1, b"\x80\0\0\x01")),
         stream(SIZE)),
    case("http2/6.4/1", "RST_STREAM on stream 0", reset(0), connection(PROTOCOL)),
    case("http2/6.4/2", "RST_STREAM on an idle stream", reset(), connection(PROTOCOL)),
    case("http2/6.4/3", "RST_STREAM of 3 bytes", request(), send(frame(Type.RST_STREAM, 0, 1, bytes(3))),
         stream(SIZE)),
    case("http2/6.5/1", "SETTINGS with ACK and a payload", send(frame(Type.SETTINGS, Flag.ACK, 0, b"\0")),
         connection(SIZE)),
    case("http2/6.5/2", "SETTINGS on a stream", send(frame(Type.SETTINGS, 0, 1, bytes.fromhex("000300000064"))),
         connection(PROTOCOL)),
    case("http2/6.5/3", "SETTINGS of 3 bytes", send(frame(Type.SETTINGS, 0, 0, b"\0\x03\0")), stream(PROTOCOL, SIZE)),
    case("http2/6.5.2/1", "ENABLE_PUSH of 2", settings((Setting.ENABLE_PUSH, 2)), connection(PROTOCOL)),
    case("http2/6.5.2/2", "INITIAL_WINDOW_SIZE too large", initial_window(MAX_WINDOW + 1), connection(FLOW)),
    case("http2/6.5.2/3", "MAX_FRAME_SIZE too small", settings((Setting.MAX_FRAME_SIZE, 16_383)), connection(PROTOCOL)),
    case("http2/6.5.2/4", "MAX_FRAME_SIZE too large", settings((Setting.MAX_FRAME_SIZE, 2**24)), connection(PROTOCOL)),
    case("http2/6.5.2/5", "an unknown setting", settings((0xFF, 1)), ping(), pong()),
    case("http2/6.5.3/1", "INITIAL_WINDOW_SIZE twice in one frame", settings((4, 100), (4, 1)),
         wait_for(SETTINGS_ACKED), request(), data_of(1), needs_body=1),
    case("http2/6.5.3/2", "SETTINGS are acknowledged", settings((Setting.ENABLE_PUSH, 0)), SETTINGS_ACKED),
    case("http2/6.7/1", "PING", ping(PING), pong(PING)),
    case("http2/6.7/2", "PING with ACK is not answered", ping(b"invalid\0", ack=True), ping(PING), pong(PING)),
    case("http2/6.7/3", "PING on a stream", send(frame(Type.PING, 0, 1, bytes(8))), connection(PROTOCOL)),
    case("http2/6.7/4", "PING of 6 bytes", send(frame(Type.PING, 0, 0, bytes(6))), connection(SIZE)),
    case("http2/6.8/1", "GOAWAY on a stream", send(frame(Type.GOAWAY, 0, 1, bytes(8))), connection(PROTOCOL)),
    case("http2/6.9/1", "WINDOW_UPDATE of 0", window(0, 0), connection(PROTOCOL)),
    case("http2/6.9/2", "WINDOW_UPDATE of 0 on a stream", request(end=False), window(1, 0), stream(PROTOCOL)),
    case("http2/6.9/3", "WINDOW_UPDATE of 3 bytes", send(frame(Type.WINDOW_UPDATE, 0, 0, b"\0\0\x01")),
         connection(SIZE)),
    case("http2/6.9.1/1", "a window of 1", initial_window(1), wait_for(SETTINGS_ACKED), request(), data_of(1),
         needs_body=1),
    case("http2/6.9.1/2", "the window of the connection above 2^31-1", window(0, MAX_WINDOW), window(0, MAX_WINDOW),
         First("GOAWAY with FLOW_CONTROL_ERROR", Type.GOAWAY, lambda event: event.code == FLOW)),
    case("http2/6.9.1/3", "the window of a stream above 2^31-1", request(end=False), window(1, MAX_WINDOW),
         window(1, MAX_WINDOW), First("RST_STREAM with FLOW_CONTROL_ERROR", Type.RST_STREAM,
                                      lambda event: event.code == FLOW and event.stream == 1)),
    case("http2/6.9.2/1", "INITIAL_WINDOW_SIZE changes the windows of open streams", initial_window(0),
         wait_for(SETTINGS_ACKED), request(), initial_window(1), data_of(1), needs_body=1),
    case("http2/6.9.2/2", "a window can be negative", *NEGATIVE_WINDOW, data_of(1), needs_body=5),
    case("http2/6.9.2/3", "INITIAL_WINDOW_SIZE above 2^31-1", initial_window(MAX_WINDOW + 1), connection(FLOW)),
    case("http2/6.10/1", "several CONTINUATION frames", request(whole=False), continuation(whole=False),
         continuation(), response()),
    case("http2/6.10/2", "DATA after CONTINUATION without END_HEADERS", post(whole=False), continuation(whole=False),
         data(), connection(PROTOCOL)),
    case("http2/6.10/3", "CONTINUATION on stream 0", request(whole=False), continuation(0), connection(PROTOCOL)),
    case("http2/6.10/4", "CONTINUATION after HEADERS with END_HEADERS", request(), continuation(),
         connection(PROTOCOL)),
    case("http2/6.10/5", "CONTINUATION after CONTINUATION with END_HEADERS", request(whole=False), continuation(),
         continuation(), connection(PROTOCOL)),
    case("http2/6.10/6", "CONTINUATION after DATA within a block", post(whole=False), data(),
         continuation(whole=False), continuation(0), connection(PROTOCOL)),
    case("http2/7/1", "GOAWAY with an unknown code", send(goaway_frame(0, 0xFF)), ping(PING),
         pong(PING, or_closed=True)),
    case("http2/7/2", "RST_STREAM with an unknown code", post(), reset(1, 0xFF), ping(), pong(or_closed=True)),
]  # fmt: skip

MESSAGES = [
    case("http2/8.1/1", "HEADERS after DATA, without END_STREAM", post(), data(end=False),
         trailers("x-test", "ok", end=False), stream(PROTOCOL)),
    case("http2/8.1.2/1", "a name in uppercase", request(extra=[("X-TEST", "ok")]), stream(PROTOCOL)),
    case("http2/8.1.2.1/1", "an unknown pseudo-header", request(extra=[(":test", "ok")]), stream(PROTOCOL)),
    case("http2/8.1.2.1/2", "the pseudo-header of a response", request(extra=[(":status", "200")]), stream(PROTOCOL)),
    case("http2/8.1.2.1/3", "a pseudo-header as trailer", post(), data(end=False),
         trailers(":method", "POST", end=False), stream(PROTOCOL)),
    case("http2/8.1.2.1/4", "pseudo-headers after a field", request(first=[("x-test", "ok")]), stream(PROTOCOL)),
    case("http2/8.1.2.2/1", "connection", request(extra=[("connection", "keep-alive")]), stream(PROTOCOL)),
    case("http2/8.1.2.2/2", "te with more than trailers",
         request(extra=[("trailers", "test"), ("te", "trailers, deflate")]), stream(PROTOCOL)),
    case("http2/8.1.2.3/1", "an empty :path", request(without=[":path"], first=[(":path", "")]), stream(PROTOCOL)),
    case("http2/8.1.2.3/2", "no :method", request(without=[":method"]), stream(PROTOCOL)),
    case("http2/8.1.2.3/3", "no :scheme", request(without=[":scheme"]), stream(PROTOCOL)),
    case("http2/8.1.2.3/4", "no :path", request(without=[":path"]), stream(PROTOCOL)),
    case("http2/8.1.2.3/5", ":method twice", request(extra=[(":method", "GET")]), stream(PROTOCOL)),
    case("http2/8.1.2.3/6", ":scheme twice", request(extra=[(":scheme", "http")]), stream(PROTOCOL)),
    case("http2/8.1.2.3/7", ":path twice", request(extra=[(":path", "/")]), stream(PROTOCOL)),
    case("http2/8.1.2.6/1", "content-length is not the length of DATA",
         request(1, "POST", extra=[("content-length", "1")], end=False), data(), stream(PROTOCOL)),
    case("http2/8.1.2.6/2", "content-length is not the length of several DATA frames",
         request(1, "POST", extra=[("content-length", "1")], end=False), data(end=False), data(), stream(PROTOCOL)),
    case("http2/8.2/1", "PUSH_PROMISE", push_promise, connection(PROTOCOL)),
]  # fmt: skip

HUFFMAN = f"00{X_TEST_HUFFMAN}"
HPACK = [
    case("hpack/2.3.3/1", "an index that is not in the table", request(after=b"\xc6"), connection(COMPRESSION)),
    case("hpack/2.3.3/2", "a literal whose name's index is not in the table", request(after=b"\x7f\x07\0"),
         connection(COMPRESSION)),
    case("hpack/4.2/1", "an update of the table's size at the end of a block", request(after=b"\x21"),
         connection(COMPRESSION)),
    case("hpack/5.2/1", "Huffman: padding longer than 7 bits", request(after=bytes.fromhex(HUFFMAN + "8449509fff")),
         connection(COMPRESSION)),
    case("hpack/5.2/2", "Huffman: padding of zeros", request(after=bytes.fromhex(HUFFMAN + "83495090")),
         connection(COMPRESSION)),
    case("hpack/5.2/3", "Huffman: the EOS symbol", request(after=bytes.fromhex(HUFFMAN + "874951fffffffa7f")),
         connection(COMPRESSION)),
    case("hpack/6.1/1", "index 0", request(after=b"\x80"), connection(COMPRESSION)),
    case("hpack/6.3/1", "an update of the table's size above the limit", table_size_over_limit,
         connection(COMPRESSION)),
]  # fmt: skip

CASES: list[Case] = [*GENERIC, *FRAMES, *STREAMS, *FRAME_TYPES, *MESSAGES, *HPACK]


# --- running one ---


def judge(client: RawClient, expected: Expectation) -> Verdict:
    """Reads until it is clear; at most 1,000 frames, each in time."""
    seen: list[str] = []
    for _ in range(1_000):
        event = client.next()
        if len(seen) < 20:
            seen.append(str(event) if isinstance(event, Frame) else event.value)
        passed = expected.judge(event)
        if passed is not None:
            return Verdict(passed, passed and expected.is_exact(event), expected=str(expected), seen=seen)
        if isinstance(event, Ending):
            break
    return Verdict(False, expected=str(expected), seen=seen)


def run_case(
    case: Case,
    host: str,
    port: int,
    *,
    path: str = "/",
    tls: ssl.SSLContext | None = None,
    patience_s: float = PATIENCE_S,
) -> Verdict:
    """One case on a connection of its own; `patience_s` for each single frame."""
    try:
        if case.needs_body and (length := body_length(host, port, path=path, tls=tls)) < case.needs_body:
            return Verdict(False, skipped=f"needs an answer of {case.needs_body} bytes; it has {length}")
        with RawClient(host, port, path=path, tls=tls, patience_s=patience_s) as client:
            if case.handshake:
                client.handshake()
            for step in case.steps:
                step(client)
            return judge(client, case.expected)
    except SkippedError as error:
        return Verdict(False, skipped=str(error))
    except (FailedError, AssertionError) as error:
        return Verdict(False, expected=str(case.expected), seen=[f"on the way: {error}"])


def body_length(host: str, port: int, *, path: str = "/", tls: ssl.SSLContext | None = None) -> int:
    with RawClient(host, port, path=path, tls=tls) as client:
        client.replenish = True
        client.handshake()
        client.request(1)
        client.until_end_of(1)
        return client.bodies.get(1, 0)
