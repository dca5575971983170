"""The objects that declare revisions in a cluster without Knative, and those that show why pods do not start.

They follow the rules of `activator/kubernetes/objects.py`. Field meanings: Kubernetes' API reference (core/v1, apps/v1)
and the Gateway API's (gateway.networking.k8s.io/v1).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from activator.config.activation import API_VERSION
from activator.config.crd import PLURAL
from activator.kubernetes.objects import (
    Condition,
    ContainerPort,
    EndpointConditions,
    KubeObject,
    KubeStruct,
    Metadata,
)
from activator.kubernetes.resources import Resource

# --- what declares a revision ---------------------------------------------------------------------------------------


class Activation(KubeObject, frozen=True, gc=False):
    """An object of activator.dev/v1alpha1.

    Its spec is read like the configuration (`config/activation.py`). A change of its status, which the activator
    writes, or of its annotations is not a change of the object.
    """

    annotations_count: ClassVar[bool] = False

    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class ServicePort(KubeStruct, frozen=True, gc=False):
    """A port of a Service. `target_port`: a number, or the name of a port of the pods; 0: the same as `port`."""

    name: str = ""
    port: int = 0
    target_port: int | str = 0
    app_protocol: str = ""
    protocol: str = ""  # empty: TCP


class ServiceSpec(KubeStruct, frozen=True, gc=False):
    """The spec of a Service. `cluster_ip` "None": headless."""

    type: str = ""
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    ip_families: list[str] | None = None
    ports: list[ServicePort] | None = None
    selector: dict[str, str] | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str = ""


class AnnotatedService(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Service; its annotations may declare a revision."""

    spec: ServiceSpec = ServiceSpec()


# --- where requests of a Service go ---------------------------------------------------------------------------------


class FrontEndpointRead(KubeStruct, frozen=True, gc=False):
    """One endpoint, with its node and zone, which proxies use for routing."""

    addresses: list[str] = msgspec.field(default_factory=list)
    conditions: EndpointConditions = EndpointConditions()
    node_name: str = ""
    zone: str = ""


class FrontPortRead(KubeStruct, frozen=True, gc=False):
    name: str = ""
    port: int | None = None
    app_protocol: str = ""


class OwnerRead(KubeStruct, frozen=True, gc=False):
    uid: str = ""
    controller: bool | None = None


class OwnedMetadata(Metadata, frozen=True, gc=False):
    owner_references: list[OwnerRead] | None = None


class FrontSliceRead(KubeObject, frozen=True, gc=False):
    """An object of discovery.k8s.io/v1, EndpointSlice: one of ours, or one of the activator's own Service."""

    annotations_count: ClassVar[bool] = False

    metadata: OwnedMetadata = OwnedMetadata()
    address_type: str = ""
    endpoints: list[FrontEndpointRead] | None = None
    ports: list[FrontPortRead] | None = None


# --- workloads ------------------------------------------------------------------------------------------------------


class Container(KubeStruct, frozen=True, gc=False):
    name: str = ""
    ports: list[ContainerPort] | None = None


class PodSpec(KubeStruct, frozen=True, gc=False):
    containers: list[Container] | None = None


class PodTemplate(KubeStruct, frozen=True, gc=False):
    spec: PodSpec = PodSpec()


class Selector(KubeStruct, frozen=True, gc=False):
    """A LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[dict[str, Any]] | None = None


class WorkloadSpec(KubeStruct, frozen=True, gc=False):
    """The spec of a workload. `replicas` None: one."""

    replicas: int | None = None
    selector: Selector = Selector()
    template: PodTemplate = PodTemplate()


class WorkloadStatus(KubeStruct, frozen=True, gc=False):
    replicas: int | None = None
    conditions: list[Condition] | None = None


class Workload(KubeObject, frozen=True, gc=False):
    """An object of apps/v1, Deployment or StatefulSet.

    Annotations are ignored, because the controller writes each rollout into one.
    """

    annotations_count: ClassVar[bool] = False

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


# --- hosts that routes name -----------------------------------------------------------------------------------------


class BackendRef(KubeStruct, frozen=True, gc=False):
    """A backend of a route. Empty group and kind: a Service; empty namespace: that of the route."""

    group: str = ""
    kind: str = "Service"
    name: str = ""
    namespace: str = ""


class RouteRule(KubeStruct, frozen=True, gc=False):
    backend_refs: list[BackendRef] | None = None


class RouteSpec(KubeStruct, frozen=True, gc=False):
    hostnames: list[str] | None = None
    rules: list[RouteRule] | None = None


class HttpRoute(KubeObject, frozen=True, gc=False):
    """An object of gateway.networking.k8s.io/v1, HTTPRoute."""

    spec: RouteSpec = RouteSpec()


# --- why pods do not start ------------------------------------------------------------------------------------------


class Waiting(KubeStruct, frozen=True, gc=False):
    reason: str = ""
    message: str = ""


class Terminated(KubeStruct, frozen=True, gc=False):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None  # RFC 3339
    finished_at: str | None = None


class ContainerState(KubeStruct, frozen=True, gc=False):
    """The state of a container: exactly one field is set."""

    waiting: Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: Terminated | None = None


class ContainerStatus(KubeStruct, frozen=True, gc=False):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(KubeStruct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class StartingPod(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Pod, with the fields that show why it does not serve."""

    status: PodStatus = PodStatus()


ACTIVATIONS: Final = Resource(PLURAL, f"/apis/{API_VERSION}", Activation)
FRONT_SLICES: Final = Resource("endpointslices", "/apis/discovery.k8s.io/v1", FrontSliceRead)
ANNOTATED_SERVICES: Final = Resource("services", "/api/v1", AnnotatedService)
DEPLOYMENTS: Final = Resource("deployments", "/apis/apps/v1", Workload)
STATEFUL_SETS: Final = Resource("statefulsets", "/apis/apps/v1", Workload)
HTTP_ROUTES: Final = Resource("httproutes", "/apis/gateway.networking.k8s.io/v1", HttpRoute)
STARTING_PODS: Final = Resource("pods", "/api/v1", StartingPod)
