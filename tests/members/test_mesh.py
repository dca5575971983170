"""The port of the members over real sockets: who is let in, what strangers can cost, what dialling tells."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from activator.members import mesh as mesh_module
from activator.members.handshake import (
    PROTOCOL,
    Greeting,
    HandshakeClient,
    HandshakeError,
    NotWantedError,
    PeerIdentity,
    Process,
    Seal,
)
from activator.members.mesh import HANDSHAKES_MAX, HANDSHAKES_OF_ONE_MAX, Connection, Mesh, VacantError, split
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.wire import Wire

KEY = b"k" * 32
NOWHERE = Process("", 0, 0)


class Replica:
    """A mesh, and whom it has met."""

    def __init__(self, number: int, key: bytes = KEY, group: str = "edge") -> None:
        self.number = number
        self.met: list[Connection] = []
        self.refusal: HandshakeError | None = None
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.address = ""
        self.mesh = Mesh(key, group, self.identity, self.accepts, self.met.append, time.monotonic, self.tasks)

    def identity(self, data_plane: int) -> PeerIdentity:
        return PeerIdentity("edge", self.number, data_plane, self.address, NOWHERE)

    def accepts(self, greeting: Greeting) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        self.mesh.close()
        await self.tasks.close()
        for one in self.met:
            one.sock.close()


def run(story: Callable[[Replica, Replica], Coroutine[Any, Any, None]], **other: Any) -> None:
    async def told() -> None:
        one, two = Replica(1), Replica(2, **other)
        one.address = one.mesh.listen("127.0.0.1:0")
        try:
            await story(one, two)
        finally:
            await one.close()
            await two.close()
        assert one.errors == two.errors == []

    asyncio.run(told())


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not check():  # noqa: ASYNC110  (of the other side)
            await asyncio.sleep(0.001)


async def stranger(address: str) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, split(address))
    return sock


def test_two_that_have_the_key_talk() -> None:
    async def story(one: Replica, two: Replica) -> None:
        dialled = await two.mesh.dial(one.address, 7, 9)
        await until(lambda: bool(one.met))
        accepted = one.met.pop()
        assert (accepted.own, accepted.identity.data_plane, accepted.identity.replica) == (9, 7, 2)
        assert (dialled.own, dialled.identity.data_plane, dialled.identity.replica) == (7, 9, 1)
        assert dialled.is_dialled and not accepted.is_dialled
        heard: list[bytes] = []
        failed: list[Exception] = []
        wires = [
            Wire(end.sock, lambda data, _: heard.append(bytes(data)), lambda: None, failed.append, Seal(end.keys))
            for end in (dialled, accepted)
        ]
        wires[0].send(b"there")
        wires[1].send(b"back")
        await until(lambda: len(heard) == 2)
        assert sorted(heard) == [b"back", b"there"] and failed == []
        for wire in wires:
            wire.close()

    run(story)


def test_a_frame_that_is_not_signed_ends_the_connection() -> None:
    async def story(one: Replica, two: Replica) -> None:
        dialled = await two.mesh.dial(one.address, 0, 0)
        await until(lambda: bool(one.met))
        accepted = one.met.pop()
        heard: list[bytes] = []
        failed: list[Exception] = []
        ended: list[bool] = []
        wire = Wire(
            accepted.sock,
            lambda data, _: heard.append(bytes(data)),
            lambda: ended.append(True),
            failed.append,
            Seal(accepted.keys),
        )
        seal = Seal(dialled.keys)
        good = struct.pack("<II", 2, 0) + b"ok" + seal.code(b"ok")
        await asyncio.get_running_loop().sock_sendall(dialled.sock, good + good)
        await until(lambda: bool(ended))
        assert heard == [b"ok"], "the second time it is not the next frame"
        assert "has not signed" in str(failed[0]) and not wire.has_ended
        dialled.sock.close()

    run(story)


def test_an_address_where_nobody_listens_is_vacant() -> None:
    async def story(one: Replica, two: Replica) -> None:
        one.mesh.close()
        with pytest.raises(VacantError):
            await two.mesh.dial(one.address, 0, 0)

    run(story)


def test_who_has_another_key_is_refused_on_both_sides() -> None:
    async def story(one: Replica, two: Replica) -> None:
        with pytest.raises(HandshakeError, match="we do not have the key"):
            await two.mesh.dial(one.address, 0, 0)
        await until(lambda: one.mesh.refused_total.total() == 1)
        assert one.met == [] and two.mesh.refused_total["refused"] == 1

    run(story, key=b"x" * 32)


def test_what_is_not_wanted_now_is_said_and_not_counted() -> None:
    async def story(one: Replica, two: Replica) -> None:
        one.refusal = NotWantedError("not in this view")
        with pytest.raises(NotWantedError, match="not in this view"):
            await two.mesh.dial(one.address, 3, 4)
        assert one.mesh.refused_total.total() == two.mesh.refused_total.total() == 0

    run(story)


def test_one_does_not_meet_itself() -> None:
    async def story(one: Replica, two: Replica) -> None:
        two.number = one.number
        with pytest.raises(HandshakeError, match="this replica itself"):
            await two.mesh.dial(one.address, 0, 0)

    run(story)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x01",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\x7f",
        b"\x04\x00\x00\x00ab",
        b"\x04\x00\x00\x00abcd",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_strangers_get_nothing(said: bytes) -> None:
    async def story(one: Replica, two: Replica) -> None:
        sock = await stranger(one.address)
        await asyncio.get_running_loop().sock_sendall(sock, said)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.get_running_loop().sock_recv(sock, 4096):
                answer += part
        assert len(answer) < 100 and one.met == []
        sock.close()
        await until(lambda: one.mesh.refused_total.total() == 1)
        dialled = await two.mesh.dial(one.address, 0, 0)
        dialled.sock.close()

    run(story)


def test_a_stranger_with_a_good_opening_gets_no_name_and_no_code() -> None:
    """All that the port has ever said to it: a random number, and a refusal."""

    async def story(one: Replica, two: Replica) -> None:
        loop = asyncio.get_running_loop()
        dialer = HandshakeClient(b"x" * 32, PeerIdentity("edge", 2, 0, "", NOWHERE), 0, 0, b"n" * 32)
        sock = await stranger(one.address)
        await loop.sock_sendall(sock, struct.pack("<I", len(dialer.opening)) + dialer.opening)
        said = await loop.sock_recv(sock, 4096)
        proof = dialer.take_challenge(said[4:])
        await loop.sock_sendall(sock, struct.pack("<I", len(proof)) + proof)
        with contextlib.suppress(ConnectionResetError):
            while part := await loop.sock_recv(sock, 4096):
                said += part
        sock.close()
        assert len(said) < 120 and b"does not have the key" in said
        assert one.address.encode() not in said and b"edge" not in said
        await until(lambda: one.mesh.refused_total["refused"] == 1)

    run(story)


def test_a_member_of_a_former_version_gets_a_refusal_that_it_can_read() -> None:
    async def story(one: Replica, two: Replica) -> None:
        loop = asyncio.get_running_loop()
        former = msgspec.msgpack.encode(
            ["greeting", "activator-members", 2, 1, b"n" * 32, PeerIdentity("edge", 2, 0, "10.0.0.2:8015", NOWHERE), 0]
        )
        sock = await stranger(one.address)
        await loop.sock_sendall(sock, struct.pack("<I", len(former)) + former)
        said = await loop.sock_recv(sock, 4096)
        tag, version, reason = msgspec.msgpack.decode(said[4:])
        assert (tag, version) == ("refusal", PROTOCOL) and reason.startswith(
            "version 2 of the protocol is not spoken here"
        )
        sock.close()

    run(story)


def test_whoever_says_nothing_is_closed_after_a_time(request: pytest.FixtureRequest) -> None:
    async def story(one: Replica, two: Replica) -> None:
        sock = await stranger(one.address)
        began_s = time.monotonic()
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        assert mesh_module.HANDSHAKE_S * 0.8 < time.monotonic() - began_s < mesh_module.HANDSHAKE_S + 5.0
        sock.close()

    run(story)


def test_a_flood_of_strangers_is_bounded_and_over_soon() -> None:
    """From one host at most HANDSHAKES_OF_ONE_MAX are under way; the others are closed at once."""

    async def story(one: Replica, two: Replica) -> None:
        assert HANDSHAKES_OF_ONE_MAX < HANDSHAKES_MAX
        socks = [await stranger(one.address) for _ in range(HANDSHAKES_OF_ONE_MAX + 40)]
        await until(lambda: one.mesh.refused_total["too many"] >= 40)
        assert await asyncio.get_running_loop().sock_recv(socks[-1], 1) == b""
        for sock in socks:
            sock.close()
        await until(lambda: one.mesh.refused_total["no handshake"] == HANDSHAKES_OF_ONE_MAX)
        (await two.mesh.dial(one.address, 0, 0)).sock.close()

    run(story)


def test_a_port_that_is_taken_is_said() -> None:
    async def story(one: Replica, two: Replica) -> None:
        with pytest.raises(StartError, match=r"members.listen 127.0.0.1:\d+: Address already in use"):
            two.mesh.listen(one.address)

    run(story)


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", f"{'a' * 70}:80"])
def test_what_is_no_address_is_not_reached(address: str) -> None:
    async def story(one: Replica, two: Replica) -> None:
        with pytest.raises(OSError, match="is not an address"):
            await two.mesh.dial(address, 0, 0)

    run(story)


def test_nobody_looks_at_the_port_any_more_when_it_is_closed() -> None:
    async def story(one: Replica, two: Replica) -> None:
        await asyncio.sleep(0.0)  # it waits for whoever comes
        one.mesh.close()
        await asyncio.sleep(0.01)
        with pytest.raises(VacantError):
            await two.mesh.dial(one.address, 0, 0)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "members" and not task.done()]

    run(story)
