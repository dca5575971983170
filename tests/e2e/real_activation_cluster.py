"""A real API server with real controllers, and nodes and pods that are simulated by the API (tests/kube/).

A story has two namespaces of its own, which are deleted afterwards: one for its objects, one for the activator's. The
activator has accounts with the rules of the chart's two roles, and no others, in these namespaces. It reaches the API
through a gate that notes its writes and can be closed, so nothing of the server itself has to be touched.
"""

from __future__ import annotations

import itertools
import time
import uuid
from pathlib import Path
from typing import Any

import yaml

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from tests.e2e.running import ROOT
from tests.e2e.story_cluster import DEFAULT_SETTINGS, Json, StoryCluster
from tests.kube import real
from tests.kube.api import MERGE, Api
from tests.kube.gate import Gate
from tests.kube.simulated_nodes import SimulatedNodes, as_simulated
from tests.kubernetes.fake_cluster import until, write_config
from tests.kubernetes.fake_nodes import Settings

CHART_FILES = ROOT / "charts" / "activator" / "files"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PREFIXES = {
    "activations": "/apis/activator.dev/v1alpha1",
    "deployments": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "events": "/apis/events.k8s.io/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "rollouts": "/apis/example.test/v1",
}
DEFINED_S = 30.0  # until a kind that was defined is served
_ADDRESSES = itertools.count(1)  # of pods: each one once in a run


def pod_address(_number: int) -> str:
    """Of real.POD_NETWORK."""
    number = next(_ADDRESSES)
    return f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}"


class RealActivationCluster(StoryCluster):
    """`whole`: the activator looks at all namespaces, by cluster roles; otherwise at that of the story."""

    patience_s = 120.0

    def __init__(
        self, folder: Path, settings: Settings | None = None, whole: bool = False, gate_host: str = "127.0.0.1"
    ) -> None:
        super().__init__(folder)
        settings = settings or DEFAULT_SETTINGS
        values = {name: getattr(settings, name) for name in settings.__struct_fields__}
        self.settings = Settings(**{**values, "address": pod_address})
        self.name = f"activator-test-{uuid.uuid4().hex[:8]}"
        self.namespace = self.name
        self.system = f"{self.name}-system"
        self._whole = whole
        self._gate_host = gate_host
        self._client: KubeClient
        self._api: Api
        self.gate: Gate
        self.nodes: SimulatedNodes
        self._made_definitions: list[str] = []
        kubeconfig = real.kubeconfig()
        self.do(self._start(kubeconfig))

    # --- from the test's thread ---

    def create(self, plural: str, thing: Json, namespace: str | None = None) -> Json:
        path = self._path(plural, namespace=namespace)
        if plural == "pods":  # of replicas: nobody runs them
            thing = {**thing, "spec": {**thing["spec"], "schedulerName": "nobody"}}
        made = self._call("POST", path, thing)
        if plural == "customresourcedefinitions":
            self.do(self._defined(thing))
        return made

    def update(self, plural: str, name: str, change: Json) -> None:
        self.edit(plural, name, change, "test")

    def edit(self, plural: str, name: str, change: Json, manager: str) -> None:
        self._call("PATCH", self._path(plural, name), change, MERGE, {"fieldManager": manager})

    def tell(self, plural: str, name: str, status: Json) -> None:
        self._call("PATCH", f"{self._path(plural, name)}/status", {"status": status}, MERGE)

    def delete(self, plural: str, name: str, namespace: str | None = None) -> None:
        self._call("DELETE", self._path(plural, name, namespace))

    def end_pod(self, name: str) -> None:
        self.delete("pods", name)

    def get(self, plural: str, name: str = "hello") -> Json:
        return self._call("GET", self._path(plural, name))

    def names(self, plural: str) -> list[str]:
        found = self._call("GET", self._path(plural))
        return [thing["metadata"]["name"] for thing in found["items"]]

    def kubernetes(self) -> Json:
        own = {"service": f"{self.system}/activator"}
        return super().kubernetes() | own | ({} if self._whole else {"namespace": self.namespace})

    def deployment(self, name: str, replicas: int, annotations: dict[str, str]) -> Json:
        thing = super().deployment(name, replicas, annotations)
        thing["spec"]["template"] = as_simulated(thing["spec"]["template"], self.name)
        return thing

    def give_right(self, rule: Json) -> None:
        self.do(self._give("more", self.namespace, [rule]))

    def give_member_rights(self, given: bool = True) -> None:
        if given:
            self.do(self._give("activator-members", self.system, _chart_rules("member-rules.yaml")))
        else:
            self._call("DELETE", f"{RBAC}/namespaces/{self.system}/rolebindings/activator-members")

    def stop_api(self) -> None:
        self.do(self.gate.stop())

    def start_api(self) -> None:
        self.do(self.gate.start())

    def config(self, folder: Path, who: str) -> str:
        path = f"/api/v1/namespaces/{self.system}/serviceaccounts/activator/token"
        made = self._call("POST", path, {"spec": {"expirationSeconds": 7200}})
        token = made["status"]["token"]
        self.gate.names[token] = who
        return write_config(folder, self.gate.url, {"token": token})

    def written(self) -> list[tuple[float, str, str, str]]:
        return self.call(lambda: list(self.gate.written))

    def close(self) -> None:
        failures = self.nodes.failures
        super().close()
        assert not failures, failures

    # --- on its loop ---

    def _call(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json", query: Any = None
    ) -> Json:
        status, said = self.do(self._api.call(method, path, body, content, query or {}))
        if status == 404:
            raise KeyError(f"{method} {path}: {said.get('message')}")
        assert 200 <= status <= 299, f"{method} {path}: {status} {said.get('message')}"
        found: Json = said
        return found

    def _path(self, plural: str, name: str = "", namespace: str | None = None) -> str:
        if plural == "customresourcedefinitions":
            return f"{DEFINITIONS}/{name}".rstrip("/")
        where = self.namespace if namespace is None else namespace
        return f"{PREFIXES.get(plural, '/api/v1')}/namespaces/{where}/{plural}/{name}".rstrip("/")

    async def _start(self, kubeconfig: str) -> None:
        self._client = KubeClient(Credentials({"KUBECONFIG": kubeconfig}, time.monotonic), "activator/stories")
        self._api = Api(self._client, self.namespace)
        definition = yaml.safe_load((CHART_FILES / "activations-crd.yaml").read_text())
        status, said = await self._api.call("POST", DEFINITIONS, definition)
        assert status in {201, 409}, said
        await self._defined(definition)
        for namespace in (self.namespace, self.system):
            await self._make("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await self._make(f"/api/v1/namespaces/{self.system}/serviceaccounts", {"metadata": {"name": "activator"}})
        await self._give("activator", "" if self._whole else self.namespace, _chart_rules("kubernetes-rules.yaml"))
        if not self._whole:
            await self._give("activator-own", self.system, _chart_rules("own-rules.yaml"))
        for namespace in (self.namespace, self.system):  # pods are refused before it is there
            await self._there(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        await self._limit_pods()
        self.gate = Gate(self._client, self._gate_host)
        await self.gate.start()
        self.nodes = SimulatedNodes(self._api, self.settings, self.name, self._pod_begins, self._pod_ends)
        await self.nodes.start()

    async def _stop(self) -> None:
        await self.gate.close()
        for plural in ("activations", "deployments"):  # a namespace takes longer, and other stories may see them
            await self._api.call("DELETE", self._path(plural))
        for namespace in (self.namespace, self.system):
            await self._api.call("DELETE", f"/api/v1/namespaces/{namespace}")
        for kind in ("clusterroles", "clusterrolebindings") if self._whole else ():
            await self._api.call("DELETE", f"{RBAC}/{kind}/{self.name}-activator")
        for name in self._made_definitions:
            await self._api.call("DELETE", f"{DEFINITIONS}/{name}")
        await self._api.until(self._path("pods"), lambda _, found: not found.get("items"))
        await self.nodes.close()
        await self._stop_pods()
        await self._client.close()

    async def _make(self, path: str, thing: Json) -> None:
        status, said = await self._api.call("POST", path, thing)
        assert status == 201, said

    async def _there(self, path: str) -> Json:
        return await self._api.until(path, lambda status, _: status == 200, DEFINED_S)

    async def _defined(self, definition: Json) -> None:
        """Until its kind is served."""
        spec, name = definition["spec"], definition["metadata"]["name"]
        if name.endswith(".test"):
            self._made_definitions.append(name)
        await self._there(f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}")

    async def _give(self, name: str, namespace: str, rules: list[Json]) -> None:
        """A role and its binding to the activator's account; `namespace` "": a cluster role."""
        kind, full = ("Role", name) if namespace else ("ClusterRole", f"{self.name}-{name}")
        under = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
        await self._make(f"{under}/{kind.lower()}s", {"metadata": {"name": full}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "activator", "namespace": self.system}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": full}
        binding = {"metadata": {"name": full}, "roleRef": role, "subjects": [subject]}
        await self._make(f"{under}/{kind.lower()}bindings", binding)

    async def _limit_pods(self) -> None:
        for pods in self.settings.quotas.values():
            path = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
            await self._make(path, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}})
            await self._api.until(f"{path}/pods", lambda _, quota: quota.get("status", {}).get("hard"))  # now it counts

    async def _pod_begins(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self._begin(name, pod["status"]["podIP"], pod["spec"]["containers"][0]["ports"][0]["containerPort"])
        if self.listen_delay_s <= 0:
            await until(lambda: name not in self.pods or self.pods[name].is_serving)

    async def _pod_ends(self, pod: Json) -> None:
        if pod["metadata"]["name"] in self.pods:
            self._end(pod["metadata"]["name"])


def _chart_rules(file: str) -> list[Json]:
    """Of a role of the chart."""
    rules: list[Json] = yaml.safe_load((CHART_FILES / file).read_text())
    return rules
