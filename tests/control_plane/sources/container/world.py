"""A supervisor whose programs are containers of the fake engine, and what it submits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from activator.config.file import parse
from activator.config.model.containers import Containers
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, ObservedPod, PodGone, PodStatus, RevisionFailed
from activator.runtime.tasks import TaskGroupOwner
from tests.control_plane.sources.container.fake_engine import FakeEngine, fake_engine
from tests.control_plane.sources.program_reports import ProgramReports

KEY = "default/app"
PATIENCE_S = 5.0


def revision_of(**container: Any) -> Revision:
    """As a file has it."""
    more: dict[str, Any] = {key: container.pop(key) for key in ("timeouts", "needs") if key in container}
    text = f"revisions: [{{name: app, hosts: [a], container: {_flow(container)}{_more(more)}}}]"
    return parse(text, "f", {}).revisions[0]


def _flow(values: dict[str, Any]) -> str:
    return json.dumps(values)


def _more(values: dict[str, Any]) -> str:
    return "".join(f", {key}: {_flow(value)}" for key, value in values.items())


class World:
    def __init__(self, engine: FakeEngine, reaping: Reaping | None = None, **settings: Any) -> None:
        self.engine = engine
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.supervision = Supervision()
        self.units = ContainerUnits(self.tasks, time.monotonic, time.time, reaping or Reaping(None, "mark"))
        self.units.configure(Containers(engine=f"unix:{engine.path}", **settings))
        self.reports = ProgramReports()
        self.supervisor = ProcessSupervisor(
            self.tasks, self.changes.append, time.monotonic, self.units, self.supervision.panicked, self.reports
        )

    def want(self, revision: Revision, count: int = 1) -> None:
        self.supervisor.set_revision(KEY, revision)
        self.supervisor.grant(KEY, count)

    def ready(self) -> list[ObservedPod]:
        """Those that are, in the order in which they became so."""
        last = {one.identity: one for one in self.changes if isinstance(one, ObservedPod | PodGone)}
        return [one for one in last.values() if isinstance(one, ObservedPod) and one.status is PodStatus.READY]

    def failures(self) -> list[str]:
        return [one.cause for one in self.changes if isinstance(one, RevisionFailed)]

    def drain(self) -> None:
        """As the data plane does it for pods without a request."""
        for one in [one for one in self.changes if isinstance(one, PodGone)]:
            self.supervisor.drained(one.key, one.identity)

    async def until(self, check: Callable[[], Any], what: str = "") -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not check():
                self.drain()
                await asyncio.sleep(0.005)

    async def leave(self) -> None:
        """As at the end of a process that another one has replaced, or that has replaced none."""
        await self.tasks.close()
        await self.units.close()

    async def close(self) -> None:
        await asyncio.wait_for(self.supervisor.close(), 12.0)
        await self.tasks.close()


@asynccontextmanager
async def world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    async with fake_engine(folder / "engine.sock") as engine:
        made = World(engine, **settings)
        try:
            yield made
        finally:
            await made.close()
        assert made.errors == []
        assert made.supervision.panics_total == 0
