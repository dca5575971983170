"""A cluster without Knative on one machine's loopback: an API server that knows Activations, controllers, nodes, pods.

The activator under test is a real process that knows it only by a kubeconfig. Its account has the rights of the chart's
role and no others. A pod is a real server at an address of its own; it begins to listen a while after Kubernetes calls
it ready, as a container without a readiness probe does.
"""

from __future__ import annotations

from pathlib import Path

from activator.config.crd import make_definition
from activator.control_plane.sources.activations.rights import all_rules, member_rules
from tests.e2e.pod_server import PodServer
from tests.e2e.story_cluster import DEFAULT_SETTINGS, Json, StoryCluster, ask
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import write_config
from tests.kubernetes.fake_controllers import ControllerManager
from tests.kubernetes.fake_nodes import Settings
from tests.kubernetes.fake_objects import Collection, Event, key_of

__all__ = ["NAMESPACE", "ActivationCluster", "PodServer", "ask"]

NAMESPACE = "default"


class ActivationCluster(StoryCluster):
    """`net`: the second number of the pods' addresses, so that clusters of one test run do not meet."""

    def __init__(self, folder: Path, net: int, settings: Settings | None = None) -> None:
        super().__init__(folder)
        self.net = net
        self.api = FakeApiServer()
        settings = settings or DEFAULT_SETTINGS
        values = {name: getattr(settings, name) for name in settings.__struct_fields__}
        self.settings = Settings(**{**values, "address": self._address})
        self.controllers = self.call(lambda: ControllerManager(self.api, self.settings))
        self.do(self._start())

    # --- from the test's thread ---

    def create(self, plural: str, thing: Json, namespace: str | None = None) -> Json:
        where = NAMESPACE if namespace is None else namespace
        return self.call(lambda: self.api.create(plural, thing, where))

    def update(self, plural: str, name: str, change: Json) -> None:
        self.call(lambda: self.api.update(plural, name, change))

    def edit(self, plural: str, name: str, change: Json, manager: str) -> None:
        objects, key = self.api.objects, (NAMESPACE, name)
        self.call(lambda: objects.merge_patch(self.api.collection(plural), key, change, manager, whole=True))

    def tell(self, plural: str, name: str, status: Json) -> None:
        collection, key, change = self.api.collection(plural), (NAMESPACE, name), {"status": status}
        self.call(lambda: self.api.objects.merge_patch(collection, key, change, "", "status", whole=True))

    def delete(self, plural: str, name: str, namespace: str | None = None) -> None:
        self.call(lambda: self.api.delete(plural, name, NAMESPACE if namespace is None else namespace))

    def end_pod(self, name: str) -> None:
        self.call(lambda: self.controllers.nodes.terminate((NAMESPACE, name)))

    def get(self, plural: str, name: str = "hello") -> Json:
        return self.call(lambda: self.api.collection(plural).objects[NAMESPACE, name])

    def names(self, plural: str) -> list[str]:
        return self.call(lambda: [name for _, name in self.api.collection(plural).objects])

    def mend(self, name: str = "hello") -> None:
        """The controllers of the fake have no rolling update: pods that are there are replaced here."""
        super().mend(name)
        for pod in [pod for pod in self.names("pods") if pod.startswith(f"{name}-")]:
            self.delete("pods", pod)

    def give_right(self, rule: Json) -> None:
        assert self.api.rules is not None
        self.api.rules = [*self.api.rules, rule]

    def give_member_rights(self, given: bool = True) -> None:
        self.api.rules = [*all_rules(), *member_rules()] if given else all_rules()

    def stop_api(self) -> None:
        self.do(self.api.stop())

    def start_api(self) -> None:
        self.do(self.api.start())

    def config(self, folder: Path, who: str) -> str:
        return write_config(folder, self.api.url, {"token": who})

    def written(self) -> list[tuple[float, str, str, str]]:
        return self.call(lambda: list(self.api.written_by))

    # --- on its loop ---

    def _address(self, number: int) -> str:
        return f"127.{self.net}.{number >> 8 & 255}.{number & 255}"

    async def _start(self) -> None:
        self.api.create("customresourcedefinitions", make_definition(), "")
        self.api.listeners.append(self._written)
        await self.api.start()
        self.api.rules = all_rules()

    async def _stop(self) -> None:
        await self.api.stop()
        await self._stop_pods()

    def _written(self, collection: Collection, event: Event) -> None:
        """The program of a pod that has an address runs until the pod is deleted."""
        if collection.plural != "pods":
            return
        thing = event.after or event.before
        assert thing is not None
        _, name = key_of(thing)
        address = (thing.get("status") or {}).get("podIP", "")
        if event.after is not None and address and name not in self.pods:
            self._begin(name, address, thing["spec"]["containers"][0]["ports"][0]["containerPort"])
        elif event.after is None and name in self.pods:
            self._end(name)
