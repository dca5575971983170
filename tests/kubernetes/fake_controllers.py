"""The controller manager and the nodes of a fake cluster: pods for workloads, slices for Services, garbage collection.

Like real ones they learn of a write after it was answered, work through what has changed, and write as clients do. What
is left out: ReplicaSets (pods belong to their Deployment) and rolling updates.
Times are real by default, and 0 in tests; `later` can be a manual clock's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_nodes import Nodes, Settings
from tests.kubernetes.fake_objects import Collection, Event, Json, Key, RefusalError, key_of
from tests.kubernetes.fake_slices import MANAGED_BY, RESERVED, slices_of

WORKLOADS = ("deployments", "statefulsets")

Work = tuple[str, str, str]  # plural, namespace, name


def loop_later(seconds: float, callback: Callable[[], None]) -> object:
    """The running loop's timers."""
    return asyncio.get_running_loop().call_later(seconds, callback)


class ControllerManager:
    """Of one server, from now on. `idle` says whether it has nothing to do at this moment."""

    def __init__(
        self,
        server: FakeApiServer,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        later: Callable[[float, Callable[[], None]], object] = loop_later,
    ) -> None:
        self.server = server
        self.settings = settings
        self.nodes = Nodes(server, settings, later)
        self._work: deque[Work] = deque()
        self._waiting: set[Work] = set()
        self._scheduled = False
        self._owned: dict[str, set[tuple[str, Key]]] = defaultdict(set)  # by the owner's UID: plural and key
        self._pods_by_label: dict[tuple[str, str, str], set[Key]] = defaultdict(set)
        self._services_by_label: dict[tuple[str, str, str], set[Key]] = defaultdict(set)
        server.listeners.append(self._written)

    @property
    def idle(self) -> bool:
        """Nothing waits; nodes may still be at work."""
        return not self._work and not self._scheduled

    # --- what it hears of -------------------------------------------------------------------------------------------

    def _written(self, collection: Collection, event: Event) -> None:
        thing = event.after or event.before
        assert thing is not None
        plural, (namespace, name) = collection.plural, key_of(thing)
        self._index(plural, event)
        if event.after is None:
            self._orphaned(event.before or {})
        if plural in WORKLOADS or (plural == "services" and (thing.get("spec") or {}).get("selector")):
            self._later((plural, namespace, name))
        elif plural == "pods":
            self.nodes.heard(event)
            for owner in thing["metadata"].get("ownerReferences") or ():
                if owner.get("controller"):
                    self._later((f"{owner['kind'].lower()}s", namespace, owner["name"]))
            for pod in (event.before, event.after):
                for service in self._services_of(pod):
                    self._later(("services", *service))

    def _index(self, plural: str, event: Event) -> None:
        for thing, adds in ((event.before, False), (event.after, True)):
            if thing is None:
                continue
            metadata, key = thing["metadata"], key_of(thing)
            for owner in metadata.get("ownerReferences") or ():
                _change(self._owned, owner["uid"], (plural, key), adds)
            if plural == "pods":
                for label in (metadata.get("labels") or {}).items():
                    _change(self._pods_by_label, (key[0], *label), key, adds)
            elif plural == "services":
                for label in list(((thing.get("spec") or {}).get("selector") or {}).items())[:1]:
                    _change(self._services_by_label, (key[0], *label), key, adds)

    def _orphaned(self, gone: Json) -> None:
        for plural, (namespace, name) in list(self._owned.get(gone["metadata"]["uid"], ())):
            self._later((f"garbage:{plural}", namespace, name))

    def _services_of(self, pod: Json | None) -> set[Key]:
        if pod is None:
            return set()
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        found: set[Key] = set()
        for label in labels.items():
            found |= self._services_by_label.get((namespace, *label), set())
        services = self.server.collection("services").objects
        return {key for key in found if key in services and services[key]["spec"]["selector"].items() <= labels.items()}

    def _later(self, work: Work) -> None:
        if work not in self._waiting:
            self._waiting.add(work)
            self._work.append(work)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """What waits now; what it brings about comes in the next turn."""
        self._scheduled = False
        for _ in range(min(len(self._work), 200)):
            work = self._work.popleft()
            self._waiting.discard(work)
            self._reconcile(work)
        if self._work and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _reconcile(self, work: Work) -> None:
        plural, namespace, name = work
        if plural.startswith("garbage:"):
            self._collect(plural.removeprefix("garbage:"), (namespace, name))
        elif plural == "services":
            self._slices((namespace, name))
        else:
            self._workload(plural, (namespace, name))

    # --- workloads --------------------------------------------------------------------------------------------------

    def _workload(self, plural: str, key: Key) -> None:
        objects, workloads = self.server.objects, self.server.collection(plural)
        thing = workloads.objects.get(key)
        if thing is None or thing["metadata"].get("deletionTimestamp"):
            return
        pods = self._pods_of(thing)
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        replicas = thing.get("spec", {}).get("replicas", 1)
        quota = self.settings.quotas.get(key[0])
        refused = ""
        for number in self._missing(plural, thing, alive, replicas):
            if quota is not None and self._count(key[0]) >= quota:
                refused = (
                    f'pods "{key[1]}-" is forbidden: exceeded quota: pods, requested: pods=1, used: pods={quota}, '
                    f"limited: pods={quota}"
                )
                break
            alive.append(objects.create(self.server.collection("pods"), key[0], self._pod(plural, thing, number)))
        for pod in self._surplus(plural, alive, replicas):
            self.nodes.terminate(key_of(pod))
            alive.remove(pod)
        self._tell(workloads, key, thing, alive, refused)

    def _count(self, namespace: str) -> int:
        return sum(one == namespace for one, _ in self.server.collection("pods").objects)

    def _pods_of(self, thing: Json) -> list[Json]:
        pods = self.server.collection("pods").objects
        owned = self._owned.get(thing["metadata"]["uid"], ())
        return [pods[key] for plural, key in owned if plural == "pods" and key in pods]

    def _missing(self, plural: str, thing: Json, alive: list[Json], replicas: int) -> list[str]:
        """The names of pods to make. A StatefulSet's come one after the other, each when the one before is ready."""
        name = thing["metadata"]["name"]
        if plural == "deployments":
            return [f"{name}-{self.nodes.suffix()}" for _ in range(replicas - len(alive))]
        there = {pod["metadata"]["name"]: pod for pod in alive}
        for number in range(replicas):
            pod = there.get(f"{name}-{number}")
            if pod is None:
                pods = self.server.collection("pods").objects
                leaving = (thing["metadata"]["namespace"], f"{name}-{number}") in pods
                return [] if leaving else [f"{name}-{number}"]
            if not is_ready(pod) and (thing.get("spec") or {}).get("podManagementPolicy") != "Parallel":
                return []
        return []

    def _surplus(self, plural: str, alive: list[Json], replicas: int) -> list[Json]:
        """Those that go: of a Deployment the ones that are not ready first, of a StatefulSet the highest numbers."""
        if len(alive) <= replicas:
            return []
        if plural == "statefulsets":
            ranked = sorted(alive, key=lambda pod: -int(pod["metadata"]["name"].rpartition("-")[2]))
        else:
            ranked = sorted(alive, key=lambda pod: (is_ready(pod), -int(pod["metadata"]["resourceVersion"])))
        return ranked[: len(alive) - replicas]

    def _pod(self, plural: str, thing: Json, name: str) -> Json:
        template = thing["spec"].get("template") or {}
        metadata = template.get("metadata") or {}
        owner = {"apiVersion": "apps/v1", "kind": self.server.collection(plural).kind, "controller": True}
        owner |= {"name": thing["metadata"]["name"], "uid": thing["metadata"]["uid"]}
        return {
            "metadata": {
                "name": name,
                "labels": dict(metadata.get("labels") or {}),
                "annotations": dict(metadata.get("annotations") or {}),
                "ownerReferences": [owner],
            },
            "spec": template.get("spec") or {"containers": [{"name": "main"}]},
            "status": {"phase": "Pending"},
        }

    def _tell(self, workloads: Collection, key: Key, thing: Json, alive: list[Json], refused: str) -> None:
        ready = sum(map(is_ready, alive))
        status: Json = {
            "observedGeneration": thing["metadata"].get("generation", 1),
            "replicas": len(alive),
            "updatedReplicas": len(alive),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [],
        }
        if refused:
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refused}
            status["conditions"] = [failure]
        if thing.get("status") != status:
            self.server.objects.merge_patch(workloads, key, {"status": status})

    # --- slices, garbage --------------------------------------------------------------------------------------------

    def _slices(self, key: Key) -> None:
        service = self.server.collection("services").objects.get(key)
        if service is None:
            return  # its slices are garbage
        selector = service["spec"]["selector"]
        pods = self.server.collection("pods").objects
        label = next(iter(selector.items()))
        keys = self._pods_by_label.get((key[0], *label), set())
        chosen = [pods[one] for one in sorted(keys) if one in pods]
        selected = [pod for pod in chosen if selector.items() <= (pod["metadata"].get("labels") or {}).items()]
        slices = self.server.collection("endpointslices")
        owned = self._owned.get(service["metadata"]["uid"], ())
        there = {
            one[1]: slices.objects[one]
            for plural, one in owned
            if plural == "endpointslices" and slices.objects[one]["metadata"]["labels"].get(RESERVED[0]) == MANAGED_BY
        }
        for wanted in slices_of(service, selected, list(there), self.nodes.suffix):
            old = there.pop(wanted["metadata"]["name"], None)
            if old is None:
                self.server.objects.create(slices, key[0], wanted)
            elif (
                any(old.get(name) != wanted[name] for name in ("endpoints", "ports"))
                or old["metadata"].get("labels") != (wanted["metadata"]["labels"])
            ):
                change = {**old, **wanted, "metadata": {**old["metadata"], **wanted["metadata"]}}
                self.server.objects.update(slices, (key[0], wanted["metadata"]["name"]), change, whole=False)
        for name in there:
            self.server.objects.delete(slices, (key[0], name))

    def _collect(self, plural: str, key: Key) -> None:
        """Delete it if none of its owners is there any more."""
        collection = self.server.collection(plural)
        thing = collection.objects.get(key)
        owners = (thing or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        if thing is None or not owners or any(self._is_there(key[0], owner) for owner in owners):
            return
        if plural == "pods":
            self.nodes.terminate(key)
            return
        try:
            self.server.objects.delete(collection, key, thing["metadata"]["uid"])
        except RefusalError as refusal:
            if refusal.code != 404:
                raise

    def _is_there(self, namespace: str, owner: Json) -> bool:
        for (_, plural), kind in self.server.kinds.kinds.items():
            if kind.kind == owner["kind"]:
                found = self.server.collection(plural).objects.get((namespace, owner["name"]))
                if found is not None and found["metadata"]["uid"] == owner["uid"]:
                    return True
        return False


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _change(index: dict[Any, set[Any]], key: Any, value: Any, adds: bool) -> None:
    if adds:
        index[key].add(value)
    elif key in index:
        index[key].discard(value)
        if not index[key]:
            del index[key]


def deployment(name: str, replicas: int = 0, port: int = 8080, annotations: dict[str, str] | None = None) -> Json:
    """As a user would write it, with one container that has a named port."""
    labels = {"app": name}
    container = {"name": "main", "image": "example/app", "ports": [{"name": "http", "containerPort": port}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations or {}},
                "spec": {"containers": [container]},
            },
        },
    }
