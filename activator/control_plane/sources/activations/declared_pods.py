"""The pods of one declared revision: from its slices to the changes that are submitted.

Rules
  1. Submitted pods are kept, and only differences are submitted: a slice costs in proportion to its endpoints.
  2. A pod that Kubernetes reports as ready is probed before it gets requests: without a readiness probe Kubernetes
     reports a container as ready as soon as it has started. A pod that is not ready is probed only if the object
     declares a `probe`; it then counts from its first answer, without waiting for the kubelet's probe interval.
  3. A pod that was ready and became unready, or whose events were lost, may run another program: it is probed again
     before it gets new requests. Its `restarts` count these events, even if both transitions came in one turn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.sources.cluster.backends import Backend, of_slice
from activator.control_plane.sources.cluster.slice_index import SliceIndex
from activator.kubernetes.objects import EndpointSlice
from activator.messages import Change, ObservedPod, PodGone, PodStatus

SOURCE: Final = "kubernetes"
PORT_NAME: Final = "pods"  # the name of the only port of the private Service


class _Readiness(NamedTuple):
    is_ready: bool
    restarts: int


_NEVER_READY: Final = _Readiness(False, 0)


class DeclaredPods:
    """The pods of one revision."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._index = SliceIndex(PORT_NAME)
        self._changed: dict[str, EndpointSlice | None] = {}  # slices by name; None: removed
        self._doubted: set[str] = set()  # pods that were unready for a while, or may have been
        self._readiness: dict[str, _Readiness] = {}
        self._submitted: dict[str, ObservedPod] = {}
        self._resubmit_all = False  # changes may have been lost

    def put_slice(self, name: str, changed: EndpointSlice | None) -> None:
        """Record the state of a slice; None: it was removed."""
        earlier = self._changed.get(name)
        if earlier is not None:  # changed twice in one turn: the new state may hide that a pod was unready
            for identity, backend in of_slice(earlier, PORT_NAME).items():
                if not backend.ready:
                    self._doubted.add(identity)
        self._changed[name] = changed

    def events_lost(self, present: EndpointSlice) -> None:
        """Record that events of the slice were lost and that this is its present state."""
        self._doubted.update(of_slice(present, PORT_NAME))

    def forget_submitted(self) -> None:
        """Have all pods submitted again: some changes were lost."""
        self._resubmit_all = True

    def end(self) -> None:
        """Forget the submitted pods: the revision is no longer served. If it is served again, all are submitted."""
        self._index.read(self._changed)
        self._changed, self._submitted, self._readiness = {}, {}, {}
        self._doubted = set()
        self._resubmit_all = True

    def is_empty(self) -> bool:
        """Return True if no pod is known."""
        return not len(self._index) and not any(self._changed.values())

    def take_changes(self, is_probed: bool) -> list[Change]:
        """Return the changes to submit, removals first, and record them. `is_probed`: the object has a `probe`."""
        removed: list[Change] = []
        updated: list[Change] = []
        for identity, backend in self._take_changed_pods().items():
            if backend is None:
                self._readiness.pop(identity, None)
                if self._submitted.pop(identity, None) is not None:
                    removed.append(PodGone(self._key, SOURCE, identity))
                continue
            seen = self._observe(backend, is_probed)
            if self._submitted.get(identity) != seen or self._resubmit_all:
                self._submitted[identity] = seen
                updated.append(seen)
        self._resubmit_all = False
        self._doubted = set()
        return removed + updated

    def _take_changed_pods(self) -> dict[str, Backend | None]:
        """Read the changed slices; return the pods that may have to be submitted, by identity; None: removed."""
        changed, self._changed = self._changed, {}
        changed_pods = self._index.read(changed)
        pods = self._index.pods
        if self._resubmit_all:
            removed = [identity for identity in self._submitted if identity not in pods]
            return {**dict.fromkeys(removed), **pods}
        for identity in sorted(self._doubted - changed_pods.keys()):
            if identity in pods:
                changed_pods[identity] = pods[identity]
        return changed_pods

    def _observe(self, pod: Backend, is_probed: bool) -> ObservedPod:
        """Record the pod's readiness; return the pod as it is submitted, with its restarts counted (rule 3)."""
        before = self._readiness.get(pod.identity, _NEVER_READY)
        may_have_restarted = (
            before.is_ready and not pod.terminating and (not pod.ready or pod.identity in self._doubted)
        )
        readiness = self._readiness[pod.identity] = _Readiness(pod.ready, before.restarts + may_have_restarted)
        if pod.terminating:
            status, probe = PodStatus.DRAINING, False
        elif pod.ready or is_probed:
            status, probe = PodStatus.PENDING, True
        else:
            status, probe = PodStatus.NOT_READY, False
        return ObservedPod(
            self._key, SOURCE, pod.identity, pod.address, status, probe, restarts=readiness.restarts, zone=pod.zone
        )
