"""The mode with its real autoscaler: what happens between an event of a watch and the pass that follows from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from activator.config.model.file import Config
from activator.config.model.kubernetes import Kubernetes
from activator.control_plane.reconcile.desired import Desired
from activator.control_plane.sources.activations.mode import ActivationsMode
from activator.messages import Load
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng
from tests.control_plane.sources.activations.activation_fakes import KEY, activation, workload


def edited(mode: ActivationsMode) -> None:
    mode.source.activation_objects.changed(activation(), activation(externalScaler=True))


def recreated(mode: ActivationsMode) -> None:
    mode.source.activation_objects.removed(activation())
    mode.source.activation_objects.changed(None, activation(uid="another"))


def deleted(mode: ActivationsMode) -> None:
    mode.source.activation_objects.removed(activation())


@pytest.mark.parametrize("change", [edited, recreated, deleted])
def test_a_load_between_an_event_and_its_pass_scales_nothing_that_was_before(
    change: Callable[[ActivationsMode], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The autoscaler still has the former object then, and its decision must not outlive it."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    wanted: list[int | None] = []
    panics: list[object] = []

    def panicked(*what: Any) -> float:
        panics.append(what)
        return 1.0

    class Written(ActivationsMode):
        def _want(self, desired: Desired) -> None:
            wanted.append(desired.replicas)

    async def scenario() -> None:
        now = time.monotonic
        mode = Written(
            Config(kubernetes=Kubernetes(mode="activations")),
            lambda _: None,
            now,
            time.time,
            Rng(1),
            TaskGroupOwner(lambda name, error: panics.append(error)),
            Controllers(now),
            panicked,
            lambda ports: frozenset(),
            frozenset,
        )
        mode.source.activation_objects.changed(None, activation())
        mode.source.workload_objects("Deployment").changed(None, workload(replicas=0))
        await turns()
        wanted.clear()
        change(mode)
        mode.receive_load(Load(KEY, 0, 5, 5, 5, 0.0, now()))
        await turns()
        assert 1 not in wanted, "the decision about the former object was written"
        assert mode.source.wanted.get(KEY, 0) == 0
        if change is deleted:
            assert mode.source.wanted == {}
        await mode.close()

    asyncio.run(scenario())
    assert panics == []


async def turns() -> None:
    for _ in range(5):
        await pause(0.0)
