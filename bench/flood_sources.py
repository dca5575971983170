"""Ways to get pods from the API, for `python -m bench pod-flood`: the events that each receives, handles and submits.

Rules
  1. All ways use the product's transport, decoder and state worker; they differ in the events that they handle, and in
     the requests that they make.
  2. A pod that is ready according to Kubernetes is probed before it gets requests, in every way.
  3. Only the last way is the product's. The others represent stages of a node agent that was overrun by updates
     (CPU-Pooler, pull request 70).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final

import msgspec

from activator.control_plane.reconcile.desired import ACTIVATION_LABEL
from activator.control_plane.sources.activations.declared_pods import SOURCE, DeclaredPods
from activator.control_plane.sources.activations.objects import ContainerStatus
from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import KubeError
from activator.kubernetes.object_store import ObjectStore
from activator.kubernetes.objects import (
    Condition,
    EndpointSlice,
    Key,
    KubeObject,
    KubeStruct,
    Object,
)
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.relister import Relister
from activator.kubernetes.resources import ENDPOINT_SLICES, Resource, Selection
from activator.kubernetes.watches import KUBE_CHECK_INTERVAL_S
from activator.messages import Change, ObservedPod, PodGone, PodStatus
from lb.rng import Rng

PORT: Final = 8080  # the pods' port
PULL_INTERVAL_S: Final = 0.1  # the interval of requests for a pod that is not ready yet
_MODIFIED: Final = b'{"type":"MODIFIED"'
_VERSION: Final = re.compile(rb'"resourceVersion":"([0-9]+)"')


class ObservedPodStatus(KubeStruct, frozen=True, gc=False):
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class FloodPod(KubeObject, frozen=True, gc=False):
    """A Pod of core/v1, reduced to the fields that matter here."""

    annotations_count: ClassVar[bool] = False

    status: ObservedPodStatus = ObservedPodStatus()

    @property
    def is_ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())


PODS: Final = Resource("pods", "/api/v1", FloodPod)


class Way(msgspec.Struct, frozen=True):
    """One way; `hears` is one of: all events, changes, creations and deletions, slices."""

    name: str
    hears: str
    pulls: bool = False
    compares: bool = False


WAYS: Final = (
    Way("all events", "all"),
    Way("filtered", "new"),
    Way("ADDED and DELETED, awaited pods pulled", "births"),
    Way("the same, and a list compared", "births", compares=True),
    Way("the product: slices, filtered, a list compared", "slices", compares=True),
)


class EveryEvent(ObjectStore[Object]):
    """An object store that also delivers events without changes."""

    def _put(self, new: Object) -> None:
        old = self.objects.get(new.key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._remove(new.key)
            old = None
        self.objects[new.key] = new
        self.received_total += 1
        self._handler.changed(old, new)


class TimedReflector(Reflector[Object]):
    """A reflector that measures the time of handling lines (`spent_s`), including their handlers."""

    spent_s = 0.0

    def _apply_event(self, line: bytes) -> None:
        began_s = time.perf_counter()
        self._line(line)
        self.spent_s += time.perf_counter() - began_s

    def _line(self, line: bytes) -> None:
        super()._apply_event(line)


class BirthsAndDeaths(TimedReflector[Object]):
    """A reflector that reads only the version of updates, from which it continues after a break."""

    def _line(self, line: bytes) -> None:
        if not line.startswith(_MODIFIED):
            super()._line(line)
            return
        self.events_total["MODIFIED"] += 1
        found = _VERSION.search(line)
        if found is not None:
            self.version = found[1].decode()


class Pods:
    """A handler that converts pods to changes; `awaited` are the pods that exist and are not ready."""

    def __init__(self, key: str, submit: Callable[[Change], None]) -> None:
        self._key = key
        self._submit = submit
        self.awaited: dict[Key, None] = {}
        self.handled = 0

    def changed(self, old: FloodPod | None, new: FloodPod) -> None:
        self.handled += 1
        status = new.status
        if new.metadata.deletion_timestamp is None and not new.is_ready:
            self.awaited[new.key] = None
        else:
            self.awaited.pop(new.key, None)
        if status.pod_ip:
            self._submit(self._seen(new))

    def removed(self, old: FloodPod) -> None:
        self.handled += 1
        self.awaited.pop(old.key, None)
        self._submit(PodGone(self._key, SOURCE, old.metadata.uid))

    def resync(self, new: FloodPod) -> None:
        pass  # the pods count their own restarts

    def listed(self, objects: Mapping[Key, FloodPod]) -> None:
        pass

    def _seen(self, pod: FloodPod) -> ObservedPod:
        restarts = sum(one.restart_count for one in pod.status.container_statuses or ())
        if pod.metadata.deletion_timestamp is not None:
            status = PodStatus.DRAINING
        else:
            status = PodStatus.PENDING if pod.is_ready else PodStatus.NOT_READY
        address = f"{pod.status.pod_ip}:{PORT}"
        probe = status is PodStatus.PENDING
        return ObservedPod(self._key, SOURCE, pod.metadata.uid, address, status, probe, restarts=restarts)


class Slices:
    """A handler that converts slices to changes as in the product, once per turn of the loop."""

    def __init__(self, key: str, submit: Callable[[Change], None]) -> None:
        self._submit = submit
        self._pods = DeclaredPods(key)
        self._is_due = False
        self.handled = 0

    def changed(self, old: EndpointSlice | None, new: EndpointSlice) -> None:
        self.handled += 1
        self._put(new.metadata.name, new)

    def removed(self, old: EndpointSlice) -> None:
        self.handled += 1
        self._put(old.metadata.name, None)

    def resync(self, new: EndpointSlice) -> None:
        self._pods.events_lost(new)
        self._put(new.metadata.name, new)

    def listed(self, objects: Mapping[Key, EndpointSlice]) -> None:
        pass

    def _put(self, name: str, one: EndpointSlice | None) -> None:
        self._pods.put_slice(name, one)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        for change in self._pods.take_changes(False):
            self._submit(change)


class FloodSource:
    """A source that implements one way; `runs` are its tasks."""

    def __init__(
        self, way: Way, client: KubeClient, key: str, submit: Callable[[Change], None], compare_interval_s: float
    ) -> None:
        namespace, _, name = key.partition("/")
        self._client = client
        self.way = way
        self.pulled = 0
        self.handler: Pods | Slices
        self.reflector: TimedReflector[Any]
        if way.hears == "slices":
            slices = Selection(ENDPOINT_SLICES, namespace, f"{ACTIVATION_LABEL}={name}")
            self.handler = Slices(key, submit)
            self.reflector = TimedReflector(client, slices, self.handler, time.monotonic, Rng(1))
        else:
            kind = BirthsAndDeaths if way.hears == "births" else TimedReflector
            self.handler = Pods(key, submit)
            pods = Selection(PODS, namespace, f"app={name}")
            self.reflector = kind(client, pods, self.handler, time.monotonic, Rng(1))
        if way.hears == "all":
            self.reflector.contents = EveryEvent(self.reflector.name, self.handler)
        self.relister: Relister[Any] = Relister(
            client, self.reflector, time.monotonic, Rng(2), interval_s=compare_interval_s
        )

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        found = [self.reflector.run()]
        if self.way.compares:
            found += [self.relister.run(), self._check()]
        if self.way.hears == "births":
            found.append(self._pull())
        return found

    @property
    def received(self) -> int:
        """Return the number of events received."""
        events = self.reflector.events_total
        return events["ADDED"] + events["MODIFIED"] + events["DELETED"]

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(min(KUBE_CHECK_INTERVAL_S, self.relister.interval_s))
            self.relister.wake_if_due()

    async def _pull(self) -> None:
        """Request each awaited pod, one after the other, until it is ready."""
        assert isinstance(self.handler, Pods)
        while True:
            await asyncio.sleep(PULL_INTERVAL_S)
            for namespace, name in list(self.handler.awaited):
                self.pulled += 1
                try:
                    body = await self._client.get(PODS.one(namespace, name))
                except KubeError:
                    continue  # the pod was deleted, which an event will report; or the request is repeated
                self.reflector.contents.added_or_modified(self.reflector.decoding.object(body))
