"""The state of one revision, gathered from several objects, and the changes that follow from it.

Rules
  1. The class neither waits nor reads a clock: objects in, changes out. Submitted state is kept, and
     only differences are submitted.
  2. The activator probes every pod itself before the pod gets requests, with two exceptions. In the mode `disabled`
     readiness in Kubernetes is enough (a pod that is not ready there is still probed). In the mode `enabled`, where a
     mesh hides pods behind their Service, the Service is asked in their place (mesh_fallback.py).
  3. A pod that was ready for Kubernetes and becomes unready is probed again; its requests continue. This also holds for
     a pod that was and is ready while events of it were lost, because its containers may have been restarted.
  4. With `sharing: knative` each pod has its share before it is probed (sharing.py), so that no more waiters are woken.
  5. While none of its pods answers, a revision whose conditions show that it cannot start (conditions.py) refuses its
     requests with the cause. They are still reported to the autoscaler, so the start is tried again.
  6. Objects with the UID of a removed revision belong to that one, not to its successor of the same name: until they
     are collected, the pods of the removed revision may be ready and answer, but run another program.
  7. The cost of an event depends on its subject, not on the number of the revision's pods. For an EndpointSlice these
     are its changed pods (service_backends.py); for a pod that answers, that pod and the pods whose share it changes
     (shared_pods.py). Differences are submitted pod by pod. All pods are read, and submitted as a list, if the context
     has changed (pod_report.py), and after a loss.

Source: knative.dev/serving pkg/activator/net/revision_backends.go (v1.23).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from activator.config.cluster_settings import MESH_ENABLED
from activator.config.specs import RevisionSpec
from activator.control_plane.sources.cluster.backends import of_endpoints, of_slices
from activator.control_plane.sources.knative import sharing
from activator.control_plane.sources.knative.conditions import failure_of
from activator.control_plane.sources.knative.known_pods import KnownPods, with_port
from activator.control_plane.sources.knative.pod_report import (
    EVERY,
    NONE,
    SOME,
    SOURCE,
    UNLIMITED,
    PodReport,
    ReportContext,
)
from activator.control_plane.sources.knative.revision_specs import port_name_of, trusts_queue_proxy
from activator.control_plane.sources.knative.service_backends import REVISION_UID_LABEL, ServiceBackends, belongs_to
from activator.control_plane.sources.knative.shared_pods import SharedPods
from activator.control_plane.sources.pod_answers import PodAnswers, cluster_pod
from activator.kubernetes.objects import Endpoints, EndpointSlice, Revision, Service
from activator.messages import Change, ObservedPod, PodStatus, RevisionFailed, RevisionRecovered, RevisionSet
from activator.runtime.clock import NEVER

EXITS_PATIENCE_S: Final = 20.0  # for exited containers: a kubelet has started them three times by then

log = logging.getLogger("activator.knative")


class RevisionBackends:
    """The state of one revision. `shares`: this activator takes its share of the pods; `own_ip`: its address."""

    def __init__(self, key: str, own_ip: str, shares: bool) -> None:
        self.key = key
        self.revision: Revision | None = None
        self.services: dict[str, Service] = {}  # the private one, by name; two while it is replaced
        self.private = ServiceBackends()
        self.public = ServiceBackends()
        # No pod could be reached the last time: requests go to the Service, once it has answered.
        self.by_service = False
        self.answered_address = ""  # the Service's address at which it has answered
        self.activators = 0  # the number of activators in front of the revision, as last known
        self.index = sharing.UNKNOWN
        self.due_s = NEVER  # when to run again without an event
        self.failing = False  # its conditions show that it cannot start; until the first pod answers
        self._pods = KnownPods()
        self._public_addresses = sharing.PublicAddresses(own_ip)
        self._shared = SharedPods()
        self._changed_answers: set[str] = set()  # pods whose answers may have changed since the last pass
        self._awaited_since_s = NEVER  # since when requests wait
        self._is_alone = False  # requests have waited for the index without success
        self._shares = shares
        self._spec: RevisionSpec | None = None
        self._report = PodReport(key, self._pods, self._shared)
        self._context: ReportContext | None = None  # at the last report; None: read everything again
        self._exits_since_s = NEVER  # since when pods are there whose container exits
        self._failure: str | None = ""  # as submitted; None: not known
        self._former: set[str] = set()  # UIDs of removed revisions of this name

    @property
    def port_name(self) -> str:
        return "http" if self.revision is None else port_name_of(self.revision)

    @property
    def leaves_out(self) -> bool:
        """True if an answer of a pod changes the share."""
        return self._shared.leaves_out

    def requests_wait(self, waits: bool, now_s: float) -> bool:
        """Record whether requests wait; return True if that may change the share."""
        if waits == (self._awaited_since_s != NEVER):
            return False
        self._awaited_since_s = now_s if waits else NEVER
        return self._shares and self.index == sharing.UNKNOWN and not self._is_alone

    @property
    def ready_pods(self) -> int:
        """The number of pods that are ready for Kubernetes and not terminating."""
        return len(self._pods.ready)

    def ready_addresses(self) -> Iterable[str]:
        return self._pods.ready.values()

    def answered(self, identity: str) -> None:
        """Record that this pod may have begun or ceased to answer."""
        if self._shares and identity in self._pods:
            self._changed_answers.add(identity)

    def answers_lost(self) -> None:
        """Record that any of the pods may have begun or ceased to answer."""
        self._context = None

    def take_changes(
        self, make: Callable[[Revision], RevisionSpec], mode: str, answers: PodAnswers, now_s: float
    ) -> list[Change]:
        """Return the changes to submit, and record them as submitted."""
        self.due_s = NEVER
        revision = self.revision
        if revision is None:
            return []
        before, self._context = self._context, None  # set at the end: an exception causes a full read
        changes: list[Change] = []
        spec = make(revision)
        if spec != self._spec:
            self._spec = spec
            changes.append(RevisionSet(spec))
        touched = self._read_endpoints(spec, before)
        failure = self._update_failure(revision, answers.has_answer(self.key), now_s)
        if failure != self._failure:
            self._failure = failure
            changes.append(RevisionFailed(self.key, failure) if failure else RevisionRecovered(self.key))
        share = self._share_kind(spec, now_s)
        service = self._service_in_place(mode)
        context = ReportContext(
            self.port_name,
            spec.connection.tls is not None,
            mode,
            trusts_queue_proxy(revision),
            service,
            share,
            (self.index, self.activators) if share == SOME else (),
        )
        proven = answers.proven(self.key)
        cluster = self._cluster_pod(spec, service, share)
        if context == before:
            if share == SOME:
                self._share_out(touched, proven, now_s)
            changes += self._report.differences(touched, cluster, context)
        else:
            if share == SOME:
                self._share_out_all(proven, now_s)
            changes += self._report.full_list(cluster, context)
        self._changed_answers = set()
        self._context = context
        return changes

    def forget_submitted(self) -> None:
        """Have everything submitted again: some changes were lost."""
        self._spec = None
        self._context = None
        self._report.forget()
        self._failure = None

    def events_lost(self, slices: list[EndpointSlice], endpoints: list[Endpoints]) -> None:
        """Record that events of these objects of the private Service were lost; this is their present state."""
        if endpoints and self.private.has_slices:
            return  # they are not used
        self._pods.events_lost([*of_slices(slices, self.port_name), *of_endpoints(endpoints, self.port_name)])

    def removed(self) -> None:
        """Forget the revision, which was removed; its remaining objects must not count as its successor's."""
        remaining = [*self.private.objects(), *self.public.objects()]
        carried = {item.metadata.labels.get(REVISION_UID_LABEL, "") for item in (*remaining, *self.services.values())}
        self._former &= carried
        if self.revision is not None and self.revision.metadata.uid:
            self._former.add(self.revision.metadata.uid)
        self.revision = None
        self.private.forget_read()
        self.public.forget_read()
        self._pods.ready.clear()
        self.by_service = False
        self.answered_address = ""
        self.activators, self.index = 0, sharing.UNKNOWN
        self._is_alone = False
        self._shared.forget()
        self.forget_submitted()
        self._failure = ""  # the successor begins without a failure
        self.failing = False
        self._exits_since_s = NEVER

    def is_empty(self) -> bool:
        """Return True if neither the revision nor an object of it is left."""
        return not self.revision and not self.services and self.private.is_empty() and self.public.is_empty()

    def cluster_address(self) -> str:
        """Return the address of the private Service, ip:port; empty where it has none."""
        for service in reversed(self.services.values()):  # the newest first
            if belongs_to(self._former, service):
                continue
            ip = service.spec.cluster_ip
            for port in service.spec.ports or []:
                if port.name == self.port_name and ip not in ("", "None"):
                    return f"[{ip}]:{port.port}" if ":" in ip else f"{ip}:{port.port}"
        return ""

    def service_answers(self) -> bool:
        """Return True if the private Service has answered at its present address."""
        return bool(self.answered_address) and self.answered_address == self.cluster_address()

    # --- within ---

    def _read_endpoints(self, spec: RevisionSpec, before: ReportContext | None) -> dict[str, None]:
        """Read the endpoints; return the pods that may have changed, sorted by address."""
        port_name, with_tls = self.port_name, spec.connection.tls is not None
        if before is None or (before.port_name, before.with_tls) != (port_name, with_tls):
            self._pods.read_all(self.private.read_all(port_name, self._former), with_tls)
            touched: dict[str, None] = {}  # all pods are listed
            if self._shares:
                self._public_addresses.read_all(self.public.read_all(port_name, self._former))
        else:
            touched = self._pods.read(self.private.read(self._former), with_tls)
            if self._shares:
                self._public_addresses.read(self.public.read(self._former))
        if not self._pods:  # at zero there is nothing behind the Service
            self.answered_address = ""
        if self._shares:
            index, activators = self._public_addresses.place()
            if index != sharing.UNKNOWN:  # otherwise the last known place stays in force
                self.activators, self.index = activators, index
        return touched

    def _update_failure(self, revision: Revision, is_up: bool, now_s: float) -> str:
        """Record whether the conditions show a failure; return its cause in one line, empty if a start is possible."""
        failure = failure_of(revision)
        self.failing = failure is not None
        exits = failure is not None and not failure.is_certain and not is_up and len(self._pods) > 0
        self._exits_since_s = min(self._exits_since_s, now_s) if exits else NEVER
        if failure is None or is_up:
            return ""
        until_s = self._exits_since_s + EXITS_PATIENCE_S
        if not failure.is_certain and now_s < until_s:
            self.due_s = until_s
            return ""
        if failure.cause != self._failure:
            log.warning("%s: %s; its requests are refused until a pod answers: %s", self.key, *failure[:2])
        return failure.cause

    def _share_kind(self, spec: RevisionSpec, now_s: float) -> str:
        """Return the pods of which this activator has a share; without an index it is alone after SHARE_PATIENCE_S."""
        if not self._shares or spec.container_concurrency == 0:
            return EVERY
        if self.index != sharing.UNKNOWN:
            return SOME
        until_s = self._awaited_since_s + sharing.SHARE_PATIENCE_S
        self._is_alone = self._is_alone or now_s >= until_s
        self.due_s = min(self.due_s, NEVER if self._is_alone else until_s)
        return EVERY if self._is_alone else NONE

    def _share_out(self, touched: dict[str, None], proven: AbstractSet[str], now_s: float) -> None:
        """Share out the changed pods; add all pods whose share has changed to `touched`."""
        changed = {identity: self._address_to_share(identity) for identity in touched}
        changed.update({identity: self._address_to_share(identity) for identity in self._changed_answers})
        for address in self._shared.update(changed, proven, now_s, self.index, self.activators):
            touched.update(dict.fromkeys(self._pods.at(address)))
        self.due_s = min(self.due_s, self._shared.due_s)

    def _share_out_all(self, proven: AbstractSet[str], now_s: float) -> None:
        listed = {backend.identity: backend.address for backend in self._pods.all() if not backend.terminating}
        self._shared.update_all(listed, proven, now_s, self.index, self.activators)
        self.due_s = min(self.due_s, self._shared.due_s)

    def _address_to_share(self, identity: str) -> str | None:
        backend = self._pods.get(identity)
        return None if backend is None or backend.terminating else backend.address

    def _service_in_place(self, mode: str) -> str:
        """Return the Service's address if it replaces the pods; empty: pods are reached directly."""
        if (not self.by_service and mode != MESH_ENABLED) or not self.ready_pods or not self.service_answers():
            return ""
        return self.answered_address

    def _cluster_pod(self, spec: RevisionSpec, address: str, share: str) -> list[ObservedPod]:
        if not address:
            return []
        limit = self._cluster_limit(spec, share)
        if spec.connection.tls is not None:
            address = with_port(address, 443)
        return [ObservedPod(self.key, SOURCE, cluster_pod(address), address, PodStatus.READY, limit=limit)]

    def _cluster_limit(self, spec: RevisionSpec, share: str) -> int:
        """Return how many requests this activator may send to the Service."""
        if spec.container_concurrency == 0:
            return UNLIMITED
        if share == NONE:
            return 0
        activators = self.activators if self._shares else 1
        return sharing.share_of(self.ready_pods, spec.container_concurrency, activators)
