"""What probes are told: liveness is that the state worker's loop turns, readiness lists what is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from activator.control_plane.plane import STALLED_AFTER_S, ControlPlane
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.state.worker import HEARTBEAT_S
from activator.messages import RevisionSet
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng
from tests.admin.inside import Inside, port
from tests.control_plane.state.state_fakes import SPEC
from tests.manual_clock import ManualClock


def test_liveness_and_readiness_are_apart() -> None:
    async def scenario() -> list[tuple[int, str]]:
        inside = Inside()
        server = port(inside)
        address = server.start()
        answers = []
        async with aiohttp.ClientSession() as session:
            for inside.alive, inside.reasons in ((True, []), (True, ["draining", "a list"]), (False, [])):
                for path in ("healthz", "readyz"):
                    async with session.get(f"http://{address}/{path}") as answer:
                        answers.append((answer.status, await answer.text()))
        await server.close()
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
