"""The pods of one Service; only its changed objects are read again.

Rules
  1. Pods come from its EndpointSlices if there are any, otherwise from its Endpoints (backends.py). An Endpoints object
     is read as a whole, because it has all pods.
  2. Objects with the UID of a removed revision are left out: they belong to it (revision_backends.py).
  3. The whole Service is read at first, and after a change of the port's name or of the removed revisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from activator.control_plane.sources.cluster.backends import Backend, of_endpoints
from activator.control_plane.sources.cluster.slice_index import SliceIndex
from activator.kubernetes.objects import Endpoints, EndpointSlice, KubeObject

REVISION_UID_LABEL: Final = "serving.knative.dev/revisionUID"


class ServiceBackends:
    """The endpoints of one Service, in both of the API's forms and by the objects' names."""

    def __init__(self) -> None:
        self._slices: dict[str, EndpointSlice] = {}
        self._endpoints: dict[str, Endpoints] = {}
        self._port_name = ""
        self._index: SliceIndex | None = None  # None: the whole Service must be read
        self._endpoint_pods: dict[str, Backend] = {}  # by identity, where there is no slice
        self._changed: dict[str, None] = {}  # slices that have changed since the last read
        self._endpoints_changed = False

    # --- objects ---

    def put_slice(self, pod_slice: EndpointSlice) -> None:
        self._slices[pod_slice.metadata.name] = pod_slice
        if self._index is not None:
            self._changed[pod_slice.metadata.name] = None

    def drop_slice(self, name: str) -> None:
        if self._slices.pop(name, None) is not None and self._index is not None:
            self._changed[name] = None

    def put_endpoints(self, endpoints: Endpoints) -> None:
        self._endpoints[endpoints.metadata.name] = endpoints
        self._endpoints_changed = True

    def drop_endpoints(self, name: str) -> None:
        self._endpoints.pop(name, None)
        self._endpoints_changed = True

    def objects(self) -> list[EndpointSlice | Endpoints]:
        return [*self._slices.values(), *self._endpoints.values()]

    def is_empty(self) -> bool:
        return not self._slices and not self._endpoints

    @property
    def has_slices(self) -> bool:
        return bool(self._slices)

    # --- pods ---

    def read_all(self, port_name: str, former: AbstractSet[str]) -> Mapping[str, Backend]:
        """Read the whole Service; return its pods by identity, sorted by address."""
        self.forget_read()
        self._port_name = port_name
        index = SliceIndex(port_name)
        index.read({name: self._readable(name, former) for name in self._slices})
        if not len(index):
            self._read_endpoints(former)
        self._index = index
        return index.pods if len(index) else self._endpoint_pods

    def read(self, former: AbstractSet[str]) -> Mapping[str, Backend | None]:
        """Return the pods that may have changed since the last read, by address; removed ones (None) come first."""
        index = self._index
        assert index is not None, "the whole Service has been read"
        changed, self._changed = self._changed, {}
        had_slices = len(index) > 0
        before = self._endpoint_pods
        changed_pods = index.read({name: self._readable(name, former) for name in changed})
        if len(index) > 0:
            if had_slices:
                return changed_pods
            self._endpoint_pods = {}
            return _differences(before, index.pods)  # sorted, because all of them are new to the index
        if not had_slices and not self._endpoints_changed:
            return {}
        self._read_endpoints(former)
        removed = dict.fromkeys([identity for identity in changed_pods if identity not in self._endpoint_pods])
        return {**removed, **_differences(before, self._endpoint_pods)}

    def forget_read(self) -> None:
        """Require that the next read is of the whole Service."""
        self._index, self._changed, self._endpoint_pods = None, {}, {}

    # --- within ---

    def _readable(self, name: str, former: AbstractSet[str]) -> EndpointSlice | None:
        pod_slice = self._slices.get(name)
        return None if pod_slice is None or belongs_to(former, pod_slice) else pod_slice

    def _read_endpoints(self, former: AbstractSet[str]) -> None:
        self._endpoints_changed = False
        pods = of_endpoints(
            [item for item in self._endpoints.values() if not belongs_to(former, item)], self._port_name
        )
        self._endpoint_pods = {pod.identity: pod for pod in pods}


def belongs_to(former: AbstractSet[str], item: KubeObject) -> bool:
    """Return True if the object's label has one of these UIDs of revisions."""
    return bool(former) and item.metadata.labels.get(REVISION_UID_LABEL, "") in former


def _differences(before: Mapping[str, Backend], after: Mapping[str, Backend]) -> dict[str, Backend | None]:
    differences: dict[str, Backend | None] = {identity: None for identity in before if identity not in after}
    differences.update({identity: backend for identity, backend in after.items() if before.get(identity) != backend})
    return differences
