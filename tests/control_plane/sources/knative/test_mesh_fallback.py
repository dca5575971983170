"""When a Service stands for its pods, and when it stops doing so."""

from __future__ import annotations

import asyncio

import pytest

from activator.control_plane.sources.knative.mesh_fallback import MESH_REVISIONS_MAX, MeshFallback
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    Cluster,
    config_map,
    endpoint,
    endpoint_slice,
    revision,
    service,
)

BY_SERVICE = {"10.96.0.5:80": 2}


class Meshed(Cluster):
    """`says`: what an address answers to a direct question."""

    def __init__(self, limit: int = 1) -> None:
        super().__init__()
        self.says: dict[str, tuple[int, str]] = {"10.96.0.5:80": (200, "queue")}
        self.questions: list[str] = []
        self.fallback = MeshFallback(self.source, self._healthy, self.joined.clock.now, self.say)
        self.pods = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3", ready=False))
        self.see(revision(limit=limit), service(), self.pods)

    async def say(self, address: str) -> tuple[int, str]:
        self.questions.append(address)
        return self.says.get(address, (0, ""))

    def look(self, after_s: float = 2.5) -> None:
        asyncio.run(self.fallback.look())
        self.joined.clock.pass_time(after_s)
        asyncio.run(self.fallback.look())
        self.turn()


def test_no_pod_answers_and_the_service_does() -> None:
    cluster = Meshed()
    cluster.look()
    assert cluster.limits() == BY_SERVICE
    assert cluster.questions == ["10.0.0.1:8012", "10.0.0.2:8012", "10.96.0.5:80"]


def test_not_at_once() -> None:
    cluster = Meshed()
    cluster.look(1.0)
    assert cluster.ready() == [] and cluster.questions == []


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_answer_that_no_mesh_gives(status: int) -> None:
    cluster = Meshed()
    cluster.says["10.0.0.2:8012"] = (status, "")
    cluster.look()
    assert cluster.ready() == []


@pytest.mark.parametrize("status", [502, 503])
def test_an_answer_that_a_mesh_may_give(status: int) -> None:
    cluster = Meshed()
    cluster.says.update({"10.0.0.1:8012": (status, ""), "10.0.0.2:8012": (status, "")})
    cluster.look()
    assert cluster.limits() == BY_SERVICE


@pytest.mark.parametrize("answer", [(0, ""), (503, ""), (200, "something else")])
def test_the_service_does_not_answer_either(answer: tuple[int, str]) -> None:
    cluster = Meshed()
    cluster.says["10.96.0.5:80"] = answer
    cluster.look()
    assert cluster.ready() == []


def test_it_ends_with_the_first_pod_that_answers() -> None:
    cluster = Meshed()
    cluster.look()
    cluster.answer("10.0.0.1")
    cluster.look(0.1)
    assert cluster.limits() == {"10.0.0.1:8012": 1}


def test_scaled_to_zero_and_back() -> None:
    cluster = Meshed()
    cluster.look()
    nothing = endpoint_slice()
    cluster.see(nothing, old=cluster.pods)
    assert cluster.ready() == []
    cluster.look(0.1)
    cluster.see(cluster.pods, old=nothing)
    cluster.look(0.1)
    assert cluster.ready() == [], "what was so before does not count"


def test_the_capacity_follows_the_pods_behind_it() -> None:
    cluster = Meshed(limit=10)
    cluster.look()
    assert cluster.limits() == {"10.96.0.5:80": 20}
    cluster.see(endpoint_slice(*(endpoint(f"10.0.0.{number}") for number in range(1, 6))), old=cluster.pods)
    assert cluster.limits() == {"10.96.0.5:80": 50}


@pytest.mark.parametrize(
    "setting", [{"mesh_compatibility_mode": "disabled"}, {"enable_mesh_pod_addressability": "true"}]
)
def test_where_it_does_not_apply(setting: dict[str, str]) -> None:
    cluster = Meshed()
    cluster.see(config_map("config-network", **setting))
    cluster.look()
    assert cluster.questions == [] and KEY in cluster.source.revisions


def test_no_service_address() -> None:
    cluster = Meshed()
    cluster.see(service("None"))
    cluster.look()
    assert cluster.ready() == [] and cluster.questions == []


def test_many_revisions_whose_pods_are_silent_are_looked_at_together() -> None:
    """As when the way to all pods is cut: each silent one takes its time, and nobody is to wait for all the others."""
    cluster = Meshed()
    names = [f"silent-{number:05d}" for number in range(MESH_REVISIONS_MAX)]
    for number, name in enumerate(names):
        cluster.see(revision(name), endpoint_slice(endpoint(f"10.1.0.{number}"), name=name), service("10.97.0.1", name))
    together: list[int] = []

    async def say(address: str) -> tuple[int, str]:
        under_way.append(address)
        for _ in range(5):
            await asyncio.sleep(0)
        together.append(len(under_way))
        under_way.remove(address)
        return 0, ""

    under_way: list[str] = []
    cluster.fallback = MeshFallback(cluster.source, lambda _key: frozenset(), cluster.joined.clock.now, say)
    cluster.look()
    assert max(together) >= len(names)
