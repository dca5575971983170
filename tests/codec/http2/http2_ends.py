"""Both roles of our codec, each writing down what it is told, with the writer that connections have.

Rules
  1. Each end keeps, of every stream, what came (`Came`); a second head, or anything behind an end, fails the test at
     once.
  2. An end may answer from within what it is told (`reaction`), as exchanges do.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from activator.codec.http1.request import RequestLimits
from activator.codec.http2 import frames
from activator.codec.http2.client import ClientEvents, Http2Client
from activator.codec.http2.connection import Http2Connection
from activator.codec.http2.frames import CANCEL
from activator.codec.http2.server import Http2Server, ServerEvents
from activator.codec.http2.stream import Stream
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.runtime.buffered_writer import GatheringWriter, WriteBatcher
from activator.runtime.errors import WireError
from tests.manual_clock import ManualClock
from tests.written_transport import WrittenTransport


class Came:
    """What came on one stream, and how it ended."""

    def __init__(self) -> None:
        self.head: RequestHead | ResponseHead | None = None
        self.interims: list[int] = []
        self.body = b""
        self.trailers: Headers = []
        self.ended = False
        self.refused: WireError | None = None
        self.failed: WireError | None = None
        self.code: int | None = None  # it was reset
        self.words = ""
        self.closed = False
        self.is_full = False

    def is_over(self) -> bool:
        return self.ended or self.code is not None or self.closed

    def told(self) -> tuple[object, ...]:
        """To be compared."""
        head = self.head
        return (
            None if head is None else (head.headers.block, head.content_length, head.has_body),
            self.interims,
            self.body,
            self.trailers,
            self.ended,
            None if self.refused is None else (self.refused.reason, self.refused.detail),
            None if self.failed is None else (self.failed.reason, self.failed.detail),
            self.code,
            self.words,
            self.closed,
        )


Reaction = Callable[["Ear", Stream, str], None]


class Ear:
    """What both ends write down."""

    def __init__(self) -> None:
        self.came: dict[int, Came] = {}
        self.goaways: list[tuple[int, int]] = []
        self.settings = 0
        self.pings: list[bytes] = []
        self.reaction: Reaction | None = None
        self.on_goaway: Callable[[int], None] | None = None  # is told the last stream
        self.codec: Http2Connection | None = None
        self.clock = ManualClock()
        self.errors: list[Exception] = []
        self.turn = WriteBatcher(self.clock.defer, self.errors.append)
        self.transport = WrittenTransport()
        self.writer: GatheringWriter | None = None

    def begin(self, codec: Http2Connection) -> None:
        self.codec = codec
        self.writer = GatheringWriter(self.turn, self.transport, codec.flush)

    def end_turn(self) -> None:
        while self.clock.turn():
            pass
        assert not self.errors, self.errors

    def of(self, stream: Stream) -> Came:
        return self.came.setdefault(stream.id, Came())

    def react(self, stream: Stream, what: str) -> None:
        if self.reaction is not None:
            self.reaction(self, stream, what)

    # --- ConnectionEvents ---

    def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    def wants_flush(self) -> None:
        assert self.writer is not None
        self.writer.touch()

    def head(self, stream: Stream, head: RequestHead | ResponseHead) -> None:
        came = self.of(stream)
        assert came.head is None and not came.is_over()
        came.head = head
        self.react(stream, "head")

    def stream_body(self, stream: Stream, data: bytes) -> None:
        came = self.of(stream)
        assert came.head is not None and not came.is_over() and data
        came.body += data
        self.react(stream, "body")

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        came = self.of(stream)
        assert came.head is not None and not came.is_over()
        came.ended = True
        came.trailers = trailers
        self.react(stream, "end")

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        came = self.of(stream)
        assert came.failed is None and not came.is_over()
        came.failed = error
        self.react(stream, "failed")

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        came = self.of(stream)
        assert came.code is None and not came.closed
        came.code = code
        came.words = words
        self.react(stream, "reset")

    def stream_closed(self, stream: Stream) -> None:
        came = self.of(stream)
        assert came.code is None and not came.closed
        came.closed = True
        self.react(stream, "closed")

    def stream_full(self, stream: Stream) -> None:
        came = self.of(stream)
        assert not came.is_full
        came.is_full = True
        self.react(stream, "full")

    def stream_drained(self, stream: Stream) -> None:
        came = self.of(stream)
        assert came.is_full
        came.is_full = False
        self.react(stream, "drained")

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        self.goaways.append((last_id, code))
        if self.on_goaway is not None:
            self.on_goaway(last_id)

    def peer_settings(self) -> None:
        self.settings += 1

    def ping_answered(self, payload: bytes) -> None:
        self.pings.append(payload)


class ServerEar(Ear, ServerEvents):
    def __init__(self, limits: RequestLimits | None = None, streams_max: int = 128) -> None:
        Ear.__init__(self)
        self.server = Http2Server(self, limits or RequestLimits(), streams_max)
        self.begin(self.server)
        self.server.start()

    def request_head(self, stream: Stream, head: RequestHead) -> None:
        self.head(stream, head)

    def request_refused(self, stream: Stream, error: WireError) -> None:
        came = self.of(stream)
        assert came.head is None and came.refused is None and not came.is_over()
        came.refused = error
        self.react(stream, "refused")

    def stream_refused(self) -> None:
        pass  # RST_STREAM says it


class ClientEar(Ear, ClientEvents):
    def __init__(self) -> None:
        Ear.__init__(self)
        self.client = Http2Client(self)
        self.begin(self.client)
        self.client.start()

    def response_interim(self, stream: Stream, head: ResponseHead) -> None:
        came = self.of(stream)
        assert came.head is None and not came.is_over()
        came.interims.append(head.status)

    def response_head(self, stream: Stream, head: ResponseHead) -> None:
        self.head(stream, head)

    def request(self, head: RequestHead) -> Stream:
        stream = self.client.open(None)
        self.client.send_request(stream, head, b"pod.test", False)
        return stream


def request(
    method: bytes = b"GET",
    path: bytes = b"/",
    length: int = UNKNOWN_LENGTH,
    has_body: bool = False,
    more: bytes = b"",
) -> RequestHead:
    """`more`: lines, each with a CRLF before it."""
    fields = Fields(b"\r\nHost: app.test\r\nX-Path: %b%b" % (path, more))
    return RequestHead(method, path, b"app.test", fields, length, has_body)


def response(status: int = 200, length: int = UNKNOWN_LENGTH, has_body: bool = True) -> ResponseHead:
    return ResponseHead(status, b"", Fields(b"\r\nx-status: %d" % status), length, has_body)


def cancel(ear: Ear, stream: Stream) -> None:
    assert ear.codec is not None
    ear.codec.reset(stream, CANCEL)


def reframed(data: bytes, way: str) -> bytes:
    """The same said in other frames, as another sender might: whole frames in, whole frames out.

    `pieces`: DATA and field sections in two frames, HEADERS with padding and a priority; `noise`: between the frames
    those that have no effect.
    """
    out: list[bytes] = []
    pos = len(frames.PREFACE) if data.startswith(frames.PREFACE) else 0
    out.append(data[:pos])
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 3], "big")
        kind, flags, stream_id = data[pos + 3], data[pos + 4], int.from_bytes(data[pos + 5 : pos + 9], "big")
        payload = data[pos + 9 : pos + 9 + size]
        assert len(payload) == size, "the codec writes whole frames"
        pos += 9 + size
        if way == "noise" and kind not in {frames.SETTINGS, frames.CONTINUATION}:
            out.append(frames.frame(0xBE, 0xFF, stream_id, b"of a kind that nobody knows"))
            out.append(frames.frame(frames.PRIORITY, 0, stream_id or 1, b"\0\0\0\0\x0f"))
        half = size // 2
        if way == "pieces" and kind == frames.DATA and half > 0:
            out.append(frames.frame(kind, 0, stream_id, payload[:half]))
            out.append(frames.frame(kind, flags, stream_id, payload[half:]))
        elif way == "pieces" and kind == frames.HEADERS and flags & frames.END_HEADERS and size < 10_000:
            first = b"\x03\0\0\0\0\x10" + payload[:half] + bytes(3)
            more = frames.PADDED | frames.HAS_PRIORITY
            out.append(frames.frame(kind, flags & frames.END_STREAM | more, stream_id, first))
            out.append(frames.frame(frames.CONTINUATION, 0, stream_id, b""))
            out.append(frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, payload[half:]))
        else:
            out.append(frames.frame(kind, flags, stream_id, payload))
    return b"".join(out)
