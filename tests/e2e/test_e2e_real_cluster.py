"""What needs a real API server: replicas on machines of their own, with the API killed and a network that fails.

Skipped where there is none (tests/kube/real.py). With its programs on PATH the API server is a process of the test's
and is killed; one that is named by a configuration is cut off instead.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest

from tests.e2e.activation_replicas import ActivationReplicas
from tests.e2e.networks import API, Networks, why_no_networks
from tests.e2e.real_activation_cluster import RealActivationCluster
from tests.e2e.running import Activator, eventually
from tests.e2e.story_cluster import ask
from tests.e2e.story_fixtures import skip_without_pods
from tests.kube import real
from tests.kubernetes.fake_nodes import Settings

AWAY_S: Final = float(os.environ.get("ACTIVATOR_TEST_API_AWAY_S", "5"))  # how long the API is away
PARTED_S: Final = 6.0  # how long a member is: its silence is noticed after 1 s, and what it owned waits
LIMITS: Final = {"one": 1, "three": 3}
PODS: Final = 2  # of each
CLIENTS: Final = 12
PATIENCE_S: Final = 120.0  # of a client: a request may wait for a partition to end


@pytest.fixture
def networks() -> Iterator[Networks]:
    skip_without_pods()
    if why := why_no_networks():
        pytest.skip(why)
    made = Networks()
    yield made
    made.close()


@pytest.fixture
def cluster(networks: Networks, tmp_path: Path) -> Iterator[RealActivationCluster]:
    settings = Settings(schedule_s=0.01, ready_s=0.05, terminate_s=0.3)
    made = RealActivationCluster(tmp_path, settings, gate_host=API)
    yield made
    made.close()


class NetworkReplicas(ActivationReplicas):
    """Each on a machine of its own."""

    def __init__(self, cluster: RealActivationCluster, networks: Networks, folder: Path) -> None:
        super().__init__(cluster, folder)
        self.networks = networks

    def place(self, name: str) -> tuple[str, list[str]]:
        return self.networks.address(name), self.networks.prefix(name)

    def part(self, name: str) -> list[str]:
        """From all others and from the API; not from clients and pods. From whom."""
        others = [self.networks.address(one) for one in self.running if one != name]
        self.networks.cut(name, [*others, API])
        return [*others, API]

    def end(self, name: str) -> None:
        """As a rolling update does: it drains, and goes; its pod is deleted."""
        gone = self.running.pop(name)
        gone.process.terminate()
        assert gone.wait_end() == 0


@pytest.fixture
def replicas(cluster: RealActivationCluster, networks: Networks, tmp_path: Path) -> Iterator[NetworkReplicas]:
    made = NetworkReplicas(cluster, networks, tmp_path)
    yield made
    made.close()


class Crowd:
    """Clients in threads, each asking one replica after the other that takes new requests, for each of the names."""

    def __init__(self, entries: list[Activator]) -> None:
        self.entries = entries
        self.answers: Counter[str] = Counter()
        self.longest_s = 0.0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._visit, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def goes_on(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait for so many more answers."""
        until = self.answers["200"] + count
        try:
            eventually(lambda: self.answers["200"] >= until, "", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"not {count} more answers in {timeout_s:g} s: {self.answers}") from error

    def _visit(self, number: int) -> None:
        names = list(LIMITS)
        turn = number
        while not self._over.is_set():
            turn += 1
            entry, began_s = self.entries[turn % len(self.entries)], time.monotonic()
            self.answers[_asked(entry, f"{names[turn % len(names)]}.test")] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


def _asked(entry: Activator, host: str) -> str:
    request = urllib.request.Request(f"http://{entry.address}/slow/0.03", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers.get('Activator-Reason')} {error.read()[:200]!r}"
    except OSError as error:
        return repr(error)


def take_api_away(cluster: RealActivationCluster) -> None:
    if real.NAMED:
        cluster.stop_api()
    else:
        real.own_control_plane().kill_api()


def bring_api_back(cluster: RealActivationCluster) -> None:
    if real.NAMED:
        cluster.start_api()
    else:
        real.own_control_plane().start_api()


def test_replicas_come_and_go_while_the_api_is_killed_and_one_is_parted(
    cluster: RealActivationCluster, replicas: NetworkReplicas
) -> None:
    """3, 5, 1 replicas under load: no pod has more than its limit, and no request fails."""
    for name, limit in LIMITS.items():
        cluster.deploy(name, PODS)
        cluster.declare(name, containerConcurrency=limit, scaling={"min": PODS, "max": PODS})
    more = {"shutdown": {"delay": "1s"}}
    replicas.start_all(3, **more)
    for activator in replicas.running.values():
        for name in LIMITS:
            activator.wait_ready_pods(name, PODS)
    with Crowd(list(replicas.running.values())) as crowd:
        crowd.goes_on(300)
        for number in (3, 4):
            replicas.start(f"activator-{number}", **more)
        replicas.wait_together()
        crowd.entries = list(replicas.running.values())
        crowd.goes_on(300)

        take_api_away(cluster)
        began_s = time.monotonic()
        crowd.goes_on(300)
        parted = next(iter(replicas.running))
        epoch = replicas.view(parted)["epoch"]
        cut = replicas.part(parted)
        crowd.entries = [one for name, one in replicas.running.items() if name != parted] + [replicas.running[parted]]
        other = next(name for name in replicas.running if name != parted)
        eventually(lambda: replicas.view(other)["unproven"], "its silence is noticed")
        eventually(lambda: not replicas.view(parted)["grants"], "it has no majority")
        time.sleep(PARTED_S)  # what is claimed is of a time: nobody gets more than the limit in it
        replicas.networks.mend(parted, cut)
        replicas.wait_group()
        assert replicas.view(parted)["epoch"] > epoch
        crowd.goes_on(300)
        while time.monotonic() - began_s < AWAY_S:
            crowd.goes_on(50)
        bring_api_back(cluster)
        crowd.goes_on(300)

        for name in list(replicas.running)[:4]:
            crowd.entries = [one for key, one in replicas.running.items() if key != name]
            replicas.end(name)
            crowd.goes_on(50)
        replicas.wait_together()
        crowd.goes_on(300)
    print(f"answers {crowd.answers['200']}, the longest took {crowd.longest_s:.1f} s")
    assert set(crowd.answers) == {"200"}, crowd.answers
    for name, limit in LIMITS.items():
        most = {pod.name: pod.most_in_flight for pod in cluster.seen if pod.name.startswith(f"{name}-")}
        assert len(most) == PODS and max(most.values()) <= limit, most
    (last,) = replicas.running
    assert len(json.loads(replicas.running[last].ask("/debug/members")[2])["writers"]) == 1


@pytest.fixture
def pods_cluster(tmp_path: Path) -> Iterator[RealActivationCluster]:
    skip_without_pods()
    made = RealActivationCluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def activator(pods_cluster: RealActivationCluster) -> Iterator[Activator]:
    made = pods_cluster.activator()
    yield made
    made.close()


@pytest.mark.skipif(
    bool(real.NAMED), reason="it would scale Activations of others: only with a control plane of its own"
)
def test_the_whole_cluster_is_looked_at_with_a_cluster_role(tmp_path: Path) -> None:
    skip_without_pods()
    with ExitStack() as stack:
        cluster = RealActivationCluster(tmp_path, whole=True)
        stack.callback(cluster.close)
        activator = cluster.activator()
        stack.callback(activator.close)
        cluster.deploy()
        cluster.declare()
        cluster.wait_condition("Ready", "AtZero")
        assert ask(activator)[0] == 200
        cluster.wait_replicas(0)


def test_from_the_first_request_over_an_upgrade_under_load_to_the_deletion(
    pods_cluster: RealActivationCluster, activator: Activator
) -> None:
    """The upgrade is the rolling update of the Deployment controller: old and new pods, and no failure."""
    cluster = pods_cluster
    cluster.deploy("one")
    cluster.deploy("three")
    for name, limit in LIMITS.items():
        cluster.declare(name, containerConcurrency=limit, scaling={"max": 4, "burst": True, "scaleToZeroGrace": "2s"})
        cluster.wait_condition("Ready", "AtZero", name)
    for name in LIMITS:
        assert ask(activator, f"{name}.test")[0] == 200, "from zero"
        cluster.wait_replicas(0, name)
    with Crowd([activator]) as crowd:
        crowd.goes_on(100)
        for name in LIMITS:
            old = {pod.name for pod in cluster.seen if pod.name.startswith(f"{name}-")}
            change = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
            cluster.update("deployments", name, change)
            eventually(partial(is_upgraded, cluster, name, old), f"{name} is upgraded")
        crowd.goes_on(100)
    assert set(crowd.answers) == {"200"}, crowd.answers
    for name, limit in LIMITS.items():
        assert max(pod.most_in_flight for pod in cluster.seen if pod.name.startswith(f"{name}-")) <= limit
        cluster.wait_replicas(0, name)
        cluster.delete("activations", name)
        eventually(partial(has_no_service, cluster, name))
        assert name in cluster.names("deployments"), "the workload is the user's"
    eventually(lambda: ask(activator, "one.test")[0] == 404)


def has_no_service(cluster: RealActivationCluster, name: str) -> bool:
    return f"{name}-pods" not in cluster.names("services")


def is_upgraded(cluster: RealActivationCluster, name: str, old: set[str]) -> bool:
    """Pods of the new template are there, and none of the former one."""
    pods = {pod for pod in cluster.pods if pod.startswith(f"{name}-")}
    thing = cluster.get("deployments", name)
    status = thing.get("status") or {}
    is_observed = status.get("observedGeneration", 0) >= thing["metadata"]["generation"]
    return is_observed and bool(pods) and not pods & old and status.get("updatedReplicas") == status.get("replicas")
