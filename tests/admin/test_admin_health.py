"""What probes are told: liveness is that the state worker's loop turns, readiness lists what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from activator.admin.server import AdminServer
from activator.control_plane.plane import STALLED_AFTER_S, ControlPlane
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.state.worker import HEARTBEAT_S
from activator.messages import RevisionSet
from activator.runtime.errors import NoWorkerError
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng
from tests.admin.admin_server import served
from tests.control_plane.state.state_fakes import SPEC
from tests.manual_clock import ManualClock


class Inside:
    """A program in any condition."""

    log = None

    def __init__(self) -> None:
        self.alive = True
        self.reasons: list[str] = []
        self.needs_restart: list[str] = []

    def is_alive(self) -> bool:
        return self.alive

    def waiting_for(self) -> list[str]:
        return self.reasons

    async def gather_statistics(self) -> None:
        pass

    async def gather_snapshot(self) -> None:
        pass

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        return iter(()), "text/plain"

    def snapshot(self, only: str = "") -> object:
        return {}

    def overview(self) -> Iterator[bytes]:
        return iter((b"{}",))

    def history(self, keys: list[str], is_day: bool) -> object:
        return {"is_day": is_day}

    def timelines(self) -> object:
        return {"gpu0": []}

    async def last_requests(self, key: str, count: int, searched: int) -> object:
        return {"requests": [{"of": key, "count": count}]}

    async def capture_of(self, worker: int, number: int) -> object:
        return {"worker": worker, "number": number} if number == 7 else None

    async def snapshot_of(self, worker: int) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    async def tasks_of(self, worker: int) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    async def profile_of(self, worker: int, seconds: float) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    def set_log_level(self, part: str, level: str) -> None:
        pass

    def configuration(self) -> object:
        return {}

    def program_output(self, key: str, after: int) -> object:
        return None

    def load(self, key: str, seconds: float | None) -> str:
        return ""

    def end_member(self, seat: int) -> str:
        return ""

    def unload(self, key: str) -> str:
        return ""

    def set_aside(self, key: str, pod: str, is_aside: bool) -> str:
        return ""

    def restart(self, key: str) -> str:
        return ""

    def members(self) -> object:
        return {}

    def stop(self) -> None:
        pass

    async def upgrade(self) -> dict[str, Any]:
        return {"problems": []}

    def reload(self) -> list[str]:
        return []


def test_liveness_and_readiness_are_apart() -> None:
    async def scenario() -> list[tuple[int, str]]:
        inside = Inside()
        answers = []
        async with served(AdminServer(inside, lambda: 0.0)) as address, aiohttp.ClientSession() as session:
            for inside.alive, inside.reasons in ((True, []), (True, ["draining", "a list"]), (False, [])):
                for path in ("healthz", "readyz"):
                    async with session.get(f"http://{address}/{path}") as answer:
                        answers.append((answer.status, await answer.text()))
        return answers

    assert asyncio.run(scenario()) == [
        (200, "ok\n"),
        (200, "ok\n"),
        (200, "ok\n"),
        (503, "draining\na list\n"),
        (503, "the state worker makes no progress\n"),
        (200, "ok\n"),
    ]


class Tasks(TaskGroupOwner):
    """Starts nothing: the test turns what there is."""

    def __init__(self) -> None:
        super().__init__(lambda name, error: None)

    def start(self, name: str, coroutine: Any) -> Any:
        coroutine.close()


@pytest.mark.parametrize("busy", [False, True])
def test_it_is_alive_as_long_as_the_worker_turns(busy: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        control = ControlPlane(
            clock.now,
            lambda effects: None,
            lambda: None,
            Rng(1),
            Tasks(),
            Reaping(None, ""),
            clock.now,
            lambda shown: None,
        )
        tasks = TaskGroupOwner(lambda name, error: None)
        assert STALLED_AFTER_S > 5.0 * HEARTBEAT_S, "a worker without work turns often enough"
        clock.pass_time(STALLED_AFTER_S - 0.1)
        assert control.is_alive()
        clock.pass_time(0.2)
        assert not control.is_alive()
        if busy:
            control.submit(RevisionSet(SPEC))
        tasks.start("worker", control.worker.run())
        await pause(0.0)
        assert control.is_alive()
        await tasks.close()
        clock.pass_time(STALLED_AFTER_S + 0.1)
        assert not control.is_alive(), "it has ended, and nobody runs it again"

    asyncio.run(scenario())
