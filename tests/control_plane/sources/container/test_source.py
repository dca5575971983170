"""Discovered containers as a source: what a reload changes, and when the program is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from activator.config.file import parse
from activator.config.model.file import Config
from activator.control_plane.sources.container.source import ContainerSource
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, RevisionGone, RevisionSet
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.control_plane.sources.container.fake_engine import FakeEngine, Image, fake_engine

PATIENCE_S = 5.0


class World:
    """A source over the fake engine, and what it submits."""

    def __init__(self, engine: FakeEngine, tasks: TaskGroupOwner) -> None:
        self.engine = engine
        self.changes: list[Change] = []
        units = ContainerUnits(tasks, time.monotonic, time.time, Reaping(None, "mark"))
        panicked = Supervision().panicked
        self.programs = ProcessSource(
            tasks, self.changes.append, time.monotonic, time.time, units, panicked, lambda _shown: None
        )
        self.source = ContainerSource(tasks, self.changes.append, self.programs, units)

    def configure(self, text: str = "") -> None:
        self.load(parse(f"containers: {{discover: true, engine: 'unix:{self.engine.path}'}}\n{text}", "f", {}))

    def load(self, config: Config) -> None:
        self.source.prepare(config)
        self.programs.configure(config, {f"{one.namespace}/{one.name}": one for one in config.revisions})
        self.source.configure(config)

    def sets(self) -> list[RevisionSet]:
        return [one for one in self.changes if isinstance(one, RevisionSet)]

    async def until(self, check: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not check():
                await pause(0.005)


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        errors: list[BaseException] = []
        tasks = TaskGroupOwner(lambda name, error: errors.append(error))
        async with fake_engine(folder / "engine.sock") as engine:
            engine.images["web"] = Image()
            engine.add("app", "web", Labels={"activator.enable": "true", "activator.host": "app.example.com"})
            world = World(engine, tasks)
            try:
                await scenario(world)
            finally:
                await world.source.close()
                await world.programs.close()
                await tasks.close()
        assert errors == []

    asyncio.run(run())


def test_a_reload_reaches_discovered_containers(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.configure()
        await world.until(world.sets)
        first = world.sets()[0].spec
        assert (first.health.strikes, first.routing.order) == (3, 1)
        world.configure("health: {strikes: 9}")
        assert [one.spec.health.strikes for one in world.sets()] == [3, 9]
        world.configure("health: {strikes: 9}")
        assert len(world.sets()) == 2, "nothing has changed"
        world.configure("revisions: [{name: other, hosts: [b], pods: ['127.0.0.1:1']}]")
        assert [(one.spec.health.strikes, one.spec.routing.order) for one in world.sets()[2:]] == [(3, 2)]
        looks = len(world.engine.calls)
        await world.until(lambda: len(world.engine.calls) > looks)
        assert not any(isinstance(one, RevisionGone) for one in world.changes)

    play(tmp_path, scenario)


def test_the_program_is_not_ready_before_containers_have_been_listed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert world.source.pending() == []
        await world.engine.stop()
        world.configure()
        assert world.source.pending() == ["the first list of containers"]
        await world.until(lambda: "cannot be reached" in "".join(world.source.pending()))
        world.configure("health: {strikes: 9}")
        assert world.source.pending()
        await world.engine.start()
        await world.until(lambda: not world.source.pending())
        assert world.source.declares("default/app")
        await world.engine.stop()
        world.configure()
        assert world.source.pending() == [], "what was listed before still serves"

    play(tmp_path, scenario)


def test_without_discovery_nothing_is_awaited(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.engine.stop()
        world.load(Config())
        assert world.source.pending() == []
        world.configure()  # a reload: what serves stays ready
        assert world.source.pending() == []
        await world.engine.start()
        await world.until(world.sets)

    play(tmp_path, scenario)


def test_a_reload_without_discovery_awaits_nothing_more(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.engine.stop()
        world.configure()
        assert world.source.pending()
        world.load(Config())
        assert world.source.pending() == []

    play(tmp_path, scenario)
