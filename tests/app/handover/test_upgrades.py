"""When an upgrade is refused before anything is started."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from activator.app.handover.upgrades import Upgradable, Upgrades
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.service_manager import ServiceManager
from activator.runtime.tasks import TaskGroupOwner


@pytest.mark.parametrize(
    ("is_possible", "is_serving", "draining", "problem"),
    [
        (False, True, False, "only `activator run` can be upgraded"),
        (True, False, False, "the activator does not serve yet"),
        (True, True, True, "the activator is draining"),
    ],
)
def test_it_is_refused(
    is_possible: bool, is_serving: bool, draining: bool, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> dict[str, Any]:
        errors: list[BaseException] = []
        tasks = TaskGroupOwner(lambda name, error: errors.append(error))
        app = cast(Upgradable, SimpleNamespace(is_serving=is_serving, draining=draining))
        upgrades = Upgrades(app, Reaping(None, "test"), ServiceManager({}, 0), time.monotonic, tasks, None)
        upgrades.is_possible = is_possible
        outcome = await upgrades.run()
        upgrades.ask()
        assert not upgrades.is_under_way
        await tasks.close()
        assert errors == []
        return outcome

    assert asyncio.run(scenario()) == {"problems": [problem]}
    assert f"upgrade: {problem}" in caplog.text
