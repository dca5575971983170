"""How HTTP/2 stacks give windows back: none of them meets a budget against floods, in either role, however small the
pieces in which their users read.

| stack | what it gives back |
|---|---|
| Go net/http | each read, to the connection and to the stream, at once |
| nghttp2 (Node, curl) | half a window |
| hyper (h2) | half a window of the connection, each read of the stream |
| Java's HttpClient | half a window; the connection's is 32 MiB, announced at the start |
| gRPC | a quarter of a window, and a PING for each 16 KiB to 4 MiB received, which measures the bandwidth |
| a careless one | each byte run that it read, in pieces |
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from activator.codec.http2 import frames
from activator.codec.http2.budgets import FRAMES_BURST, STREAM_FRAMES_BURST
from activator.codec.http2.connection import Http2Connection
from activator.codec.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    WINDOW_UPDATE,
    frame,
)
from tests.codec.http2.http2_ends import ClientEar, Ear, ServerEar
from tests.data_plane.proxy.proxy_fakes import request_head

KIB, MIB = 1024, 1024 * 1024


@dataclass
class Stack:
    """How much it must have read before it returns that; 0: each read. `grows`: it begins with a larger window."""

    connection_bytes: int
    stream_bytes: int
    first_window: int = FIRST_WINDOW
    grows: int = 0
    ping_bytes: int = 0


STACKS = {
    "go": Stack(0, 0, 4 * MIB, 1 << 30),
    "nghttp2": Stack(FIRST_WINDOW // 2, FIRST_WINDOW // 2),
    "hyper": Stack(FIRST_WINDOW // 2, 0),
    "java": Stack(16 * MIB, 8 * MIB, 16 * MIB, 32 * MIB - FIRST_WINDOW),
    "grpc": Stack(FIRST_WINDOW // 4, FIRST_WINDOW // 4, ping_bytes=16 * KIB),
    "careless": Stack(0, 0),
}
PIECES = [KIB, 4 * KIB, 32 * KIB, MIB]


class Reader:
    """The peer's side: reads what was sent in pieces, and gives windows back as its stack does."""

    def __init__(self, ear: Ear, stack: Stack, piece: int) -> None:
        self.ear = ear
        self.stack = stack
        self.piece = piece
        self.owed = self.owed_of_stream = self.pinged = 0
        self.out: list[bytes] = []

    def read(self, count: int) -> None:
        while count > 0:
            size = min(self.piece, count)
            count -= size
            self.owed += size
            self.owed_of_stream += size
            self.pinged += size
            if self.owed > self.stack.connection_bytes:
                self.out.append(frame(WINDOW_UPDATE, 0, 0, self.owed.to_bytes(4, "big")))
                self.owed = 0
            if self.owed_of_stream > self.stack.stream_bytes:
                self.out.append(frame(WINDOW_UPDATE, 0, 1, self.owed_of_stream.to_bytes(4, "big")))
                self.owed_of_stream = 0
            if 0 < self.stack.ping_bytes <= self.pinged:
                self.out.append(frame(PING, 0, 0, b"measures"))
                self.pinged = 0


def send(ear: Ear, codec: Http2Connection, stack: Stack, piece: int, size: int) -> None:
    """Send `size` bytes on stream 1 to a reader, all of which must arrive."""
    stream = codec.streams[1]
    reader = Reader(ear, stack, piece)
    if stack.grows:
        reader.out.append(frame(WINDOW_UPDATE, 0, 0, stack.grows.to_bytes(4, "big")))
    read = queued = 0
    chunk = bytes(256 * KIB)
    now_s = 100.0
    while read < size:
        while queued < size and stream.unsent_bytes < len(chunk):
            count = min(len(chunk), size - queued)
            codec.send_body(stream, chunk[:count])
            queued += count
        ear.end_turn()
        ear.transport.sent = b""
        sent = int(stream.sent_bytes)
        reader.read(sent - read)
        assert sent > read or reader.out, "stuck"
        read = sent
        data, reader.out = b"".join(reader.out), []
        now_s += 1e-4
        codec.feed(data, now_s)
        while codec.needs_turn:
            codec.resume()
        assert codec.error is None, codec.error.words
    assert int(codec.budgets.frames) >= FRAMES_BURST - 10, "nothing but the beginning was charged"
    assert int(stream.spare_frames) >= STREAM_FRAMES_BURST - 10


def run(role: str, name: str, piece: int, size: int) -> None:
    stack = STACKS[name]
    settings = frames.settings_frame([(INITIAL_WINDOW_SIZE, stack.first_window)])
    if role == "a client that downloads":
        server = ServerEar()
        server.server.feed(PREFACE + settings, 100.0)
        server.server.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x82\x86\x84\x41\x08app.test"), 100.0)
        server.server.send_head(server.server.streams[1], b"\x88", False)
        send(server, server.server, stack, piece, size)
    else:
        client = ClientEar()
        client.client.feed(settings, 100.0)
        client.request(request_head("POST", chunked=True))
        send(client, client.client, stack, piece, size)


@pytest.mark.parametrize("role", ["a client that downloads", "a pod that takes an upload"])
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", STACKS)
def test_honest_flow_control_meets_no_budget(role: str, name: str, piece: int) -> None:
    run(role, name, piece, 16 * MIB)


@pytest.mark.deep
@pytest.mark.parametrize("role", ["a client that downloads", "a pod that takes an upload"])
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("name", STACKS)
def test_of_a_gigabyte(role: str, name: str, piece: int) -> None:
    run(role, name, piece, 1024 * MIB)
