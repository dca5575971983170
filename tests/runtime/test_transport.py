"""Ending a connection at once, on both kinds of event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from activator.runtime.transport import (
    KEEPALIVE_PROBES,
    KEEPALIVE_S,
    Transport,
    cut,
    enable_keepalive,
    is_unix_socket,
    taken_bytes,
    unix_socket_state,
)

ESTABLISHED = 1
CLOSED = 7
CLOSE_WAIT = 8
Story = Callable[[Transport, socket.socket], Awaitable[None]]


async def tell(story: Story) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # and it does not grow
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            await story(transport, peer)
        transport.abort()
        await asyncio.sleep(0.01)


def state(peer: socket.socket) -> int:
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


async def the_peer_hears_in_the_same_turn(transport: Transport, peer: socket.socket) -> None:
    assert state(peer) == ESTABLISHED
    cut(transport)
    assert state(peer) != ESTABLISHED, "before the loop has turned"


async def so_does_one_that_reads_nothing(transport: Transport, peer: socket.socket) -> None:
    """A FIN would wait behind what it has not read; and another request would arrive before it."""
    while transport.get_write_buffer_size() < 1_000_000:
        transport.write(b"x" * 1_000_000)
        await asyncio.sleep(0)
    cut(transport)
    assert state(peer) not in {ESTABLISHED, CLOSE_WAIT}, "before the loop has turned"


async def a_little_that_it_takes_is_seen(transport: Transport, peer: socket.socket) -> None:
    """… though the kernel, with megabytes before it, takes nothing more from us."""
    while transport.get_write_buffer_size() < 1_000_000:
        transport.write(b"x" * 1_000_000)
        await asyncio.sleep(0)
    before = -1
    while before != taken_bytes(transport):  # the buffers of both kernels are filled meanwhile
        before = taken_bytes(transport)
        await asyncio.sleep(0.05)
    unsent = transport.get_write_buffer_size()
    left = 100_000
    while left > 0:
        left -= len(peer.recv(left))
    async with asyncio.timeout(10.0):
        taken = before
        while taken == before:
            await asyncio.sleep(0.01)
            taken = taken_bytes(transport)
    assert taken > before
    assert transport.get_write_buffer_size() == unsent, "of which its buffer shows nothing"


async def twice_is_harmless(transport: Transport, peer: socket.socket) -> None:
    cut(transport)
    cut(transport)
    await asyncio.sleep(0.01)
    cut(transport)


async def a_peer_that_was_faster(transport: Transport, peer: socket.socket) -> None:
    peer.close()
    cut(transport)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "story",
    [
        the_peer_hears_in_the_same_turn,
        so_does_one_that_reads_nothing,
        twice_is_harmless,
        a_peer_that_was_faster,
        a_little_that_it_takes_is_seen,
    ],
)
def test_cut(run: Callable[[Awaitable[None]], None], story: Story) -> None:
    run(tell(story))


async def a_peer_that_is_there_stays(transport: Transport, peer: socket.socket) -> None:
    enable_keepalive(transport)
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    assert found == [KEEPALIVE_S, KEEPALIVE_S, KEEPALIVE_PROBES]
    assert not transport.is_closing()


async def one_that_has_closed_is_no_matter(transport: Transport, peer: socket.socket) -> None:
    transport.abort()
    await asyncio.sleep(0.01)
    enable_keepalive(transport)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("story", [a_peer_that_is_there_stays, one_that_has_closed_is_no_matter])
def test_watch(run: Callable[[Awaitable[None]], None], story: Story) -> None:
    run(tell(story))


async def tell_over_unix(story: Story, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, path)
        peer, _ = listener.accept()
        with peer:
            await story(transport, peer)
        transport.abort()
        await asyncio.sleep(0.01)


async def the_peer_of_a_unix_socket_hears_at_once(transport: Transport, peer: socket.socket) -> None:
    assert is_unix_socket(transport)
    while transport.get_write_buffer_size() < 1_000_000:
        transport.write(b"x" * 1_000_000)
        await asyncio.sleep(0)
    cut(transport)
    with pytest.raises(BrokenPipeError):
        peer.send(b"an answer")  # before the loop has turned, and whatever it has not read


async def what_it_takes_is_counted(transport: Transport, peer: socket.socket) -> None:
    before = taken_bytes(transport)
    while transport.get_write_buffer_size() < 1_000_000:
        transport.write(b"x" * 1_000_000)
        await asyncio.sleep(0)
    held = taken_bytes(transport)
    assert held < before
    await asyncio.sleep(0.01)
    assert taken_bytes(transport) == held, "what only the kernel has taken is not taken"
    peer.recv(100_000, socket.MSG_WAITALL)
    assert taken_bytes(transport) > held


async def its_state_is_known(transport: Transport, peer: socket.socket) -> None:
    transport.pause_reading()
    assert unix_socket_state(transport) == 0
    peer.shutdown(socket.SHUT_WR)
    assert unix_socket_state(transport) == CLOSE_WAIT
    peer.close()
    assert unix_socket_state(transport) == CLOSED


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "story", [the_peer_of_a_unix_socket_hears_at_once, what_it_takes_is_counted, its_state_is_known]
)
def test_over_unix_sockets(run: Callable[..., None], story: Story, tmp_path: Path) -> None:
    run(tell_over_unix(story, str(tmp_path / "s")))
