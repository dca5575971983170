"""Kubernetes objects with only the fields that are used, decoded directly from the API's JSON by msgspec.

Rules
  1. Unknown fields are skipped, absent ones have defaults, and lists that the API writes as `null` may be None.
  2. Structs are frozen, because a store and its readers share them. `old == new` compares all fields;
     `unchanged(old, new)` compares those that routing may depend on.
  3. A list or an event is decoded in one pass. Only if that fails are its objects decoded one by one, so that an
     unreadable object does not affect the others.

Field meanings: Kubernetes' API reference (core/v1, discovery.k8s.io/v1) and Knative Serving's (serving.knative.dev/v1).
"""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

Key = tuple[str, str]  # namespace (empty for cluster-wide objects), name

_EMPTY: Final[dict[str, str]] = {}


class KubeStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The base of all structs; `gc=False` because they refer to strings, numbers and each other, never in a cycle."""


class Metadata(KubeStruct, frozen=True, gc=False):
    """An ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = _EMPTY
    annotations: dict[str, str] = _EMPTY
    creation_timestamp: str | None = None  # RFC 3339, in UTC; bookmarks have none
    deletion_timestamp: str | None = None
    generation: int = 0


class KubeObject(KubeStruct, frozen=True, gc=False):
    """An object with metadata. `annotations_count`: a change of its annotations alone is a change."""

    annotations_count: ClassVar[bool] = True

    metadata: Metadata = Metadata()

    @property
    def key(self) -> Key:
        return (self.metadata.namespace, self.metadata.name)


# --- Knative's Revision ---------------------------------------------------------------------------------------------


class ContainerPort(KubeStruct, frozen=True, gc=False):
    name: str = ""
    container_port: int = 0


class TcpSocket(KubeStruct, frozen=True, gc=False):
    """A TCPSocketAction. `port` is a number or a name; 0: the container's port."""

    port: int | str = 0


class Probe(KubeStruct, frozen=True, gc=False):
    """A probe. One kind is set, the others are None. Of `exec`, `http_get` and `grpc` only their presence matters."""

    exec: dict[str, Any] | None = None
    http_get: dict[str, Any] | None = None
    grpc: dict[str, Any] | None = None
    tcp_socket: TcpSocket | None = None
    success_threshold: int = 0


class Container(KubeStruct, frozen=True, gc=False):
    name: str = ""
    ports: list[ContainerPort] | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None


class RevisionSpec(KubeStruct, frozen=True, gc=False):
    """The spec of a Revision; times are whole seconds, None: unset."""

    container_concurrency: int | None = None
    timeout_seconds: int | None = None
    response_start_timeout_seconds: int | None = None
    idle_timeout_seconds: int | None = None
    containers: list[Container] | None = None


class Condition(KubeStruct, frozen=True, gc=False):
    """A condition; `status` is "True", "False" or "Unknown"."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class RevisionStatus(KubeStruct, frozen=True, gc=False):
    conditions: list[Condition] | None = None
    actual_replicas: int | None = None
    desired_replicas: int | None = None


class Revision(KubeObject, frozen=True, gc=False):
    """An object of serving.knative.dev/v1, Revision."""

    spec: RevisionSpec = RevisionSpec()
    status: RevisionStatus = RevisionStatus()


# --- endpoints ------------------------------------------------------------------------------------------------------


class Target(KubeStruct, frozen=True, gc=False):
    """An ObjectReference: the pod behind an address."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class EndpointConditions(KubeStruct, frozen=True, gc=False):
    """The conditions of an endpoint; None means unknown, which the API reads as ready, serving and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(KubeStruct, frozen=True, gc=False):
    """One pod in a slice; its addresses are of one family."""

    addresses: list[str] = []
    conditions: EndpointConditions = EndpointConditions()
    target_ref: Target | None = None
    zone: str | None = None


class EndpointPort(KubeStruct, frozen=True, gc=False):
    """A port of a slice. `port` None: any port."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(KubeObject, frozen=True, gc=False):
    """An object of discovery.k8s.io/v1, EndpointSlice.

    Annotations are ignored, because a controller writes a timestamp into one with each write.
    """

    annotations_count: ClassVar[bool] = False

    address_type: str = ""  # IPv4, IPv6 or FQDN
    endpoints: list[Endpoint] | None = None
    ports: list[EndpointPort] | None = None


class EndpointAddress(KubeStruct, frozen=True, gc=False):
    ip: str = ""
    target_ref: Target | None = None


class EndpointSubset(KubeStruct, frozen=True, gc=False):
    addresses: list[EndpointAddress] | None = None
    not_ready_addresses: list[EndpointAddress] | None = None
    ports: list[EndpointPort] | None = None


class Endpoints(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Endpoints; it holds at most 1,000 addresses, which is why slices are preferred."""

    annotations_count: ClassVar[bool] = False

    subsets: list[EndpointSubset] | None = None


class ServicePort(KubeStruct, frozen=True, gc=False):
    name: str = ""
    port: int = 0
    target_port: int | str = 0


class ServiceSpec(KubeStruct, frozen=True, gc=False):
    """The spec of a Service. `cluster_ip` may be "None" (a headless Service) or empty."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: list[str] | None = msgspec.field(name="clusterIPs", default=None)
    ports: list[ServicePort] | None = None


class Service(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Service."""

    spec: ServiceSpec = ServiceSpec()


# --- configuration --------------------------------------------------------------------------------------------------


class ConfigMap(KubeObject, frozen=True, gc=False):
    """An object of core/v1, ConfigMap."""

    data: dict[str, str] = _EMPTY


class Secret(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Secret. Values are base64 on the wire; msgspec decodes them. `repr` does not show them."""

    data: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"

    @staticmethod
    def encoded(value: bytes) -> str:
        """Return a value as it is written in the object's JSON."""
        return base64.b64encode(value).decode("ascii")


# --- members of a group ---------------------------------------------------------------------------------------------


class LeaseSpec(KubeStruct, frozen=True, gc=False):
    """The spec of a Lease that is never renewed, so that its times do not matter."""

    holder_identity: str | None = None


class Lease(KubeObject, frozen=True, gc=False):
    """An object of coordination.k8s.io/v1, Lease."""

    spec: LeaseSpec = LeaseSpec()


class Pod(KubeObject, frozen=True, gc=False):
    """An object of core/v1, Pod; only its existence and its UID are used."""


# --- lists, events, refusals ----------------------------------------------------------------------------------------

Object = TypeVar("Object", bound=KubeObject)


class ListMetadata(KubeStruct, frozen=True, gc=False):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class ObjectList(msgspec.Struct, Generic[Object], frozen=True, rename="camel"):
    metadata: ListMetadata = ListMetadata()
    items: list[Object] | None = None


class Version(KubeStruct, frozen=True, gc=False):
    """The metadata that distinguish an object's states."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class VersionOnly(KubeObject, frozen=True, gc=False):
    """An object of any kind of which only the version is read (a PartialObjectMetadata)."""

    metadata: Version = Version()  # type: ignore[assignment]


class WatchEvent(msgspec.Struct, Generic[Object], frozen=True):
    """An event of a watch.

    `type`: ADDED, MODIFIED, DELETED, BOOKMARK (the object has only a version) or ERROR (the object is a Status).
    """

    type: str
    object: Object


class StatusDetails(KubeStruct, frozen=True, gc=False):
    retry_after_seconds: int | None = None


class Status(KubeStruct, frozen=True, gc=False):
    """A metav1.Status: the reason for a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class StatusEvent(msgspec.Struct, frozen=True):
    type: str
    object: Status


# Used when an object cannot be read.


class RawList(msgspec.Struct, frozen=True, rename="camel"):
    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class BareObject(KubeObject, frozen=True, gc=False):
    """The metadata of an object of any kind."""


def unchanged(old: KubeObject, new: KubeObject) -> bool:
    """Return True if no field that routing may depend on differs. Both objects are of the same type."""
    if old.metadata.uid != new.metadata.uid:
        return False
    for name in new.__struct_fields__:
        if name != "metadata" and getattr(old, name) != getattr(new, name):
            return False
    before, now = old.metadata, new.metadata
    if before.labels != now.labels or before.deletion_timestamp != now.deletion_timestamp:
        return False
    return not new.annotations_count or before.annotations == now.annotations


def with_metadata(old: Object, metadata: Metadata) -> Object:
    """Return `old` with new metadata."""
    return msgspec.structs.replace(old, metadata=metadata)
