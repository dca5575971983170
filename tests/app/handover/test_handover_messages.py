"""The connection of the two processes of an upgrade."""

from __future__ import annotations

import asyncio
import os
import struct

import pytest
import uvloop

from activator.app.handover.messages import PROTOCOL, Adopted, GoneError, Link, Offer, Refused
from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX, pair


def test_more_descriptors_than_a_frame_can_carry_arrive_in_order() -> None:
    async def scenario() -> None:
        one, other = map(Link, pair())
        count = 3 * DESCRIPTORS_AT_ONCE_MAX + 1
        inodes = []
        given = []
        for _ in range(count):
            reading, writing = os.pipe()
            inodes.append(os.fstat(reading).st_ino)
            given.append(reading)
            os.close(writing)
        offer = Offer(PROTOCOL, "1", (("127.0.0.1:80", count),), 7)
        one.send(offer, given)
        message, descriptors = await other.receive(5.0)
        assert message == offer
        assert [os.fstat(descriptor).st_ino for descriptor in descriptors] == inodes
        for descriptor in descriptors:
            os.close(descriptor)
        one.send(Adopted())
        assert await other.receive(5.0) == (Adopted(), [])
        one.close()
        other.close()

    uvloop.run(scenario())


def test_the_end_of_the_other_process_is_reported_after_its_last_message() -> None:
    async def scenario() -> None:
        one, other = map(Link, pair())
        one.send(Refused("why"))
        one.close()
        assert await other.receive(5.0) == (Refused("why"), [])
        for _ in range(2):
            with pytest.raises(GoneError, match="has ended"):
                await other.receive(5.0)
        other.close()

    uvloop.run(scenario())


def test_a_process_that_does_not_answer_is_given_up() -> None:
    async def scenario() -> None:
        one, other = map(Link, pair())
        with pytest.raises(GoneError, match=r"no answer within 0\.05 s"):
            await other.receive(0.05)
        one.close()
        other.close()

    uvloop.run(scenario())


def test_what_this_version_cannot_read_ends_the_connection() -> None:
    async def scenario() -> None:
        sock, others = pair()
        link = Link(others)
        sock.sendall(struct.pack("<II", 3, 0) + b"\x93\x01\x02")
        with pytest.raises(GoneError, match="cannot read"):
            await link.receive(5.0)
        link.close()
        sock.close()

    uvloop.run(scenario())


def test_descriptors_that_nothing_takes_are_closed() -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        one, other = map(Link, pair())
        one.send(Adopted(), [os.dup(0), os.dup(0)])
        await asyncio.sleep(0.05)
        one.close()
        other.close()
        assert len(os.listdir("/proc/self/fd")) == before

    uvloop.run(scenario())
