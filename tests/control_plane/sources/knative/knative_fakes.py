"""Knative's objects as the API writes them, and a source whose changes go to a real state worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.pods import Health, PodTls
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.mesh_fallback import MeshFallback
from activator.control_plane.sources.knative.revision_specs import SpecMaker
from activator.control_plane.sources.knative.source import KnativeSource
from activator.kubernetes.objects import ConfigMap, Endpoints, EndpointSlice, Revision, Service
from activator.messages import Change, Effect, Probed, StartProbe, StopProbe
from activator.runtime.controller_counts import Controllers
from lb.registry import default_name, names
from lb.tracker import READY, RECOVERING
from tests.control_plane.state.state_fakes import Joined

NAMESPACE = "default"
NAME = "hello-00001"
KEY = f"{NAMESPACE}/{NAME}"
OWN_IP = "10.9.0.1"

PATIENCE_S = 0.3  # how long pods that are ready may not answer before a mesh is looked for

ENVIRONMENT = KnativeEnvironment("activator-1", OWN_IP, "knative-serving")


def _made(kind: Any, **fields: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(fields), type=kind)


def _metadata(name: str, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": labels or {}, **more}


def revision(
    name: str = NAME,
    limit: int | None = 0,
    ports: list[dict[str, Any]] | None = None,
    annotations: dict[str, str] | None = None,
    containers: list[dict[str, Any]] | None = None,
    uid: str = "",
    belongs_to: dict[str, str] | None = None,
    conditions: list[dict[str, str]] | None = None,
    **spec: Any,
) -> Revision:
    containers = containers or [{"name": "user", "ports": ports or [{"containerPort": 8080}]}]
    metadata = _metadata(name, annotations=annotations or {})
    metadata["uid"] = uid or metadata["uid"]
    if belongs_to is not None:
        metadata["labels"] = belongs_to
    fields = {"containerConcurrency": limit, "timeoutSeconds": 300, "containers": containers, **spec}
    made: Revision = _made(Revision, metadata=metadata, spec=fields, status={"conditions": conditions})
    return made


def labels(kind: str, name: str = NAME, uid: str = "") -> dict[str, str]:
    """`uid`: of the revision."""
    return {
        "networking.internal.knative.dev/serviceType": kind,
        "serving.knative.dev/revision": name,
        "serving.knative.dev/revisionUID": uid or f"uid-{name}",
    }


def endpoint(
    ip: str, ready: bool | None = True, terminating: bool | None = None, uid: str | None = None, zone: str | None = None
) -> dict[str, Any]:
    target = {"kind": "Pod", "name": f"pod-{ip}", "uid": f"pod-{ip}" if uid is None else uid}
    return {
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": ready, "terminating": terminating},
        "targetRef": target if uid != "" else None,
        "zone": zone,
    }


def endpoint_slice(
    *endpoints: dict[str, Any],
    kind: str = "Private",
    name: str = NAME,
    slice_name: str = "",
    family: str = "IPv4",
    ports: dict[str, int] | None = None,
    revision_uid: str = "",
) -> EndpointSlice:
    shown = ports if ports is not None else {"http": 8012, "https": 8112, "http-autometric": 9090}
    made: EndpointSlice = _made(
        EndpointSlice,
        metadata=_metadata(slice_name or f"{name}-{kind.lower()}-abc12", labels(kind, name, revision_uid)),
        addressType=family,
        endpoints=list(endpoints) or None,
        ports=[{"name": port, "port": number} for port, number in shown.items()],
    )
    return made


def endpoints(
    *ready: str, not_ready: tuple[str, ...] = (), kind: str = "Private", name: str = NAME, object_name: str = ""
) -> Endpoints:
    def addresses(ips: tuple[str, ...]) -> list[dict[str, Any]] | None:
        return [{"ip": ip, "targetRef": {"kind": "Pod", "uid": f"pod-{ip}"}} for ip in ips] or None

    subset = {
        "addresses": addresses(ready),
        "notReadyAddresses": addresses(not_ready),
        "ports": [{"name": "http", "port": 8012}, {"name": "http-usermetric", "port": 9091}],
    }
    made: Endpoints = _made(
        Endpoints, metadata=_metadata(object_name or f"{name}-{kind.lower()}", labels(kind, name)), subsets=[subset]
    )
    return made


def service(cluster_ip: str = "10.96.0.5", name: str = NAME, object_name: str = "", revision_uid: str = "") -> Service:
    made: Service = _made(
        Service,
        metadata=_metadata(object_name or f"{name}-private", labels("Private", name, revision_uid)),
        spec={"clusterIP": cluster_ip, "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]},
    )
    return made


def config_map(name: str, **data: str) -> ConfigMap:
    named = {key.replace("_", "-"): value for key, value in data.items()}
    made: ConfigMap = _made(ConfigMap, metadata=_metadata(name), data=named)
    return made


class Cluster:
    """A source, a state worker and a data plane; `turn` lets all of them work, and `answering` says which pods do."""

    def __init__(
        self, shares: bool = False, health: Health | None = None, own_ip: str = OWN_IP, zone: str = ""
    ) -> None:
        self.joined = Joined()
        self.told: list[Change] = []
        self.settings: list[ClusterSettings] = []
        self.deferred: list[Any] = []
        self.answering: set[str] = set()  # addresses
        self.asked: list[str] = []
        self.tls: PodTls | None = None
        self.controllers = Controllers(self.joined.clock.now)
        maker = SpecMaker("cluster.local", 0.5, health or Health(), default_name, frozenset(names()), zone)
        self.source = KnativeSource(
            KnativeEnvironment("activator-1", own_ip, "knative-serving"),
            maker,
            shares,
            self._submit,
            self.deferred.append,
            self,
            self.controllers,
            self.joined.worker.supervision.panicked,
            self.joined.clock.call_later,
        )
        self.joined.applied = self._applied
        self.says: dict[str, tuple[int, str]] = {}  # what an address answers to a probe for a mesh
        self.probed: list[str] = []
        self.fallback = MeshFallback(self.source, self.joined.clock.now, self._say, PATIENCE_S, self._start)
        self.probes: dict[str, StartProbe] = {}

    def settings_changed(self, settings: ClusterSettings) -> None:
        self.settings.append(settings)

    def pass_done(self, key: str) -> None:
        self.fallback.mark_changed(key)

    def tls_of(self, namespace: str) -> PodTls | None:
        return self.tls

    def see(self, *objects: Any, old: Any = None) -> None:
        """The watches tell of these, and everybody acts on it."""
        handlers: dict[Any, Any] = {
            Revision: self.source.revision_objects,
            EndpointSlice: self.source.slice_objects,
            Endpoints: self.source.endpoints_objects,
            Service: self.source.service_objects,
            ConfigMap: self.source.config_objects,
        }
        for one in objects:
            handlers[type(one)].changed(old, one)
        self.turn()

    def lose_events_of(self, one: Any) -> None:
        """A list tells that this one has been through something that no event told of."""
        handlers: dict[Any, Any] = {
            EndpointSlice: self.source.slice_objects,
            Endpoints: self.source.endpoints_objects,
            Service: self.source.service_objects,
        }
        handlers[type(one)].resync(one)
        self.turn()

    def miss(self, one: Any) -> None:
        """The watches tell that it is gone."""
        handlers: dict[Any, Any] = {
            Revision: self.source.revision_objects,
            EndpointSlice: self.source.slice_objects,
            Endpoints: self.source.endpoints_objects,
            Service: self.source.service_objects,
        }
        handlers[type(one)].removed(one)
        self.turn()

    def turn(self) -> None:
        for _ in range(5):
            deferred, self.deferred[:] = list(self.deferred), []
            for run in deferred:
                run()
            self.joined.do()
            self._answer()
            self.fallback.step()
            for key, throttler in self.joined.tables.throttlers.items():
                self.source.requests_wait(key, throttler.queue.waiters.length > 0)

    def answer(self, *ips: str) -> None:
        """These pods answer from now on."""
        self.answering.update(ips)
        self.turn()

    def slots(self, key: str = KEY) -> dict[str, str]:
        return self.joined.slots(key)

    def limits(self, key: str = KEY) -> dict[str, int]:
        """address → limit, of the slots that may be picked."""
        table = self.joined.throttler(key).table
        return {one.address: one.limit for one in table.slots[: table.length] if one.state in (READY, RECOVERING)}

    def ready(self, key: str = KEY) -> list[str]:
        """The addresses of pods that may be picked."""
        return sorted(self.limits(key))

    def _submit(self, change: Change) -> None:
        self.told.append(change)
        self.joined.worker.submit(change)

    def _applied(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.source.applied(effect)

    async def _say(self, address: str) -> tuple[int, str]:
        self.probed.append(address)
        return self.says.get(address, (0, ""))

    def _start(self, _name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs it to its end, at once."""
        asyncio.run(coroutine)

    def _answer(self) -> None:
        """Probes that are under way find out."""
        for order in self.joined.probes:
            if isinstance(order, StartProbe):
                self.probes[order.identity] = order
                self.asked.append(order.address)
            elif isinstance(order, StopProbe):
                self.probes.pop(order.identity, None)
            else:
                self.probes = {one.identity: one for one in order.pods}
        self.joined.probes.clear()
        for identity, order in list(self.probes.items()):
            if order.address.rpartition(":")[0].strip("[]") in self.answering:
                del self.probes[identity]
                self.joined.do(Probed(order.key, identity))
