"""The kinds that can be listed and watched, and selections of their objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic

import msgspec

from activator.kubernetes.objects import (
    ConfigMap,
    Endpoints,
    EndpointSlice,
    Lease,
    Object,
    Pod,
    Revision,
    Secret,
    Service,
)


class Resource(msgspec.Struct, Generic[Object], frozen=True):
    """A kind of object. `prefix`: its paths up to group and version; `plural`: its name in paths, metrics and logs."""

    plural: str
    prefix: str
    kind: type[Object]

    def collection(self, namespace: str = "") -> str:
        """Return the path of all objects, or of all in a namespace."""
        if namespace:
            return f"{self.prefix}/namespaces/{namespace}/{self.plural}"
        return f"{self.prefix}/{self.plural}"

    def one(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection(namespace)}/{name}"


REVISIONS: Final = Resource("revisions", "/apis/serving.knative.dev/v1", Revision)
ENDPOINT_SLICES: Final = Resource("endpointslices", "/apis/discovery.k8s.io/v1", EndpointSlice)
ENDPOINTS: Final = Resource("endpoints", "/api/v1", Endpoints)
SERVICES: Final = Resource("services", "/api/v1", Service)
CONFIG_MAPS: Final = Resource("configmaps", "/api/v1", ConfigMap)
SECRETS: Final = Resource("secrets", "/api/v1", Secret)
PODS: Final = Resource("pods", "/api/v1", Pod)
LEASES: Final = Resource("leases", "/apis/coordination.k8s.io/v1", Lease)


class Selection(msgspec.Struct, Generic[Object], frozen=True):
    """A selection of a resource's objects: of one namespace or (empty) all, by selectors in the API's notation."""

    resource: Resource[Object]
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        return self.resource.collection(self.namespace)

    def query(self) -> dict[str, str]:
        """Return the parameters of the selectors for a call."""
        query = {}
        if self.labels:
            query["labelSelector"] = self.labels
        if self.fields:
            query["fieldSelector"] = self.fields
        return query


class Scope(msgspec.Struct, frozen=True):
    """A part of a selection that requests wait for: the objects of one namespace with these labels or this name."""

    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    name: str = ""

    def narrowed(self, selection: Selection[Object]) -> Selection[Object]:
        """Return the selection of this part of `selection`."""
        labels = [selection.labels] if selection.labels else []
        labels += [f"{name}={value}" for name, value in self.labels]
        fields = [selection.fields] if selection.fields else []
        if self.name:
            fields.append(f"metadata.name={self.name}")
        return Selection(selection.resource, self.namespace, ",".join(labels), ",".join(fields))

    def holds(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if an object of the selection belongs to this part."""
        if namespace != self.namespace or (self.name and name != self.name):
            return False
        return all(labels.get(label) == value for label, value in self.labels)
