"""Local processes when something of ours goes wrong: it is counted, and after a backoff there is another one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.places import Places
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, PodSeen, PodStatus
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner
from tests.sources import ROOT

SERVING = ROOT / "tests" / "e2e" / "programs" / "serving.py"
KEY = "default/app"
REVISION = Revision("app", process=Process([sys.executable, "-I", "-S", str(SERVING), "{port}"], max_scale=1))


class DefectiveReaping(Reaping):
    """Raises for the first so many processes."""

    def __init__(self, failures: int) -> None:
        super().__init__(None, "")
        self.failures = failures

    def born(self, group: int) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError("injected")


class NoPortAtFirst(Places):
    """Finds no free port at first."""

    misses = 2

    def free_port(self) -> int:
        if self.misses:
            self.misses -= 1
            raise OSError("no port")
        return super().free_port()


class Portless(ChildProcesses):
    """Whose processes have no place at first."""

    def __init__(self, tasks: TaskGroupOwner, now: Now, reaping: Reaping) -> None:
        super().__init__(tasks, now, reaping)
        self.places = NoPortAtFirst(reaping)


def until_ready(make: Callable[..., ChildProcesses], reaping: Reaping) -> tuple[Supervision, list[BaseException]]:
    """Ask for one process, and wait until there is one that is ready."""
    supervision = Supervision()
    errors: list[BaseException] = []

    async def scenario() -> None:
        ready = asyncio.Event()

        def hear(change: Change) -> None:
            if isinstance(change, PodSeen) and change.status is PodStatus.READY:
                ready.set()

        tasks = TaskGroupOwner(lambda name, error: errors.append(error))
        supervisor = ProcessSupervisor(
            tasks, hear, time.monotonic, make(tasks, time.monotonic, reaping), supervision.panicked
        )
        supervisor.set_revision(KEY, REVISION)
        supervisor.grant(KEY, 1)
        await asyncio.wait_for(ready.wait(), 20.0)
        assert supervisor.statistics()[KEY]["processes"] == 1
        await supervisor.close()
        await tasks.close()

    asyncio.run(scenario())
    return supervision, errors


def test_a_defect_in_the_life_of_a_process_costs_that_process() -> None:
    supervision, errors = until_ready(ChildProcesses, DefectiveReaping(2))
    assert (supervision.panics_total, errors) == (2, [])
    assert "injected" in supervision.dead_letters[0].error


def test_what_cannot_be_started_is_tried_again_though_nobody_asks_again() -> None:
    supervision, errors = until_ready(Portless, Reaping(None, ""))
    assert (supervision.panics_total, errors) == (2, [])
    assert supervision.over_budget(1, time.monotonic()) == []
