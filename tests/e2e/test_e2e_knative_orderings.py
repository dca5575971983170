"""Knative's objects in the orders that a busy cluster brings them in."""

from __future__ import annotations

import threading
from typing import Any

from tests.e2e.knative_cluster import NAMESPACE, Cluster, QueueProxy, labels, request, wait_kubelet
from tests.e2e.running import PATIENCE_S, Activator, eventually


def limits(activator: Activator, name: str) -> list[int]:
    return sorted(slot["limit"] for slot in activator.slots(name) if slot["state"] == "ready")


def test_pods_that_are_proven_after_they_were_told_of_are_shared_too(cluster: Cluster) -> None:
    """Nothing more is told of them: that they answer is what only the activator itself knows."""
    name = "shared-00001"
    cluster.revision(name, limit=1)
    cluster.scales_to = 4
    public = {
        "metadata": {"name": f"{name}-x", "labels": labels("Public", name)},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in ("127.0.0.1", "127.0.0.9")],
        "ports": [{"name": "http", "port": 8012}],
    }
    cluster.call(lambda: cluster.api.create("endpointslices", public, NAMESPACE))
    activator = cluster.activator(ACTIVATOR_KUBERNETES__SHARING="knative")
    try:
        wait_kubelet(activator)
        assert request(activator, name)[0] == 200
        eventually(lambda: limits(activator, name) == [0, 0, 1, 1], "half of the pods")
    finally:
        activator.close()


def test_a_successor_is_not_served_by_its_predecessors_pods(cluster: Cluster) -> None:
    """It is made anew while its predecessor's objects, and pods, are still being collected."""
    name = "again-00001"
    spec = {"containerConcurrency": 0, "timeoutSeconds": 60, "containers": [{}]}

    def make() -> str:
        made = cluster.api.create("revisions", {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
        return str(made["metadata"]["uid"])

    def told(uid: str, pods: list[QueueProxy], slice_name: str) -> dict[str, Any]:
        shown = cluster._slice(name)
        shown["metadata"]["name"] = slice_name
        shown["metadata"]["labels"]["serving.knative.dev/revisionUID"] = uid
        shown["endpoints"] = [
            {
                "addresses": [pod.host],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod.uid, "uid": pod.uid},
            }
            for pod in pods
        ]
        return shown

    old, new = (cluster.call(lambda: cluster._new_pod(name)) for _ in range(2))
    for pod in (old, new):
        pod.listens = True
        cluster.do(pod.start())
    cluster.pods[name] = [old, new]  # the autoscaler brings no others
    first = cluster.call(make)
    cluster.call(lambda: cluster.api.create("endpointslices", told(first, [old], "old"), NAMESPACE))
    activator = cluster.activator()
    answers: list[Any] = []
    try:
        wait_kubelet(activator)
        activator.wait_ready_pods(name)
        assert request(activator, name)[1]["pod"] == old.uid

        def replace() -> str:
            cluster.api.delete("revisions", name, NAMESPACE)
            return make()

        second = cluster.call(replace)
        eventually(lambda: activator.revisions().get(name, {}).get("requests") == 0, "the successor")
        assert activator.slots(name) == []
        asking = [threading.Thread(target=lambda: answers.append(request(activator, name))) for _ in range(5)]
        for one in asking:
            one.start()
        eventually(lambda: activator.revision(name)["queued"] == 5)
        cluster.call(lambda: cluster.api.create("endpointslices", told(second, [new], "new"), NAMESPACE))
        for one in asking:
            one.join(PATIENCE_S)
        assert [(status, shown["pod"]) for status, shown in answers] == [(200, new.uid)] * 5
        cluster.call(lambda: cluster.api.delete("endpointslices", "old", NAMESPACE))
        assert request(activator, name)[1]["pod"] == new.uid
    finally:
        activator.close()
