"""What is known of one revision, gathered from several objects, and the changes that follow from it.

Rules
  1. Nothing here waits or reads a clock: objects in, changes out. What was submitted is remembered, and only
     differences are submitted again.
  2. Every pod is asked by the activator itself before it gets requests, except in the mode `disabled`, where
     Kubernetes' word is enough (a pod that it does not call ready is asked all the same), and in the mode `enabled`,
     where a mesh hides pods behind their Service, and the Service is asked in their place (mesh_fallback.py).
  3. A pod that was ready for Kubernetes and now is not is asked anew; its requests go on. So is one that looks the same
     as before while events of it were lost: its containers may have been started anew meanwhile.
  4. With `sharing: knative` each pod has its share before it is probed (sharing.py), so no waiter is woken for more.
  5. While none of its pods answers, a revision whose conditions say that it cannot start (conditions.py) refuses its
     requests with the cause. They are reported to the autoscaler all the same, so it is tried again.
  6. Objects with the UID of a revision that is gone belong to it, not to its successor of the same name: until they are
     collected, its pods run, answer and are ready, and they are another program.

Source: knative.dev/serving pkg/activator/net/revision_backends.go (v1.23).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from activator.config.specs import RevisionSpec
from activator.control_plane.sources.knative import sharing
from activator.control_plane.sources.knative.backends import Backend, of_endpoints, of_slices, ready_ips
from activator.control_plane.sources.knative.cluster_settings import MESH_DISABLED, MESH_ENABLED
from activator.control_plane.sources.knative.conditions import failure_of
from activator.control_plane.sources.knative.pod_answers import PodAnswers, cluster_pod
from activator.control_plane.sources.knative.revision_specs import HTTP2, believes_queue_proxy, protocol_of
from activator.control_plane.sources.kubernetes.objects import Endpoints, EndpointSlice, KubeObject, Revision, Service
from activator.messages import Change, Listed, PodSeen, PodStatus, RevisionFailed, RevisionRecovered, RevisionSet
from activator.runtime.clock import NEVER

SOURCE: Final = "kubernetes"
REVISION_UID_LABEL: Final = "serving.knative.dev/revisionUID"
EXITS_PATIENCE_S: Final = 20.0  # for pods whose container has exited: a kubelet has started it three times by then
SPEAKS_HTTP2: Final = "its port is named h2c, and this activator does not speak HTTP/2 to pods yet"

log = logging.getLogger("activator.knative")

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
        self.ready_pods = 0  # for Kubernetes, and not about to go
        # No pod could be reached the last time: requests go to their Service as a whole, once that has answered.
        self.by_service = False
        self.answered_address = ""  # of the Service, where it has answered as it is now
        self.activators = 0
        self.index = sharing.UNKNOWN
        self.due_s = NEVER  # when time alone changes something
        self._shared = sharing.SharedPods()
        self._awaited_since_s = NEVER  # since when requests wait
        self._is_alone = False  # requests have waited for its index, in vain
        self._own_ip = own_ip
        self._shares = shares
        self._flips: dict[str, int] = {}  # of each pod: how often it was ready and then was not, or may not have been
        self._was_ready: dict[str, bool] = {}
        self._spec: RevisionSpec | None = None
        self._listed: Listed | None = None
        self.failing = False  # its conditions say that it cannot start; that ends with the first pod that answers
        self._exits_since_s = NEVER  # since when pods are there whose container exits
        self._failure: str | None = ""  # as was submitted; None: that is not known
        self._former: set[str] = set()  # UIDs of revisions of this name that are gone

    @property
    def port_name(self) -> str:
        return "http" if self.revision is None else protocol_of(self.revision)

    @property
    def leaves_out(self) -> bool:
        """Whether a pod changes what is shared when it answers."""
        return self._shared.leaves_out

    def requests_wait(self, waits: bool, now_s: float) -> bool:
        """Requests wait, or no longer do; returns whether that changes anything."""
        if waits == (self._awaited_since_s != NEVER):
            return False
        self._awaited_since_s = now_s if waits else NEVER
        return self._shares and self.index == sharing.UNKNOWN and not self._is_alone

    def changes(
        self, make: Callable[[Revision], RevisionSpec], mode: str, answers: PodAnswers, now_s: float
    ) -> list[Change]:
        """What has to be submitted now."""
        self.due_s = NEVER
        if self.revision is None:
            return []
        changes: list[Change] = []
        spec = make(self.revision)
        if spec != self._spec:
            self._spec = spec
            changes.append(RevisionSet(spec))
        self._look(spec)
        failure = self._why_it_cannot_start(self.revision, answers.has_answer(self.key), now_s)
        if failure != self._failure:
            self._failure = failure
            changes.append(RevisionFailed(self.key, failure) if failure else RevisionRecovered(self.key))
        mine = self._mine(spec, answers.proven(self.key), now_s)
        listed = Listed(self.key, SOURCE, tuple(self._pods(spec, mode, mine)))
        if listed != self._listed:
            self._listed = listed
            changes.append(listed)
        return changes

    def forget_submitted(self) -> None:
        """Some of it was lost: the next changes are everything."""
        self._spec = None
        self._listed = None
        self._failure = None

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
        self.ready_pods = 0
        self.by_service = False
        self.answered_address = ""
        self.activators, self.index = 0, sharing.UNKNOWN
        self._is_alone = False
        self._shared = sharing.SharedPods()
        self.forget_submitted()
        self._failure = ""  # its successor begins without a failure
        self.failing = False
        self._exits_since_s = NEVER

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

    def service_answers(self) -> bool:
        """Whether the private Service has answered at the address that it has."""
        return bool(self.answered_address) and self.answered_address == self.cluster_address()

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
        self.ready_pods = sum(one.ready and not one.terminating for one in self.backends)
        if not self.backends:  # at zero: what was behind the Service has gone
            self.answered_address = ""
        if self._shares:
            ips = ready_ips(self.public.backends(self.port_name, self._former))
            place, activators = sharing.infer_index(ips, self._own_ip)
            if place != sharing.UNKNOWN:  # else what was known stays in force
                self.activators, self.index = activators, place

    def _why_it_cannot_start(self, revision: Revision, is_up: bool, now_s: float) -> str:
        """One line, or empty: it can, or may."""
        found = failure_of(revision)
        self.failing = found is not None
        exits = found is not None and not found.is_certain and not is_up and bool(self.backends)
        self._exits_since_s = min(self._exits_since_s, now_s) if exits else NEVER
        if protocol_of(revision) == HTTP2:
            return SPEAKS_HTTP2
        if found is None or is_up:
            return ""
        until_s = self._exits_since_s + EXITS_PATIENCE_S
        if not found.is_certain and now_s < until_s:
            self.due_s = until_s
            return ""
        if found.cause != self._failure:
            log.warning("%s: %s; its requests are refused until a pod answers: %s", self.key, *found[:2])
        return found.cause

    def _mine(self, spec: RevisionSpec, proven: AbstractSet[str], now_s: float) -> AbstractSet[str] | None:
        """The addresses of the pods that are this activator's; None: all of them, whoever else there is."""
        if not self._shares or spec.container_concurrency == 0:
            return None
        if self.index == sharing.UNKNOWN:
            until_s = self._awaited_since_s + sharing.SHARE_PATIENCE_S
            self._is_alone = self._is_alone or now_s >= until_s
            self.due_s = min(self.due_s, NEVER if self._is_alone else until_s)
            return None if self._is_alone else frozenset()
        listed = {one.identity: one.address for one in self.backends if not one.terminating}
        shared = self._shared.of(listed, proven, now_s)
        self.due_s = min(self.due_s, self._shared.due_s)
        return frozenset(sharing.assign_slice(list(set(shared)), self.index, self.activators))

    def _pods(self, spec: RevisionSpec, mode: str, mine: AbstractSet[str] | None) -> list[PodSeen]:
        cluster = self._cluster_pod(spec, mode, mine)
        if mode == MESH_ENABLED:
            return cluster
        believes = self.revision is not None and believes_queue_proxy(self.revision)
        pods = []
        for one in self.backends:
            status, probe = _status(one, mode, believes)
            is_ours = not cluster and (mine is None or one.address in mine)
            pods.append(
                PodSeen(
                    self.key,
                    SOURCE,
                    one.identity,
                    one.address,
                    status,
                    probe,
                    limit=_UNLIMITED if is_ours else 0,
                    restarts=self._flips[one.identity],
                )
            )
        return cluster + pods

    def _cluster_pod(self, spec: RevisionSpec, mode: str, mine: AbstractSet[str] | None) -> list[PodSeen]:
        """The Service in place of its pods, when it has answered."""
        if (not self.by_service and mode != MESH_ENABLED) or not self.ready_pods or not self.service_answers():
            return []
        address = self.answered_address
        limit = self._cluster_limit(spec, mine)
        if spec.tls is not None:
            address = _with_port(address, 443)
        return [PodSeen(self.key, SOURCE, cluster_pod(address), address, PodStatus.READY, limit=limit)]

    def _cluster_limit(self, spec: RevisionSpec, mine: AbstractSet[str] | None) -> int:
        """How many requests the Service as a whole may get from here."""
        if spec.container_concurrency == 0:
            return _UNLIMITED
        if mine is not None and self.index == sharing.UNKNOWN:
            return 0
        activators = self.activators if self._shares else 1
        return sharing.share_of(self.ready_pods, spec.container_concurrency, activators)


def _without(former: AbstractSet[str], objects: Mapping[str, Labelled]) -> list[Labelled]:
    """Those that do not say that they belong to a revision that is gone."""
    if not former:
        return list(objects.values())
    return [one for one in objects.values() if one.metadata.labels.get(REVISION_UID_LABEL, "") not in former]


def _status(one: Backend, mode: str, believes: bool) -> tuple[PodStatus, bool]:
    """The status that is claimed of a pod, and whether it is to be asked."""
    if one.terminating:
        return PodStatus.DRAINING, False
    if mode == MESH_DISABLED and one.ready:
        return PodStatus.READY, False
    if one.ready or believes:
        return PodStatus.PENDING, True
    return PodStatus.NOT_READY, False


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
