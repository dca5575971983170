"""Replicas in Knative's mode on a real API server: their claims, with the rights of the chart and no others.

Skipped where there is none with a control plane of its own (tests/kube/real.py): Knative's kind is defined for it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.charts.renditions import KNATIVE, objects
from tests.e2e.real_activation_cluster import RealActivationCluster
from tests.e2e.running import Activator, eventually
from tests.e2e.story_cluster import Json
from tests.e2e.story_fixtures import skip_without_pods
from tests.e2e.test_e2e_members import free_ports
from tests.kube import real

KEPT: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
REVISIONS: Final[Json] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "revisions.serving.knative.dev"},
    "spec": {
        "group": "serving.knative.dev",
        "scope": "Namespaced",
        "names": {"kind": "Revision", "plural": "revisions", "singular": "revision", "listKind": "RevisionList"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": KEPT}}],
    },
}


class KnativeReplicas:
    """Pods of one Deployment, each with an object in the API."""

    def __init__(self, cluster: RealActivationCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.key = folder / "members.key"
        self.key.write_text("a key of the group that is long enough\n")
        self.running: dict[str, Activator] = {}
        self._started: list[Activator] = []
        chart = objects({**KNATIVE, "members": {"enabled": True, "keySecret": "key"}}, namespace=cluster.system)
        for one in chart:
            if one["kind"] in {"Role", "ClusterRole"}:
                where = cluster.system if one["kind"] == "Role" else ""
                cluster.do(cluster._give(one["metadata"]["name"], where, one["rules"]))

    def start(self, name: str) -> None:
        (port,) = free_ports(1)
        folder = self.folder / name
        folder.mkdir()
        pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "activator", "image": "activator"}]}}
        made = self.cluster.create("pods", pod, self.cluster.system)
        self.running[name] = Activator(
            [],
            folder,
            KUBECONFIG=self.cluster.config(folder, name),
            POD_NAME=name,
            POD_UID=made["metadata"]["uid"],
            POD_IP="127.0.0.1",
            SYSTEM_NAMESPACE=self.cluster.system,
            CONFIG_LOGGING_NAME="config-logging",
            CONFIG_OBSERVABILITY_NAME="config-observability",
            CLUSTER_DOMAIN="cluster.local",
            ACTIVATOR_LISTEN="[127.0.0.1:0, 127.0.0.2:0]",
            ACTIVATOR_ADMIN="127.0.0.1:0",
            ACTIVATOR_SHUTDOWN__DELAY="0",
            ACTIVATOR_LOG__FORMAT="console",
            ACTIVATOR_KUBERNETES__AUTOSCALER="ws://127.0.0.1:9",  # there is none: what is not there costs retries
            ACTIVATOR_KUBERNETES__SHARING="exact",
            ACTIVATOR_MEMBERS__LISTEN=f"127.0.0.1:{port}",
            ACTIVATOR_MEMBERS__KEY_FILE=str(self.key),
        )
        self._started.append(self.running[name])
        self.running[name].may_log_errors = True
        self.running[name].wait_serving()

    def view(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.running[name].ask("/debug/members")[2])
        return found

    def are_together(self) -> bool:
        views = [self.view(name) for name in self.running]
        fits = all(len(view["members"]) == len(views) and not view["unproven"] for view in views)
        return fits and len({view["epoch"] for view in views}) == 1

    def leases(self) -> int:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.cluster.system}/leases"
        return len(self.cluster._call("GET", path)["items"])

    def close(self) -> None:
        for activator in self._started:
            activator.close()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[KnativeReplicas]:
    skip_without_pods()
    if real.NAMED:
        pytest.skip("it would define Knative's kinds in somebody's cluster")
    cluster = RealActivationCluster(tmp_path, whole=True)
    cluster.create("customresourcedefinitions", REVISIONS, "")
    made = KnativeReplicas(cluster, tmp_path)
    yield made
    made.close()
    cluster.delete("customresourcedefinitions", REVISIONS["metadata"]["name"])
    cluster.close()


def test_replicas_in_knatives_mode_claim_their_seats_and_the_dead_lose_theirs(replicas: KnativeReplicas) -> None:
    for number in range(3):
        replicas.start(f"activator-{number}")
    eventually(replicas.are_together, "the replicas are together", 60.0)
    assert {replicas.view(name)["seat"] for name in replicas.running} == {0, 1, 2}
    assert replicas.leases() == 3
    written = len(replicas.cluster.written())
    time.sleep(1.0)
    assert len(replicas.cluster.written()) == written, "nothing is written while nothing changes"
    gone = replicas.running.pop("activator-1")
    gone.signal(signal.SIGKILL)
    gone.process.wait(10.0)
    replicas.cluster.delete("pods", "activator-1", replicas.cluster.system)
    eventually(replicas.are_together, "they go on without it", 60.0)
    eventually(lambda: replicas.leases() == 2, "its seat is free", 60.0)
    replicas.start("activator-3")
    eventually(replicas.are_together, "a new one has it", 60.0)
    assert {replicas.view(name)["seat"] for name in replicas.running} == {0, 1, 2}
