"""Two things that happen to one program at the same time, in each order and some turns of the loop apart: it is ready,
has ended, is to be stopped, was dropped, or everything is closed.

What must hold whatever the order: a pod that has gone is not shown again, what is to be closed ends, nothing of a
revision that was dropped is started, and what is wanted is there in the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.sources.process.unit import Unit, Units
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, ObservedPod, PodGone, PodTaken
from activator.runtime.tasks import TaskGroupOwner
from tests.control_plane.sources.program_reports import ProgramReports

KEY = "default/app"
TURNS = 8


class Told(Unit):
    """A program that is ready, and ends, when the test says so. Asked to stop, it ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_ready = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def start(self, stop_asked: asyncio.Event) -> None:
        pass

    async def ready(self, timeout_s: float) -> str:
        await self.is_ready.wait()
        return ""

    async def exited(self) -> None:
        await self.has_ended.wait()

    async def cause(self) -> str:
        return "it ended"

    @property
    def exit_code(self) -> int | None:
        return 0

    async def run_beside(self, command: Sequence[str], timeout_s: float) -> int | None:
        return 0

    async def signal(self, name: str) -> str:
        return ""

    async def stop(self) -> None:
        self.has_ended.set()

    async def end_rest(self) -> None:
        pass

    async def end(self) -> None:
        self.has_ended.set()

    async def remove(self, holds_resources: bool, is_closing: Callable[[], bool]) -> None:
        pass

    def disown(self) -> None:
        pass


class ToldUnits(Units):
    def __init__(self) -> None:
        self.made: list[Told] = []

    def prepare(self, revision: Revision) -> None:
        pass

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        self.made.append(Told(f"127.0.0.1:{20_000 + len(self.made)}"))
        return self.made[-1]

    def claim_of(self, revision: Revision) -> str:
        return ""

    async def close(self) -> None:
        pass


class World:
    """One program of one revision, which has started."""

    def __init__(self, lifetime: str) -> None:
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self.units = ToldUnits()
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.supervision = Supervision()
        self.supervisor = ProcessSupervisor(
            self.tasks, self.changes.append, time.monotonic, self.units, self.supervision.panicked, ProgramReports()
        )
        self.supervisor.set_revision(KEY, Revision("app", process=Process(["x"], lifetime=lifetime, max_scale=4)))
        self.supervisor.grant(KEY, 1)
        self.closing: asyncio.Task[None] | None = None

    def become_ready(self) -> None:
        self.units.made[0].is_ready.set()

    def exit(self) -> None:
        self.units.made[0].has_ended.set()

    def serve(self) -> None:
        """Its request has come, and is over."""
        self.supervisor.taken(PodTaken(KEY, f"{KEY}#1", True, ""))
        self.supervisor.drained(KEY, f"{KEY}#1")

    def want_none(self) -> None:
        self.supervisor.grant(KEY, 0)

    def restart(self) -> None:
        self.supervisor.restart(KEY)

    def drop(self) -> None:
        self.supervisor.drop_revision(KEY)

    def close(self) -> None:
        self.closing = asyncio.ensure_future(self.supervisor.close())

    def drain(self) -> None:
        """As the data plane does it for pods without a request."""
        for one in list(self.changes):
            if isinstance(one, PodGone):
                self.supervisor.drained(one.key, one.identity)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            self.drain()
            await asyncio.sleep(0)

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(5.0):
            while not check():
                self.drain()
                await asyncio.sleep(0.001)

    def check(self) -> None:
        gone = set()
        for one in self.changes:
            if isinstance(one, PodGone):
                gone.add(one.identity)
            elif isinstance(one, ObservedPod):
                assert one.identity not in gone, f"{one} was said of a pod that has gone"
        assert (self.errors, self.supervision.panics_total) == ([], 0)


FIRST = [World.become_ready, World.exit, World.serve]
SECOND = [World.want_none, World.restart, World.drop, World.close]


@pytest.mark.parametrize("lifetime", ["service", "request"])
@pytest.mark.parametrize("second", SECOND, ids=lambda one: one.__name__)
@pytest.mark.parametrize("first", FIRST, ids=lambda one: one.__name__)
def test_whatever_comes_first(first: Callable[[World], None], second: Callable[[World], None], lifetime: str) -> None:
    async def once(apart: int) -> None:
        world = World(lifetime)
        await world.turns(TURNS)
        if first is not World.become_ready:
            world.become_ready()
            await world.turns(TURNS)
        (first if apart > 0 else second)(world)
        await world.turns(abs(apart))
        (second if apart > 0 else first)(world)
        await world.turns(3 * TURNS)
        world.check()
        made = world.units.made
        if second is World.restart:
            await world.until(lambda: sum(not unit.has_ended.is_set() for unit in made) == 1)  # there may be a backoff
        else:
            assert all(unit.has_ended.is_set() for unit in made), "nothing is wanted"
            # One that has ended or had its request before the other one may have had a successor.
            assert len(made) <= (1 if first is World.become_ready else 2)
        if world.closing is None:
            world.close()
        assert world.closing is not None
        await world.until(world.closing.done)
        world.check()
        await world.tasks.close()

    for apart in range(-TURNS, TURNS + 1):
        asyncio.run(once(apart))
