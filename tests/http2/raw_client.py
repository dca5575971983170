"""A raw HTTP/2 client for tests: it sends any bytes, and reads frames one by one without judging them.

Rules
  1. Every wait is bounded: `next` answers with a frame, `CLOSED` or `SILENT`.
  2. Nothing is sent that the test did not ask for, but acknowledgements of SETTINGS and, where `replenish` is on,
     flow-control windows for DATA that was read.
  3. A connection that the other side ended is no exception: sending goes on into the void, and `next` says `CLOSED`.
"""

from __future__ import annotations

import enum
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_SIZE: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1
PATIENCE_S: Final = 2.0

Fields = Sequence[tuple[str | bytes, str | bytes]]


class Type(enum.IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(enum.IntFlag):
    NONE = 0
    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Code(enum.IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(enum.IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Ending(enum.Enum):
    CLOSED = "the connection is closed"
    SILENT = "nothing came in time"


CLOSED: Final = Ending.CLOSED
SILENT: Final = Ending.SILENT


def code_name(code: int) -> str:
    return Code(code).name if code in Code.__members__.values() else f"{code:#x}"


@dataclass(frozen=True, slots=True)
class Frame:
    type: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or GOAWAY frame."""
        at = 4 if self.type == Type.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def ends_stream(self) -> bool:
        return self.type in (Type.DATA, Type.HEADERS) and bool(self.flags & Flag.END_STREAM)

    @property
    def is_ack(self) -> bool:
        return self.type in (Type.SETTINGS, Type.PING) and bool(self.flags & Flag.ACK)

    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HL", self.payload))

    def __str__(self) -> str:
        name = Type(self.type).name if self.type in Type.__members__.values() else f"type {self.type}"
        more = f" {code_name(self.code)}" if self.type in (Type.RST_STREAM, Type.GOAWAY) else ""
        debug = f" {self.payload[8:]!r}" if self.type == Type.GOAWAY and self.payload[8:] else ""
        return f"{name}(stream {self.stream}, flags {self.flags:#x}, {len(self.payload)} bytes{more}{debug})"


Event = Frame | Ending


# --- bytes of frames ---


def frame(type_: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, type_, flags, stream) + payload


def data_frame(stream: int, data: bytes, *, end: bool = False, pad: bytes | None = None) -> bytes:
    flags = Flag.END_STREAM if end else Flag.NONE
    if pad is not None:
        return frame(Type.DATA, flags | Flag.PADDED, stream, bytes([len(pad)]) + data + pad)
    return frame(Type.DATA, flags, stream, data)


def priority_field(depends_on: int = 0, weight: int = 255, *, exclusive: bool = False) -> bytes:
    """`weight` as it is on the wire, one less than its value."""
    return struct.pack(">LB", depends_on | (0x8000_0000 if exclusive else 0), weight)


def headers_frame(
    stream: int,
    block: bytes,
    *,
    end: bool = True,
    whole: bool = True,
    pad: int | None = None,
    priority: bytes | None = None,
) -> bytes:
    """`end`: END_STREAM; `whole`: END_HEADERS."""
    flags = (Flag.END_STREAM if end else Flag.NONE) | (Flag.END_HEADERS if whole else Flag.NONE)
    payload = block
    if priority is not None:
        flags |= Flag.PRIORITY
        payload = priority + payload
    if pad is not None:
        flags |= Flag.PADDED
        payload = bytes([pad]) + payload + bytes(pad)
    return frame(Type.HEADERS, flags, stream, payload)


def continuation_frame(stream: int, block: bytes, *, whole: bool = True) -> bytes:
    return frame(Type.CONTINUATION, Flag.END_HEADERS if whole else Flag.NONE, stream, block)


def priority_frame(stream: int, priority: bytes) -> bytes:
    return frame(Type.PRIORITY, 0, stream, priority)


def reset_frame(stream: int, code: int = Code.CANCEL) -> bytes:
    return frame(Type.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def settings_frame(*pairs: tuple[int, int]) -> bytes:
    return frame(Type.SETTINGS, 0, 0, b"".join(struct.pack(">HL", *pair) for pair in pairs))


SETTINGS_ACK: Final = frame(Type.SETTINGS, Flag.ACK)


def ping_frame(data: bytes = bytes(8), *, ack: bool = False) -> bytes:
    return frame(Type.PING, Flag.ACK if ack else 0, 0, data)


def goaway_frame(last: int = 0, code: int = 0, debug: bytes = b"") -> bytes:
    return frame(Type.GOAWAY, 0, 0, struct.pack(">LL", last, code) + debug)


def window_frame(stream: int, increment: int) -> bytes:
    return frame(Type.WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def push_promise_frame(stream: int, promised: int, block: bytes) -> bytes:
    return frame(Type.PUSH_PROMISE, Flag.END_HEADERS, stream, promised.to_bytes(4, "big") + block)


def integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    """An integer of HPACK (RFC 7541, 5.1); `first` has the bits before the prefix."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([first | value])
    out = bytearray([first | limit])
    value -= limit
    while value >= 128:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    return bytes([*out, value])


def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
    """A literal field with a new name, not Huffman-coded, so that any bytes can be sent; `first`: 0x40 to index it."""
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def literals(fields: Fields) -> bytes:
    """A block that changes no table, and takes names and values that an encoder would not."""
    return b"".join(literal(_bytes(name), _bytes(value)) for name, value in fields)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def trusting(ca: Path) -> ssl.SSLContext:
    """For clients that speak HTTP/2 over TLS. It is complete: OpenSSL frees what a setter replaces, and a handshake of
    another thread with the same context may read that just then."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    return context


# --- the client ---


class RawClient:
    """One connection. `settings`: what the server announced; `heads`: the decoded header blocks by their stream."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        path: str = "/",
        authority: str | None = None,
        tls: ssl.SSLContext | None = None,  # of `trusting`
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.path = path
        self.authority = f"{host}:{port}" if authority is None else authority
        self.scheme = "http" if tls is None else "https"
        self.patience_s = patience_s
        self.settings: dict[int, int] = {}
        self.encoder = hpack.Encoder()
        self.heads: dict[int, list[list[tuple[str, str]]]] = {}
        self.bodies: dict[int, int] = {}
        self.resets: dict[int, int] = {}
        self.log: list[str] = []
        self.replenish = False
        self.goaway: Frame | None = None
        self.closed = False
        self._decoder = hpack.Decoder()
        self._block = b""
        self._received = bytearray()
        self.socket = socket.create_connection((host, port), timeout=patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            secured = tls.wrap_socket(self.socket, server_hostname=host)
            assert secured.selected_alpn_protocol() == "h2", secured.selected_alpn_protocol()
            self.socket = secured

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        self.closed = True

    # --- sending ---

    def send(self, data: bytes) -> bool:
        """Whether all of it went out; not so where the connection has ended, or nobody reads in time."""
        if self.closed:
            return False
        self.socket.settimeout(self.patience_s)
        try:
            self.socket.sendall(data)
        except OSError:  # TimeoutError included; what was received before can still be read
            return False
        return True

    def fields(self, method: str = "GET", extra: Fields = (), without: Iterable[str] = ()) -> Fields:
        """The fields of a plain request."""
        plain = [
            (":method", method),
            (":scheme", self.scheme),
            (":path", self.path),
            (":authority", self.authority),
        ]
        left_out = set(without)
        return [*(field for field in plain if field[0] not in left_out), *extra]

    def block(self, fields: Fields) -> bytes:
        """Encoded with the table of this connection."""
        encoded: bytes = self.encoder.encode(list(fields))
        return encoded

    def request(self, stream: int, method: str = "GET", extra: Fields = (), *, end: bool = True) -> bool:
        return self.send(headers_frame(stream, self.block(self.fields(method, extra)), end=end))

    def start(self, *settings: tuple[int, int]) -> None:
        """The preface of the connection, without waiting for the server's."""
        self.send(PREFACE + settings_frame(*settings))

    def handshake(self, *settings: tuple[int, int]) -> None:
        """Preface and SETTINGS of both sides, each acknowledged."""
        self.start(*(settings or ((Setting.INITIAL_WINDOW_SIZE, DEFAULT_WINDOW),)))
        ours = theirs = False
        while not (ours and theirs):
            event = self.next()
            if isinstance(event, Ending):
                raise AssertionError(f"no handshake: {event.value}; {self.log}")
            if event.type == Type.SETTINGS:
                ours, theirs = ours or event.is_ack, theirs or not event.is_ack

    def pump(self, data: bytes, *, read: bool = True, bound_s: float = 10.0, stall_s: float = 1.0) -> int:
        """Sends much, and reads meanwhile if told to, until the connection ends or nothing goes out for `stall_s`.

        How many bytes went out.
        """
        left = memoryview(data)
        now_s = time.monotonic()
        give_up_s, stalled_s = now_s + bound_s, now_s + stall_s
        while left and not self.is_ended and (now_s := time.monotonic()) < min(give_up_s, stalled_s):
            if read:
                self.drain()
            self.socket.settimeout(0)
            try:
                sent = self.socket.send(left[:65_536])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                select.select([self.socket] if read else [], [self.socket], [], 0.05)
            except OSError:
                break
            else:
                left = left[sent:]
                stalled_s = now_s + stall_s
        return len(data) - len(left)

    @property
    def is_ended(self) -> bool:
        """Closed, or told to be with an error."""
        return self.closed or (self.goaway is not None and self.goaway.code != Code.NO_ERROR)

    # --- reading ---

    def next(self, patience_s: float | None = None) -> Event:
        """The next frame. SETTINGS are acknowledged, header blocks decoded."""
        found = self._read(time.monotonic() + (self.patience_s if patience_s is None else patience_s))
        if len(self.log) < 200:
            self.log.append(str(found) if isinstance(found, Frame) else found.value)
        if isinstance(found, Frame):
            self._take(found)
        return found

    def drain(self) -> int:
        """Reads what has come by now; how many frames."""
        count = 0
        while isinstance(self.next(0), Frame):
            count += 1
        return count

    def until_end_of(self, stream: int, patience_s: float | None = None) -> Event:
        """The frame that ends a stream, or the connection."""
        give_up_s = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        while True:
            event = self.next(max(give_up_s - time.monotonic(), 0))
            if isinstance(event, Ending):
                return event
            if event.stream == stream and (event.ends_stream or event.type == Type.RST_STREAM):
                return event

    def until_closed(self, patience_s: float | None = None) -> bool:
        """Whether the connection ends in time."""
        give_up_s = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        while True:
            event = self.next(max(give_up_s - time.monotonic(), 0))
            if isinstance(event, Ending):
                return event is CLOSED

    def status(self, stream: int) -> int | None:
        """The status of the response, once its head is there; interim ones do not count."""
        for head in self.heads.get(stream, []):
            for name, value in head:
                if name == ":status" and not value.startswith("1"):
                    return int(value)
        return None

    def _read(self, give_up_s: float) -> Event:
        while True:
            if len(self._received) >= 9:
                end = 9 + int.from_bytes(self._received[:3], "big")
                if len(self._received) >= end:
                    head, payload = bytes(self._received[:9]), bytes(self._received[9:end])
                    del self._received[:end]
                    return Frame(head[3], head[4], int.from_bytes(head[5:9], "big") & MAX_WINDOW, payload)
            if self.closed:
                return CLOSED
            self.socket.settimeout(max(give_up_s - time.monotonic(), 0))
            try:
                received = self.socket.recv(262_144)
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return SILENT
            except OSError:  # a reset
                received = b""
            if received:
                self._received += received
            else:
                self.closed = True

    def _take(self, event: Frame) -> None:
        if event.type == Type.SETTINGS and not event.is_ack:
            self.settings |= event.settings()
            self.send(SETTINGS_ACK)
        elif event.type in (Type.HEADERS, Type.CONTINUATION):
            self._block += _fragment(event)
            if event.flags & Flag.END_HEADERS:
                block, self._block = self._block, b""
                head = [(_text(name), _text(value)) for name, value in self._decoder.decode(block, raw=True)]
                self.heads.setdefault(event.stream, []).append(head)
        elif event.type == Type.DATA:
            self.bodies[event.stream] = self.bodies.get(event.stream, 0) + len(event.payload)
            if self.replenish and event.payload:
                size = len(event.payload)
                self.send(window_frame(0, size) + (b"" if event.ends_stream else window_frame(event.stream, size)))
        elif event.type == Type.RST_STREAM:
            self.resets[event.stream] = event.code
        elif event.type == Type.GOAWAY:
            self.goaway = event


def _fragment(event: Frame) -> bytes:
    payload = event.payload
    if event.type == Type.HEADERS:
        padding = 0
        if event.flags & Flag.PADDED:
            padding, payload = payload[0], payload[1:]
        if event.flags & Flag.PRIORITY:
            payload = payload[5:]
        payload = payload[: len(payload) - padding]
    return payload


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
