"""What a story about a cluster without Knative needs, whichever API server is behind it.

Everything of the cluster lives on an event loop in a thread of its own; a story runs in the test's thread. A pod is a
real server at an address of its own. Subclasses: the fake one (activation_cluster.py) and a real one
(real_activation_cluster.py).
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.pod_server import PodServer
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.kubernetes.fake_controllers import deployment
from tests.kubernetes.fake_nodes import FAILURE_ANNOTATION, Settings

Json = dict[str, Any]
T = TypeVar("T")

DEFAULT_SETTINGS = Settings(schedule_s=0.01, ready_s=0.05, terminate_s=0.3)

# A kind of its own that can be scaled.
_INTEGER: Json = {"type": "integer", "format": "int32"}
ROLLOUTS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rollouts.example.test"},
    "spec": {
        "group": "example.test",
        "scope": "Namespaced",
        "names": {"kind": "Rollout", "plural": "rollouts", "singular": "rollout", "listKind": "RolloutList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"replicas": _INTEGER}},
                            "status": {
                                "type": "object",
                                "properties": {"replicas": _INTEGER, "selector": {"type": "string"}},
                            },
                        },
                    }
                },
            }
        ],
    },
}
ROLLOUT_RULE: Json = {"apiGroups": ["example.test"], "resources": ["rollouts/scale"], "verbs": ["get", "patch"]}


class StoryCluster(ABC):
    """`namespace`: of the story; `system`: of the activator's own objects."""

    namespace = "default"
    system = "activator"
    patience_s = PATIENCE_S  # with what it is asked to do

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listen_delay_s = 0.0  # between a pod's being called ready and its listening
        self.are_killed = False  # pods that are deleted die at once; otherwise they close their connections first
        self.pods: dict[str, PodServer] = {}  # by name, those that are there
        self.seen: list[PodServer] = []  # all that have ever been there
        self._starting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where all of it runs."""
        return self._loop

    # --- what each kind of cluster does its own way ---

    @abstractmethod
    def create(self, plural: str, thing: Json, namespace: str | None = None) -> Json:
        """`namespace` None: that of the story; "": none."""

    @abstractmethod
    def update(self, plural: str, name: str, change: Json) -> None:
        """By merge patch."""

    @abstractmethod
    def edit(self, plural: str, name: str, change: Json, manager: str) -> None:
        """A merge patch by somebody who is named as the manager of the fields."""

    @abstractmethod
    def tell(self, plural: str, name: str, status: Json) -> None:
        """As its controller does: a merge patch of its status."""

    @abstractmethod
    def delete(self, plural: str, name: str, namespace: str | None = None) -> None: ...

    @abstractmethod
    def end_pod(self, name: str) -> None:
        """As by `kubectl delete pod`: it has its time to end."""

    @abstractmethod
    def get(self, plural: str, name: str = "hello") -> Json: ...

    @abstractmethod
    def names(self, plural: str) -> list[str]: ...

    @abstractmethod
    def give_right(self, rule: Json) -> None:
        """To the activator, beside those of the chart's role."""

    @abstractmethod
    def give_member_rights(self, given: bool = True) -> None:
        """Those of the chart's second role; False: they are taken away."""

    @abstractmethod
    def stop_api(self) -> None:
        """Nobody reaches the API server."""

    @abstractmethod
    def start_api(self) -> None: ...

    @abstractmethod
    def config(self, folder: Path, who: str) -> str:
        """A kubeconfig with a token of `who`; its path."""

    @abstractmethod
    def written(self) -> list[tuple[float, str, str, str]]:
        """Of each write of an activator: when, who, the verb, the path."""

    @abstractmethod
    async def _stop(self) -> None: ...

    def mend(self, name: str = "hello") -> None:
        """A Deployment whose pods failed has a template that works."""
        mended = {"spec": {"template": {"metadata": {"annotations": {FAILURE_ANNOTATION: None}}}}}
        self.update("deployments", name, mended)

    # --- from the test's thread ---

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it on the cluster's loop, to its end."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(self.patience_s)

    def call(self, what: Callable[[], T]) -> T:
        """The same of something that does not wait."""

        async def run() -> T:
            return what()

        return self.do(run())

    def environment(self) -> dict[str, str]:
        """Where this cluster is."""
        return {"KUBECONFIG": self.config(self.folder, "t"), "POD_NAME": "activator-1"}

    def kubernetes(self) -> Json:
        """The activator's configuration for this cluster."""
        return {"mode": "activations", "service": "activator/activator"}

    def activator(self, **more: Any) -> Activator:
        """One that is started as the chart starts it, on ports of its own."""
        file = self.folder / "activator.yaml"
        kubernetes = {**self.kubernetes(), **more.pop("kubernetes", {})}
        here = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "kubernetes": kubernetes, **more}
        file.write_text(json.dumps(here))
        found = Activator(["-c", str(file)], self.folder, **self.environment()).wait_serving()
        eventually(lambda: found.ask("/readyz")[0] == 200, "readiness")
        return found

    def deployment(self, name: str, replicas: int, annotations: dict[str, str]) -> Json:
        return deployment(name, replicas, 8080, annotations)

    def deploy(self, name: str = "hello", replicas: int = 0, failure: str = "") -> None:
        """A Deployment, as its user would apply it; `failure`: how its pods fail (fake_nodes.py)."""
        annotations = {FAILURE_ANNOTATION: failure} if failure else {}
        self.create("deployments", self.deployment(name, replicas, annotations))

    def declare(self, name: str = "hello", **spec: Any) -> None:
        """An Activation of a Deployment, with times for tests."""
        scaling = {"scaleToZeroGrace": "1s", "stableWindow": "1s", **spec.pop("scaling", {})}
        said = {"target": {"name": name}, "hosts": [f"{name}.test"], "scaling": scaling, **spec}
        thing = {
            "apiVersion": "activator.dev/v1alpha1",
            "kind": "Activation",
            "metadata": {"name": name, "generation": 1},
            "spec": said,
        }
        self.create("activations", thing)

    def define_rollouts(self) -> None:
        """A kind of its own with a scale subresource, and the right to it."""
        self.create("customresourcedefinitions", ROLLOUTS, "")
        self.give_right(ROLLOUT_RULE)

    def replicas(self, name: str = "hello") -> int:
        count: int = self.get("deployments", name)["spec"]["replicas"]
        return count

    def condition(self, kind: str, name: str = "hello") -> Json:
        """A condition of an Activation's status; empty before there is one."""
        conditions = (self.get("activations", name).get("status") or {}).get("conditions") or []
        return next((one for one in conditions if one["type"] == kind), {})

    def wait_condition(self, kind: str, reason: str, name: str = "hello") -> Json:
        seen: list[Json] = []

        def is_so() -> bool:
            seen[:] = [self.condition(kind, name)]
            return seen[0].get("reason") == reason

        try:
            eventually(is_so)
        except AssertionError as error:
            raise AssertionError(f"{kind} is not {reason}, but {seen}") from error
        return seen[0]

    def wait_replicas(self, count: int, name: str = "hello") -> None:
        eventually(lambda: self.replicas(name) == count, f"{count} replicas of {name}")

    def wait_pods(self, count: int) -> None:
        eventually(lambda: len(self.pods) == count, f"{count} pods")

    def writes(self, part: str) -> list[tuple[str, str]]:
        """The requests so far that write something whose path has this part."""
        return [(verb, path) for _, _, verb, path in self.written() if part in path]

    def close(self) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # --- on its loop ---

    def _begin(self, name: str, address: str, port: int) -> None:
        """A kubelet's part: the program of a pod that has an address."""
        pod = self.pods[name] = PodServer(name, address, port)
        self.seen.append(pod)
        self._run(self._listen(pod))

    def _end(self, name: str) -> None:
        pod = self.pods.pop(name)
        self._run(pod.kill() if self.are_killed else pod.stop())

    async def _listen(self, pod: PodServer) -> None:
        await asyncio.sleep(self.listen_delay_s)
        if self.pods.get(pod.name) is pod:
            await pod.start()

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(what)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _stop_pods(self) -> None:
        for task in list(self._starting):
            task.cancel()
        for pod in list(self.pods.values()):
            await pod.stop()


def ask(activator: Activator, host: str = "hello.test", path: str = "/") -> tuple[int, Any, dict[str, str]]:
    """(status, JSON or text, headers) of one request."""
    asked = urllib.request.Request(f"http://{activator.address}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)
