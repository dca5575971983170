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
  7. An event costs what it is about, not what the revision's pods are: of an EndpointSlice those of its pods that are
     not as they were (service_backends.py), of a pod that answers that one, and the pods whose share it moves
     (shared_pods.py). What is new of them is submitted pod by pod. All pods are read, and submitted as a list, where
     they are seen under other circumstances than before (pod_report.py), and after a loss.

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
    Circumstances,
    PodReport,
)
from activator.control_plane.sources.knative.revision_specs import believes_queue_proxy, protocol_of
from activator.control_plane.sources.knative.service_backends import REVISION_UID_LABEL, ServiceBackends, is_of
from activator.control_plane.sources.knative.shared_pods import SharedPods
from activator.control_plane.sources.pod_answers import PodAnswers, cluster_pod
from activator.kubernetes.objects import Endpoints, EndpointSlice, Revision, Service
from activator.messages import Change, PodSeen, PodStatus, RevisionFailed, RevisionRecovered, RevisionSet
from activator.runtime.clock import NEVER

EXITS_PATIENCE_S: Final = 20.0  # for pods whose container has exited: a kubelet has started it three times by then

log = logging.getLogger("activator.knative")


class RevisionBackends:
    """One revision. `shares`: this activator takes its share of the pods; `own_ip`: its address."""

    def __init__(self, key: str, own_ip: str, shares: bool) -> None:
        self.key = key
        self.revision: Revision | None = None
        self.services: dict[str, Service] = {}  # the private one, by name; two, while it is replaced
        self.private = ServiceBackends()
        self.public = ServiceBackends()
        # No pod could be reached the last time: requests go to their Service as a whole, once that has answered.
        self.by_service = False
        self.answered_address = ""  # of the Service, where it has answered as it is now
        self.activators = 0
        self.index = sharing.UNKNOWN
        self.due_s = NEVER  # when time alone changes something
        self.failing = False  # its conditions say that it cannot start; that ends with the first pod that answers
        self._pods = KnownPods()
        self._public_addresses = sharing.PublicAddresses(own_ip)
        self._shared = SharedPods()
        self._asked: set[str] = set()  # pods that may answer otherwise than when they were looked at
        self._awaited_since_s = NEVER  # since when requests wait
        self._is_alone = False  # requests have waited for its index, in vain
        self._shares = shares
        self._spec: RevisionSpec | None = None
        self._report = PodReport(key, self._pods, self._shared)
        self._circumstances: Circumstances | None = None  # of the last report; None: all of it has to be read anew
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

    @property
    def ready_pods(self) -> int:
        """For Kubernetes, and not about to go."""
        return len(self._pods.ready)

    def ready_addresses(self) -> Iterable[str]:
        return self._pods.ready.values()

    def answered(self, identity: str) -> None:
        """This pod may answer now, or no more."""
        if self._shares and identity in self._pods:
            self._asked.add(identity)

    def answers_lost(self) -> None:
        """Any of its pods may."""
        self._circumstances = None

    def changes(
        self, make: Callable[[Revision], RevisionSpec], mode: str, answers: PodAnswers, now_s: float
    ) -> list[Change]:
        """What has to be submitted now."""
        self.due_s = NEVER
        revision = self.revision
        if revision is None:
            return []
        before, self._circumstances = self._circumstances, None  # until all of this is done
        changes: list[Change] = []
        spec = make(revision)
        if spec != self._spec:
            self._spec = spec
            changes.append(RevisionSet(spec))
        touched = self._read(spec, before)
        failure = self._why_it_cannot_start(revision, answers.has_answer(self.key), now_s)
        if failure != self._failure:
            self._failure = failure
            changes.append(RevisionFailed(self.key, failure) if failure else RevisionRecovered(self.key))
        share = self._share(spec, now_s)
        service = self._service(mode)
        now = Circumstances(
            self.port_name,
            spec.tls is not None,
            mode,
            believes_queue_proxy(revision),
            service,
            share,
            (self.index, self.activators) if share == SOME else (),
        )
        proven = answers.proven(self.key)
        cluster = self._cluster_pod(spec, service, share)
        if now == before:
            if share == SOME:
                self._share_out(touched, proven, now_s)
            changes += self._report.differences(touched, cluster, now)
        else:
            if share == SOME:
                self._share_out_all(proven, now_s)
            changes += self._report.everything(cluster, now)
        self._asked = set()
        self._circumstances = now
        return changes

    def forget_submitted(self) -> None:
        """Some of it was lost: the next changes are everything."""
        self._spec = None
        self._circumstances = None
        self._report.forget()
        self._failure = None

    def events_lost(self, slices: list[EndpointSlice], endpoints: list[Endpoints]) -> None:
        """The history of these objects of the private Service is not known, only their current state."""
        if endpoints and self.private.has_slices:
            return  # they are not used
        self._pods.events_lost([*of_slices(slices, self.port_name), *of_endpoints(endpoints, self.port_name)])

    def gone(self) -> None:
        """The revision is gone; what is left of it must not be taken for its successor's."""
        left = [*self.private.objects(), *self.public.objects()]
        carried = {one.metadata.labels.get(REVISION_UID_LABEL, "") for one in (*left, *self.services.values())}
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
        self._failure = ""  # its successor begins without a failure
        self.failing = False
        self._exits_since_s = NEVER

    def is_empty(self) -> bool:
        """Nothing is known of it any more."""
        return not self.revision and not self.services and self.private.is_empty() and self.public.is_empty()

    def cluster_address(self) -> str:
        """The private Service as a whole, ip:port; empty where it has none."""
        for service in reversed(self.services.values()):  # the newest first
            if is_of(self._former, service):
                continue
            ip = service.spec.cluster_ip
            for port in service.spec.ports or []:
                if port.name == self.port_name and ip not in ("", "None"):
                    return f"[{ip}]:{port.port}" if ":" in ip else f"{ip}:{port.port}"
        return ""

    def service_answers(self) -> bool:
        """Whether the private Service has answered at the address that it has."""
        return bool(self.answered_address) and self.answered_address == self.cluster_address()

    # --- within ---

    def _read(self, spec: RevisionSpec, before: Circumstances | None) -> dict[str, None]:
        """Read what the endpoints say; the pods that may be other than before, sorted by address."""
        port_name, with_tls = self.port_name, spec.tls is not None
        if before is None or (before.port_name, before.with_tls) != (port_name, with_tls):
            self._pods.read_all(self.private.read_all(port_name, self._former), with_tls)
            touched: dict[str, None] = {}  # they are listed, all of them
            if self._shares:
                self._public_addresses.read_all(self.public.read_all(port_name, self._former))
        else:
            touched = self._pods.read(self.private.read(self._former), with_tls)
            if self._shares:
                self._public_addresses.read(self.public.read(self._former))
        if not self._pods:  # at zero: what was behind the Service has gone
            self.answered_address = ""
        if self._shares:
            place, activators = self._public_addresses.place()
            if place != sharing.UNKNOWN:  # else what was known stays in force
                self.activators, self.index = activators, place
        return touched

    def _why_it_cannot_start(self, revision: Revision, is_up: bool, now_s: float) -> str:
        """One line, or empty: it can, or may."""
        found = failure_of(revision)
        self.failing = found is not None
        exits = found is not None and not found.is_certain and not is_up and len(self._pods) > 0
        self._exits_since_s = min(self._exits_since_s, now_s) if exits else NEVER
        if found is None or is_up:
            return ""
        until_s = self._exits_since_s + EXITS_PATIENCE_S
        if not found.is_certain and now_s < until_s:
            self.due_s = until_s
            return ""
        if found.cause != self._failure:
            log.warning("%s: %s; its requests are refused until a pod answers: %s", self.key, *found[:2])
        return found.cause

    def _share(self, spec: RevisionSpec, now_s: float) -> str:
        """Of which pods this activator has a share."""
        if not self._shares or spec.container_concurrency == 0:
            return EVERY
        if self.index != sharing.UNKNOWN:
            return SOME
        until_s = self._awaited_since_s + sharing.SHARE_PATIENCE_S
        self._is_alone = self._is_alone or now_s >= until_s
        self.due_s = min(self.due_s, NEVER if self._is_alone else until_s)
        return EVERY if self._is_alone else NONE

    def _share_out(self, touched: dict[str, None], proven: AbstractSet[str], now_s: float) -> None:
        """Adds the pods whose share is another to those that are touched."""
        looked_at = {one: self._address_to_share(one) for one in touched}
        looked_at.update({one: self._address_to_share(one) for one in self._asked})
        for address in self._shared.look(looked_at, proven, now_s, self.index, self.activators):
            touched.update(dict.fromkeys(self._pods.at(address)))
        self.due_s = min(self.due_s, self._shared.due_s)

    def _share_out_all(self, proven: AbstractSet[str], now_s: float) -> None:
        listed = {one.identity: one.address for one in self._pods.all() if not one.terminating}
        self._shared.look_at_all(listed, proven, now_s, self.index, self.activators)
        self.due_s = min(self.due_s, self._shared.due_s)

    def _address_to_share(self, identity: str) -> str | None:
        one = self._pods.get(identity)
        return None if one is None or one.terminating else one.address

    def _service(self, mode: str) -> str:
        """The address of the Service in place of its pods, when it has answered; empty: they are reached themselves."""
        if (not self.by_service and mode != MESH_ENABLED) or not self.ready_pods or not self.service_answers():
            return ""
        return self.answered_address

    def _cluster_pod(self, spec: RevisionSpec, address: str, share: str) -> list[PodSeen]:
        if not address:
            return []
        limit = self._cluster_limit(spec, share)
        if spec.tls is not None:
            address = with_port(address, 443)
        return [PodSeen(self.key, SOURCE, cluster_pod(address), address, PodStatus.READY, limit=limit)]

    def _cluster_limit(self, spec: RevisionSpec, share: str) -> int:
        """How many requests the Service as a whole may get from here."""
        if spec.container_concurrency == 0:
            return UNLIMITED
        if share == NONE:
            return 0
        activators = self.activators if self._shares else 1
        return sharing.share_of(self.ready_pods, spec.container_concurrency, activators)
