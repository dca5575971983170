"""Scaled from zero without the autoscaler: when, how often, and what is left alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from activator.control_plane.scaling.scale_fallback import (
    SCALE_FALLBACK_RETRY_S,
    SCALE_FALLBACKS_AT_ONCE,
    ScaleFallback,
)
from activator.runtime.controller_counts import Controllers, ErrorType
from tests.manual_clock import ManualClock

KEY = "default/hello-00001"
PATH = "/apis/apps/v1/namespaces/default/deployments/hello-00001-deployment/scale"


class RefusedError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"refused with {status}")
        self.status = status


class Api:
    def __init__(self) -> None:
        self.replicas = 0
        self.patches: list[dict[str, Any]] = []
        self.refusal = 0

    async def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        assert path == PATH
        return json.dumps({"metadata": {"resourceVersion": "7"}, "spec": {"replicas": self.replicas}}).encode()

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes:
        assert (path, field_manager) == (PATH, "activator")
        if self.refusal:
            raise RefusedError(self.refusal)
        self.patches.append(dict(patch))
        return b"{}"


class World:
    def __init__(self, after_s: float = 30.0) -> None:
        self.clock = ManualClock()
        self.api = Api()
        self.away_s = 0.0
        self.controllers = Controllers(self.clock.now)
        self.fallback = ScaleFallback(
            self.api, after_s, lambda: self.away_s, self.clock.now, self._start, self.controllers
        )

    def _start(self, _name: str, coroutine: Any) -> None:
        asyncio.run(coroutine)


def test_once_an_outage() -> None:
    world = World()
    world.fallback.start_attempts([KEY])
    world.away_s = 29.0
    world.fallback.start_attempts([KEY])
    assert world.api.patches == []
    world.away_s = 30.0
    for _ in range(3):
        world.fallback.start_attempts([KEY])
    assert world.api.patches == [{"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 1}}]
    world.clock.pass_time(SCALE_FALLBACK_RETRY_S)
    world.fallback.start_attempts([KEY])
    assert len(world.api.patches) == 2
    world.away_s = 0.0
    world.fallback.start_attempts([])
    world.away_s = 30.0
    world.fallback.start_attempts([KEY])
    assert len(world.api.patches) == 3 and world.fallback.scaled_total == 3


def test_never_where_it_is_off() -> None:
    world = World(after_s=0.0)
    world.away_s = 1e6
    world.fallback.start_attempts([KEY])
    assert world.api.patches == []


def test_what_is_not_at_zero_is_left_alone() -> None:
    world = World()
    world.away_s, world.api.replicas = 60.0, 2
    world.fallback.start_attempts([KEY])
    assert world.api.patches == []


@pytest.mark.parametrize("status", [403, 404, 409, 500])
def test_a_refusal_is_counted_and_harms_nobody(status: int) -> None:
    world = World()
    world.away_s, world.api.refusal = 60.0, status
    world.fallback.start_attempts([KEY])
    counts = world.controllers.of("revision")
    assert sum(counts.errors.values()) == 1 and world.fallback.scaled_total == 0
    assert counts.conflicts["scale"] == (status == 409)
    assert counts.errors[ErrorType.CONFLICT] == (status == 409)


def test_an_outage_of_many_revisions_is_met_by_a_few_calls_at_a_time() -> None:
    class SlowApi(Api):
        def __init__(self) -> None:
            super().__init__()
            self.under_way = 0
            self.let_go = asyncio.Event()

        async def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
            self.under_way += 1
            await self.let_go.wait()
            self.under_way -= 1
            return json.dumps({"metadata": {}, "spec": {"replicas": 0}}).encode()

        async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes:
            return b"{}"

    async def story() -> None:
        api, clock, tasks = SlowApi(), ManualClock(), []
        controllers = Controllers(clock.now)
        controllers.register("revision")

        def start(_name: str, coroutine: Any) -> None:
            tasks.append(asyncio.ensure_future(coroutine))

        fallback = ScaleFallback(api, 30.0, lambda: 60.0, clock.now, start, controllers)
        controllers.register("revision")
        fallback.start_attempts([f"default/hello-{number}" for number in range(50)])
        for _ in range(5):
            await asyncio.sleep(0)
        counts = controllers.of("revision")
        assert api.under_way == counts.active == SCALE_FALLBACKS_AT_ONCE < counts.concurrency
        api.let_go.set()
        await asyncio.gather(*tasks)
        assert fallback.scaled_total == 50

    asyncio.run(story())
