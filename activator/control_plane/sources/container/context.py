"""The engine and the settings that all containers of one engine share."""

from __future__ import annotations

from activator.control_plane.sources.container.engine import Engine
from activator.control_plane.sources.container.owner import Run
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner


class EngineContext:
    """The engine and the settings that all its containers share."""

    def __init__(
        self,
        engine: Engine,
        tasks: TaskGroupOwner,
        now: Now,
        wall_clock: Now,
        patience_s: float,
        address: str,
        run: Run,
    ) -> None:
        self.engine = engine
        self.tasks = tasks
        self.now = now
        self.wall_clock = wall_clock
        self.patience_s = patience_s
        self.address = address  # how containers are reached: `published` or `own`
        self.run = run
