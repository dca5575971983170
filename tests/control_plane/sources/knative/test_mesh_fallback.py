"""When a Service stands for its pods, and when it stops doing so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any

import pytest

from activator.control_plane.sources.knative.mesh_fallback import (
    MESH_ASKED_AT_ONCE,
    MESH_REVISIONS_PER_TURN,
    MESH_STEP_MAX_S,
    MeshFallback,
)
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    PATIENCE_S,
    Cluster,
    config_map,
    endpoint,
    endpoint_slice,
    revision,
    service,
)
from tests.data_plane.throttle.throttle_fakes import Request

SERVICE = "10.96.0.5:80"
BY_SERVICE = {SERVICE: 2}
ANSWERS = (200, "queue")


class Meshed(Cluster):
    """Two pods that are ready for Kubernetes and cannot be reached, and one that is not ready."""

    def __init__(self, limit: int = 1, setting: dict[str, str] | None = None) -> None:
        super().__init__()
        self.says[SERVICE] = ANSWERS
        self.pods = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3", ready=False))
        if setting is not None:
            self.see(config_map("config-network", **setting))
        self.see(revision(limit=limit), service(), self.pods)

    def detect(self, after_s: float = PATIENCE_S) -> None:
        self.joined.clock.pass_time(after_s)
        self.turn()


def test_no_pod_answers_and_the_service_does() -> None:
    cluster = Meshed()
    cluster.detect()
    assert cluster.limits() == BY_SERVICE
    assert sorted(cluster.probed) == ["10.0.0.1:8012", "10.0.0.2:8012", SERVICE], "all at once, and once"


def test_a_start_behind_a_mesh_waits_as_long_as_a_probe_may_take_and_no_longer() -> None:
    cluster = Meshed()
    cluster.detect(PATIENCE_S - 0.01)
    assert cluster.ready() == [] and cluster.probed == []
    cluster.detect(0.01)
    assert cluster.limits() == BY_SERVICE


def test_pods_and_service_are_asked_at_the_same_time() -> None:
    cluster = Meshed()
    together: list[int] = []
    under_way: list[str] = []

    async def say(address: str) -> tuple[int, str]:
        under_way.append(address)
        for _ in range(5):
            await asyncio.sleep(0)
        together.append(len(under_way))
        return cluster.says.get(address, (0, ""))

    cluster.fallback._probe = say
    cluster.detect()
    assert together == [3, 3, 3] and cluster.limits() == BY_SERVICE


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_answer_that_no_mesh_gives(status: int) -> None:
    cluster = Meshed()
    cluster.says["10.0.0.2:8012"] = (status, "")
    cluster.detect()
    assert cluster.ready() == [] and cluster.probed


@pytest.mark.parametrize("status", [502, 503])
def test_an_answer_that_a_mesh_may_give(status: int) -> None:
    cluster = Meshed()
    cluster.says.update({"10.0.0.1:8012": (status, ""), "10.0.0.2:8012": (status, "")})
    cluster.detect()
    assert cluster.limits() == BY_SERVICE


@pytest.mark.parametrize("answer", [(0, ""), (503, ""), (200, "something else")])
def test_the_service_does_not_answer_either_and_is_asked_again_with_a_backoff(answer: tuple[int, str]) -> None:
    cluster = Meshed()
    cluster.says[SERVICE] = answer
    asked = []
    for _ in range(100):
        cluster.detect(0.1)
        asked.append(cluster.probed.count(SERVICE))
    assert cluster.ready() == []
    assert 5 < asked[-1] < 20, "often at first, and then less"
    cluster.says[SERVICE] = ANSWERS
    cluster.detect(MESH_STEP_MAX_S)
    assert cluster.limits() == BY_SERVICE


def test_it_ends_with_the_first_pod_that_answers() -> None:
    cluster = Meshed()
    cluster.detect()
    cluster.answer("10.0.0.1")
    assert cluster.limits() == {"10.0.0.1:8012": 1}, "at once, without a look at all revisions"


def test_what_was_found_is_remembered_at_zero_and_the_next_start_waits_for_nothing() -> None:
    cluster = Meshed()
    cluster.detect()
    nothing = endpoint_slice()
    cluster.see(nothing, old=cluster.pods)
    assert cluster.ready() == []
    cluster.detect(1000.0)
    cluster.probed.clear()
    cluster.see(cluster.pods, old=nothing)
    assert cluster.limits() == BY_SERVICE, "no time has passed"
    assert cluster.probed == [SERVICE], "the pods are probed as always"


def test_what_was_found_is_not_believed_unasked_and_ends_where_a_pod_answers_first() -> None:
    cluster = Meshed()
    cluster.detect()
    nothing = endpoint_slice()
    cluster.see(nothing, old=cluster.pods)
    del cluster.says[SERVICE]
    cluster.see(cluster.pods, old=nothing)
    assert cluster.ready() == [] and cluster.probed[-1] == SERVICE
    cluster.answer("10.0.0.1")
    assert cluster.limits() == {"10.0.0.1:8012": 1}
    asked = len(cluster.probed)
    cluster.detect(60.0)
    assert len(cluster.probed) == asked
    cluster.see(nothing, old=cluster.pods)
    cluster.answering.clear()
    cluster.says[SERVICE] = ANSWERS
    cluster.see(cluster.pods, old=nothing)
    assert cluster.ready() == [], "there was no mesh the last time"
    cluster.detect()
    assert cluster.limits() == BY_SERVICE


def test_another_address_of_the_service_is_asked_before_it_is_used() -> None:
    cluster = Meshed()
    cluster.detect()
    cluster.see(service("10.96.0.6"), old=service())
    assert cluster.ready() == []
    cluster.says["10.96.0.6:80"] = ANSWERS
    cluster.detect(MESH_STEP_MAX_S)
    assert cluster.limits() == {"10.96.0.6:80": 2}


def test_the_capacity_follows_the_pods_behind_it() -> None:
    cluster = Meshed(limit=10)
    cluster.detect()
    assert cluster.limits() == {SERVICE: 20}
    cluster.see(endpoint_slice(*(endpoint(f"10.0.0.{number}") for number in range(1, 6))), old=cluster.pods)
    assert cluster.limits() == {SERVICE: 50}


@pytest.mark.parametrize(
    "setting", [{"mesh_compatibility_mode": "disabled"}, {"enable_mesh_pod_addressability": "true"}]
)
def test_where_it_does_not_apply(setting: dict[str, str]) -> None:
    cluster = Meshed(setting=setting)
    cluster.detect()
    assert cluster.probed == [] and KEY in cluster.source.revisions


def test_it_ends_where_it_does_not_apply_any_more() -> None:
    cluster = Meshed()
    cluster.detect()
    cluster.see(config_map("config-network", mesh_compatibility_mode="disabled"))
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"]
    assert not cluster.source.revisions[KEY].by_service


def went_to(request: Request) -> str:
    """The address; empty: it waits."""
    return "" if request.lease is None else request.lease.address


def test_where_the_mode_is_enabled_the_service_gets_nothing_before_it_has_answered() -> None:
    """Kubernetes may call a pod ready some time before the Service leads to it."""
    cluster = Meshed(limit=10, setting={"mesh_compatibility_mode": "enabled"})
    assert cluster.limits() == {SERVICE: 20} and cluster.probed == [SERVICE]
    cluster = Meshed(limit=10)
    cluster.says[SERVICE] = (0, "")
    cluster.see(config_map("config-network", mesh_compatibility_mode="enabled"))
    assert cluster.ready() == [] and cluster.probed[-1] == SERVICE
    waiting = cluster.joined.ask(KEY)
    cluster.detect(0.05)
    assert went_to(waiting) == "" and cluster.ready() == []
    cluster.says[SERVICE] = ANSWERS
    cluster.detect(0.2)
    assert cluster.limits() == {SERVICE: 20}
    assert went_to(waiting) == SERVICE


def test_no_service_address() -> None:
    cluster = Meshed()
    cluster.see(service("None"))
    cluster.detect()
    assert cluster.ready() == [] and cluster.probed == []


def test_a_revision_that_is_gone_is_asked_no_more() -> None:
    cluster = Meshed()
    cluster.says[SERVICE] = (0, "")
    cluster.detect()
    cluster.miss(revision())
    asked = len(cluster.probed)
    cluster.detect(60.0)
    assert len(cluster.probed) == asked


# --- many of them ---


class Held(Meshed):
    """Probes stay under way until the test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[str, Coroutine[Any, Any, None]]] = []
        self.fallback = MeshFallback(self.source, self.joined.clock.now, self._say, PATIENCE_S, self._hold)

    def silent(self, number: int) -> None:
        name = f"silent-{number:05d}"
        self.see(revision(name), endpoint_slice(endpoint(f"10.1.0.{number}"), name=name), service("10.97.0.1", name))

    def end(self) -> None:
        held, self.held[:] = list(self.held), []
        for _, coroutine in held:
            asyncio.run(coroutine)

    def _hold(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self.held.append((name, coroutine))


def test_a_start_does_not_wait_for_the_probes_of_many_silent_revisions() -> None:
    """As when the way to all pods is cut: each silent one takes its time, and nobody is to wait for all the others."""
    cluster = Held()
    for number in range(2 * MESH_ASKED_AT_ONCE):
        cluster.silent(number)
    for _ in range(8):
        cluster.detect(MESH_STEP_MAX_S)
        assert len(cluster.held) == MESH_ASKED_AT_ONCE, "as many as may be at once"
        cluster.end()
    cluster.detect(MESH_STEP_MAX_S)
    late = "silent-99999"
    cluster.see(revision(late), endpoint_slice(endpoint("10.2.0.1"), name=late), service("10.98.0.1", late))
    cluster.detect(PATIENCE_S)
    cluster.end()
    cluster.turn()
    asked = len(cluster.probed)
    cluster.end()
    assert "10.98.0.1:80" in cluster.probed[asked:], "it was asked least often, so it comes first"
    for _, coroutine in cluster.held:
        coroutine.close()


def test_a_check_of_many_changed_revisions_is_done_in_turns() -> None:
    cluster = Meshed()
    for number in range(MESH_REVISIONS_PER_TURN + 1):
        cluster.fallback.mark_changed(f"ns/none-{number}")
    assert cluster.fallback.step() == 0.0
    assert cluster.fallback.step() > 0.0


def steps_of(pods: int) -> int:
    """Calls that one look at a revision of so many ready pods takes, none of which answers; and the load of it."""
    cluster = Meshed()
    many = [endpoint(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}") for number in range(pods)]
    cluster.see(endpoint_slice(*many), old=cluster.pods)
    cluster.says[SERVICE] = (0, "")
    cluster.detect(60.0)
    steps = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal steps
        steps += 1

    cluster.fallback.mark_changed(KEY)
    sys.setprofile(count)
    try:
        cluster.fallback.step()
        cluster.source.answers.has_answer(KEY)
    finally:
        sys.setprofile(None)
    return steps


def test_a_look_costs_the_same_however_many_pods_do_not_answer() -> None:
    few, many = steps_of(10), steps_of(1000)
    assert 0 < many <= few + 5, "in calls: it was quadratic once, and held the loop for a second at 2,000 pods"
