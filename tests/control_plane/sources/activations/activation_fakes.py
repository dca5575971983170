"""Objects of a cluster without Knative as the API writes them, and a source that they are handed to."""

from __future__ import annotations

from typing import Any

import msgspec

from activator.config.activation import Declared
from activator.config.file import resolve_revision
from activator.config.model.file import Config
from activator.config.specs import RevisionSpec
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec, Desired
from activator.control_plane.sources.activations.fronts import Fronts
from activator.control_plane.sources.activations.mode import CONTROLLER
from activator.control_plane.sources.activations.objects import (
    Activation,
    AnnotatedService,
    HttpRoute,
    StartingPod,
    Workload,
)
from activator.control_plane.sources.activations.other_targets import TargetKey
from activator.control_plane.sources.activations.source import ActivationSource
from activator.control_plane.sources.cluster.reconcile_queue import ReconcileQueue
from activator.kubernetes.objects import EndpointSlice
from activator.messages import Change, PlacePod, RevisionGone, SetPod
from activator.runtime.controller_counts import Controllers
from lb.registry import default_name, names
from lb.tracker import READY
from tests.manual_clock import ManualClock

NAMESPACE = "default"
NAME = "hello"
KEY = f"{NAMESPACE}/{NAME}"
ROUTED_TO = ("activator", "activator")
LABELS = {"app": "hello"}

Json = dict[str, Any]


def made(kind: Any, **fields: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(fields), type=kind)


def metadata(name: str = NAME, created: str = "2026-01-01T00:00:00Z", **more: Any) -> Json:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "creationTimestamp": created,
        "resourceVersion": "1",
        **more,
    }


def activation(name: str = NAME, created: str = "2026-01-01T00:00:00Z", uid: str = "", **spec: Any) -> Activation:
    spec = {"target": {"name": name}, "hosts": [f"{name}.example.com"], **spec}
    more = {"uid": uid} if uid else {}
    found: Activation = made(Activation, metadata=metadata(name, created, generation=1, **more), spec=spec)
    return found


def service(
    name: str = NAME, annotations: dict[str, str] | None = None, ports: list[Json] | None = None
) -> AnnotatedService:
    said = {"activator.dev/enabled": "true"} if annotations is None else annotations
    found: AnnotatedService = made(
        AnnotatedService,
        metadata=metadata(name, annotations=said),
        spec={"ports": ports or [{"name": "http", "port": 80, "targetPort": 8080}]},
    )
    return found


def workload(
    name: str = NAME,
    replicas: int | None = 0,
    labels: dict[str, str] | None = None,
    ports: list[Json] | None = None,
    conditions: list[Json] | None = None,
    selector: Json | None = None,
) -> Workload:
    found: Workload = made(
        Workload,
        metadata=metadata(name),
        spec={
            "replicas": replicas,
            "selector": selector or {"matchLabels": LABELS if labels is None else labels},
            "template": {
                "spec": {"containers": [{"name": "main", "ports": ports or [{"name": "http", "containerPort": 8080}]}]}
            },
        },
        status={"replicas": replicas, "conditions": conditions},
    )
    return found


def endpoint(number: int, ready: bool = True, terminating: bool = False, zone: str | None = None) -> Json:
    return {
        "zone": zone,
        "addresses": [f"10.0.0.{number}"],
        "conditions": {"ready": ready, "serving": ready, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"pod-{number}", "uid": f"pod-{number}"},
    }


def endpoint_slice(*endpoints: Json, name: str = NAME, slice_name: str = "") -> EndpointSlice:
    found: EndpointSlice = made(
        EndpointSlice,
        metadata=metadata(slice_name or f"{name}-pods-abc", labels={ACTIVATION_LABEL: name}),
        addressType="IPv4",
        endpoints=list(endpoints),
        ports=[{"name": "pods", "port": 8080}],
    )
    return found


def route(
    *hosts: str, name: str = NAME, to: tuple[str, str] = ROUTED_TO, annotations: dict[str, str] | None = None
) -> HttpRoute:
    found: HttpRoute = made(
        HttpRoute,
        metadata=metadata(name, annotations=annotations or {}),
        spec={
            "hostnames": list(hosts),
            "rules": [{"backendRefs": [{"name": to[1], "namespace": to[0], "port": 80}]}],
        },
    )
    return found


def pod(name: str = "pod-1", **status: Any) -> StartingPod:
    found: StartingPod = made(StartingPod, metadata=metadata(name), status={"phase": "Pending", **status})
    return found


def waiting(reason: str, message: str = "", container: str = "main", last: Json | None = None) -> Json:
    """The status of a container that waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": container, "state": state, "lastState": {"terminated": last} if last else {}}


class World:
    """A source, what it submits and what it wants written, on a clock of the test's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[Change] = []
        self.wanted: list[Desired] = []
        self.panics: list[str] = []
        self.breaks: set[str] = set()  # revisions whose specification cannot be made
        self.controllers = Controllers(self.clock.now)
        self.controllers.register(CONTROLLER)
        self.passes = ReconcileQueue(
            self._work_out, self._failed, self.clock.defer, self.clock.call_later, self.controllers
        )
        services: dict[str, AnnotatedService] = {}
        fronts = Fronts(services.get, self.mark, lambda ports: frozenset(), self.clock.now, lambda: "")
        self.followed: set[TargetKey] = set()  # targets of kinds that are not watched
        self.source = ActivationSource(
            self._make,
            frozenset(names()),
            ROUTED_TO,
            self.clock.now,
            self.mark,
            fronts,
            self,
            lambda key, version, is_there: False,
            lambda uid: True,
        )

    def mark(self, key: str) -> None:
        self.passes.mark(key, CONTROLLER)

    def relist(self, key: str) -> None:
        """Changes of the revision were lost."""
        if self.source.forget_submitted(key):
            self.mark(key)
        else:
            self.changes.append(RevisionGone(key))

    def follow(self, target: TargetKey) -> None:
        self.followed.add(target)

    def forget(self, target: TargetKey) -> None:
        self.followed.discard(target)

    def _work_out(self, key: str) -> float:
        """As the mode does, but for the scaling."""
        self.source.take_ended(key)
        changes, desired, due_s = self.source.work_out(key, None)
        self.changes += changes
        if desired is not None:
            self.wanted.append(desired)
        return due_s

    def _make(self, declared: Declared, hosts: tuple[str, ...], is_http2: bool, created: str) -> RevisionSpec:
        if declared.revision.name in self.breaks:
            raise RuntimeError("a defect")
        protocol = "h2c" if is_http2 else declared.revision.protocol
        revision = msgspec.structs.replace(declared.revision, hosts=list(hosts), protocol=protocol)
        return resolve_revision(Config(), revision, default_name)

    def _failed(self, key: str, error: Exception) -> float:
        self.source.forget_submitted(key)
        self.panics.append(key)
        return 1.0

    def declare(self, one: Activation) -> None:
        self.source.activation_objects.changed(None, one)

    def withdraw(self, one: Activation) -> None:
        self.source.activation_objects.removed(one)

    def deploy(self, one: Workload, kind: str = "Deployment") -> None:
        self.source.workload_objects(kind).changed(None, one)

    def slices(self, *found: EndpointSlice) -> None:
        for one in found:
            self.source.slice_objects.changed(None, one)

    def turn(self) -> list[Change]:
        """The end of the loop's turn: what was submitted in it."""
        self.changes.clear()
        while self.clock.turn():
            pass
        return list(self.changes)

    def answers(self, identity: str, key: str = KEY, state: int = READY) -> None:
        """The state worker has placed a pod that answers."""
        self.source.applied(PlacePod(key, identity, "10.0.0.1:8080", state, 1, 1, 1))

    def fails(self, identity: str, state: int, key: str = KEY) -> None:
        self.source.applied(SetPod(key, identity, state, 1, 1, 1))

    def desired(self, key: str = KEY) -> Desired:
        """The last that was wanted of a revision."""
        return [one for one in self.wanted if one.key == key][-1]

    def condition(self, kind: str, key: str = KEY) -> ConditionSpec:
        return next(one for one in self.desired(key).conditions if one.type == kind)
