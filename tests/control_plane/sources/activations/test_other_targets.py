"""Targets that are read by their scale subresource."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from activator.control_plane.sources.activations.objects import Workload
from activator.control_plane.sources.activations.other_targets import (
    OTHER_TARGET_INTERVAL_S,
    OtherTargets,
    TargetKey,
    labels_of,
)
from activator.kubernetes.errors import UnreachableError
from activator.runtime.tasks import keep_running
from tests.kubernetes.fake_cluster import on_a_loop, running, until
from tests.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ("app=web", {"app": "web"}),
        ("app=web,tier==front", {"app": "web", "tier": "front"}),
        (" app = web ", {}),
        ("app in (web)", {}),
        ("app=web,!canary", {}),
        ("app!=web", {}),
        ("example.com/name=a_b.c-d", {"example.com/name": "a_b.c-d"}),
        ("empty=", {"empty": ""}),
        ("", {}),
    ],
)
def test_labels_of_a_selector(selector: str, labels: dict[str, str]) -> None:
    assert labels_of(selector) == labels


class Answers:
    """An API whose answers a test gives, one for each call; the last one holds."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        self.calls += 1
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Repeated:
    """A life of steps."""

    def __init__(self, targets: OtherTargets) -> None:
        self._targets = targets

    async def run(self) -> None:
        await keep_running(self._targets.step, lambda error: pytest.fail(repr(error)))


SCALE = b'{"metadata": {"name": "a", "uid": "1"}, "spec": {"replicas": 2}, "status": {"selector": "app=a"}}'
PLACE = ("apps/v1/Deployment", "default", "a")


@pytest.mark.parametrize("answer", [b"<html>502</html>", b"[]", b'{"spec": {"replicas": "two"}}', RuntimeError("?")])
@on_a_loop
async def test_an_answer_that_cannot_be_read_ends_nothing(answer: bytes | Exception) -> None:
    clock = ManualClock()
    filed: list[int | None] = []

    async def pause(seconds: float) -> None:
        clock.pass_time(seconds)
        await asyncio.sleep(0)

    def file(place: TargetKey, workload: Workload | None, problem: str) -> None:
        assert workload is not None and not problem
        filed.append(workload.spec.replicas)

    api = Answers(answer, SCALE)
    targets = OtherTargets(api, file, clock.now, pause)  # type: ignore[arg-type]
    targets.follow(PLACE)
    async with running(Repeated(targets)):
        await until(lambda: filed)  # and perhaps again: the clock runs ahead
        assert set(filed) == {2} and clock.now() >= OTHER_TARGET_INTERVAL_S


@on_a_loop
async def test_what_could_not_be_read_is_read_when_the_api_is_back() -> None:
    clock = ManualClock()
    filed: list[TargetKey] = []

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0)

    api = Answers(UnreachableError("away"), SCALE)
    targets = OtherTargets(api, lambda place, *_: filed.append(place), clock.now, pause)  # type: ignore[arg-type]
    targets.follow(PLACE)
    async with running(Repeated(targets)):
        await until(lambda: api.calls == 1)
        targets.wake()
        await until(lambda: filed == [PLACE])
        targets.wake()
        await asyncio.sleep(0.01)
        assert api.calls == 2
