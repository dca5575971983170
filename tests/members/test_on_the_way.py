"""Members of three machines whose links go through somebody on the way, who does not have the key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from activator.config.model.members import Members
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.members.data_planes import GroupDataPlanes, GroupSide
from activator.members.directory import StaticDirectory
from activator.members.handshake import Process, SessionKeys
from activator.members.membership import Membership
from activator.members.numbers import seat_of, worker_number, worker_place
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.members.relay import Relay

KEY = b"0123456789abcdef0123456789abcdef"


class Planes(GroupDataPlanes):
    """One data plane, which keeps what the group gives it."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.may_grant = True
        self.has_ended = False
        self.socks: dict[int, socket.socket] = {}

    def join(self, group: GroupSide) -> None:
        name = MemberName(worker_number(group.replica, 1), worker_place(seat_of(group.replica), 0))
        group.set_data_planes((name,))

    def adopt_view(self, view: View) -> None:
        self.views.append(view)

    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        self.close(other)
        if self.has_ended:
            sock.close()
        else:
            self.socks[other] = sock

    def allow_grants(self, allowed: bool) -> None:
        self.may_grant = allowed

    def ownership(self) -> tuple[int, int]:
        return (1, 0)

    def close(self, other: int) -> None:
        if other in self.socks:
            self.socks.pop(other).close()


class Machine:
    """A replica on a machine of its own: no other one's kernel knows of its processes."""

    def __init__(self, name: str, address: str, peers: list[str], seed: int) -> None:
        self.errors: list[BaseException] = []
        self.displaced = 0
        self.planes = Planes()
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        config = Members(listen="127.0.0.1:0", peers=peers, address=address)
        roster = StaticDirectory(peers, config.listen, address)
        seat = next(seat for seat, one in roster.addresses.items() if one == address)
        process = Process(name, 1000 + seed, 1)
        self.membership = Membership(
            config,
            KEY,
            roster,
            address,
            seat,
            self.planes,
            self.tasks,
            self._displaced,
            time.monotonic,
            Rng(seed),
            process,
        )
        self.target = self.membership._mesh.listen(config.listen)
        self.planes.join(self.membership)

    def _displaced(self) -> None:
        self.displaced += 1

    @property
    def group(self) -> Any:
        return self.membership.group

    async def kill(self) -> None:
        """End as a process does that is killed: nothing is said."""
        self.planes.has_ended = True
        await self.tasks.close()
        self.membership._is_closing = True
        for link in [*self.membership._links.values()]:
            link.wire.close()
        self.membership._links.clear()
        self.membership._mesh.close()
        for other in [*self.planes.socks]:
            self.planes.close(other)


class Machines:
    """All of them, each behind a relay."""

    def __init__(self) -> None:
        self.relays: list[Relay] = []
        self.peers: list[str] = []
        self.all: list[Machine] = []

    async def start(self, count: int) -> None:
        self.relays = [Relay() for _ in range(count)]
        self.peers = sorted([await relay.listen() for relay in self.relays])
        by_address = {f"127.0.0.1:{one._server.sockets[0].getsockname()[1]}": one for one in self.relays if one._server}
        self.relays = [by_address[address] for address in self.peers]
        for index in range(count):
            self.add(f"machine {index}", index, index + 1)
        await asyncio.gather(*[one.membership.start() for one in self.all])
        await self.until_together()

    def add(self, machine: str, seat: int, seed: int, is_behind: bool = True) -> Machine:
        one = Machine(machine, self.peers[seat], self.peers, seed)
        if is_behind:
            host, _, port = one.target.rpartition(":")
            self.relays[seat].target = (host, int(port))
        self.all.append(one)
        return one

    def are_together(self) -> bool:
        views = [one.group.effective for one in self.all]
        numbers = {one.membership.replica for one in self.all}
        return (
            len({view.epoch for view in views}) == 1
            and {replica.number for replica in views[0].replicas} == numbers
            and not views[0].unproven
            and all(one.planes.may_grant and not one.membership.waiting_for() for one in self.all)
        )

    async def until_together(self, seconds: float = 15.0) -> None:
        await until(self.are_together, seconds)

    async def close(self) -> None:
        for one in self.all:
            await one.kill()
        for relay in self.relays:
            await relay.close()


async def until(check: Callable[[], bool], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110  (of other tasks)
            await asyncio.sleep(0.01)


def run(story: Callable[[Machines], Coroutine[Any, Any, None]], count: int = 3) -> None:
    async def told() -> None:
        machines = Machines()
        try:
            await machines.start(count)
            await story(machines)
            assert not any(one.errors for one in machines.all)
        finally:
            await machines.close()

    asyncio.run(told())


@pytest.mark.parametrize("way", ["in order", "reset", "half"])
def test_links_that_somebody_on_the_way_ends_prove_nothing(way: str) -> None:
    """The next dial takes longer than the time in which the end of a process used to be concluded."""

    async def story(machines: Machines) -> None:
        numbers = [one.membership.replica for one in machines.all]
        for round_ in range(3):
            for relay in machines.relays:
                relay.dial_delay_s = 0.25
            ended = [relay for relay in machines.relays if relay.links][: round_ + 1]
            assert sum(relay.close_links(resets=way == "reset", half=way == "half") for relay in ended)
            await asyncio.sleep(0.8)
            assert not any(one.group.contacts.ended for one in machines.all), "nobody has died"
        await machines.until_together()
        assert [one.membership.replica for one in machines.all] == numbers
        assert not any(one.displaced for one in machines.all)

    run(story)


def test_links_that_are_slow_are_links() -> None:
    async def story(machines: Machines) -> None:
        for relay in machines.relays:
            relay.chunk_delay_s = 0.05
        await asyncio.sleep(2.0)
        assert machines.are_together()

    run(story)


def test_what_was_said_on_a_link_is_good_for_nothing_on_another_one() -> None:
    """Somebody on the way has recorded all of it, and sends it again: no link, nothing ends, the members stay."""

    async def story(machines: Machines) -> None:
        await asyncio.sleep(0.5)
        numbers = [one.membership.replica for one in machines.all]
        refused = 0
        for relay in machines.relays:
            host, port = relay.target
            for recorded in (b"".join(relay.carried), *relay.carried[:8]):
                sock = socket.create_connection((host, port), timeout=5.0)
                sock.sendall(recorded)
                sock.close()
                refused += bool(recorded)
        await asyncio.sleep(1.0)
        assert machines.are_together() and [one.membership.replica for one in machines.all] == numbers
        assert refused and sum(one.membership._mesh.refused_total.total() for one in machines.all) >= refused

    run(story)


def test_a_copied_configuration_on_a_fourth_machine_does_not_end_the_group() -> None:
    async def story(machines: Machines) -> None:
        for seat in range(3):
            copy = machines.add("a fourth machine", seat, 10 + seat, is_behind=False)
            machines.all.remove(copy)
            start = asyncio.create_task(copy.membership.start())
            await asyncio.sleep(3.0)
            assert machines.are_together(), "the holder of the seat is reached"
            assert copy.membership.waiting_for(), "it is not ready"
            assert not copy.planes.views, "it has taken no part"
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await start
            await copy.kill()
        await asyncio.sleep(2.0)
        assert machines.are_together()
        assert not any(one.group.contacts.ended or one.displaced for one in machines.all)

    run(story)


def test_a_replica_that_is_started_again_on_its_machine_is_taken_back(tmp_path: object) -> None:
    """Its machine knows of the process that has ended. On another machine, the operator must say so."""

    async def story(machines: Machines) -> None:
        gone = machines.all.pop(1)
        await gone.kill()
        again = machines.add("machine 1", 1, 21)
        await again.membership.start()
        await machines.until_together()  # 1001 is no process of this machine, or another one's
        gone = machines.all.pop()
        await gone.kill()
        elsewhere = machines.add("another machine", 1, 22)
        await elsewhere.membership.start()
        await asyncio.sleep(2.0)
        assert "another replica had the seat" in elsewhere.membership.waiting_for()
        first = machines.all[0].membership
        assert first.end_seat(2) and first.end_seat(0), "these are there"
        assert first.end_seat(1) == ""
        await machines.until_together()

    run(story)


def test_a_replica_that_others_take_for_ended_ends_and_joins_as_another_one() -> None:
    async def story(machines: Machines) -> None:
        victim = machines.all[2]
        machines.all[0].group.ended(victim.membership.replica)  # as an API that has forgotten its pod
        await until(lambda: victim.displaced == 1)
        assert not victim.planes.may_grant
        assert "must be started again" in victim.membership.waiting_for()
        machines.all.remove(victim)
        await victim.kill()
        again = machines.add("machine 2", 2, 31)
        await again.membership.start()
        await machines.until_together()

    run(story)


def test_a_goodbye_in_a_signed_frame_is_the_end_of_a_member() -> None:
    async def story(machines: Machines) -> None:
        leaving = machines.all.pop()
        await leaving.membership.close()
        await leaving.kill()
        await machines.relays[2].close()  # nobody listens there
        await machines.until_together(5.0)

    run(story)
