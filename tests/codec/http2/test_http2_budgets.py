"""Floods of cheap frames: each ends the connection at its bound, and not before; what is kept stays bounded."""

from __future__ import annotations

import pytest

from activator.codec.http1.request import RequestLimits
from activator.codec.http2 import frames
from activator.codec.http2.budgets import (
    FRAMES_BURST,
    FRAMES_PER_DATA,
    FRAMES_PER_REQUEST,
    FRAMES_PER_S,
    LATE_FRAMES,
    RESETS_BURST,
    RESETS_PER_S,
    STREAM_FRAMES_BURST,
)
from activator.codec.http2.connection import SHARE
from activator.codec.http2.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from activator.codec.http2.sending import RESET_REMEMBERED
from tests.codec.http2.http2_ends import ClientEar, ServerEar

HEAD = b"\x82\x86\x84\x41\x08app.test"
UPLOAD = b"\x83\x86\x84\x41\x08app.test"


def server(streams_max: int = 128, limits: RequestLimits | None = None) -> ServerEar:
    ear = ServerEar(limits, streams_max)
    feed(ear, PREFACE + frames.settings_frame([]))
    return ear


def feed(ear: ServerEar, data: bytes, now_s: float = 100.0) -> None:
    ear.server.feed(data, now_s)
    while ear.server.needs_turn:
        ear.server.resume()
    ear.end_turn()


def goes_on(ear: ServerEar) -> bool:
    return ear.server.needs_turn


def calm(ear: ServerEar) -> bool:
    error = ear.server.error
    if error is None:
        return False
    assert error.code == ENHANCE_YOUR_CALM, error.words
    return True


FLOODS = {
    "ping": frame(PING, 0, 0, b"12345678"),
    "ping ack": frame(PING, ACK, 0, b"12345678"),
    "settings ack": frame(SETTINGS, ACK, 0, b""),
    "priority": frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "window update": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "unknown": frame(77, 0, 0, b"x"),
    "goaway": frame(frames.GOAWAY, 0, 0, b"\0" * 8),
    "reset of a stream that is gone": frame(RST_STREAM, 0, 3, b"\0\0\0\x08"),
    "data for a stream that was reset": frame(DATA, 0, 5, b""),
}


LATE = {"reset of a stream that is gone", "data for a stream that was reset"}
STREAM_FLOODS = {
    "window update": frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    "empty data": frame(DATA, 0, 1, b""),
    "padding alone": frame(DATA, PADDED, 1, b"\0"),
}


@pytest.mark.parametrize("kind", STREAM_FLOODS)
def test_a_flood_on_a_stream_ends_that_stream(kind: str) -> None:
    """Other streams of the connection may be other users'."""
    ear = server()
    feed(ear, frame(HEADERS, END_HEADERS, 1, UPLOAD) + frame(HEADERS, END_HEADERS, 3, UPLOAD))
    feed(ear, STREAM_FLOODS[kind] * STREAM_FRAMES_BURST)
    assert not ear.came[1].is_over()
    feed(ear, STREAM_FLOODS[kind])
    assert ear.came[1].code == ENHANCE_YOUR_CALM
    assert not calm(ear) and ear.server.budgets.frames == FRAMES_BURST
    feed(ear, frame(DATA, END_STREAM, 3, b"x"))
    assert ear.came[3].ended
    feed(ear, STREAM_FLOODS[kind] * (FRAMES_BURST // 2))
    assert not calm(ear)
    feed(ear, STREAM_FLOODS[kind] * (FIRST_WINDOW + FRAMES_BURST))
    assert calm(ear), "who goes on is hostile"


@pytest.mark.parametrize("piece", [10, 100, 1_024, 4_096, 65_536])
def test_who_returns_windows_in_small_pieces_is_charged_nothing(piece: int) -> None:
    """Go's net/http returns what each read has taken, to both windows."""
    ear = server()
    size = min(300 * 1024, 10_000 * piece)
    feed(ear, frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD))
    stream = ear.server.streams[1]
    ear.server.send_head(stream, b"\x88", False)
    ear.server.send_body(stream, bytes(size))
    ear.server.send_end(stream, [])
    sent = returned = 0
    while sent < size:
        ear.end_turn()
        sent = int(stream.sent_bytes)
        assert sent > returned
        while returned < sent:
            count = min(piece, sent - returned)
            returned += count
            update = count.to_bytes(4, "big")
            feed(ear, frame(WINDOW_UPDATE, 0, 1, update) + frame(WINDOW_UPDATE, 0, 0, update))
    assert ear.server.error is None and ear.came[1].closed
    assert ear.server.budgets.frames == FRAMES_BURST
    feed(ear, frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))
    assert ear.server.budgets.frames == FRAMES_BURST - 1, "beyond what was sent"


@pytest.mark.parametrize("size", [1, 10, 1_000])
def test_what_was_under_way_for_a_stream_that_we_reset_is_free(size: int) -> None:
    """Small frames of an upload that was answered early, or of downloads that clients have cancelled."""
    ear = server()
    streams = 4
    for at in range(streams):
        feed(ear, frame(HEADERS, END_HEADERS, 2 * at + 1, UPLOAD))
        ear.server.reset(ear.server.streams[2 * at + 1], CANCEL)
    frames_left = int(ear.server.budgets.frames)
    for at in range(streams):
        data = frame(DATA, 0, 2 * at + 1, bytes(size))
        feed(ear, data * (FIRST_WINDOW // size))
    assert ear.server.error is None and ear.server.budgets.frames == frames_left
    feed(ear, frame(DATA, 0, 1, bytes(streams * (FIRST_WINDOW % size) + 1)))
    assert ear.server.budgets.frames == frames_left - 1, "more than its window allowed"


def test_streams_that_were_reset_long_ago_are_not_forgotten() -> None:
    """What is under way for them does not end the connection."""
    ear = server()
    count = RESET_REMEMBERED + 100
    for at in range(count):
        feed(ear, frame(HEADERS, END_HEADERS, 2 * at + 1, UPLOAD), 100.0 + at)
        ear.server.reset(ear.server.streams[2 * at + 1], CANCEL)
    for at in range(count):
        feed(ear, frame(DATA, 0, 2 * at + 1, b"x"), 100.0 + count)
    assert ear.server.error is None
    assert len(ear.server._reset_by_us) <= RESET_REMEMBERED


def test_a_pod_that_resets_or_refuses_its_streams_is_charged_nothing() -> None:
    """A loaded pod answers REFUSED_STREAM, as often as it is asked."""
    ear = ClientEar()
    ear.client.start()
    ear.client.feed(frames.settings_frame([]), 100.0)
    for at in range(3 * RESETS_BURST):
        stream = ear.client.open(None)
        code = REFUSED_STREAM if at % 2 else CANCEL
        ear.client.feed(frame(RST_STREAM, 0, int(stream.id), code.to_bytes(4, "big")), 100.0)
        assert stream.is_closed
    assert ear.client.error is None
    bad = frame(HEADERS, END_HEADERS, 0, b"\x82")
    for _ in range(2 * RESETS_BURST):
        stream = ear.client.open(None)
        ear.client.feed(bad[:5] + stream.id_bytes + bad[9:], 100.0)  # a response with a field of requests
        assert stream.is_closed
    assert ear.client.error is None


def test_a_stream_below_the_last_one() -> None:
    """RFC 9113 5.1.1."""
    ear = server()
    feed(ear, frame(HEADERS, END_HEADERS | END_STREAM, 5, HEAD) + frame(HEADERS, END_HEADERS | END_STREAM, 3, HEAD))
    assert ear.server.error is not None and ear.server.error.code == frames.PROTOCOL_ERROR


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_ends_at_its_bound_and_not_before(kind: str) -> None:
    ear = server()
    feed(ear, frame(HEADERS, END_HEADERS, 1, UPLOAD) + frame(HEADERS, END_HEADERS, 3, UPLOAD))
    feed(ear, frame(HEADERS, END_HEADERS, 5, UPLOAD) + frame(RST_STREAM, 0, 3, b"\0\0\0\x08"))
    ear.server.reset(ear.server.streams[5], CANCEL)
    left = int(ear.server.budgets.frames)
    assert left == FRAMES_BURST
    late = LATE_FRAMES if kind in LATE else 0  # as many may have been under way
    feed(ear, FLOODS[kind] * (left + late))
    assert ear.server.error is None
    feed(ear, FLOODS[kind])
    assert calm(ear)
    sent = ear.transport.sent
    feed(ear, FLOODS[kind] * 10)
    assert ear.transport.sent == sent, "nothing is parsed any more"


def test_settings_cost_more_the_more_streams_there_are() -> None:
    ear = server()
    feed(ear, frames.settings_frame([]) * (FRAMES_BURST // 2))
    assert ear.server.error is None
    feed(ear, frames.settings_frame([]))
    assert calm(ear)
    ear = server()
    feed(ear, b"".join([frame(HEADERS, END_HEADERS, 2 * at + 1, UPLOAD) for at in range(40)]))
    feed(ear, frames.settings_frame([]) * (FRAMES_BURST // 12))
    assert ear.server.error is None
    feed(ear, frames.settings_frame([]) * 2)
    assert calm(ear)


@pytest.mark.parametrize("piece", [b"", b"\x84"])
def test_pieces_of_a_field_section(piece: bytes) -> None:
    ear = server(limits=RequestLimits(header_bytes=100))
    feed(ear, frame(HEADERS, 0, 1, HEAD))
    feed(ear, frame(CONTINUATION, 0, 1, piece) * FRAMES_BURST)
    assert ear.server.error is None and ear.server._block_bytes <= ear.server.block_bytes_max
    feed(ear, frame(CONTINUATION, 0, 1, piece))
    assert calm(ear) and not ear.server._block


def test_a_field_section_that_is_too_long() -> None:
    ear = server(limits=RequestLimits(header_bytes=100))
    feed(ear, frame(HEADERS, 0, 1, b"\x84" * 16_384) + frame(CONTINUATION, 0, 1, b"\x84" * 100))
    assert ear.server.error is None
    feed(ear, frame(CONTINUATION, 0, 1, b"\x84"))
    assert calm(ear)


@pytest.mark.parametrize("kind", ["by the client", "malformed", "too many", "window", "length"])
def test_streams_that_are_reset(kind: str) -> None:
    """CVE-2023-44487 and CVE-2025-8671."""
    ear = server(streams_max=0 if kind == "too many" else 128)

    def one(at: int) -> bytes:
        stream_id = 2 * at + 1
        head = frame(HEADERS, END_HEADERS, stream_id, UPLOAD)
        if kind == "by the client":
            return head + frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08")
        if kind == "malformed":
            return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, b"\x82")
        if kind == "window":
            return head + frame(WINDOW_UPDATE, 0, stream_id, b"\0\0\0\0")
        if kind == "length":
            return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, UPLOAD + b"\x5c\x014")
        return head

    for at in range(RESETS_BURST):
        feed(ear, one(at))
    assert ear.server.error is None and ear.server.budgets.resets == 0
    feed(ear, one(RESETS_BURST))
    assert calm(ear) and len(ear.server.streams) <= 1
    assert len(ear.server._reset_by_us) <= RESET_REMEMBERED


def test_time_refills_both_and_no_more_than_they_hold() -> None:
    ear = server()
    feed(ear, FLOODS["ping"] * FRAMES_BURST)
    feed(ear, FLOODS["ping"] * int(2 * FRAMES_PER_S), 102.0)
    assert ear.server.error is None and ear.server.budgets.frames == 0
    budgets = ear.server.budgets
    budgets.resets = 0
    budgets.refill(103.5)
    assert budgets.resets == int(1.5 * RESETS_PER_S) and budgets.frames == int(1.5 * FRAMES_PER_S)
    budgets.refill(104.0)
    assert budgets.resets == int(1.5 * RESETS_PER_S), "whole seconds"
    budgets.refill(1e9)
    assert budgets.frames == FRAMES_BURST and budgets.resets == RESETS_BURST
    feed(ear, FLOODS["ping"] * (FRAMES_BURST + 1), 1e9)
    assert calm(ear)


def test_what_is_useful_earns() -> None:
    ear = server()
    feed(ear, frame(HEADERS, END_HEADERS, 1, UPLOAD) + FLOODS["ping"] * FRAMES_BURST)
    assert ear.server.budgets.frames == 0
    feed(ear, frame(DATA, 0, 1, b"x"))
    assert ear.server.budgets.frames == FRAMES_PER_DATA
    feed(ear, frame(HEADERS, END_HEADERS, 3, UPLOAD))
    assert ear.server.budgets.frames == FRAMES_PER_DATA + FRAMES_PER_REQUEST


def test_what_a_turn_leaves_is_kept_once() -> None:
    ear = server()
    data = FLOODS["ping"] * (SHARE + 100)
    ear.server.feed(data, 100.0)
    assert goes_on(ear) and ear.server._kept is data, "no copy"
    ear.server.feed(FLOODS["ping"], 100.0)
    assert goes_on(ear) and len(ear.server._kept) == 17 * 101
    ear.server.resume()
    assert not goes_on(ear) and ear.server._kept == b"" and ear.server.frames_total == SHARE + 102
    ear.end_turn()
    assert ear.transport.sent.count(b"\x00\x00\x08\x06\x01") == SHARE + 101


def test_a_frame_in_part_is_all_that_is_kept() -> None:
    ear = server()
    one = frame(HEADERS, END_HEADERS, 1, HEAD + b"\x00\x01a\x7f\x81\x7c" + b"x" * 16_000)
    for at in range(len(one)):
        ear.server.feed(one[at : at + 1], 100.0)
        assert len(ear.server._kept) <= len(one)
        assert ear.server.is_within_section() == (at + 1 < len(one))
    assert ear.server._kept == b""
    large = frame(DATA, 0, 1, b"y" * 16_384)
    for at in range(0, len(large), 10):
        ear.server.feed(large[at : at + 10], 100.0)
        assert len(ear.server._kept) < 10
    assert ear.came[1].body == b"y" * 16_384 and ear.came[1].head is not None
