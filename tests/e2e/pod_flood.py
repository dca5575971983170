"""A flood of pods, from a seed: the load of a node agent that was overrun by updates (CPU-Pooler, pull request 70).

Pods with two containers are deleted and made again without a pause, each with ten updates that say nothing new;
programs restart inside pods that are known; events are lost, and watches break.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final

from tests.e2e.activation_cluster import NAMESPACE, ActivationCluster
from tests.kubernetes.fake_controllers import deployment
from tests.kubernetes.fake_objects import Event

PODS: Final = 12
UPDATES: Final = 10  # of each pod, that say nothing new
LOST_SHARE: Final = 0.01  # of all events
STEP_S: Final = 0.1  # between two pods that are deleted or restarted
CUT_INTERVAL_S: Final = 1.0  # between two watches that break


class Flood:
    """On the cluster's loop, from a seed."""

    def __init__(self, cluster: ActivationCluster, seed: int, pods: int = PODS) -> None:
        self.cluster = cluster
        self._pods = pods
        self.chance = random.Random(seed)
        self.lost = self.cut = self.deleted = self.restarted = self.updates = 0
        self._restarting: set[str] = set()

    def drops(self, event: Event) -> bool:
        is_lost = self.chance.random() < LOST_SHARE
        self.lost += is_lost
        return is_lost

    async def run(self, seconds: float) -> None:
        api, until_s = self.cluster.api, time.monotonic() + seconds
        api.dropped = self.drops
        next_cut_s = time.monotonic() + CUT_INTERVAL_S
        restarts: list[asyncio.Task[None]] = []
        while time.monotonic() < until_s:
            pods = self.cluster.pods
            names = sorted(
                name for name in pods.keys() - self._restarting if self._is_alive(name) and pods[name].is_serving
            )
            for name in self.chance.sample(names, min(len(names), 2)):
                if self.chance.random() < 0.25:
                    restarts.append(asyncio.create_task(self._restart(name)))
                elif len(names) > self._pods // 2:
                    self._delete(name)
            self._update_all()
            if time.monotonic() >= next_cut_s and api.watchers:  # else the first line of the next watch would be cut
                next_cut_s = time.monotonic() + CUT_INTERVAL_S
                api.cut_next_line = True
                api.gone_watches += self.chance.random() < 0.2
                self.cut += 1
            await asyncio.sleep(STEP_S)
        await asyncio.gather(*restarts)
        api.dropped = lambda event: False
        api.cut_next_line = False
        api.gone_watches = 0

    def _is_alive(self, name: str) -> bool:
        pod = self.cluster.api.collection("pods").objects.get((NAMESPACE, name))
        return pod is not None and not pod["metadata"].get("deletionTimestamp")

    def _delete(self, name: str) -> None:
        if self._is_alive(name):
            self.deleted += 1
            self.cluster.controllers.nodes.terminate((NAMESPACE, name))

    async def _restart(self, name: str) -> None:
        """The program dies, is not ready for Kubernetes a moment later, and serves again."""
        pod = self.cluster.pods[name]
        self._restarting.add(name)
        self.restarted += 1
        await pod.kill()
        await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.05)))
        if self._is_alive(name):
            self.cluster.controllers.nodes.restart((NAMESPACE, name))
        await asyncio.sleep(0.02)
        if self.cluster.pods.get(name) is pod:
            await pod.start()
        self._restarting.discard(name)

    def _update_all(self) -> None:
        """Updates of pods that are new, and as many of their slices, in which nothing that counts is other."""
        api = self.cluster.api
        for name in [name for _, name in api.collection("pods").objects if self._is_alive(name)]:
            said = api.collection("pods").objects[NAMESPACE, name]["metadata"].get("annotations") or {}
            count = int(said.get("update", "0"))
            for number in range(count, min(count + 3, UPDATES)):
                self.updates += 1
                change = {"metadata": {"annotations": {"update": str(number + 1)}}}
                api.update("pods", name, change)
                for _, one in list(api.collection("endpointslices").objects):
                    api.update("endpointslices", one, change)


def deployment_of(pods: int) -> Any:
    """Of pods with two containers."""
    thing = deployment("hello", pods, 8080)
    thing["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "example/sidecar"})
    return thing
