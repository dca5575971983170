"""Ways to learn of pods from the API, for `python -m bench pod-flood`: what each hears, handles and submits.

Rules
  1. The transport, the decoder and the state worker are the product's, for all of them; a way differs in which events
     it handles, and in what it asks for by itself.
  2. A pod that Kubernetes calls ready is probed before it gets requests, whichever way it came.
  3. Only the last one is the product's. The others stand for what a node agent went through that was overrun by
     updates (CPU-Pooler, pull request 70).
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
from activator.messages import Change, PodGone, PodSeen, PodStatus
from lb.rng import Rng

PORT: Final = 8080  # of the pods
PULL_INTERVAL_S: Final = 0.1  # how often a pod that is awaited is asked for
_MODIFIED: Final = b'{"type":"MODIFIED"'
_VERSION: Final = re.compile(rb'"resourceVersion":"([0-9]+)"')


class PodStatusSeen(KubeStruct, frozen=True, gc=False):
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class FloodPod(KubeObject, frozen=True, gc=False):
    """core/v1, as far as requests depend on it."""

    annotations_count: ClassVar[bool] = False

    status: PodStatusSeen = PodStatusSeen()

    @property
    def is_ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())


PODS: Final = Resource("pods", "/api/v1", FloodPod)


class Way(msgspec.Struct, frozen=True):
    """`hears`: all events | those that say something new | births and deaths | slices."""

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
    """Delivers also what says nothing new."""

    def _put(self, new: Object) -> None:
        old = self.objects.get(new.key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._remove(new.key)
            old = None
        self.objects[new.key] = new
        self.received_total += 1
        self._handler.changed(old, new)


class TimedReflector(Reflector[Object]):
    """`spent_s` in handling lines, with what their handlers do at once."""

    spent_s = 0.0

    def _event(self, line: bytes) -> None:
        began_s = time.perf_counter()
        self._line(line)
        self.spent_s += time.perf_counter() - began_s

    def _line(self, line: bytes) -> None:
        super()._event(line)


class BirthsAndDeaths(TimedReflector[Object]):
    """Of updates it reads the version, to go on from there after a break, and nothing else."""

    def _line(self, line: bytes) -> None:
        if not line.startswith(_MODIFIED):
            super()._line(line)
            return
        self.events_total["MODIFIED"] += 1
        found = _VERSION.search(line)
        if found is not None:
            self.version = found[1].decode()


class Pods:
    """A handler: pods become changes. `awaited`: those that are there and not ready."""

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

    def gone(self, old: FloodPod) -> None:
        self.handled += 1
        self.awaited.pop(old.key, None)
        self._submit(PodGone(self._key, SOURCE, old.metadata.uid))

    def missed(self, new: FloodPod) -> None:
        pass  # restarts are counted in the pod itself

    def listed(self, objects: Mapping[Key, FloodPod]) -> None:
        pass

    def _seen(self, pod: FloodPod) -> PodSeen:
        restarts = sum(one.restart_count for one in pod.status.container_statuses or ())
        if pod.metadata.deletion_timestamp is not None:
            status = PodStatus.DRAINING
        else:
            status = PodStatus.PENDING if pod.is_ready else PodStatus.NOT_READY
        address = f"{pod.status.pod_ip}:{PORT}"
        probe = status is PodStatus.PENDING
        return PodSeen(self._key, SOURCE, pod.metadata.uid, address, status, probe, restarts=restarts)


class Slices:
    """A handler: slices become changes as in the product, once in a turn of the loop."""

    def __init__(self, key: str, submit: Callable[[Change], None]) -> None:
        self._submit = submit
        self._pods = DeclaredPods(key)
        self._is_due = False
        self.handled = 0

    def changed(self, old: EndpointSlice | None, new: EndpointSlice) -> None:
        self.handled += 1
        self._put(new.metadata.name, new)

    def gone(self, old: EndpointSlice) -> None:
        self.handled += 1
        self._put(old.metadata.name, None)

    def missed(self, new: EndpointSlice) -> None:
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
        for change in self._pods.changes(False):
            self._submit(change)


class FloodSource:
    """One way at work. `runs` are its tasks."""

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
        """Events of objects."""
        events = self.reflector.events_total
        return events["ADDED"] + events["MODIFIED"] + events["DELETED"]

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(min(KUBE_CHECK_INTERVAL_S, self.relister.interval_s))
            self.relister.check()

    async def _pull(self) -> None:
        """Ask for each pod that is awaited, one after the other, until it is ready."""
        assert isinstance(self.handler, Pods)
        while True:
            await asyncio.sleep(PULL_INTERVAL_S)
            for namespace, name in list(self.handler.awaited):
                self.pulled += 1
                try:
                    body = await self._client.get(PODS.one(namespace, name))
                except KubeError:
                    continue  # it is gone, as an event will say; or it is asked for again
                self.reflector.contents.added_or_modified(self.reflector.decoding.object(body))
