"""A cluster without Knative on one machine's loopback: an API server that knows Activations, controllers, nodes, pods.

Everything lives on an event loop in a thread of its own; the activator under test is a real process that knows it only
by a kubeconfig. Its account has the rights of the chart's role and no others. A pod is a real server at an address of
its own; it begins to listen a while after Kubernetes calls it ready, as a container without a readiness probe does.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from activator.config.crd import make_definition
from activator.control_plane.sources.activations.rights import all_rules
from tests.control_plane.sources.kubernetes.fake_api_server import FakeApiServer
from tests.control_plane.sources.kubernetes.fake_cluster import write_config
from tests.control_plane.sources.kubernetes.fake_controllers import ControllerManager, deployment
from tests.control_plane.sources.kubernetes.fake_nodes import FAILURE_ANNOTATION, Settings
from tests.control_plane.sources.kubernetes.fake_objects import Collection, Event, Json, key_of
from tests.e2e.running import PATIENCE_S, Activator, eventually

NAMESPACE = "default"
ACTIVATIONS = "/apis/activator.dev/v1alpha1/namespaces/default/activations"

T = TypeVar("T")


class PodServer:
    """The program of one pod: says who it is; `/slow/SECONDS` takes its time."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.in_flight = 0
        self.most_in_flight = 0
        self.requests = 0
        self.began_s = self.ended_s = time.monotonic()  # it listened, and died at last
        self.deaths: list[tuple[float, int]] = []  # when (monotonic seconds), and with how many requests in flight
        self.downs: list[tuple[float, float]] = []  # from a death to the next start, or for ever
        self._runner: web.AppRunner | None = None

    @property
    def is_serving(self) -> bool:
        return self._runner is not None and bool(self._runner.sites)

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        if not self.deaths:
            self.began_s = time.monotonic()
        elif self.downs:
            self.downs[-1] = (self.downs[-1][0], time.monotonic())

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def kill(self) -> None:
        """All its connections break at once, as with a process that dies; `start` is its restart."""
        if self._runner is None or self._runner.server is None:
            return
        self.ended_s = time.monotonic()
        self.deaths.append((self.ended_s, self.in_flight))
        self.downs.append((self.ended_s, math.inf))
        runner, self._runner = self._runner, None
        assert runner.server is not None
        for site in list(runner.sites):
            await site.stop()
        server = runner.server
        _abort_all(server)
        await runner.cleanup()
        await asyncio.sleep(0)  # connections that had been accepted, and are told to the server a turn later
        _abort_all(server)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            words = request.path.strip("/").split("/")
            if words[0] == "slow":
                await asyncio.sleep(float(words[1]))
            return web.json_response({"pod": self.name, "host": request.headers.get("Host", "")})
        finally:
            self.in_flight -= 1


def _abort_all(server: web.Server) -> None:
    for connection in list(server.connections):
        if connection.transport is not None:
            connection.transport.abort()


class ActivationCluster:
    """`net`: the second number of the pods' addresses, so that clusters of one test run do not meet."""

    def __init__(self, folder: Path, net: int, settings: Settings | None = None) -> None:
        self.folder = folder
        self.net = net
        self.listen_delay_s = 0.0  # between a pod's being called ready and its listening
        self.are_killed = False  # pods that are deleted die at once; otherwise they close their connections first
        self.pods: dict[str, PodServer] = {}  # by name, those that are there
        self.seen: list[PodServer] = []  # all that have ever been there
        self._starting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.api = FakeApiServer()
        settings = settings or Settings(schedule_s=0.01, ready_s=0.05, terminate_s=0.3)
        values = {name: getattr(settings, name) for name in settings.__struct_fields__}
        self.settings = Settings(**{**values, "address": self._address})
        self.controllers = self.call(lambda: ControllerManager(self.api, self.settings))
        self.do(self._start())

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where all of it runs."""
        return self._loop

    # --- from the test's thread ---

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it on the cluster's loop, to its end."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def call(self, what: Callable[[], T]) -> T:
        """The same of something that does not wait."""

        async def run() -> T:
            return what()

        return self.do(run())

    def environment(self) -> dict[str, str]:
        """Where this cluster is."""
        return {"KUBECONFIG": write_config(self.folder, self.api.url, {"token": "t"}), "POD_NAME": "activator-1"}

    def activator(self, **more: Any) -> Activator:
        """One that is started as the chart starts it, on ports of its own."""
        file = self.folder / "activator.yaml"
        kubernetes = {"mode": "activations", "service": "activator/activator", **more.pop("kubernetes", {})}
        here = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "kubernetes": kubernetes, **more}
        file.write_text(json.dumps(here))
        found = Activator(["-c", str(file)], self.folder, **self.environment()).wait_serving()
        eventually(lambda: found.ask("/readyz")[0] == 200, "readiness")
        return found

    def deploy(self, name: str = "hello", replicas: int = 0, failure: str = "") -> None:
        """A Deployment, as its user would apply it; `failure`: how its pods fail (fake_nodes.py)."""
        annotations = {FAILURE_ANNOTATION: failure} if failure else {}
        self.call(lambda: self.api.create("deployments", deployment(name, replicas, 8080, annotations)))

    def mend(self, name: str = "hello") -> None:
        """A Deployment whose pods failed has a template that works; those that are there are replaced."""
        mended = {"spec": {"template": {"metadata": {"annotations": {FAILURE_ANNOTATION: None}}}}}
        self.call(lambda: self.api.update("deployments", name, mended))
        for pod in [pod for pod in self.names("pods") if pod.startswith(f"{name}-")]:
            self.call(lambda pod=pod: self.api.delete("pods", pod))  # type: ignore[misc]

    def declare(self, name: str = "hello", **spec: Any) -> None:
        """An Activation of a Deployment, with times for tests."""
        scaling = {"scaleToZeroGrace": "1s", "stableWindow": "1s", **spec.pop("scaling", {})}
        said = {"target": {"name": name}, "hosts": [f"{name}.test"], "scaling": scaling, **spec}
        thing = {"metadata": {"name": name, "generation": 1}, "spec": said}
        self.call(lambda: self.api.create("activations", thing))

    def define_rollouts(self) -> None:
        """A kind of its own with a scale subresource, and the right to it."""
        integer = {"type": "integer", "format": "int32"}
        schema = {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "replicas": integer,
                        "selector": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                },
                "status": {"type": "object", "properties": {"replicas": integer}},
            },
        }
        paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}, "scale": paths},
            "schema": {"openAPIV3Schema": schema},
        }
        names = {"kind": "Rollout", "plural": "rollouts", "singular": "rollout", "listKind": "RolloutList"}
        spec = {"group": "example.test", "scope": "Namespaced", "names": names, "versions": [version]}
        thing = {"metadata": {"name": "rollouts.example.test"}, "spec": spec}
        rule = {"apiGroups": ["example.test"], "resources": ["rollouts/scale"], "verbs": ["get", "patch"]}

        def define() -> None:
            self.api.create("customresourcedefinitions", thing, "")
            assert self.api.rules is not None
            self.api.rules = [*self.api.rules, rule]

        self.call(define)

    def edit(self, plural: str, name: str, change: Json, manager: str) -> None:
        """A merge patch by somebody who is named as the manager of the fields."""
        objects, key = self.api.objects, (NAMESPACE, name)
        self.call(lambda: objects.merge_patch(self.api.collection(plural), key, change, manager, whole=True))

    def get(self, plural: str, name: str = "hello") -> Json:
        return self.call(lambda: self.api.collection(plural).objects[NAMESPACE, name])

    def names(self, plural: str) -> list[str]:
        return self.call(lambda: [name for _, name in self.api.collection(plural).objects])

    def replicas(self, name: str = "hello") -> int:
        count: int = self.get("deployments", name)["spec"]["replicas"]
        return count

    def condition(self, kind: str, name: str = "hello") -> Json:
        """A condition of an Activation's status; empty before there is one."""
        conditions = (self.get("activations", name).get("status") or {}).get("conditions") or []
        return next((one for one in conditions if one["type"] == kind), {})

    def wait_condition(self, kind: str, reason: str, name: str = "hello") -> Json:
        eventually(lambda: self.condition(kind, name).get("reason") == reason, f"{kind}: {reason}")
        return self.condition(kind, name)

    def wait_replicas(self, count: int, name: str = "hello") -> None:
        eventually(lambda: self.replicas(name) == count, f"{count} replicas of {name}")

    def wait_pods(self, count: int) -> None:
        eventually(lambda: len(self.pods) == count, f"{count} pods")

    def writes(self, part: str) -> list[tuple[str, str]]:
        """The requests so far that write something whose path has this part."""
        verbs = {"create", "update", "patch", "delete"}
        requests = self.call(lambda: list(self.api.requests))
        return [(verb, path) for verb, path, _ in requests if verb in verbs and part in path]

    def close(self) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # --- on its loop ---

    def _address(self, number: int) -> str:
        return f"127.{self.net}.{number >> 8 & 255}.{number & 255}"

    async def _start(self) -> None:
        self.api.create("customresourcedefinitions", make_definition(), "")
        self.api.listeners.append(self._written)
        await self.api.start()
        self.api.rules = all_rules()

    async def _stop(self) -> None:
        for task in list(self._starting):
            task.cancel()
        await self.api.stop()
        for pod in list(self.pods.values()):
            await pod.stop()

    def _written(self, collection: Collection, event: Event) -> None:
        """A kubelet's part: the program of a pod that has an address runs until the pod is deleted."""
        if collection.plural != "pods":
            return
        thing = event.after or event.before
        assert thing is not None
        _, name = key_of(thing)
        address = (thing.get("status") or {}).get("podIP", "")
        if event.after is not None and address and name not in self.pods:
            port = thing["spec"]["containers"][0]["ports"][0]["containerPort"]
            pod = self.pods[name] = PodServer(name, address, port)
            self.seen.append(pod)
            self._run(self._listen(pod))
        elif event.after is None and name in self.pods:
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


def ask(activator: Activator, host: str = "hello.test", path: str = "/") -> tuple[int, Any, dict[str, str]]:
    """(status, JSON or text, headers) of one request."""
    asked = urllib.request.Request(f"http://{activator.address}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)
