"""What is known of one revision, gathered from several objects, and the changes that follow from it.

Rules
  1. Nothing here waits or reads a clock: objects in, changes out. What was submitted is remembered, and only
     differences are submitted again.
  2. Every pod is asked by the activator itself before it gets requests, except in the mode `disabled`, where
     Kubernetes' word is enough, and in the mode `enabled`, where a mesh hides pods behind their Service.
  3. A pod that was ready for Kubernetes and now is not is asked anew; its requests go on. So is one that looks the same
     as before while events of it were lost: its containers may have been started anew meanwhile.
  4. Objects with the UID of a revision that is gone belong to it, not to its successor of the same name: until they are
     collected, its pods run, answer and are ready, and they are another program.

Source: knative.dev/serving pkg/activator/net/revision_backends.go (v1.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from activator.config.specs import RevisionSpec
from activator.control_plane.sources.knative import sharing
from activator.control_plane.sources.knative.backends import Backend, of_endpoints, of_slices, ready_ips
from activator.control_plane.sources.knative.cluster_settings import MESH_DISABLED, MESH_ENABLED
from activator.control_plane.sources.knative.revision_specs import HTTP2, believes_queue_proxy, protocol_of
from activator.control_plane.sources.kubernetes.objects import Endpoints, EndpointSlice, KubeObject, Revision, Service
from activator.messages import Change, Listed, PodSeen, PodStatus, RevisionFailed, RevisionRecovered, RevisionSet

SOURCE: Final = "kubernetes"
REVISION_UID_LABEL: Final = "serving.knative.dev/revisionUID"
SPEAKS_HTTP2: Final = "its port is named h2c, and this activator does not speak HTTP/2 to pods yet"

Labelled = TypeVar("Labelled", bound=KubeObject)

_TLS_PORT: Final = 8112
_UNLIMITED: Final = -1  # as the revision says


class ServiceBackends:
    """The endpoints of one Service, in both of the API's forms and by the objects' names."""

    def __init__(self) -> None:
        self.slices: dict[str, EndpointSlice] = {}
        self.endpoints: dict[str, Endpoints] = {}

    def backends(self, port_name: str, former: AbstractSet[str]) -> list[Backend]:
        """Of its slices where there are any, else of its Endpoints; without those of `former` revisions."""
        slices = _without(former, self.slices)
        if slices:
            return of_slices(slices, port_name)
        return of_endpoints(_without(former, self.endpoints), port_name)


class RevisionBackends:
    """One revision. `shares`: this activator takes its share of the pods; `own_ip`: its address."""

    def __init__(self, key: str, own_ip: str, shares: bool) -> None:
        self.key = key
        self.revision: Revision | None = None
        self.services: dict[str, Service] = {}  # the private one, by name; two, while it is replaced
        self.private = ServiceBackends()
        self.public = ServiceBackends()
        self.backends: list[Backend] = []
        self.by_service = False  # no pod can be reached: requests go to their Service as a whole
        self.activators = 0
        self.index = sharing.UNKNOWN
        self._own_ip = own_ip
        self._shares = shares
        self._flips: dict[str, int] = {}  # of each pod: how often it was ready and then was not, or may not have been
        self._was_ready: dict[str, bool] = {}
        self._spec: RevisionSpec | None = None
        self._listed: Listed | None = None
        self._failed: bool | None = False  # as was submitted; None: that is not known
        self._former: set[str] = set()  # UIDs of revisions of this name that are gone

    @property
    def port_name(self) -> str:
        return "http" if self.revision is None else protocol_of(self.revision)

    def changes(self, make: Callable[[Revision], RevisionSpec], mode: str, healthy: AbstractSet[str]) -> list[Change]:
        """What has to be submitted now. `healthy`: the identities of the pods that have answered (for shares)."""
        if self.revision is None:
            return []
        changes: list[Change] = []
        spec = make(self.revision)
        if spec != self._spec:
            self._spec = spec
            changes.append(RevisionSet(spec))
        failed = protocol_of(self.revision) == HTTP2
        if failed != self._failed:
            self._failed = failed
            changes.append(RevisionFailed(self.key, SPEAKS_HTTP2) if failed else RevisionRecovered(self.key))
        self._look(spec)
        listed = Listed(self.key, SOURCE, tuple(self._pods(spec, mode, healthy)))
        if listed != self._listed:
            self._listed = listed
            changes.append(listed)
        return changes

    def forget_submitted(self) -> None:
        """Some of it was lost: the next changes are everything."""
        self._spec = None
        self._listed = None
        self._failed = None

    def events_lost(self, slices: list[EndpointSlice], endpoints: list[Endpoints]) -> None:
        """The history of these objects of the private Service is not known, only their current state."""
        if endpoints and self.private.slices:
            return  # they are not used
        for one in (*of_slices(slices, self.port_name), *of_endpoints(endpoints, self.port_name)):
            if one.ready and self._was_ready.get(one.identity, False):
                self._flips[one.identity] += 1

    def gone(self) -> None:
        """The revision is gone; what is left of it must not be taken for its successor's."""
        sides = (self.private, self.public)
        left = [one for side in sides for one in (*side.slices.values(), *side.endpoints.values())]
        carried = {one.metadata.labels.get(REVISION_UID_LABEL, "") for one in (*left, *self.services.values())}
        self._former &= carried
        if self.revision is not None and self.revision.metadata.uid:
            self._former.add(self.revision.metadata.uid)
        self.revision = None
        self.by_service = False
        self.forget_submitted()
        self._failed = False  # its successor begins without a failure

    def is_empty(self) -> bool:
        """Nothing is known of it any more."""
        sides = (self.private, self.public)
        return self.revision is None and not self.services and not any(side.slices or side.endpoints for side in sides)

    def cluster_address(self) -> str:
        """The private Service as a whole, ip:port; empty where it has none."""
        for service in reversed(_without(self._former, self.services)):  # the newest first
            ip = service.spec.cluster_ip
            for port in service.spec.ports or []:
                if port.name == self.port_name and ip not in ("", "None"):
                    return f"[{ip}]:{port.port}" if ":" in ip else f"{ip}:{port.port}"
        return ""

    # --- within ---

    def _look(self, spec: RevisionSpec) -> None:
        """Read what the endpoints say."""
        self.backends = self.private.backends(self.port_name, self._former)
        if spec.tls is not None:
            self.backends = [one._replace(address=_with_port(one.address, _TLS_PORT)) for one in self.backends]
        flips = {}
        ready = {}
        for one in self.backends:
            known = self._flips.get(one.identity, 0)
            if self._was_ready.get(one.identity, False) and not one.ready and not one.terminating:
                known += 1
            flips[one.identity] = known
            ready[one.identity] = one.ready
        self._flips, self._was_ready = flips, ready
        ips = ready_ips(self.public.backends(self.port_name, self._former))
        place = sharing.infer_index(ips, self._own_ip)
        if place != sharing.UNKNOWN:  # else what was known stays in force
            self.activators, self.index = len(ips), place

    def _pods(self, spec: RevisionSpec, mode: str, healthy: AbstractSet[str]) -> list[PodSeen]:
        cluster = self._cluster_pod(spec, mode)
        if mode == MESH_ENABLED:
            return cluster
        limits = self._limits(spec, healthy)
        believes = self.revision is not None and believes_queue_proxy(self.revision)
        pods = []
        for one in self.backends:
            status, probe = _status(one, mode, believes)
            limit = limits.get(one.identity, _UNLIMITED) if limits is not None else _UNLIMITED
            if cluster:
                limit = 0
            pods.append(
                PodSeen(
                    self.key,
                    SOURCE,
                    one.identity,
                    one.address,
                    status,
                    probe,
                    limit=limit,
                    restarts=self._flips[one.identity],
                )
            )
        return cluster + pods

    def _limits(self, spec: RevisionSpec, healthy: AbstractSet[str]) -> dict[str, int] | None:
        """0 for the pods that are other activators'; None where all are ours."""
        if not self._shares or spec.container_concurrency == 0 or self.index == sharing.UNKNOWN:
            return None
        known = {one.address: one.identity for one in self.backends if one.identity in healthy and not one.terminating}
        mine = set(sharing.assign_slice(list(known), self.index, self.activators))
        return {identity: 0 for address, identity in known.items() if address not in mine}

    def _cluster_pod(self, spec: RevisionSpec, mode: str) -> list[PodSeen]:
        """The Service in place of its pods."""
        if not self.by_service and mode != MESH_ENABLED:
            return []
        address = self.cluster_address()
        ready = sum(one.ready and not one.terminating for one in self.backends)
        if not address or not ready:
            return []
        limit = self.cluster_limit(spec, ready)
        if spec.tls is not None:
            address = _with_port(address, 443)
        return [PodSeen(self.key, SOURCE, f"cluster-ip/{address}", address, PodStatus.READY, limit=limit)]

    def cluster_limit(self, spec: RevisionSpec, ready: int) -> int:
        """How many requests the Service as a whole may get from here."""
        if spec.container_concurrency == 0:
            return _UNLIMITED
        activators = self.activators if self._shares else 1
        return sharing.share_of(ready, spec.container_concurrency, activators)


def _without(former: AbstractSet[str], objects: Mapping[str, Labelled]) -> list[Labelled]:
    """Those that do not say that they belong to a revision that is gone."""
    if not former:
        return list(objects.values())
    return [one for one in objects.values() if one.metadata.labels.get(REVISION_UID_LABEL, "") not in former]


def _status(one: Backend, mode: str, believes: bool) -> tuple[PodStatus, bool]:
    """The status that is claimed of a pod, and whether it is to be asked."""
    if one.terminating:
        return PodStatus.DRAINING, False
    if mode == MESH_DISABLED:
        return (PodStatus.READY if one.ready else PodStatus.NOT_READY), False
    if one.ready or believes:
        return PodStatus.PENDING, True
    return PodStatus.NOT_READY, False


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
