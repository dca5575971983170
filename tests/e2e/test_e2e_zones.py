"""Zones over real sockets: requests go to pods of the activator's zone, and to others when those are full."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.counting_pods import CountingPods
from tests.e2e.http_client import Client, request
from tests.e2e.load import Tally
from tests.e2e.pods import ScriptedPod, serve_or_hold
from tests.e2e.running import Activator, configured, eventually
from tests.e2e.story_cluster import StoryCluster
from tests.e2e.story_cluster import ask as ask_host
from tests.e2e.story_fixtures import MakeCluster, cluster, make_cluster

__all__ = ["MakeCluster", "cluster", "make_cluster"]

ZONE = "eu-1a"
OTHER = "eu-1b"
LABEL = "topology.kubernetes.io/zone"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def pods(stack: ExitStack) -> list[ScriptedPod]:
    """The first one will be far: a policy that knows no zones would take it first."""
    return [stack.enter_context(ScriptedPod(serve_or_hold)) for _ in range(3)]


def entries(pods: Sequence[ScriptedPod], zones: Sequence[str]) -> list[dict[str, Any]]:
    return [{"address": pod.address, **({"zone": zone} if zone else {})} for pod, zone in zip(pods, zones)]


def zoned(**keys: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "container_concurrency": 1, "prefer_zone": True, **keys}


def hold(stack: ExitStack, activator: Activator) -> Client:
    """A request that its pod does not answer before `go_on`."""
    client = stack.enter_context(Client(activator.address))
    client.send(request("/held"))
    return client


def in_flight(activator: Activator) -> dict[str, int]:
    return {slot["address"]: slot["in_flight"] for slot in activator.slots("a")}


def holds(activator: Activator, pods: Sequence[ScriptedPod]) -> None:
    """Wait until exactly these pods have a request each."""
    addresses = {pod.address for pod in pods}
    expected = {address: int(address in addresses) for address in in_flight(activator)}
    eventually(lambda: in_flight(activator) == expected, f"a request at each of {sorted(addresses)}")


def answered(activator: Activator) -> str:
    with Client(activator.address) as client:
        return client.ask(request()).body.decode()


def released(client: Client, pod: ScriptedPod) -> None:
    pod.go_on()
    assert client.answer().body.decode() == pod.address


@pytest.mark.parametrize(
    ("workers", "policy"), [(1, ""), (1, "round-robin"), (1, "least-connections"), (1, "consistent-hash"), (2, "")]
)
def test_requests_spill_over_and_come_back(
    stack: ExitStack, pods: list[ScriptedPod], run_activator: RunActivator, workers: int, policy: str
) -> None:
    far, near = pods[0], pods[1:]
    listed = entries(pods, [OTHER, ZONE, ""])
    more = {"policy": policy} if policy else {}
    activator = run_activator(configured([zoned(pods=listed, **more)], zone=ZONE, workers=workers))
    activator.wait_ready_pods("a", 3)
    assert {slot["address"]: (slot["far"], slot.get("zone")) for slot in activator.slots("a")} == {
        far.address: (True, OTHER),
        near[0].address: (False, ZONE),
        near[1].address: (False, None),
    }
    assert far.address not in {answered(activator) for _ in range(20)}
    first = hold(stack, activator)
    (at,) = eventually(lambda: [pod for pod in near if in_flight(activator)[pod.address]])
    (still,) = [pod for pod in near if pod is not at]
    second = hold(stack, activator)
    holds(activator, near)
    assert {answered(activator) for _ in range(5)} == {far.address}
    third = hold(stack, activator)
    holds(activator, pods)
    fourth = hold(stack, activator)
    eventually(lambda: activator.revision("a")["queued"] == 1, "the fourth waits: the limit holds")
    released(first, at)
    assert fourth.answer().body.decode() == at.address
    holds(activator, [far, still])
    assert {answered(activator) for _ in range(5)} == {at.address}, "near again, with a request at the far pod"
    released(second, still)
    released(third, far)
    activator.wait_idle("a")


def test_the_zone_of_a_pod_and_the_preference_change_while_requests_run(
    stack: ExitStack, pods: list[ScriptedPod], run_activator: RunActivator, tmp_path: Path
) -> None:
    file = tmp_path / "pods.json"

    def write(*zones: str) -> None:
        made = tmp_path / "new.json"
        made.write_text(json.dumps(entries(pods, zones)))
        made.replace(file)

    write(OTHER, ZONE, ZONE)
    activator = run_activator(configured([zoned(pods_file=str(file))], zone="env:NODE_ZONE"), NODE_ZONE=ZONE)
    activator.wait_ready_pods("a", 3)
    first, second = hold(stack, activator), hold(stack, activator)
    holds(activator, pods[1:])
    write(ZONE, OTHER, OTHER)
    eventually(lambda: [slot["far"] for slot in activator.slots("a")] == [False, True, True], "the zones are read")
    holds(activator, pods[1:])
    third = hold(stack, activator)
    holds(activator, pods)
    for pod in pods:
        pod.go_on()
    assert {one.answer().body.decode() for one in (first, second, third)} == {pod.address for pod in pods}
    assert {answered(activator) for _ in range(9)} == {pods[0].address}
    status, _, body = activator.ask("/debug/revisions")
    assert (status, b'"zone"' in body) == (200, True)


def test_zones_that_flap_under_load_cost_no_request(run_activator: RunActivator, tmp_path: Path) -> None:
    """Two workers, 20 clients and four pods that take one request each: the limit holds, and nothing fails."""
    file = tmp_path / "pods.json"
    with CountingPods(4, 0.002) as pods:

        def flap(step: int) -> None:
            zones = [OTHER if (place + step) % 4 < 2 else ZONE for place in range(4)]
            made = tmp_path / "new.json"
            made.write_text(json.dumps([{"address": at, "zone": zone} for at, zone in zip(pods.addresses, zones)]))
            made.replace(file)
            if step:
                expected = [zone == OTHER for zone in zones]
                eventually(lambda: [slot["far"] for slot in activator.slots("a")] == expected)
                load.goes_on(200)

        def flap_on() -> None:
            for step in range(1, 6):
                flap(step)

        flap(0)
        activator = run_activator(configured([zoned(pods_file=str(file))], zone=ZONE, workers=2))
        activator.wait_ready_pods("a", 4)
        load = Tally([activator.address], 20)
        load.run(flap_on)
        assert (pods.most, load.cut, load.other) == (1, 0, [])
        activator.wait_idle("a")
        assert activator.revision("a")["requests"] == load.good == pods.answered


def test_an_activator_without_a_zone_takes_all_pods(pods: list[ScriptedPod], run_activator: RunActivator) -> None:
    listed = entries(pods, [OTHER, ZONE, ""])
    revision = zoned(pods=listed, policy="round-robin")
    activator = run_activator(configured([revision], zone="env:NODE_ZONE"), NODE_ZONE="")
    activator.wait_ready_pods("a", 3)
    assert {answered(activator) for _ in range(9)} == {pod.address for pod in pods}


def test_the_zone_of_endpoints_counts_and_changes(cluster: StoryCluster) -> None:
    """As the slices of a cluster give it; three pods with a limit of 1, two of them in the activator's zone."""
    cluster.deploy(replicas=3)
    cluster.declare(containerConcurrency=1, preferZone=True, policy="round-robin", scaling={"min": 3, "max": 3})
    cluster.wait_pods(3)
    names = [name for name in cluster.names("pods") if name.startswith("hello-")]

    def label(*zones: str) -> None:
        for name, zone in zip(names, zones):
            cluster.edit("pods", name, {"metadata": {"labels": {LABEL: zone}}}, "test")

    label(OTHER, ZONE, ZONE)
    activator = cluster.activator(zone=ZONE)
    try:
        activator.wait_ready_pods("hello", 3)

        def zones() -> dict[str, bool]:
            return {slot.get("zone", ""): slot["far"] for slot in activator.slots("hello")}

        eventually(lambda: zones() == {OTHER: True, ZONE: False})
        served_by(activator, cluster, 2)
        label(ZONE, OTHER, OTHER)
        eventually(lambda: [slot["far"] for slot in activator.slots("hello")].count(True) == 2)
        served_by(activator, cluster, 1)
    finally:
        activator.close()


def served_by(activator: Activator, cluster: StoryCluster, count: int) -> None:
    """Assert that ten requests, one after the other, go to so many pods."""
    before = {slot["pod"]: slot["responses"] for slot in activator.slots("hello")}
    for _ in range(10):
        assert ask_host(activator)[0] == 200
    after = {slot["pod"]: slot["responses"] for slot in activator.slots("hello")}
    assert sum(after[pod] > before[pod] for pod in after) == count
    assert not any(slot["far"] for slot in activator.slots("hello") if after[slot["pod"]] > before[slot["pod"]])
