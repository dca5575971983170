"""The cluster of `python -m bench pod-flood`: `python -m bench.flood_cluster NET SEED SECONDS PODS`.

An API server, controllers, nodes and pods that listen on real sockets, in one process. It prints "ready KUBECONFIG"
when all pods are running; a line on its standard input begins the flood, and after the flood it prints one line of JSON
about it. It ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from activator.control_plane.reconcile.desired import ACTIVATION_LABEL
from activator.control_plane.sources.activations.declared_pods import PORT_NAME
from bench.flood_sources import PORT
from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.pod_flood import Flood, deployment_of
from tests.e2e.running import eventually
from tests.kubernetes.fake_nodes import Settings

NAME = "hello"
SETTLED_S = 60.0
STOPS_S = 60.0


class PodLife(msgspec.Struct, frozen=True):
    """The life of one pod, in monotonic seconds, which all processes share; `downs` are (death, next start)."""

    address: str
    began_s: float
    died_with: int
    downs: list[tuple[float, float]]


class Story(msgspec.Struct, frozen=True):
    """The report of a flood: counts, and the life of each pod."""

    deleted: int
    restarted: int
    updates: int
    lost: int
    cut: int
    ended_s: float
    pods: list[PodLife]


def serve(net: int, seed: int, seconds: float, pods: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = Settings(schedule_s=0.01, ready_s=0.05, terminate_s=0.2)
        cluster = ActivationCluster(Path(folder), net, settings)
        try:
            cluster.are_killed = True
            cluster.api.rules = None
            cluster.api.requests_kept = False
            deploy(cluster, pods)
            print(f"ready {cluster.config(Path(folder), 'bench')}", flush=True)
            if sys.stdin.readline():
                story = flood(cluster, seed, seconds, pods)
                print(msgspec.json.encode(story).decode(), flush=True)
                sys.stdin.readline()
        finally:
            cluster.close()


def deploy(cluster: ActivationCluster, pods: int) -> None:
    """Create the Deployment, and the Service that the activator would make for it."""
    cluster.create("deployments", deployment_of(pods))
    metadata = {"name": f"{NAME}-pods", "labels": {ACTIVATION_LABEL: NAME}}
    ports = [{"name": PORT_NAME, "port": 80, "targetPort": PORT}]
    spec = {"clusterIP": "None", "selector": {"app": NAME}, "ports": ports}
    cluster.create("services", {"metadata": metadata, "spec": spec})
    wait_served(cluster, pods)


def wait_served(cluster: ActivationCluster, pods: int) -> None:
    """Wait until all pods listen."""

    def served() -> bool:
        return len(cluster.pods) == pods and all(pod.is_serving for pod in list(cluster.pods.values()))

    eventually(served, f"{pods} pods that listen", SETTLED_S)


def flood(cluster: ActivationCluster, seed: int, seconds: float, pods: int) -> Story:
    made = Flood(cluster, seed, pods)
    asyncio.run_coroutine_threadsafe(made.run(seconds), cluster.loop).result(seconds + STOPS_S)
    lives = [
        PodLife(f"{pod.host}:{pod.port}", pod.began_s, sum(count for _, count in pod.deaths), downs_of(pod.downs))
        for pod in list(cluster.seen)
    ]
    return Story(made.deleted, made.restarted, made.updates, made.lost, made.cut, time.monotonic(), lives)


def downs_of(downs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Replace infinities, which JSON does not have, of pods that never restart."""
    return [(down_s, min(up_s, 1e12)) for down_s, up_s in downs]


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
