"""Replicas in Knative's mode that find each other through the Kubernetes API (the fake one) and hold limits as one."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.knative_cluster import SYSTEM, Cluster, request, wait_kubelet
from tests.e2e.running import Activator, eventually
from tests.e2e.test_e2e_knative import in_parallel
from tests.e2e.test_e2e_members import free_ports
from tests.kubernetes.fake_objects import RefusalError

NAME = "exact-00001"


class ClusterReplicas:
    """Pods of one Deployment, each with an object in the API."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.key = folder / "members.key"
        self.key.write_text("a key of the group that is long enough\n")
        self.running: dict[str, Activator] = {}
        self._started: list[Activator] = []

    def start(self, name: str, **more: str) -> Activator:
        (port,) = free_ports(1)
        thing = {"metadata": {"name": name}, "spec": {"containers": [{"name": "activator", "image": "activator"}]}}
        made = self.cluster.call(lambda: self.cluster.api.create("pods", thing, SYSTEM))
        activator = self.running[name] = self.cluster.activator(
            POD_NAME=name,
            POD_UID=made["metadata"]["uid"],
            ACTIVATOR_KUBERNETES__SHARING="exact",
            ACTIVATOR_MEMBERS__LISTEN=f"127.0.0.1:{port}",
            ACTIVATOR_MEMBERS__KEY_FILE=str(self.key),
            **more,
        )
        activator.may_log_errors = True
        self._started.append(activator)
        return activator

    def start_all(self, count: int) -> list[Activator]:
        started = [self.start(f"activator-{index}") for index in range(count)]
        self.wait_together()
        for activator in started:
            wait_kubelet(activator)
        return started

    def view(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.running[name].ask("/debug/members")[2])
        return found

    def wait_together(self) -> None:
        def together() -> bool:
            views = [self.view(name) for name in self.running]
            fits = len(views[0]["members"]) == len(views) and not views[0]["unproven"]
            return fits and len({(view["epoch"], tuple(view["members"])) for view in views}) == 1

        eventually(together, "the members are together")

    def delete_pod(self, name: str) -> None:
        self.cluster.call(lambda: self.cluster.api.delete("pods", name, SYSTEM))

    def asked_about(self, pod: str) -> list[str]:
        """Questions to the API about a pod."""
        return [path for verb, path, _ in self.cluster.api.requests if verb == "get" and path.endswith(f"/pods/{pod}")]

    def leases(self) -> list[str]:
        collection = self.cluster.api.collection("leases")
        objects = self.cluster.api.objects
        return sorted(name for _, name in objects.at(collection, objects.version))

    def close(self) -> None:
        for activator in self.running.values():
            activator.signal(signal.SIGCONT)
        for activator in self._started:
            activator.close()


@pytest.fixture
def replicas(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterReplicas]:
    made = ClusterReplicas(cluster, tmp_path)
    yield made
    made.close()


def test_a_limit_holds_over_replicas_that_the_api_knows(cluster: Cluster, replicas: ClusterReplicas) -> None:
    cluster.revision(NAME, limit=1)
    cluster.scales_to = 2
    activators = replicas.start_all(3)
    assert {replicas.view(name)["seat"] for name in replicas.running} == {0, 1, 2}
    eventually(lambda: all(NAME in activator.revisions() for activator in activators))
    turns = iter(range(10_000))
    statuses = in_parallel(12, 20, lambda: request(activators[next(turns) % 3], NAME, "/?seconds=0.004")[0])
    assert statuses == {200: 240}
    assert max(pod.most_in_flight for pod in cluster.pods[NAME]) == 1
    writes = cluster.api.writes
    time.sleep(1.0)
    assert cluster.api.writes == writes, "nothing is written while nothing changes"


def test_a_member_whose_pod_is_gone_is_evicted_and_what_it_owned_is_granted(
    cluster: Cluster, replicas: ClusterReplicas
) -> None:
    """It stands still, so nothing but the API tells that it has ended."""
    cluster.revision(NAME, limit=1)
    cluster.scales_to = 1
    activators = replicas.start_all(3)
    eventually(lambda: all(NAME in activator.revisions() for activator in activators))
    assert request(activators[0], NAME)[0] == 200
    (owner,) = [name for name, one in replicas.running.items() if one.revision(NAME)["owner"]]
    other = next(name for name in replicas.running if name != owner)
    seat = replicas.view(owner)["seat"]
    replicas.running[owner].signal(signal.SIGSTOP)
    eventually(lambda: replicas.view(other)["unproven"] == [seat])
    eventually(lambda: len(replicas.asked_about(owner)) >= 2)
    assert replicas.view(other)["unproven"] == [seat], "its pod is there: it may go on"
    replicas.running[owner].signal(signal.SIGKILL)
    replicas.delete_pod(owner)
    gone = replicas.running.pop(owner)
    gone.process.wait(10.0)
    eventually(lambda: replicas.view(other)["unproven"] == [])
    assert request(replicas.running[other], NAME)[0] == 200
    eventually(lambda: len(replicas.leases()) == 2)


def test_the_api_away_changes_nothing_for_members_that_are_there(cluster: Cluster, replicas: ClusterReplicas) -> None:
    cluster.revision(NAME, limit=1)
    cluster.scales_to = 1
    activators = replicas.start_all(2)
    eventually(lambda: all(NAME in activator.revisions() for activator in activators))
    assert request(activators[0], NAME)[0] == 200
    epoch = replicas.view("activator-0")["epoch"]
    cluster.do(cluster.api.stop())
    time.sleep(3.0)
    for activator in activators:
        assert request(activator, NAME)[0] == 200
    assert replicas.view("activator-0")["epoch"] == epoch
    cluster.do(cluster.api.start())


def test_without_the_right_to_use_leases_it_goes_on_alone(cluster: Cluster, replicas: ClusterReplicas) -> None:
    refusal = RefusalError(403, "Forbidden", "leases.coordination.k8s.io is forbidden")
    cluster.api.refused = lambda _verb, path: refusal if "leases" in path else None
    cluster.revision(NAME, limit=1)
    activator = replicas.start("activator-0")
    wait_kubelet(activator)
    activator.wait_logged_once("this replica continues alone, and limits hold for each replica by itself")
    assert request(activator, NAME)[0] == 200


def test_a_lease_that_somebody_deletes_is_claimed_again(cluster: Cluster, replicas: ClusterReplicas) -> None:
    replicas.start_all(2)
    (first, _) = leases = replicas.leases()
    cluster.call(lambda: cluster.api.delete("leases", first, SYSTEM))
    eventually(lambda: replicas.leases() == leases)
    replicas.wait_together()


def test_replicas_that_leave_give_up_their_seats(cluster: Cluster, replicas: ClusterReplicas) -> None:
    activators = replicas.start_all(2)
    activators[1].signal(signal.SIGTERM)
    assert activators[1].wait_end() == 0
    del replicas.running["activator-1"]
    eventually(lambda: len(replicas.leases()) == 1)
    replicas.wait_together()
    started = replicas.start("activator-2")
    replicas.wait_together()
    assert replicas.view("activator-2")["seat"] in {0, 1}
    assert started.ask("/readyz")[0] in {200, 503}
