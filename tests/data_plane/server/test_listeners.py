"""Listeners through reloads that come faster than the loop follows."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from activator.data_plane.server.half_close_sweep import HALF_CLOSE_SWEEP_S, SWEPT_PER_TURN_MAX, HalfCloseSweep
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.listener import Server
from activator.data_plane.server.listeners import Listeners
from activator.runtime.clock import NEVER
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner
from tests.data_plane.server.test_http1_connection import UPLOAD, Visit
from tests.written_transport import WrittenTransport


class Worker:
    """A server, and what is wanted of it."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.listeners = Listeners(self.tasks)
        self.server = Server(Visit().registry)

    def want(self, *addresses: str) -> None:
        self.listeners.change(self.listeners.plan(list(addresses)))

    async def follow(self) -> None:
        """Until the loop has done its part."""
        while self.tasks._tasks:
            await asyncio.gather(*self.tasks._tasks)


def play(story: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        worker = Worker()
        await story(worker)
        await worker.follow()
        await worker.server.drain(0.0, 0.0, lambda: 0)
        assert worker.errors == []

    asyncio.run(scene())


def free_addresses(number: int) -> list[str]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    return addresses


def takes_connections(address: str) -> bool:
    """Nobody else can listen where somebody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False


def test_what_comes_and_goes_before_the_loop_turns() -> None:
    stays, passes = free_addresses(2)

    async def story(worker: Worker) -> None:
        worker.want(stays)
        await worker.listeners.serve(worker.server)
        worker.want(stays, passes)
        worker.want(stays)
        await worker.follow()
        assert (takes_connections(stays), takes_connections(passes)) == (True, False)
        assert worker.listeners.addresses == [stays]

    play(story)


def test_what_goes_and_comes_back_before_the_loop_turns_refuses_nobody() -> None:
    first, second = free_addresses(2)

    async def story(worker: Worker) -> None:
        worker.want(first)
        await worker.listeners.serve(worker.server)
        for _ in range(3):
            worker.want(second)
            worker.want(first)
            assert takes_connections(first)
        await worker.follow()
        assert (takes_connections(first), takes_connections(second)) == (True, False)
        assert [one.address for one in worker.server.sockets] == [first]

    play(story)


def test_a_change_before_anything_is_served_counts() -> None:
    first, second = free_addresses(2)

    async def story(worker: Worker) -> None:
        worker.want(first)
        worker.want(second)
        await worker.listeners.serve(worker.server)
        assert (takes_connections(first), takes_connections(second)) == (False, True)

    play(story)


def test_a_plan_that_cannot_be_made_whole_opens_nothing() -> None:
    (free,) = free_addresses(1)

    async def story(worker: Worker) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(StartError, match="in use"):
                worker.listeners.plan([free, address])
        assert not takes_connections(free)

    play(story)


def test_a_plan_that_is_not_made_leaves_nothing_open() -> None:
    kept, free = free_addresses(2)

    async def story(worker: Worker) -> None:
        worker.want(kept)
        await worker.listeners.serve(worker.server)
        worker.listeners.plan([free]).discard()
        assert (takes_connections(kept), takes_connections(free)) == (True, False)

    play(story)


def test_what_is_to_be_opened_when_the_drain_begins_is_not() -> None:
    first, second = free_addresses(2)

    async def story(worker: Worker) -> None:
        worker.want(first)
        await worker.listeners.serve(worker.server)
        worker.want(second)
        await worker.server.drain(0.0, 0.0, lambda: 0)
        await worker.follow()
        assert (takes_connections(first), takes_connections(second)) == (False, False)

    play(story)


class HalfClosedTransport(WrittenTransport):
    """Its peer has sent an end of file that nobody has read; counts how often its socket is asked."""

    asked = 0

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        HalfClosedTransport.asked += 1
        return b"\x08"  # CLOSE_WAIT


def test_the_sweep_of_paused_connections_has_a_bound_per_turn() -> None:
    visit = Visit()
    visit.registry.connections_max = 10_000
    visit.connection.data_received(UPLOAD)  # has the pod's one place
    clock = visit.world.clock
    visit.registry.paused.clear()
    count = 4 * SWEPT_PER_TURN_MAX + 3
    clients = []
    for _ in range(count):
        client = Http1Connection(visit.registry)
        client.connection_made(HalfClosedTransport())
        clients.append(client)
        visit.registry.paused[client] = None
    sweep = HalfCloseSweep(visit.registry)
    HalfClosedTransport.asked = 0
    sweep.expired(clock.now())
    turns = [HalfClosedTransport.asked]
    gone = clients[0]  # ends between two turns: it is looked at no more
    gone.connection_lost(None)
    while clock.turn():
        turns.append(HalfClosedTransport.asked)
    assert max(after - before for before, after in zip([0, *turns], turns)) == SWEPT_PER_TURN_MAX
    assert HalfClosedTransport.asked == count - 1
    for client in clients[1:]:
        client.connection_lost(None)
    clock.pass_time(HALF_CLOSE_SWEEP_S * 2)  # armed again: the next round finds nobody
    sweep.stop()
    visit.end()


def test_a_connection_that_raises_does_not_end_the_sweep() -> None:
    visit = Visit()
    clock = visit.world.clock

    class Broken(HalfClosedTransport):
        def get_extra_info(self, name: str) -> Any:
            if name == "socket":
                raise RuntimeError("injected")
            return super().get_extra_info(name)

    visit.registry.connections_max = 10_000
    clients = [Http1Connection(visit.registry) for _ in range(2)]
    for client in clients:
        client.connection_made(Broken() if client is clients[0] else HalfClosedTransport())
        visit.registry.paused[client] = None
    sweep = HalfCloseSweep(visit.registry)
    HalfClosedTransport.asked = 0
    with pytest.raises(RuntimeError):
        sweep.expired(clock.now())
    del visit.registry.paused[clients[0]]
    clock.pass_time(HALF_CLOSE_SWEEP_S + 0.1)
    assert HalfClosedTransport.asked == 1, "it goes on, and the next round meets whom this one has left out"
    sweep.stop()
    for client in clients:
        client.connection_lost(None)
    visit.end()


def test_a_sweep_that_is_stopped_between_two_turns_is_not_armed_again() -> None:
    visit = Visit()
    clock = visit.world.clock
    visit.registry.connections_max = 10_000
    clients = [Http1Connection(visit.registry) for _ in range(SWEPT_PER_TURN_MAX + 1)]
    for client in clients:
        client.connection_made(HalfClosedTransport())
        visit.registry.paused[client] = None
    sweep = HalfCloseSweep(visit.registry)
    sweep.expired(clock.now())
    sweep.stop()
    clock.turn()
    for client in clients:
        client.connection_lost(None)
    clock.pass_time(HALF_CLOSE_SWEEP_S)
    assert sweep.deadline_s == NEVER
    visit.end()
