"""Frames and descriptors between two processes' ends, over real socket pairs."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from activator.runtime import wire as wire_module
from activator.runtime.wire import CODE_BYTES, DESCRIPTORS_AT_ONCE_MAX, SEALED_BYTES_MAX, Wire, pair


class End:
    """One end, and what it has received."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[bytes] = []
        self.descriptors: list[int] = []
        self.closed = 0
        self.errors: list[Exception] = []
        self.wire = Wire(sock, self.received, self.is_closed, self.errors.append)

    def received(self, data: memoryview, descriptors: list[int]) -> None:
        self.frames.append(bytes(data))
        self.descriptors.extend(descriptors)
        if bytes(data) == b"raise":
            raise RuntimeError("of the receiver")

    def is_closed(self) -> None:
        self.closed += 1


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not check():  # noqa: ASYNC110  (of another end of the wire)
            await asyncio.sleep(0.001)


def run(story: Callable[[End, End], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        one, other = (End(sock) for sock in pair())
        try:
            await story(one, other)
        finally:
            one.wire.close()
            other.wire.close()
            for descriptor in (*one.descriptors, *other.descriptors):
                os.close(descriptor)

    asyncio.run(told())


def test_frames_arrive_whole_and_in_order_whatever_their_size() -> None:
    frames = [b"", b"x", bytes(100), os.urandom(3_000_000), b"last", os.urandom(300_000)]

    async def story(one: End, other: End) -> None:
        for frame in frames:
            one.wire.send(frame)
        one.wire.send_now(b"now")
        await until(lambda: len(other.frames) == len(frames) + 1)
        assert other.frames == [*frames, b"now"]
        assert one.wire.backlog_bytes == 0

    run(story)


def test_descriptors_come_with_their_frame() -> None:
    async def story(one: End, other: End) -> None:
        read, write = os.pipe()
        before = len(os.listdir("/proc/self/fd"))
        one.wire.send(b"first")
        one.wire.send(b"with", [write])
        one.wire.send(b"after")
        await until(lambda: len(other.frames) == 3)
        assert len(other.descriptors) == 1
        assert len(os.listdir("/proc/self/fd")) == before, "the sender has none any more"
        os.write(other.descriptors[0], b"through")
        assert os.read(read, 100) == b"through"
        os.close(read)

    run(story)


def test_descriptors_behind_a_large_frame_and_many_at_once() -> None:
    async def story(one: End, other: End) -> None:
        read, write = os.pipe()
        one.wire.send(os.urandom(2_000_000), [os.dup(write)])
        one.wire.send(b"many", [os.dup(write) for _ in range(DESCRIPTORS_AT_ONCE_MAX)])
        await until(lambda: len(other.frames) == 2)
        assert len(other.descriptors) == 1 + DESCRIPTORS_AT_ONCE_MAX
        os.close(read)
        os.close(write)

    run(story)


def test_the_end_of_the_other_side_is_told_once() -> None:
    async def story(one: End, other: End) -> None:
        other.wire.send_now(b"bye")
        other.wire.close()
        await until(lambda: one.closed == 1)
        assert one.frames == [b"bye"]
        one.wire.send(b"into nothing")
        await asyncio.sleep(0.01)
        assert (one.closed, other.closed) == (1, 0)

    run(story)


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.parametrize("sends", [False, True])
def test_the_end_behind_unread_frames_is_noticed_after_a_reset(
    run_loop: Callable[..., None], over_tcp: bool, sends: bool
) -> None:
    """The other process closes with unread data, while this one does not run; uvloop reports that once."""
    size = 5_000 if over_tcp else 50_000  # TCP drops what was not on its way; the others take several reads
    frames = [os.urandom(size) for _ in range(3)]

    async def story() -> None:
        ours, theirs = tcp_pair() if over_tcp else pair()
        one = End(ours)
        one.wire.send_now(b"not read")
        for frame in frames:
            theirs.sendall(struct.pack("<II", len(frame), 0) + frame)
        theirs.close()
        time.sleep(0.01)  # noqa: ASYNC251  (the reset is here before the loop turns)
        if sends:
            one.wire.send_now(b"too late")
        await until(lambda: one.closed > 0)
        assert (one.frames, one.closed, one.errors) == (frames, 1, [])

    run_loop(story())


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def test_descriptors_that_cannot_be_sent_are_closed() -> None:
    async def story(one: End, other: End) -> None:
        read, write = os.pipe()
        one.wire.close()
        one.wire.send(b"late", [write])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(write)
        os.close(read)

    run(story)


class AnySeal:
    """Whatever comes fits."""

    def code(self, data: bytes) -> bytes:
        return bytes(CODE_BYTES)

    def fits(self, data: memoryview, code: memoryview) -> bool:
        return True


def test_a_peer_of_another_machine_can_make_us_hold_less() -> None:
    async def story() -> None:
        failed: list[Exception] = []
        own, other = pair()
        wire = Wire(own, lambda data, _: None, lambda: None, failed.append, AnySeal())
        other.sendall(struct.pack("<II", SEALED_BYTES_MAX + 1, 0))
        await until(lambda: not wire.is_open)
        assert "a frame of" in str(failed[0])
        other.close()
        own, other = pair()
        wire = Wire(own, lambda data, _: None, lambda: None, failed.append, AnySeal())
        for _ in range(SEALED_BYTES_MAX // 1_000_000 + 2):
            wire.send(bytes(1_000_000))
        assert not wire.is_open
        other.close()

    asyncio.run(story())


def test_what_a_receiver_raises_is_told_and_the_next_frame_comes() -> None:
    async def story(one: End, other: End) -> None:
        one.wire.send(b"raise")
        one.wire.send(b"next")
        await until(lambda: len(other.frames) == 2)
        assert [str(error) for error in other.errors] == ["of the receiver"]

    run(story)


def test_a_peer_that_does_not_read_is_given_up() -> None:
    async def told() -> None:
        own, others = pair()
        end = End(own)
        one_mib = bytes(1 << 20)
        while end.wire.is_open:
            end.wire.send(one_mib)
            await asyncio.sleep(0)
            assert end.wire.backlog_bytes <= wire_module.WIRE_BACKLOG_BYTES_MAX + (2 << 20)
        await until(lambda: end.closed == 1)
        others.close()

    asyncio.run(told())


@pytest.mark.parametrize(
    "header", [struct.pack("=II", (1 << 31), 0), struct.pack("=II", 1, 1000), struct.pack("=II", 0, 1)]
)
def test_what_is_no_frame_ends_the_connection(header: bytes) -> None:
    async def told() -> None:
        own, others = pair()
        end = End(own)
        others.send(header + b"x")
        await until(lambda: end.closed == 1)
        assert len(end.errors) == 1 and end.frames == []
        others.close()

    asyncio.run(told())
