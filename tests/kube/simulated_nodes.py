"""Nodes of a real cluster that are none: they take pods by the API, as a scheduler and kubelets do.

They run no container: what "runs" a pod is whoever hands in `begins` and `ends`. Pods are theirs whose `schedulerName`
is that of these nodes, so that no other scheduler takes them. Settings and failures are those of the fake's nodes
(fake_nodes.py).

`python -m tests.kube.simulated_nodes --kubeconfig FILE --nodes 100` keeps some at work until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import KubeError
from tests.kube.api import MERGE, Api, Json
from tests.kubernetes.fake_nodes import Failure, Settings, failure_of, started, unscheduled

SCHEDULER = "activator-test"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODE_LEASE_S = 40
WATCH_S = 300
CALLS_MAX = 32  # at once
GONE = frozenset({404, 409})

Step = Callable[[Json], Awaitable[None]]


def as_simulated(template: Json, scheduler: str = SCHEDULER) -> Json:
    """A pod's template whose pods these nodes take, whatever state other controllers see them in."""
    spec = {**template["spec"], "schedulerName": scheduler, "tolerations": [{"operator": "Exists"}]}
    return {**template, "spec": spec}


async def _nothing(pod: Json) -> None:
    pass


class SimulatedNodes:
    """`namespace` "": pods of all. `failures`: tasks that ended by an exception; a test looks at them."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        scheduler: str = SCHEDULER,
        begins: Step = _nothing,
        ends: Step = _nothing,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._scheduler = scheduler
        self._begins = begins
        self._ends = ends
        self._failed = failed
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[str, bool] = {}  # by UID: whether it is being ended
        self._next_node = 0
        self._addresses = 0
        self.failures: list[BaseException] = []

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._api.namespace}/pods" if self._api.namespace else "/api/v1/pods"

    def node(self, number: int) -> str:
        return f"{self._scheduler}-{number}"

    async def start(self) -> None:
        """Makes the nodes; from then on pods are taken."""
        await asyncio.gather(*(self._make_node(self.node(number)) for number in range(self._settings.nodes)))
        self._spawn(self._heartbeat())
        self._spawn(self._watch())

    async def close(self) -> None:
        """The nodes go; their pods are left to whoever made them."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        names = [self.node(number) for number in range(self._settings.nodes)]
        paths = [f"/api/v1/nodes/{name}" for name in names]
        paths += [f"{LEASES}/{name}" for name in names]
        await asyncio.gather(*(self._api.call("DELETE", path) for path in paths))

    # --- nodes ---

    async def _make_node(self, name: str) -> None:
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": [{"key": "activator.test/simulated", "effect": "NoSchedule"}]},
        }
        status, said = await self._api.call("POST", "/api/v1/nodes", node)
        assert status in {201, 409}, said
        condition = {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": _now()}
        resources = {"cpu": "1000", "memory": "1000Gi", "pods": str(self._settings.pods_per_node)}
        told = {"status": {"conditions": [condition], "capacity": resources, "allocatable": resources}}
        status, said = await self._api.call("PATCH", f"/api/v1/nodes/{name}/status", told, MERGE)
        assert status == 200, said
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": NODE_LEASE_S, "renewTime": _now("microseconds")},
        }
        await self._api.call("POST", LEASES, lease)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(NODE_LEASE_S / 4)
            for number in range(self._settings.nodes):
                await self._quietly(
                    "PATCH", f"{LEASES}/{self.node(number)}", {"spec": {"renewTime": _now("microseconds")}}, MERGE
                )

    # --- pods ---

    async def _watch(self) -> None:
        """List and watch; whatever breaks is begun again."""
        query = {"fieldSelector": f"spec.schedulerName={self._scheduler}"}
        while True:
            try:
                status, found = await self._api.call("GET", self._pods, query=query)
                if status != 200:
                    await asyncio.sleep(0.2)
                    continue
                for pod in found["items"]:
                    self._heard("ADDED", pod)
                version = found["metadata"]["resourceVersion"]
                async with self._api.watch(
                    self._pods, resourceVersion=version, timeoutSeconds=str(WATCH_S), **query
                ) as watch:
                    while (event := await watch.next()) is not None and event["type"] != "ERROR":
                        self._heard(event["type"], event["object"])
            except (KubeError, OSError):
                await asyncio.sleep(0.2)

    def _heard(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            if self._known.pop(uid, None) is False:  # nobody asked it to end first
                self._spawn(self._ends(pod))
        elif pod["metadata"].get("deletionTimestamp"):
            if not self._known.get(uid, False):
                self._known[uid] = True
                self._spawn(self._end(pod))
        elif uid not in self._known:
            self._known[uid] = False
            self._spawn(self._run_pod(pod))

    async def _run_pod(self, pod: Json) -> None:
        settings, failure = self._settings, failure_of(pod, self._settings)
        if not pod["spec"].get("nodeName"):
            await asyncio.sleep(settings.schedule_s)
            if failure is Failure.UNSCHEDULABLE:
                await self._tell(pod, unscheduled(settings.nodes, "Insufficient cpu"))
                return
            node = self.node(self._next_node % settings.nodes)
            self._next_node += 1
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            if not await self._quietly("POST", f"{_path(pod)}/binding", {**binding, "target": target}):
                return
            await asyncio.sleep(settings.ready_s)
        elif (pod.get("status") or {}).get("podIP"):
            return  # of nodes that were there before
        address = ""
        if failure in {None, Failure.NOT_READY}:
            self._addresses += 1
            address = settings.address(self._addresses)
        status = started(pod, failure, address, settings.crash)
        if address and not self._known.get(pod["metadata"]["uid"], True):
            await self._begins({**pod, "status": status})
        await self._tell(pod, status)

    async def _end(self, pod: Json) -> None:
        await asyncio.sleep(self._settings.terminate_s)
        await self._ends(pod)
        metadata = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        while not await self._quietly("DELETE", _path(pod), body):  # noqa: ASYNC110 - the API is away
            await asyncio.sleep(0.2)

    async def _tell(self, pod: Json, status: Json) -> None:
        await self._quietly("PATCH", f"{_path(pod)}/status", {"status": status}, MERGE)

    async def _quietly(self, method: str, path: str, body: Json, content_type: str = "application/json") -> bool:
        """A call about something that may be gone meanwhile. False: the API did not answer."""
        async with self._calls:
            try:
                status, said = await self._api.call(method, path, body, content_type)
            except (KubeError, OSError):
                return False
        if not (200 <= status <= 299 or status in GONE):
            raise AssertionError(f"{method} {path}: {status} {json.dumps(said)[:500]}")
        return True

    def _spawn(self, what: Coroutine[Any, Any, None] | Awaitable[None]) -> None:
        async def run() -> None:
            await what

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())  # type: ignore[arg-type]
            self._failed()


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _now(precision: str = "seconds") -> str:
    return datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


async def serve(kubeconfig: str, settings: Settings) -> None:
    """Until the process is asked to end."""
    client = KubeClient(Credentials({"KUBECONFIG": kubeconfig}, time.monotonic), "activator/simulated-nodes")
    over = asyncio.Event()
    nodes = SimulatedNodes(Api(client, ""), settings, failed=over.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    try:
        await nodes.start()
        print("ready", flush=True)
        await over.wait()
    finally:
        await nodes.close()
        await client.close()
    if nodes.failures:
        raise nodes.failures[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.simulated_nodes")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--ready-ms", type=float, default=1_000.0, help="from a place on a node to ready")
    parser.add_argument("--terminate-ms", type=float, default=200.0)
    given = parser.parse_args()
    settings = Settings(nodes=given.nodes, ready_s=given.ready_ms / 1e3, terminate_s=given.terminate_ms / 1e3)
    asyncio.run(serve(given.kubeconfig, settings))


if __name__ == "__main__":
    main()
