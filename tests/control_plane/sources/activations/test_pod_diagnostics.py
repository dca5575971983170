"""When the pods of a revision are looked at, on a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from activator.control_plane.sources.activations.objects import StartingPod
from activator.control_plane.sources.activations.pod_diagnostics import (
    POD_DIAGNOSIS_INTERVAL_MAX_S,
    POD_DIAGNOSIS_INTERVAL_S,
    PodDiagnostics,
)
from activator.runtime.tasks import keep_running
from tests.manual_clock import ManualClock

LABELS = {"app": "hello"}


class World:
    """Looks that find one pod; `breaks`: revisions whose pods cannot be listed."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[str, str]] = []
        self.listed: list[str] = []
        self.breaks: set[str] = set()
        self.diagnostics = PodDiagnostics(self, self._pods_listed, self.clock.now, self._pause)
        self._until_s = 0.0

    async def list_page(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        self.asked.append((path, query["labelSelector"]))
        return b'{"metadata":{},"items":[{"metadata":{"name":"p"}}]}'

    def _pods_listed(self, key: str, pods: list[StartingPod], now_s: float) -> None:
        assert [pod.metadata.name for pod in pods] == ["p"]
        if key in self.breaks:
            raise RuntimeError("a defect")
        self.listed.append(key)

    async def _pause(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        if self.clock.now() > self._until_s:
            raise asyncio.CancelledError

    def run(self, seconds: float) -> None:
        self._until_s = self.clock.now() + seconds
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(keep_running(self.diagnostics.step, lambda error: pytest.fail(repr(error))))


def test_it_looks_less_and_less_often_until_requests_come() -> None:
    world = World()
    world.diagnostics.set_labels("default/hello", LABELS)
    world.run(POD_DIAGNOSIS_INTERVAL_S * 0.9)
    assert world.listed == []
    world.run(60.0)
    seldom = len(world.listed)
    assert 60 / POD_DIAGNOSIS_INTERVAL_MAX_S <= seldom <= 15
    assert set(world.asked) == {("/api/v1/namespaces/default/pods", "app=hello")}
    for _ in range(20):
        world.diagnostics.expedite("default/hello")
        world.run(POD_DIAGNOSIS_INTERVAL_S)
    assert len(world.listed) - seldom >= 15
    world.diagnostics.set_labels("default/hello", None)
    listed = len(world.listed)
    world.run(60.0)
    assert len(world.listed) == listed


def test_a_revision_that_turns_again_and_again_is_looked_at_once() -> None:
    world = World()
    for number in range(10_000):
        world.diagnostics.set_labels(f"default/a-{number % 3}", LABELS)
        world.diagnostics.set_labels(f"default/a-{number % 3}", None)
    assert len(world.diagnostics) == 0
    world.diagnostics.set_labels("default/hello", LABELS)
    world.run(2.0)
    assert world.listed == ["default/hello"]


def test_a_defect_in_one_look_ends_no_other() -> None:
    world = World()
    world.breaks.add("default/broken")
    world.diagnostics.set_labels("default/broken", LABELS)
    world.diagnostics.set_labels("default/hello", LABELS)
    world.run(2.0)
    assert (world.listed, world.diagnostics.errors_total) == (["default/hello"], 1)
    world.breaks.clear()
    world.run(POD_DIAGNOSIS_INTERVAL_MAX_S)
    assert "default/broken" in world.listed
