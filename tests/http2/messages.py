"""Messages as data that no proxy may hand on as they are: fields, lengths and targets that the next server reads
otherwise, and a few that look like that and are good.

`send_message(message, target)` sends one, and a good request on the same connection after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.http2.hostile import (
    ENDED,
    REFUSED,
    SERVED,
    Outcome,
    Target,
    is_served,
    outcome_of,
)
from tests.http2.raw_client import (
    CLOSED,
    Code,
    Ending,
    Fields,
    Frame,
    RawClient,
    Type,
    code_name,
    data_frame,
    headers_frame,
    literals,
)

BAD = frozenset({ENDED, REFUSED})
GOOD = frozenset({SERVED})
EITHER = frozenset({ENDED, REFUSED, SERVED})  # served only as what it says in HTTP/2


@dataclass(frozen=True)
class Message:
    """A pseudo-header in `fields` replaces those of the same name in a plain request; `None` in `data`: no END_STREAM.

    `raw`: `fields` are the whole block, in this order.
    """

    name: str
    fields: Fields
    allowed: frozenset[Outcome] = BAD
    method: str = "GET"
    data: Sequence[bytes] = ()
    trailers: Fields | None = None
    raw: bool = False
    tells: str = ""  # what the server behind may see of it, where it is served

    def frames(self, client: RawClient, stream: int) -> bytes:
        fields = self.fields
        if not self.raw:
            replaced = [str(name) for name, _ in fields if str(name).startswith(":")]
            fields = [*client.fields(self.method, without=set(replaced)), *fields]
            fields = sorted(fields, key=lambda field: not str(field[0]).startswith(":"))
        pieces = list(self.data)
        parts = [headers_frame(stream, literals(fields), end=not pieces and self.trailers is None)]
        for number, piece in enumerate(pieces, 1):
            parts.append(data_frame(stream, piece, end=number == len(pieces) and self.trailers is None))
        if self.trailers is not None:
            parts.append(headers_frame(stream, literals(self.trailers)))
        return b"".join(parts)


@dataclass(frozen=True)
class Answer:
    outcome: Outcome
    status: int | None
    code: str
    after: bool  # the next request was served: on this connection, or on a new one where this one ended

    def __str__(self) -> str:
        return f"{self.outcome.name} {self.status} {self.code}, the next one {'served' if self.after else 'not served'}"


def send_message(message: Message, target: Target) -> Answer:
    with target.connect() as client:
        client.handshake()
        client.send(message.frames(client, 1))
        event = client.until_end_of(1)
        status, outcome = client.status(1), _outcome(client, event)
        code = client.resets.get(1, client.goaway.code if client.goaway is not None else 0)
        after = False
        if outcome is not ENDED:
            client.request(3)
            client.until_end_of(3)
            after = (client.status(3) or 999) < 400
        return Answer(outcome, status, code_name(code), after or (client.is_ended and is_served(target)))


def _outcome(client: RawClient, event: Frame | Ending) -> Outcome:
    if event is CLOSED or client.is_ended:
        return ENDED
    if isinstance(event, Frame) and event.type == Type.RST_STREAM and event.code != Code.NO_ERROR:
        return REFUSED
    return outcome_of(client)


def field(name: str | bytes, value: str | bytes, allowed: frozenset[Outcome] = BAD, tells: str = "") -> Message:
    return Message(f"{name!r}: {value!r}", [(name, value)], allowed, tells=tells)


def length(value: str, data: Sequence[bytes], allowed: frozenset[Outcome] = BAD) -> Message:
    pieces = "+".join(str(len(piece)) for piece in data) or "none"
    return Message(f"content-length {value!r}, DATA {pieces}", [("content-length", value)], allowed, "POST", data)


def twice(name: str, first: str, second: str, allowed: frozenset[Outcome] = BAD) -> Message:
    return Message(f"{name} twice: {first!r}, {second!r}", [(name, first), (name, second)], allowed)


def trailer(name: str, value: str, allowed: frozenset[Outcome] = BAD) -> Message:
    return Message(f"trailer {name!r}: {value!r}", [], allowed, "POST", [b"test"], [(name, value)])


def whole(name: str, fields: Fields, allowed: frozenset[Outcome] = BAD) -> Message:
    return Message(name, fields, allowed, raw=True)


METHOD, SCHEME, PATH, AUTHORITY = (":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a.test")

MESSAGES = [
    # values and names
    field("x-a", "b\r\nx-c: d"),
    field("x-a", "b\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"),
    field("x-a", "b\rc"),
    field("x-a", "b\nc"),
    field("x-a", "b\0c"),
    field("x-a", "b\x01c", EITHER),
    field("x-a", "b\x7fc", EITHER),
    field("x-a", " b", EITHER, tells="without the space"),
    field("x-a", "b\t", EITHER, tells="without the tab"),
    field("x-a", "", GOOD),
    field("x-a", b"\xc3\xa4\xff", EITHER),
    field("X-A", "b"),
    field("x-A", "b"),
    field("", "b"),
    field("x a", "b"),
    field("x-a ", "b"),
    field("x-a:", "b"),
    field("x:a", "b"),
    field("x-a\r\nx-c", "b"),
    field("x-a\n", "b"),
    field("x\0a", "b"),
    field("x\x7fa", "b"),
    field(b"x\xc3\xa4", "b"),
    field("x(a)", "b"),
    field("x_a", "b", GOOD),
    # what belongs to one hop of HTTP/1.1
    field("connection", "close"),
    field("connection", "x-a"),
    field("keep-alive", "1"),
    field("proxy-connection", "keep-alive"),
    field("transfer-encoding", "chunked"),
    field("transfer-encoding", "identity"),
    field("upgrade", "h2c"),
    field("upgrade", "websocket"),
    field("http2-settings", "AAMAAABkAAQAAP__", EITHER),
    field("te", "gzip"),
    field("te", "trailers, gzip"),
    field("te", "trailers", GOOD),
    field("trailer", "x-a", GOOD),
    field("expect", "100-continue", GOOD),
    Message("transfer-encoding and content-length", [("transfer-encoding", "chunked"), ("content-length", "5")],
            method="POST", data=[b"0\r\n\r\n"]),
    Message("chunks as DATA", [("transfer-encoding", "chunked")], method="POST", data=[b"0\r\n\r\nGET /smuggled "]),
    # lengths
    length("4", [b"test"], GOOD),
    length("4", [b"te", b"", b"st"], GOOD),
    length("3", [b"test"]),
    length("5", [b"test"]),
    length("0", [b"test"]),
    length("4", [b""]),
    length("4", []),
    length("0", [], GOOD),
    length("-1", [b"test"]),
    length("+4", [b"test"]),
    length("0x4", [b"test"]),
    length("4 ", [b"test"], EITHER),
    length("4,4", [b"test"], EITHER),
    length("4,5", [b"test"]),
    length("", [b"test"]),
    length("four", [b"test"]),
    length("4.0", [b"test"]),
    length("18446744073709551620", [b"test"]),
    length("9" * 40, [b"test"]),
    Message("content-length twice, the same", [("content-length", "4")] * 2, EITHER, "POST", [b"test"]),
    Message("content-length twice, different", [("content-length", "4"), ("content-length", "5")], BAD, "POST",
            [b"test"]),
    Message("less DATA than content-length, and trailers", [("content-length", "5")], BAD, "POST", [b"test"],
            [("x-a", "b")]),
    Message("DATA of GET, with a length", [("content-length", "4")], GOOD, "GET", [b"test"]),
    # pseudo-headers
    twice(":path", "/", "/other"),
    twice(":method", "GET", "POST"),
    twice(":authority", "a.test", "b.test"),
    twice(":scheme", "http", "https"),
    whole("no pseudo-header", [("host", "a.test")]),
    whole("no field at all", []),
    whole("no :method", [SCHEME, PATH, AUTHORITY]),
    whole("no :scheme", [METHOD, PATH, AUTHORITY]),
    whole("no :path", [METHOD, SCHEME, AUTHORITY]),
    whole("neither :authority nor host", [METHOD, SCHEME, PATH], EITHER),
    whole("host instead of :authority", [METHOD, SCHEME, PATH, ("host", "a.test")], GOOD),
    whole(":path after a field", [METHOD, SCHEME, AUTHORITY, ("x-a", "b"), PATH]),
    whole(":authority after a field", [METHOD, SCHEME, PATH, ("x-a", "b"), AUTHORITY]),
    whole("pseudo-headers in another order", [AUTHORITY, PATH, SCHEME, METHOD], GOOD),
    field(":unknown", "b"),
    field(":", "b"),
    field(":status", "200"),
    field(":protocol", "websocket"),
    whole("an uppercase pseudo-header", [(":Method", "GET"), SCHEME, PATH, AUTHORITY]),
    # hosts
    Message("host other than :authority", [(":authority", "a.test"), ("host", "b.test")], EITHER,
            tells="a.test as host, once"),
    Message("host twice", [("host", "a.test"), ("host", "b.test")], EITHER, tells=":authority as host, once"),
    whole("host twice, no :authority", [METHOD, SCHEME, PATH, ("host", "a.test"), ("host", "b.test")]),
    field("host", "", EITHER, tells=":authority as host, once"),
    field(":authority", ""),
    field(":authority", "user@a.test"),
    field(":authority", "user:password@a.test"),
    field(":authority", "a.test b"),
    field(":authority", "a.test/path"),
    field(":authority", "a.test\r\nx-a: b"),
    field(":authority", "a.test\0"),
    field(":authority", "a.test,b.test", EITHER),
    field(":authority", "a.test:notaport", EITHER),
    field(":authority", "[::1", EITHER),
    # targets
    field(":path", ""),
    field(":path", "path"),
    field(":path", "*"),
    field(":path", "http://b.test/"),
    field(":path", "//b.test/", EITHER),
    field(":path", "/ HTTP/1.1\r\nx-a: b"),
    field(":path", "/a b"),
    field(":path", "/a\tb"),
    field(":path", "/a\rb"),
    field(":path", "/a\nb"),
    field(":path", "/a\0b"),
    field(":path", "/#fragment", EITHER),
    field(":path", "/a\x7f", EITHER),
    field(":path", b"/\xc3\xa4", EITHER),
    field(":path", "/?a=b&c=%00", GOOD),
    field(":path", "/../../etc/passwd", EITHER),
    Message("OPTIONS *", [(":path", "*")], EITHER, "OPTIONS"),
    field(":scheme", ""),
    field(":scheme", "http\r\nx-a: b"),
    field(":scheme", "http://b.test/?"),
    field(":scheme", "ftp", EITHER),
    # methods
    field(":method", ""),
    field(":method", "GET "),
    field(":method", "GET /smuggled HTTP/1.1\r\nx-a:"),
    field(":method", "GE\0T"),
    field(":method", "GET\r\n"),
    field(":method", "G(T)"),
    field(":method", "get", EITHER),
    field(":method", "A" * 100, EITHER),
    Message("CONNECT with :path", [], BAD, "CONNECT"),
    whole("CONNECT", [(":method", "CONNECT"), (":authority", "a.test:80")]),
    whole("CONNECT without :authority", [(":method", "CONNECT")]),
    whole("extended CONNECT that was not offered",
          [(":method", "CONNECT"), (":protocol", "websocket"), SCHEME, PATH, AUTHORITY]),
    # trailers
    trailer("x-a", "b", GOOD),
    trailer("X-A", "b"),
    trailer("x-a", "b\r\nx-c: d"),
    trailer("x-a\r\nx-c", "b"),
    trailer("x a", "b"),
    trailer(":path", "/other"),
    trailer(":status", "200"),
    trailer(":unknown", "1"),
    trailer("connection", "close"),
    trailer("transfer-encoding", "chunked"),
    trailer("content-length", "9", EITHER),
    trailer("host", "b.test", EITHER),
    # cookies
    Message("cookies in pieces", [("cookie", "a=b"), ("cookie", "c=d")], GOOD, tells="cookie: a=b; c=d"),
    Message("a cookie with a line", [("cookie", "a=b"), ("cookie", "c=d\r\nx-a: b")]),
]  # fmt: skip
